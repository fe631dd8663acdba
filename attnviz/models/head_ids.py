"""Ids of heads and layers, and selections of heads."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from attnviz.arguments import as_found, is_whole, relation_named
from attnviz.errors import UsageError

_ONE_HEAD = re.compile(r"([A-Z]?)([0-9]{1,6})(?:H|\.)([0-9]{1,6})", re.IGNORECASE)
_SELECTION = re.compile(
    r"(?P<letter>[A-Z]?)(?:(?P<l1>[0-9]{1,6}|\*)(?:-(?P<again>[A-Z]?)(?P<l2>[0-9]{1,6}))?"
    r"(?:(?:H|\.)(?P<h1>[0-9]{1,6}|\*)(?:-H?(?P<h2>[0-9]{1,6}))?)?)?",
    re.IGNORECASE,
)
_IDS = re.compile(r".*[\d*].*|[A-Za-z]?")  # selections by id, or by kind of attention; no label or role has a digit

FORMS = "L2H8, 2.8, L2 (a layer), L0-3 (layers), L*H8 (head 8 of every layer)"  # how heads are selected, with examples


@dataclass(frozen=True)
class Stack:
    """Attention layers: in an encoder-decoder its encoder, decoder or cross-attention; else all that attend."""

    letter: str  # of ids: E, D, X; L of other models
    name: str
    first: int  # index of its first layer among all attention layers of the model
    n_layers: int
    n_heads: int  # in each of its layers
    own: tuple[int, ...] = ()  # the layers of a model that is no encoder-decoder

    def layer(self, number: int) -> "LayerId":
        """One of its layers, counted from 0."""
        return LayerId(self, number)

    @property
    def layers(self) -> Sequence[int]:
        return self.own or [self.layer(number) for number in range(self.n_layers)]

    @property
    def by_number(self) -> dict[int, int]:
        return {number_of(layer): layer for layer in self.layers}

    @property
    def heads(self) -> "list[HeadId]":
        return [HeadId(layer, head) for layer in self.layers for head in range(self.n_heads)]


class LayerId(int):
    """A layer of an encoder-decoder: an int, its index among all attention layers; prints as ``X0``."""

    stack: Stack
    number: int

    def __new__(cls, stack: Stack, number: int) -> "LayerId":
        """The layer of a stack with this number, counted from 0."""
        layer = super().__new__(cls, stack.first + number)
        layer.stack, layer.number = stack, number
        return layer

    def __str__(self) -> str:
        return f"{self.stack.letter}{self.number}"

    def __reduce__(self) -> tuple[type["LayerId"], tuple[Stack, int]]:
        return LayerId, (self.stack, self.number)


class NumberedLayer(int):
    """A layer of a model in which some do not attend: an int, its index after those that attend; prints as its number.

    Those that attend are counted first, so that an array has a row for each of them.
    """

    number: int

    def __new__(cls, index: int, number: int) -> "NumberedLayer":
        """The layer with this index, and this number in the model."""
        layer = super().__new__(cls, index)
        layer.number = number
        return layer

    def __repr__(self) -> str:
        return str(self.number)

    def __reduce__(self) -> tuple[type["NumberedLayer"], tuple[int, int]]:
        return NumberedLayer, (int(self), self.number)


def number_of(layer: int) -> int:
    """The number of a layer in the model, or in its stack."""
    return layer.number if isinstance(layer, LayerId | NumberedLayer) else layer


def one_stack(numbers: Sequence[int], n_heads: int) -> Stack:
    """The attention of a model that is no encoder-decoder, from the numbers of the layers that attend."""
    every = range(len(numbers))
    layers = every if list(numbers) == list(every) else map(NumberedLayer, every, numbers)
    return Stack("L", "", first=0, n_layers=len(numbers), n_heads=n_heads, own=tuple(layers))


def numbers_in_words(kind: str, numbers: Iterable[int]) -> str:
    """``layers 0 to 5``; of layers of which others lie between ``layers 1, 3``, of one ``layer 0``."""
    listed = sorted(numbers)
    named = f"0 to {listed[-1]}" if 0 < listed[-1] < len(listed) else ", ".join(map(str, listed))
    return f"{kind}{'' if len(listed) == 1 else 's'} {named}"


def layers_in_words(layers: Sequence[int]) -> str:
    """``layers 0–2 and 5``, of layers in order."""
    following = groupby(enumerate(layers), lambda place: (place[1] - place[0], number_of(place[1]) - place[0]))
    runs = [[str(layer) for _, layer in run] for _, run in following]
    spans = [run[0] if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    joined = " and ".join(filter(None, [", ".join(spans[:-1]), spans[-1]]))
    return f"layer{'' if len(layers) == 1 else 's'} {joined}"


def layer_of(layer: object, kinds: Sequence[Stack], model: str) -> int:
    """The layer of a model with this number; a layer of its own is itself. UsageError where there is none."""
    by_index = kinds[0].name or isinstance(layer, NumberedLayer)
    known = {int(own) if by_index else number_of(own): own for kind in kinds for own in kind.layers}
    in_words = numbers_in_words("layer", known)
    if not is_whole(layer):
        raise UsageError(f"expected a layer as a whole number, {in_words}, found {as_found(layer)}.")
    if layer not in known:
        raise UsageError(f"the model {model} has no layer {layer} with heads: expected {in_words}.")
    return known[layer]


def letter_of(layer: int) -> str:
    """The letter of a layer's stack; of a model without stacks that of an encoder."""
    return layer.stack.letter if isinstance(layer, LayerId) else "E"


