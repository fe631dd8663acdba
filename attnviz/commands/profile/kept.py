"""The best, the worst and a sample of what is seen over a corpus, in memory that does not grow with it.

What is kept depends on scores and places alone, not on the order in which batches or processes bring them: of equal
scores the earlier text is taken, of one text the earlier query. Scores are weights to four decimals, since those of two
batches of different length differ by rounding. A score and a place are packed into one whole number, so that the best
are the largest numbers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

SAMPLED = 99
"""Instances of a role that are drawn at random, for the deciles; of 99 in order, each tenth one is a decile."""

STEPS = 10_000
"""A weight of 1 as it is kept."""

FAINTEST = STEPS // 100
"""The least weight of a key for which a miss is told, so kept."""

NONE = (1 << 14) - 1
"""A position where there is none; texts of more positions have no examples."""

_NUMBERS, _PLACES = 1 << 28, 1 << 48
"""Texts of a corpus, and places of all corpora, that a code has room for."""


class Reading(NamedTuple):
    """What one head does at one place, as numbers below 2^14: to be packed into one.

    Attributes:
        hit: 1 where it does what the role says.
        key, weight: the position that it attends to most.
        gold, gold_weight: the right one; the position is :data:`NONE` where there is none, the weight where the head
            was not asked.
    """

    hit: int
    key: int
    weight: int
    gold: int
    gold_weight: int

    @classmethod
    def of(cls, packed: int) -> "Reading":
        """From what :func:`packed` gave."""
        return cls(*((packed >> shift) & NONE for shift in (56, 42, 28, 14, 0)))


def packed(hit: Tensor, key: Tensor, weight: Tensor, gold: Tensor, gold_weight: Tensor) -> Tensor:
    """The fields of :class:`Reading`, of shapes that go together, as one whole number each."""
    parts = hit.long() << 56, key.long() << 42, weight.long() << 28, gold.long() << 14, gold_weight.long()
    return parts[0] | parts[1] | parts[2] | parts[3] | parts[4]


def rounded_weights(weights: Tensor) -> Tensor:
    """Weights as whole numbers from 0 to :data:`STEPS`."""
    return (weights.float() * STEPS).round().clamp(0, STEPS).int()


def first_place(corpus: int, number: int, n_positions: int) -> int:
    """The place of a text's position 0; positions follow. -1 where a code has no room for the text."""
    if corpus >= _PLACES // (_NUMBERS * (NONE + 1)) or number >= _NUMBERS or n_positions > NONE:
        return -1
    return (corpus * _NUMBERS + number) * (NONE + 1)


def score_codes(scores: Tensor, places: Tensor) -> Tensor:
    """Numbers that order by score, then by place, the earlier first; -1 for scores below 0."""
    codes = (scores.long() << 48) + (_PLACES - 1 - places)
    return codes.masked_fill(scores < 0, -1)


