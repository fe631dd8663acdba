"""What a tokenizer returned, divided into the documents that it holds: without padding, packed ones apart.

Padding is what the mask hides. Packed documents keep apart by a mask of blocks, or by positions that begin again. A
mask that hides anything else is refused: every document is verified with the mask of the model's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnviz.arguments import as_found, is_whole
from attnviz.errors import UsageError

_NOT_READ = ("special_tokens_mask", "offset_mapping", "length", "overflow_to_sample_mapping", "labels")
"""What no attention depends on; ``labels`` only where there is no decoder that reads them."""

_HIDDEN = -1e4
"""What is added to a score is at most this where a mask hides a key, in float16, too."""

_PAD = "pad the rows to one length (padding=True), or give lists without padding"


@dataclass(frozen=True)
class Document:
    """One text by its ids, and its token types where they were given."""

    ids: tuple[int, ...]
    type_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Reading:
    """How a model reads ids: whether it is causal, its first position, and its shortest window (None for none)."""

    causal: bool
    first_position: int = 0
    window: int | None = None
    decodes: bool = False


def documents_of(inputs: Mapping[str, Any], reading: Reading) -> list[Document]:
    """The documents of what a tokenizer returned, row by row.

    Read are ``input_ids`` and ``token_type_ids``, [n] or [batch, n], ``position_ids``, and ``attention_mask``, [n],
    [batch, n], or with a row for each query [batch, 1 or n_heads, n, n]: True for seen, or a number to be added, 0 for
    seen.

    Raises:
        UsageError: another entry, another shape, a mask or positions that no document of its own would have.
    """
    _refuse_others(inputs, reading)
    rows = _rows("input_ids", inputs["input_ids"])
    types = _of_rows("token_type_ids", inputs, rows)
    positions = _of_rows("position_ids", inputs, rows)
    mask = inputs.get("attention_mask")
    square = mask is not None and _n_axes(mask) > 2
    masks: list[Any] = _squares(mask, rows) if square else _of_rows("attention_mask", inputs, rows)
    found = list[Document]()
    for number, ids in enumerate(rows):
        if square:
            kept, starts = _blocks(masks[number], number, reading)
        else:
            kept, starts = _without_padding(masks[number], number, len(ids)), [0]
        given = positions[number]
        if given is not None:
            begun = _begun([given[at] for at in kept], number, reading.first_position)
            if square and begun != starts:
                raise _refused(
                    "position_ids",
                    number,
                    "that begin again with each document of the mask",
                    f"new beginnings at tokens {begun}, and documents at {starts}",
                )
            starts = begun
        elif len(starts) > 1:
            raise _refused(
                "attention_mask", number, "with several documents beside position_ids that begin again", "none"
            )
        of_row = types[number]
        for first, last in zip(starts, [*starts[1:], len(kept)], strict=True):
            places = kept[first:last]
            types_here = None if of_row is None else tuple(of_row[at] for at in places)
            found.append(Document(tuple(ids[at] for at in places), types_here))
    return found


def _refuse_others(inputs: Mapping[str, Any], reading: Reading) -> None:
    known = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
    if "input_ids" not in inputs:
        found = ", ".join(map(str, inputs)) or "nothing"
        raise UsageError(f"expected input_ids, as a tokenizer returns them, found {found}.")
    for name, value in inputs.items():
        ignored = name in _NOT_READ and not (name == "labels" and reading.decodes)
        if name not in known and not ignored and value is not None:
            hint = " Give what the decoder reads as text: target=..." if reading.decodes else ""
            raise UsageError(f"expected {', '.join(known)}, found {name!r}, which attnviz does not read.{hint}")


def _n_axes(value: Any) -> int:
    if hasattr(value, "ndim"):
        return int(value.ndim)
    return 1 + _n_axes(value[0]) if isinstance(value, list | tuple) and value else 0


def _rows(name: str, value: Any) -> list[list[int]]:
    """Rows of whole numbers, from a tensor, an array or lists, [n] or [batch, n]."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    nested = listed if isinstance(listed, list | tuple) and listed and _n_axes(listed) > 1 else [listed]
    for row in nested:
        if (
            not isinstance(row, list | tuple)
            or not row
            or not all(is_whole(each) or isinstance(each, bool) for each in row)
        ):
            raise UsageError(f"expected {name} as whole numbers, [n] or [batch, n], found {as_found(value)}.")
    return [list(map(int, row)) for row in nested]


