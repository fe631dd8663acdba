"""How a head is named, and how a selection of heads is read."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from attnviz.arguments import is_whole
from attnviz.errors import UsageError

__all__ = ["HeadId", "all_heads", "head_named", "select_heads", "selection_texts"]

_ONE_HEAD = re.compile(r"L?([0-9]{1,6})(?:H|\.)([0-9]{1,6})", re.IGNORECASE)
_SELECTION = re.compile(
    r"(?:L?(?P<l1>[0-9]{1,6}|\*)(?:-L?(?P<l2>[0-9]{1,6}))?(?:H|\.)(?P<h1>[0-9]{1,6}|\*)(?:-H?(?P<h2>[0-9]{1,6}))?"
    r"|L(?P<layer1>[0-9]{1,6}|\*)(?:-L?(?P<layer2>[0-9]{1,6}))?)",
    re.IGNORECASE,
)
_FORMS = "L2H8, 2.8, L2 (a layer), L0-3 (layers), L*H8 (head 8 of every layer)"


class HeadId(NamedTuple):
    """A head by layer and position in the layer, both counted from 0; prints as ``L2H8``."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    @property
    def file_stem(self) -> str:
        """The id zero-padded so that a file listing sorts in the model's order: ``L02H08``."""
        return f"L{self.layer:02d}H{self.head:02d}"

    @classmethod
    def parse(cls, text: str) -> "HeadId":
        """Read ``L2H8`` or ``2.8``.

        Raises:
            UsageError: the text names no head.
        """
        match = _ONE_HEAD.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"expected a head such as L2H8 or 2.8, found {text!r}.")
        return cls(int(match[1]), int(match[2]))


def head_named(given: object, n_layers: int, n_heads: int, others: str = "") -> HeadId:
    """One head of a model, as a caller names it.

    Args:
        given: ``L2H8``, ``2.8``, or a HeadId (a pair of numbers).
        n_layers: layers of the model.
        n_heads: heads in each layer.
        others: what could have been given instead, for the message; ends in ``or``.

    Raises:
        UsageError: it names no head, or one that the model lacks.
    """
    match = _ONE_HEAD.fullmatch(given.strip()) if isinstance(given, str) else None
    pair = (int(match[1]), int(match[2])) if match else given if isinstance(given, tuple) else ()
    if [is_whole(number) for number in pair] != [True, True]:
        raise UsageError(f"expected {others}{' ' * bool(others)}a head such as L2H8 or 2.8, found {given!r}.")
    named, last = HeadId(*pair), HeadId(n_layers - 1, n_heads - 1)
    if not (0 <= named.layer <= last.layer and 0 <= named.head <= last.head):
        raise UsageError(f"the model has no head {named}; it has {HeadId(0, 0)} to {last}.")
    return named


def all_heads(n_layers: int, n_heads: int) -> list[HeadId]:
    """Every head of a model, layer by layer."""
    return [HeadId(layer, head) for layer in range(n_layers) for head in range(n_heads)]


def select_heads(selections: str | HeadId | Iterable[str | HeadId], n_layers: int, n_heads: int) -> list[HeadId]:
    """The heads that any of the selections names, in the model's order; none given means all.

    Args:
        selections: each one of ``L2H8``, ``2.8``, ``L2``, ``L0-3``, ``L*H8`` (commas join several), or a HeadId; a
            single one may stand without a list around it.
        n_layers: layers of the model.
        n_heads: heads in each layer.

    Raises:
        UsageError: a selection cannot be read, or names a layer or head that the model lacks.
    """
    parts = [part.strip() for text in selection_texts(selections) for part in text.split(",")]
    if not parts:
        return all_heads(n_layers, n_heads)
    chosen = {head for part in parts for head in _heads_of(part, n_layers, n_heads)}
    return sorted(chosen)


def selection_texts(selections: object) -> list[str]:
    """Each selection as text; a single one may stand without a list around it.

    Raises:
        UsageError: what is no selection, before anything is read from it.
    """
    several = [selections] if isinstance(selections, str | HeadId) else selections
    if not isinstance(several, Iterable):
        raise UsageError(f"expected a list of selections such as ['L2H8', 'L0-3'], found {selections!r}.")
    texts = list(several)
    for text in texts:
        if not isinstance(text, str | HeadId):
            raise UsageError(f"expected selections such as 'L2H8' or 'L0-3', found {text!r} among them.")
    return [str(text) for text in texts]


def _heads_of(part: str, n_layers: int, n_heads: int) -> Sequence[HeadId]:
    match = _SELECTION.fullmatch(part)
    if match is None:
        raise UsageError(f"cannot read the selection {part!r}: expected one of {_FORMS}.")
    first, last = match["l1"] or match["layer1"], match["l2"] or match["layer2"]
    layers = _span("layer", first, last, n_layers, part)
    heads = _span("head", match["h1"] or "*", match["h2"], n_heads, part)
    return [HeadId(layer, head) for layer in layers for head in heads]


def _span(kind: str, first: str, last: str | None, count: int, part: str) -> range:
    if first == "*":
        return range(count)
    low = int(first)
    high = low if last is None else int(last)
    if low > high:
        raise UsageError(f"the selection {part!r} runs backwards: expected {kind}s {high}-{low}.")
    if high >= count:
        valid = f"the model has {kind}s 0 to {count - 1}"
        raise UsageError(f"the selection {part!r} names {kind} {first}{'-' + last if last else ''}, but {valid}.")
    return range(low, high + 1)
