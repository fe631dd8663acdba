"""What a tokenizer returned, divided into the documents that it holds: without padding, packed ones apart.

Padding is what the mask hides. Packed documents keep apart by positions that begin again, beside which a mask of blocks
may stand. A mask that hides anything else is refused: every document is verified with the mask of the model's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from attnviz.arguments import as_found
from attnviz.errors import UsageError

_READ = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
_NOT_READ = ("special_tokens_mask", "offset_mapping", "length", "overflow_to_sample_mapping", "labels")
"""What no attention depends on; ``labels`` only where there is no decoder that reads them."""

_HIDDEN = -1e4
"""What is added to a score is at most this where a mask hides a key, in float16, too."""


@dataclass(frozen=True)
class Document:
    """One text by its ids, and its token types where they were given."""

    ids: tuple[int, ...]
    type_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Reading:
    """How a model reads ids.

    Attributes:
        causal: whether a token sees only what precedes it.
        first_position: where positions begin.
        window: the shortest; None for none.
        decodes: whether a decoder reads ``labels``.
        padding: the id of the padding token; None where the tokenizer has none.
        least_padding: how many of it at an end are no text: 2 where the same token begins or ends a text.
    """

    causal: bool
    first_position: int = 0
    window: int | None = None
    decodes: bool = False
    padding: int | None = None
    least_padding: int = 1


def documents_of(inputs: Mapping[str, Any], reading: Reading) -> list[Document]:
    """The documents of what a tokenizer returned, row by row.

    Read are ``input_ids`` and ``token_type_ids``, [n] or [batch, n], ``position_ids``, and ``attention_mask``, [n],
    [batch, n], or with a row for each query [batch, 1 or n_heads, n, n]: True for seen, or a number to be added, 0 for
    seen.

    Raises:
        UsageError: another entry, another shape, padding without a mask, a mask or positions that no document of its
            own would have.
    """
    _refuse_others(inputs, reading)
    rows = _rows("input_ids", inputs["input_ids"])
    types = _of_rows("token_type_ids", inputs, rows)
    positions = _of_rows("position_ids", inputs, rows)
    is_square = _n_axes(inputs.get("attention_mask")) > 2
    masks: list[Any] = (
        _squares(inputs["attention_mask"], rows) if is_square else _of_rows("attention_mask", inputs, rows)
    )
    found = list[Document]()
    for number, (ids, mask) in enumerate(zip(rows, masks, strict=True)):
        if mask is None:
            _refuse_padding(ids, number, reading)
            kept = list(range(len(ids)))
        else:
            kept = _kept(_seen_keys(mask, number, reading) if is_square else mask, number)
        starts = [0]
        if positions[number] is not None:
            starts = _begun([positions[number][at] for at in kept], number, reading.first_position)
        if is_square:
            _refuse_other_masks(mask, kept, starts, number, reading)
        for first, last in zip(starts, [*starts[1:], len(kept)], strict=True):
            places = kept[first:last]
            of_document = None if types[number] is None else tuple(types[number][at] for at in places)
            found.append(Document(tuple(ids[at] for at in places), of_document))
    return found


def _refuse_others(inputs: Mapping[str, Any], reading: Reading) -> None:
    if "input_ids" not in inputs:
        found = ", ".join(map(str, inputs)) or "nothing"
        raise UsageError(f"expected input_ids, as a tokenizer returns them, found {found}.")
    for name, value in inputs.items():
        ignored = name in _NOT_READ and not (name == "labels" and reading.decodes)
        if name not in _READ and not ignored and value is not None:
            hint = " Give what the decoder reads as text: target=..." if reading.decodes else ""
            raise UsageError(
                f"expected {', '.join(_READ)}, found {name!r}, which attnviz does not read; leave it out.{hint}"
            )


def _n_axes(value: Any) -> int:
    if hasattr(value, "ndim"):
        return int(value.ndim)
    return 1 + _n_axes(value[0]) if isinstance(value, list | tuple) and value else 0


def _rows(name: str, value: Any) -> list[list[int]]:
    """Rows of whole numbers, from a tensor, an array or lists, [n] or [batch, n]."""
    rows = list(value) if _n_axes(value) > 1 else [value]
    listed = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
    for row in listed:
        if not isinstance(row, list | tuple) or not row or not all(isinstance(each, Integral) for each in row):
            raise UsageError(f"expected {name} as whole numbers, [n] or [batch, n], found {as_found(value)}.")
    return [list(map(int, row)) for row in listed]


def _of_rows(name: str, inputs: Mapping[str, Any], rows: Sequence[Sequence[int]]) -> list[Any]:
    """Another entry, row for row as long as the ids; None for each where it was not given."""
    if inputs.get(name) is None:
        return [None] * len(rows)
    found = _rows(name, inputs[name])
    if len(found) == 1:
        found = found * len(rows)
    sizes, expected = [len(each) for each in found], [len(row) for row in rows]
    if sizes != expected:
        raise UsageError(
            f"expected {name} of the lengths of input_ids {expected}, found {sizes}; pad the rows to one length "
            "(padding=True), or give lists without padding."
        )
    return found


def _refuse_padding(ids: Sequence[int], number: int, reading: Reading) -> None:
    """Raise UsageError for padding at an end of a row without a mask, which the model would read as text."""
    runs = [(token, len(list(run))) for token, run in groupby(ids)]
    for token, length in (runs[0], runs[-1]):
        if token == reading.padding and length >= reading.least_padding:
            raise _refused(
                "attention_mask",
                number,
                "beside input_ids with padding (all 1, if the model is to read it as text)",
                f"none, and the padding token {token} at an end",
            )


def _kept(mask: Sequence[int], number: int) -> list[int]:
    """The tokens that a mask [n] shows, which stand together."""
    if not set(mask) <= {0, 1}:
        raise _refused("attention_mask", number, "of 0 and 1", f"{max(mask)}")
    kept = [at for at, seen in enumerate(mask) if seen]
    if not kept:
        raise _refused("attention_mask", number, "that shows a token", "none")
    if kept[-1] - kept[0] + 1 != len(kept):
        hidden = next(at for at in range(kept[0], kept[-1]) if at not in kept)
        raise _refused("attention_mask", number, "that hides padding at the ends alone", f"token {hidden} hidden")
    return kept


def _begun(positions: Sequence[int], number: int, first: int) -> list[int]:
    """Where positions begin again; between that they go up by one."""
    for at, position in enumerate(positions):
        if position != first and (at == 0 or position != positions[at - 1] + 1):
            raise _refused(
                "position_ids",
                number,
                f"that count from {first} on, and from {first} again for each document",
                f"{position} at token {at}",
            )
    return [at for at, position in enumerate(positions) if position == first]


def _squares(mask: Any, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """A mask with a row for each query, as the keys seen, boolean [n, n] for each row of ids."""
    given, n = torch.as_tensor(mask).detach().cpu(), len(rows[0])
    fits = given.ndim == 4 and given.shape[0] in (1, len(rows)) and given.shape[2:] == (n, n)
    if not fits or any(len(row) != n for row in rows):
        raise UsageError(
            f"expected attention_mask of the shape [batch, n], or [batch, 1, n, n] with {len(rows)} and {n}, found "
            f"{list(given.shape)}."
        )
    if given.is_floating_point():
        seen, hidden = given == 0, given <= _HIDDEN
        if not bool((seen | hidden).all()):
            raise UsageError(
                "expected attention_mask with numbers to be added, 0 or the lowest, found "
                f"{float(given[~(seen | hidden)][0]):.4g}; a mask of 0 and 1 is boolean, or of whole numbers."
            )
    else:
        seen = given.bool()
    if not bool((seen == seen[:, :1]).all()):
        raise UsageError("expected attention_mask to be the same for all heads, found heads with masks of their own.")
    return list(seen[:, 0].expand(len(rows), -1, -1))


def _seen_keys(mask: Tensor, number: int, reading: Reading) -> list[int]:
    """1 for each key that a mask [n, n] shows, without rows of padding, which transformers leaves without a mask."""
    if reading.window is not None and reading.window < len(mask):
        raise _refused(
            "attention_mask",
            number,
            f"of the shape [batch, n], since this model has windows of {reading.window}",
            "one with a row for each query",
        )
    is_padding = mask.all(1) & (torch.arange(len(mask)) < len(mask) - 1) & reading.causal
    return list(map(int, mask[~is_padding].any(0)))


def _refuse_other_masks(
    mask: Tensor, kept: Sequence[int], starts: Sequence[int], number: int, reading: Reading
) -> None:
    """Raise UsageError unless a mask [n, n] is the model's own, for documents that begin at ``starts`` of ``kept``."""
    begins = torch.zeros(len(kept), dtype=torch.long)
    begins[list(starts)] = 1
    document = begins.cumsum(0)
    own = document[:, None] == document
    if reading.causal:
        own = own.tril()
    seen = mask[kept][:, kept]
    for query, key in (seen != own).nonzero().tolist()[:1]:
        does = "shows" if seen[query, key] else "hides"
        kind = "causal" if reading.causal else "without a mask between its tokens"
        raise _refused(
            "attention_mask",
            number,
            f"that is {kind}, as this model's own is, and position_ids that begin again with each document",
            f"a mask that {does} token {kept[key]} to token {kept[query]}",
        )


def _refused(name: str, number: int, expected: str, found: str) -> UsageError:
    return UsageError(f"expected {name} {expected}, found {found} (row {number}).")