def is_of_source(layer: int) -> bool:
    """Whether queries and keys are of the source text: all but those of a decoder after an encoder."""
    return letter_of(layer) == "E"


class HeadId(NamedTuple):
    """A head by layer and position in the layer, both counted from 0; prints as ``L2H8``.

    Of a model with several stacks the layer is a :class:`LayerId`, and the head prints as ``X2H8``.
    """

    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.layer_name}H{self.head}"

    @property
    def layer_name(self) -> str:
        """``L2``, or with the letter of its stack."""
        return str(self.layer) if isinstance(self.layer, LayerId) else f"L{self.layer}"

    @property
    def file_stem(self) -> str:
        """The id zero-padded so that a file listing sorts in the model's order: ``L02H08``."""
        return f"{self.layer_name[0]}{int(self.layer_name[1:]):02d}H{self.head:02d}"

    @classmethod
    def parse(cls, text: str) -> "HeadId":
        """Read ``L2H8`` or ``2.8``. Raises UsageError: the text names no head."""
        match = _ONE_HEAD.fullmatch(text.strip())
        if match is None or match[1].upper() not in ("", "L"):
            raise UsageError(f"expected a head such as L2H8 or 2.8, found {as_found(text)}.")
        return cls(int(match[2]), int(match[3]))


def head_named(head: object, stacks: Sequence[Stack], others: str = "") -> HeadId:
    """One head of a model from ``L2H8``, ``2.8`` or a HeadId (a pair of numbers); with several stacks ``X2H8``.

    UsageError where it names no head, or one that the model lacks; ``others`` names alternatives, and ends in ``or``.
    """
    text = head if isinstance(head, str) else ""
    if isinstance(head, tuple) and [is_whole(number) and abs(number) < 10**6 for number in head] == [True, True]:
        text = str(HeadId(*head))
    match = _ONE_HEAD.fullmatch(text.strip())
    letter = match[1].upper() or "L" if match else ""
    stack = next((stack for stack in stacks if stack.letter == letter), None)
    if match is None or stack is None:
        expected = f"{others} a head such as {_examples(stacks)}".strip()
        raise UsageError(f"expected {expected}, found {as_found(head)}.")
    layer, number = int(match[2]), int(match[3])
    layers = stack.by_number
    if layer not in layers or number >= stack.n_heads:
        known = f"{letter}{min(layers)}H0 to {letter}{max(layers)}H{stack.n_heads - 1}"
        where = f", in {numbers_in_words('layer', layers)}" if max(layers) >= len(layers) else ""
        raise UsageError(f"the model has no head {letter}{layer}H{number}; it has {known}{where}.")
    return HeadId(layers[layer], number)


def all_heads(n_layers: int, n_heads: int) -> list[HeadId]:
    """Every head of a model, layer by layer."""
    return [HeadId(layer, head) for layer in range(n_layers) for head in range(n_heads)]


