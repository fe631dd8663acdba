"""What a tokenizer returned, divided into the documents that it holds: without padding, packed ones apart.

Padding is what the mask hides. Packed documents keep apart by positions that begin again. A mask with a row for each
query is refused: every document is verified with the mask of the model's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from numbers import Integral
from typing import Any

from attnviz.arguments import as_found
from attnviz.errors import UsageError

_READ = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
_NOT_READ = ("special_tokens_mask", "offset_mapping", "length", "overflow_to_sample_mapping", "labels")
"""What no attention depends on; ``labels`` only where there is no decoder that reads them."""


@dataclass(frozen=True)
class Document:
    """One text by its ids, and its token types where they were given."""

    ids: tuple[int, ...]
    type_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Reading:
    """How a model reads ids.

    Attributes:
        first_position: where positions begin.
        decodes: whether a decoder reads ``labels``.
        padding: the id of the padding token; None where the tokenizer has none.
        least_padding: how many of it at an end are no text: 2 where the same token begins or ends a text.
    """

    first_position: int = 0
    decodes: bool = False
    padding: int | None = None
    least_padding: int = 1


def documents_of(inputs: Mapping[str, Any], reading: Reading) -> list[Document]:
    """The documents of what a tokenizer returned, row by row.

    Read are ``input_ids``, ``attention_mask`` (0 and 1), ``position_ids`` and ``token_type_ids``, [n] or [batch, n].

    Raises:
        UsageError: another entry, another shape, padding without a mask, a mask or positions that no document of its
            own would have.
    """
    _refuse_others(inputs, reading)
    rows = _rows("input_ids", inputs["input_ids"])
    masks, positions, types = (_of_rows(name, inputs, rows) for name in _READ[1:])
    found = list[Document]()
    for number, ids in enumerate(rows):
        if masks[number] is None:
            _refuse_padding(ids, number, reading)
            kept = list(range(len(ids)))
        else:
            kept = _kept(masks[number], number)
        starts = [0]
        if positions[number] is not None:
            starts = _begun([positions[number][at] for at in kept], number, reading.first_position)
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
    if _n_axes(inputs.get("attention_mask")) > 2:
        raise UsageError(
            "expected attention_mask as 0 and 1, [n] or [batch, n], found one with a row for each query; leave it out: "
            "documents in one row are divided by position_ids that begin again."
        )


def _n_axes(value: Any) -> int:
    if hasattr(value, "ndim"):
        return int(value.ndim)
    return 1 + _n_axes(value[0]) if isinstance(value, list | tuple) and value else 0


def _rows(name: str, value: Any) -> list[list[int]]:
    """Rows of whole numbers, from a tensor, an array or lists, [n] or [batch, n]."""
    may_be_bool = name == "attention_mask"
    try:
        rows = list(value) if _n_axes(value) > 1 else [value]
        listed = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
    except (RuntimeError, TypeError) as error:  # of torch: a sparse tensor, or one on the device meta
        raise UsageError(f"expected {name} as a dense tensor or lists, found {as_found(value)}.") from error
    for row in listed or [[]]:
        if (
            not isinstance(row, list | tuple)
            or not row
            or not all(isinstance(each, Integral) and (may_be_bool or not isinstance(each, bool)) for each in row)
        ):
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


def _refused(name: str, number: int, expected: str, found: str) -> UsageError:
    return UsageError(f"expected {name} {expected}, found {found} (row {number}).")
