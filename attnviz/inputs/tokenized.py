"""What a tokenizer returned, divided into the documents that it holds: without padding, packed ones apart.

Padding is what the mask hides. Packed documents keep apart by positions that begin again. A mask with a row for each
query is refused: every document is verified with the mask of the model's own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from attnviz.arguments import as_found, is_whole
from attnviz.errors import CheckpointError, TextError, UsageError
from attnviz.inputs.encoding import (
    encodings,
    n_token_types,
    of_fast,
    prompt_of,
    prompt_of_ids,
    refuse_images,
    special_ids,
    vocabulary_size,
)
from attnviz.inputs.prompt import Prompt, Text, read_prompt
from attnviz.inputs.words import WORDPIECE, continues_mark
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.base import first_position

_READ = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
# What no attention depends on; ``labels`` only where there is no decoder that reads them.
_NOT_READ = ("special_tokens_mask", "offset_mapping", "length", "overflow_to_sample_mapping", "labels")


@dataclass(frozen=True)
class TokenIds:
    """The ids of one document, as a tokenizer returned them, and its token types where they were given."""

    ids: tuple[int, ...]
    type_ids: tuple[int, ...] | None = None


@read_prompt.register
def _(given: TokenIds, checkpoint: Checkpoint, truncate: bool = False) -> Prompt:  # noqa: ARG001 - the tokenizer cuts
    """The prompt of ids.

    Where the tokenizer gives these ids for their text again, it has the words of that; else words begin at spaces.
    TextError for too many; UsageError for ids or token types that the model has not, or special tokens alone.
    """
    ids, types = given.ids, given.type_ids or (0,) * len(given.ids)
    special, size, n_types = special_ids(checkpoint.tokenizer), vocabulary_size(checkpoint), n_token_types(checkpoint)
    if len(ids) > checkpoint.positions:
        raise TextError(
            f"the input_ids have {len(ids)} tokens, but the model has {checkpoint.positions} "
            f"positions{checkpoint.limit}; let the tokenizer cut them: truncation=True."
        )
    refuse_images(checkpoint, ids)
    wrong = [token for token in ids if not 0 <= token < size]
    if wrong:
        raise UsageError(f"expected input_ids from 0 to {size - 1}, found {wrong[0]}.")
    if not all(0 <= kind < (n_types or 1) for kind in types):
        raise UsageError(f"expected token_type_ids below {n_types or 1}, as this model has them, found {max(types)}.")
    if special.issuperset(ids):
        raise UsageError("expected input_ids of a text, found special tokens alone.")
    candidates = (prompt for prompt in _readings(checkpoint, ids, special) if prompt.ids == ids)
    prompt = next(candidates, None) or prompt_of_ids(checkpoint, ids)
    return replace(prompt, type_ids=None if n_types is None else types)


def _readings(checkpoint: Checkpoint, ids: tuple[int, ...], special: set[int]) -> Iterator[Prompt]:
    """What the tokenizer makes of the text of ids, and its pair: perhaps other ids."""
    tokenizer = checkpoint.tokenizer
    runs = [list(run) for is_special, run in groupby(ids, key=special.__contains__) if not is_special]
    spaces = {"clean_up_tokenization_spaces": True} if continues_mark(tokenizer) == WORDPIECE else {}
    texts = [tokenizer.decode(run, **spaces) for run in runs[:2]]
    if len(runs) <= 2 and all(map(str.strip, texts)):
        with suppress(TextError, CheckpointError):
            [encoding] = encodings(checkpoint, texts[:1], texts[1:] or None)
            yield prompt_of(checkpoint, encoding, Text(texts[0], pair=texts[1] if len(texts) > 1 else None))
    if getattr(tokenizer, "is_fast", False):  # special tokens may stand in the text, as in a chat: none are added
        text = tokenizer.decode(ids)
        [again] = tokenizer([text], add_special_tokens=False, return_token_type_ids=True, verbose=False).encodings
        yield prompt_of(checkpoint, of_fast(again).with_special([token in special for token in again.ids]), Text(text))


def documents_of(checkpoint: Checkpoint, inputs: Mapping[str, Any]) -> list[TokenIds]:
    """The documents of what a tokenizer returned, row by row.

    Read are ``input_ids``, ``attention_mask`` (0 and 1), ``position_ids`` and ``token_type_ids``, [n] or [batch, n].
    UsageError for another entry or shape, padding without a mask, or a mask or positions that no document of its own
    would have.
    """
    padding, *ends = (getattr(checkpoint.tokenizer, f"{name}_token_id", None) for name in ("pad", "bos", "eos"))
    least_padding = 2 if padding in ends else 1  # how many of it at an end are no text: the token also ends one
    first, decodes = first_position(checkpoint.architecture, checkpoint.config), bool(checkpoint.stacks)
    if "input_ids" not in inputs:
        names = ", ".join(map(str, inputs)) or "nothing"
        raise UsageError(f"expected input_ids, as a tokenizer returns them, found {names}.")
    for name, value in inputs.items():
        ignored = name in _NOT_READ and not (name == "labels" and decodes)
        if name not in _READ and not ignored and value is not None:
            hint = " Give what the decoder reads as text: target=..." if decodes else ""
            raise UsageError(
                f"expected {', '.join(_READ)}, found {name!r}, which attnviz does not read; leave it out.{hint}"
            )
    if _n_axes(inputs.get("attention_mask")) > 2:
        raise UsageError(
            "expected attention_mask as 0 and 1, [n] or [batch, n], found one with a row for each query; leave it out: "
            "documents in one row are divided by position_ids that begin again."
        )
    rows = _rows("input_ids", inputs["input_ids"])
    masks, positions, types = (_of_rows(name, inputs, rows) for name in _READ[1:])
    found = list[TokenIds]()
    for number, ids in enumerate(rows):
        kept = _kept(ids, masks[number], number, padding, least_padding)
        starts = [0]
        if positions[number] is not None:
            starts = _begun([positions[number][place] for place in kept], number, first)
        for start, end in zip(starts, [*starts[1:], len(kept)], strict=True):
            places = kept[start:end]
            of_document = None if types[number] is None else tuple(types[number][place] for place in places)
            found.append(TokenIds(tuple(ids[place] for place in places), of_document))
    return found


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
        is_row = isinstance(row, list | tuple) and row
        if not is_row or not all(is_whole(item) or (may_be_bool and isinstance(item, bool)) for item in row):
            raise UsageError(f"expected {name} as whole numbers, [n] or [batch, n], found {as_found(value)}.")
    return [list(map(int, row)) for row in listed]


def _of_rows(name: str, inputs: Mapping[str, Any], rows: Sequence[Sequence[int]]) -> list[Any]:
    """Another entry, row for row as long as the ids; None for each where it was not given."""
    if inputs.get(name) is None:
        return [None] * len(rows)
    entry = _rows(name, inputs[name])
    if len(entry) == 1:
        entry = entry * len(rows)
    sizes, expected = ([len(row) for row in of_rows] for of_rows in (entry, rows))
    if sizes != expected:
        raise UsageError(
            f"expected {name} of the lengths of input_ids {expected}, found {sizes}; pad the rows to one length "
            "(padding=True), or give lists without padding."
        )
    return entry


def _kept(
    ids: Sequence[int], mask: Sequence[int] | None, number: int, padding: int | None, least_padding: int
) -> list[int]:
    """The tokens that a mask [n] shows, which stand together; without one all, which may not be padding at an end."""
    if mask is None:
        runs = [(token, len(list(run))) for token, run in groupby(ids)]
        for token, length in (runs[0], runs[-1]):
            if token == padding and length >= least_padding:
                expected = "beside input_ids with padding (all 1, if the model is to read it as text)"
                raise _refused("attention_mask", number, expected, f"none, and the padding token {token} at an end")
        return list(range(len(ids)))
    if not set(mask) <= {0, 1}:
        raise _refused("attention_mask", number, "of 0 and 1", f"{max(mask)}")
    kept = [place for place, seen in enumerate(mask) if seen]
    if not kept:
        raise _refused("attention_mask", number, "that shows a token", "none")
    if kept[-1] - kept[0] + 1 != len(kept):
        hidden = mask.index(0, kept[0])
        raise _refused("attention_mask", number, "that hides padding at the ends alone", f"token {hidden} hidden")
    return kept


def _begun(positions: Sequence[int], number: int, first: int) -> list[int]:
    """Where positions begin again; between that they go up by one."""
    for place, position in enumerate(positions):
        if position != first and (place == 0 or position != positions[place - 1] + 1):
            expected = f"that count from {first} on, and from {first} again for each document"
            raise _refused("position_ids", number, expected, f"{position} at token {place}")
    return [place for place, position in enumerate(positions) if position == first]


def _refused(name: str, number: int, expected: str, found: str) -> UsageError:
    return UsageError(f"expected {name} {expected}, found {found} (row {number}).")