def select_heads(selections: str | HeadId | Iterable[str | HeadId], stacks: Sequence[Stack]) -> list[HeadId]:
    """The heads that any of the selections names, in the model's order; all heads without selections.

    A selection is one of ``L2H8``, ``2.8``, ``L2``, ``L0-3``, ``L*H8`` (commas join several), or a HeadId; a list
    or a single one. With several stacks it begins with the letter of one: ``X0H3``, ``X``, ``E0-2``.

    Raises:
        UsageError: a selection cannot be read, or names a layer or head that the model lacks.
    """
    parts = _parts(selections)
    if not parts:
        return [head for stack in stacks for head in stack.heads]
    heads: set[HeadId] = set()
    for part in parts:
        match = _SELECTION.fullmatch(part)
        letter = match["letter"].upper() if match else ""
        if match and not letter and match["h1"]:  # a model without stacks has one stack ``L``
            letter = "L"
        stack = next((stack for stack in stacks if stack.letter == letter), None)
        if match is None or stack is None or (match["again"] or letter).upper() != letter or part.upper() == "L":
            expected = f"expected one of {FORMS}"
            if stacks[0].letter != "L":
                kinds = ", ".join(f"{stack.letter} ({stack.name})" for stack in stacks)
                expected = (
                    f"this model has attention of several kinds; expected one of {_examples(stacks)}, X (all of a "
                    f"kind), E0-2 (layers), X*H1 (head 1 of every layer), with {kinds}"
                )
            raise UsageError(f"cannot read the selection {part!r}: {expected}.")
        layers = _span("layer", match["l1"] or "*", match["l2"], stack.by_number, part)
        numbers = _span("head", match["h1"] or "*", match["h2"], range(stack.n_heads), part)
        heads |= {HeadId(stack.by_number[layer], number) for layer in layers for number in numbers}
    return sorted(heads)


def selection_texts(selections: object) -> list[str]:
    """Each selection as text, from a list or a single one. Raises UsageError: not a selection."""
    several: Any = [selections] if isinstance(selections, str | HeadId) else selections
    try:
        texts = list(several)
    except Exception as error:  # an array without dimensions is an Iterable, too
        raise UsageError(
            f"expected a list of selections such as ['L2H8', 'L0-3'], found {as_found(selections)}."
        ) from error
    for text in texts:
        if not isinstance(text, str | HeadId):
            raise UsageError(f"expected selections such as 'L2H8' or 'L0-3', found {as_found(text)} among them.")
    return [str(text) for text in texts]


def _parts(selections: object) -> list[str]:
    return [part.strip() for text in selection_texts(selections) for part in text.split(",")]


def ids_and_names(selections: str | HeadId | Iterable[str | HeadId]) -> tuple[list[str], list[str]]:
    """Split selections into ids of heads, and labels or roles (``subject`` as ``nsubj``)."""
    parts = _parts(selections)
    ids = [part for part in parts if _IDS.fullmatch(part)]
    return ids, [relation_named(part) for part in parts if part not in ids]


def check_ids(selections: Iterable[str], command: str) -> None:
    """Raise UsageError where a selection is a label or role, which ``attnviz heads`` alone knows."""
    _, names = ids_and_names(selections)
    if names:
        raise UsageError(
            f"--select {names[0]!r} is what a head does, by which attnviz heads TEXT finds its id; {command} takes "
            f"ids: {FORMS}."
        )


def _examples(stacks: Sequence[Stack]) -> str:
    return "L2H8 or 2.8" if stacks[0].letter == "L" else ", ".join(f"{stack.letter}0H0" for stack in stacks)


def _span(kind: str, first: str, last: str | None, numbers: Collection[int], part: str) -> Collection[int]:
    if first == "*":
        return numbers
    low = int(first)
    high = int(last or first)
    if low > high:
        raise UsageError(f"the selection {part!r} runs backwards: expected {kind}s {high}-{low}.")
    chosen = [number for number in numbers if low <= number <= high]
    if not chosen or high > max(numbers):
        where = "heads in " if kind == "layer" else ""
        has = f"{where}{numbers_in_words(kind, numbers)}"
        raise UsageError(f"the selection {part!r} names {kind} {high}, but the model has {has}.")
    return chosen