def _priorities(places: Tensor, seed: int) -> Tensor:
    """A random number for each place, the same in every run with the seed (SplitMix64, Steele et al. 2014)."""
    mixed = places.numpy().astype(np.uint64) + np.uint64((0x9E3779B97F4A7C15 * (seed + 1)) % (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return torch.from_numpy(((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)).astype(np.int64))


class Kept:
    """Of every cell, such as a head in a direction, the ``n`` best hits, the ``n`` clearest misses, and a sample.

    ``cells`` is the shape of the cells. The sample, drawn with ``seed``, is the same places for all of them.
    """

    def __init__(self, n: int, cells: Sequence[int], seed: int) -> None:
        self._n, self._seed, self._cells = n, seed, tuple(cells)
        self.codes = torch.full((2, *cells, n), -1, dtype=torch.long)
        self.readings = torch.zeros_like(self.codes)
        self._priorities = self._places = torch.empty(0, dtype=torch.long)
        self.sampled = torch.empty((0, *cells), dtype=torch.long)

    def offer(self, codes: Tensor, readings: Tensor, at: tuple[Any, ...] = ()) -> Tensor:
        """Keep the best of what is there and of what is new.

        Args:
            codes: from :func:`score_codes`, [2, *cells, n_new]: hits, then misses.
            readings: packed, of the same shape.
            at: the cells that these are of; empty for all.

        Returns:
            of every place of the cells, which of the new ones it holds now; -1 for an old one, [2, *cells, n].
        """
        place = (slice(None), *at)
        best, taken = torch.cat([self.codes[place], codes], -1).topk(self._n, -1)
        self.codes[place] = best
        self.readings[place] = torch.cat([self.readings[place], readings], -1).gather(-1, taken)
        return (taken - self._n).clamp(min=-1)

    def draw(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Draw from these places and those of the sample; the readings of new ones are to be filled in.

        Returns:
            where the new ones stand in ``sampled``, and which of the places they are.
        """
        new = _priorities(places, self._seed)
        if len(self._priorities) == SAMPLED and not bool((new < self._priorities[-1]).any()):
            return torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long)
        priorities = torch.cat([self._priorities, new])
        n_before = len(self._priorities)
        self._priorities, taken = priorities.topk(min(SAMPLED, len(priorities)), largest=False)
        slots = (taken >= n_before).nonzero()[:, 0]
        if len(slots):
            self._places = torch.cat([self._places, places])[taken]
            longer = torch.cat([self.sampled, self.sampled.new_zeros((1, *self._cells))])
            self.sampled = longer[taken.clamp(max=n_before)]
        return slots, taken[slots] - n_before

    def places(self) -> Tensor:
        """All places that are kept."""
        return torch.cat([_places_of(self.codes[self.codes >= 0]), self._places])

    def ranked(self, kind: int, cell: tuple[int, ...]) -> Iterator[tuple[int, Reading]]:
        """Places and readings of a cell's hits (kind 0) or misses (kind 1), the best first."""
        codes, readings = self.codes[(kind, *cell)], self.readings[(kind, *cell)]
        there = codes >= 0
        places = _places_of(codes[there]).tolist()
        return zip(places, map(Reading.of, readings[there].tolist()), strict=True)

    def deciles(self, cell: tuple[int, ...]) -> Iterator[tuple[int, Reading]]:
        """Of the sample, the nine at its deciles by the weight of the right position, the least first."""
        of_cell: tuple[Any, ...] = (slice(None), *cell)
        readings = self.sampled[of_cell]
        weights = readings & NONE
        order = score_codes(weights, self._places).argsort(descending=True).flip(0)
        order = order[weights[order] != NONE]
        at = dict.fromkeys(max(0, tenth * (len(order) + 1) // 10 - 1) for tenth in range(1, 10))
        chosen = order[[place for place in at if place < len(order)]]
        return zip(self._places[chosen].tolist(), map(Reading.of, readings[chosen].tolist()), strict=True)

    def state(self) -> dict[str, Tensor]:
        """All that is kept."""
        return {"codes": self.codes, "readings": self.readings, "places": self._places, "sampled": self.sampled}

    @torch.inference_mode()  # as while a model runs, where the others were made
    def absorb(self, state: Mapping[str, Tensor]) -> None:
        """Keep the best of these and of what another one kept."""
        self.offer(state["codes"], state["readings"])
        slots, which = self.draw(state["places"])
        self.sampled[slots] = state["sampled"][which]


def _places_of(codes: Tensor) -> Tensor:
    return _PLACES - 1 - (codes & (_PLACES - 1))


class Texts:
    """The texts that kept places are of, by the place of their position 0; the others are forgotten.

    Of each: the text, the characters of its positions, [n, 2], and of positions either the names that stand for
    characters, or in a tree the heads.
    """

    _MORE = 2048

    def __init__(self) -> None:
        self.of: dict[int, tuple[str, list[tuple[int, int]], dict[int, Any]]] = {}
        self._most = self._MORE

    def forget(self, kept: Iterable[Kept], *, now: bool = False) -> None:
        """Drop the texts of no kept place, once there are many or right now."""
        if not now and len(self.of) <= self._most:
            return
        places = torch.cat([torch.empty(0, dtype=torch.long), *(each.places() for each in kept)])
        alive = set((places - places % (NONE + 1)).tolist())
        self.of = {first: text for first, text in self.of.items() if first in alive}
        self._most = 2 * len(self.of) + self._MORE

    @staticmethod
    def address(place: int) -> tuple[int, int, int, int]:
        """Of a place the text's position 0, its corpus, its number, and the position."""
        first, position = place - place % (NONE + 1), place % (NONE + 1)
        return first, *divmod(first // (NONE + 1), _NUMBERS), position