def _of_rows(name: str, inputs: Mapping[str, Any], rows: Sequence[Sequence[int]]) -> list[Any]:
    """Another entry, row for row as long as the ids; None for each where it was not given."""
    if inputs.get(name) is None:
        return [None] * len(rows)
    found = _rows(name, inputs[name])
    if len(found) == 1:
        found = found * len(rows)
    sizes, expected = [len(each) for each in found], [len(row) for row in rows]
    if sizes != expected:
        raise UsageError(f"expected {name} of the lengths of input_ids {expected}, found {sizes}; {_PAD}.")
    return found


def _without_padding(mask: Sequence[int] | None, number: int, n: int) -> list[int]:
    """The tokens that a mask [n] shows, which stand together."""
    if mask is None:
        return list(range(n))
    if not set(mask) <= {0, 1}:
        raise _refused("attention_mask", number, "of 0 and 1", f"{max(mask)}")
    return _together([at for at, seen in enumerate(mask) if seen], number)


def _together(kept: list[int], number: int) -> list[int]:
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
    given = torch.as_tensor(mask).detach().cpu()
    n = len(rows[0])
    if given.ndim == 3:
        given = given[:, None]
    fits = given.ndim == 4 and given.shape[0] in (1, len(rows)) and given.shape[2:] == (n, n)
    if not fits or any(len(row) != n for row in rows):
        raise UsageError(
            f"expected attention_mask of the shape [batch, n], or [batch, 1, n, n] with {len(rows)} and {n}, found "
            f"{list(torch.as_tensor(mask).shape)}."
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


def _blocks(seen: Tensor, number: int, reading: Reading) -> tuple[list[int], list[int]]:
    """The tokens that a mask [n, n] shows, and where each document among them begins."""
    n = len(seen)
    if reading.window is not None and reading.window < n:
        raise _refused(
            "attention_mask",
            number,
            f"of the shape [batch, n], since this model has windows of {reading.window}",
            "one with a row for each query",
        )
    if reading.causal:  # rows of padding, which transformers leaves without a mask
        open_rows = seen.all(1) & (torch.arange(n) < n - 1)
        seen = seen & ~open_rows[:, None]
    kept = _together(seen.any(0).nonzero()[:, 0].tolist(), number)
    seen = seen[kept][:, kept]
    starts = _first_of_blocks(seen | seen.T)
    for first, last in zip(starts, [*starts[1:], len(kept)], strict=True):
        whole = torch.ones(last - first, last - first, dtype=torch.bool)
        differs = (seen[first:last, first:last] != (whole.tril() if reading.causal else whole)).nonzero()
        if len(differs):
            query, key = (kept[first + int(at)] for at in differs[0])
            what = "shows" if bool(seen[kept.index(query), kept.index(key)]) else "hides"
            kind = "causal" if reading.causal else "without a mask between its tokens"
            raise _refused(
                "attention_mask",
                number,
                f"of documents that are {kind}, as this model's own is",
                f"one that {what} token {key} to token {query}",
            )
    return kept, starts


def _first_of_blocks(linked: Tensor) -> list[int]:
    """Where blocks begin: nothing from there on is linked with anything before, boolean [n, n]."""
    first_linked = linked.int().argmax(1)
    first_after = first_linked.flip(0).cummin(0).values.flip(0)
    return (first_after >= torch.arange(len(linked))).nonzero()[:, 0].tolist()


def _refused(name: str, number: int, expected: str, found: str) -> UsageError:
    return UsageError(f"expected {name} {expected}, found {found} (row {number}).")
