"""Where heads show their relations and roles best, where at the deciles, and where they fail most clearly.

An instance is a word of a relation, a pronoun, or a token. It is a hit where the head attends most to the right
position, and a miss where it attends most to another. Hits are ranked by the weight of the right position, misses by
the weight of the wrong one, one instance a text each; deciles are by the weight of the right one, of a random sample.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.commands.profile.kept import (
    FAINTEST,
    NONE,
    STEPS,
    Kept,
    Reading,
    Texts,
    first_place,
    packed,
    rounded_weights,
    score_codes,
)
from attnviz.commands.profile.names import NAME_DIRECTIONS
from attnviz.commands.profile.roles import Role
from attnviz.commands.profile.tallies import Tally
from attnviz.corpora.batches import Batch
from attnviz.corpora.runs import RunSettings
from attnviz.model.head_ids import HeadId
from attnviz.patterns.examples import Example, RoleExamples, Unit
from attnviz.patterns.profile_parts import SYNTACTIC
from attnviz.patterns.relations import RelationTally, between_spans
from attnviz.patterns.syntax import DIRECTIONS

_SPARE = 4
"""So many more are kept, for those that turn out to be the same sentence again."""

Ends = tuple[int, int, tuple[int, int] | None]
"""Query, key, and the right pair, as positions."""


class ExampleTally(Tally, ABC):
    """``n`` examples of each group, of one kind of role; they stand in ``kept`` by name, with their texts."""

    def __init__(self, settings: RunSettings, n: int) -> None:
        self.n, self._seed = n, settings.seed
        self.shape = settings.checkpoint.n_layers, settings.checkpoint.n_heads
        self.causal = settings.checkpoint.architecture.causal
        self.kept: dict[str, Kept] = {}
        self.texts = Texts()
        self._paths = [corpus.path for corpus in settings.corpora]

    def _firsts(self, batch: Batch) -> Tensor:
        """The place of each text's position 0; -1 for one that can have no examples."""
        numbers: dict[Any, int] = {path: number for number, path in enumerate(self._paths)}
        texts = [(item.source, max(len(item), len(item.members))) for item in batch.items]
        return torch.tensor(
            [first_place(numbers.get(text.place and text.place.path, 0), text.number, n) for text, n in texts]
        )

    def _new(self, name: str, cells: Sequence[int]) -> Kept:
        if name not in self.kept:
            self.kept[name] = Kept(self.n + _SPARE, cells, self._seed)
        return self.kept[name]

    def state(self) -> dict[str, Any]:
        """What is kept, with its texts."""
        self.texts.forget(self.kept.values(), now=True)
        return {"kept": {name: kept.state() for name, kept in self.kept.items()}, "texts": self.texts.of}

    def absorb(self, state: Mapping[str, Any]) -> None:
        """Keep the best of this and of what another tally of the same kind kept."""
        self.texts.of |= state["texts"]
        for name, kept in state["kept"].items():
            self._new(name, kept["codes"].shape[1:-1]).absorb(kept)
        self.texts.forget(self.kept.values())

    @abstractmethod
    def cell(self, role: str, direction: str | None) -> tuple[str, int] | None:
        """Where a role is kept: a name in ``kept``, and the first index of its cells; None for one of another kind."""

    def examples(self, id: HeadId, role: str, direction: str | None) -> RoleExamples | None:
        """The examples of one role of one head; None for a role of another kind."""
        where = self.cell(role, direction)
        if where is None or where[0] not in self.kept:
            return None
        kept, cell = self.kept[where[0]], (where[1], *id)
        groups = kept.ranked(0, cell), kept.deciles(cell), kept.ranked(1, cell)
        best, deciles, failures = ((self._example(*each, cell) for each in group) for group in groups)
        return RoleExamples(id, role, direction, _different(best, self.n), tuple(deciles), _different(failures, self.n))

    def _example(self, place: int, reading: Reading, cell: tuple[int, ...]) -> Example:
        first, corpus, number, position = self.texts.address(place)
        text, spans, more = self.texts.of[first]

        def unit(at: int) -> Unit:
            start, end = spans[at]
            if start < end:
                return Unit(text[start:end], start, end)
            end = 0 if at == 0 else len(text)
            return Unit(str(more.get(at, "")), end, end)

        query, key, right = self._ends(position, reading, cell[0], more)
        gold = None if right is None else (unit(right[0]), unit(right[1]))
        return Example(
            self._paths[corpus].name, number, text, unit(query), unit(key), reading.weight / STEPS,
            bool(reading.hit), gold, None if gold is None else reading.gold_weight / STEPS,
        )  # fmt: skip

    @abstractmethod
    def _ends(self, position: int, reading: Reading, direction: int, more: Mapping[int, Any]) -> Ends:
        """What a reading is about."""


def _different(examples: Iterable[Example], n: int) -> tuple[Example, ...]:
    """The first ``n`` whose text and pair are those of none before."""
    seen: dict[object, Example] = {}
    for each in examples:
        seen.setdefault((each.text, each.query, each.key), each)
        if len(seen) == n:
            break
    return tuple(seen.values())


class _InstanceExamples(ExampleTally):
    """Examples of instances that each have one right answer in a direction."""

    directions: Sequence[str]

    def _start(self, firsts: Tensor, texts: Tensor, positions: Tensor, numbers: Mapping[str, list[int]]) -> None:
        """Take up instances: the text of each, its position, and by name those of each name."""
        able, self._places = firsts[texts] >= 0, firsts[texts] + positions
        self._readings = torch.zeros(len(texts), len(self.directions), *self.shape, dtype=torch.long)
        self._numbers_of = {
            name: kept for name, some in numbers.items() if len(kept := (each := torch.tensor(some))[able[each]])
        }
        self._rows_of = {name: _by_text(texts[some], some) for name, some in self._numbers_of.items()}

    def _look(
        self, layer: int, key: Tensor, weights: Tensor, right: Tensor, gold: Tensor, visible: Tensor | bool = True
    ) -> None:
        """Note what the heads of a layer do: keys and weights beside the right ones, [n_directions, n_heads, n]."""
        hit = (key == gold) & visible
        right = rounded_weights(right).masked_fill(~torch.as_tensor(visible), NONE)
        self._readings[:, :, layer] = packed(hit, key, rounded_weights(weights), gold, right).movedim(-1, 0)
        if layer == self.shape[0] - 1 and self._rows_of:
            self._finish()

    def _finish(self) -> None:
        """Offer what all layers do, of each text and name the best hit and the clearest miss."""
        of = self._readings  # [n, n_directions, n_layers, n_heads]
        hit, wrong, right = of >> 56 > 0, (of >> 28) & NONE, of & NONE
        missed = ~hit & (wrong > right) & (wrong >= FAINTEST)
        scores = torch.stack([right.masked_fill(~hit, -1), wrong.masked_fill(~missed, -1)], 1)
        codes = score_codes(scores, self._places[:, None, None, None, None])
        most = max(rows.shape[1] for rows in self._rows_of.values())
        grid = torch.cat([pad(rows, (0, most - rows.shape[1]), value=-1) for rows in self._rows_of.values()])
        best = torch.full((len(grid), *codes.shape[1:]), -1)
        which = torch.zeros_like(best)
        for column in grid.T:  # much faster than max with its places, whose axis is short
            rows = (column >= 0).nonzero()[:, 0]
            numbers = column[rows]
            new, old = codes[numbers], best[rows]
            best[rows] = torch.maximum(new, old)
            which[rows] = torch.where(new > old, numbers[:, None, None, None, None], which[rows])
        readings = of[:, None].expand(-1, 2, -1, -1, -1).gather(0, which).movedim(0, -1)
        best = best.movedim(0, -1)
        end = 0
        for name, rows in self._rows_of.items():
            kept, start, end = self._new(name, best.shape[1:-1]), end, end + len(rows)
            kept.offer(best[..., start:end], readings[..., start:end])
            some = self._numbers_of[name]
            slots, new = kept.draw(self._places[some])
            if len(slots):
                kept.sampled[slots] = of[some[new]]
        self.texts.forget(self.kept.values())

    def cell(self, role: str, direction: str | None) -> tuple[str, int] | None:
        """Where a relation, or coreference, is kept; the names of their directions differ."""
        known = direction in self.directions
        return (role.removeprefix(SYNTACTIC), self.directions.index(direction)) if known else None


def _by_text(texts: Tensor, numbers: Tensor) -> Tensor:
    """Instances of one text in one row, [n_texts, most]; -1 where a row has no more."""
    counts = torch.tensor(list(Counter(texts.tolist()).values()))
    there = torch.arange(int(counts.max())) < counts[:, None]
    return torch.full(there.shape, -1).masked_scatter(there, numbers)


class RelationExamples(_InstanceExamples):
    """Words of relations: the head attends most to the other end, or to another word."""

    directions = DIRECTIONS

    def __init__(self, settings: RunSettings, n: int, relations: RelationTally) -> None:
        super().__init__(settings, n)
        self._relations = relations

    def begin(self, batch: Batch, weights: Tensor) -> None:  # noqa: ARG002 - as other tallies
        """Take up the instances of a batch."""
        firsts = self._firsts(batch)
        for first, item in zip(firsts.tolist(), batch.items, strict=True):
            heads: dict[int, Any] = {arc.dependent: arc.head for arc in item.source.arcs}
            if heads and first >= 0:
                self.texts.of[first] = item.source.text, list(item.source.spans), heads
        texts, dependents, _ = self._relations.words.pairs.T
        self._start(firsts, texts, dependents, self._relations.words.numbers)

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:  # noqa: ARG002 - as other tallies
        """Look at one layer's patterns, which the tally of relations has seen."""
        text, dependents, heads = self._relations.words.pairs.T
        if not len(text):
            return
        between = self._relations.between
        queries, gold = torch.stack([dependents, heads]), torch.stack([heads, dependents])
        key = self._relations.guesses[text, :, queries]  # [2, n, n_heads]
        weight = between[text[:, None], torch.arange(between.shape[1]), queries[..., None], key.clamp(min=0)]
        right = between[text, :, queries, gold]
        visible = gold < queries if self.causal else torch.ones_like(gold, dtype=torch.bool)
        key = key.masked_fill(key < 0, NONE)
        key, weight, right = (each.transpose(1, 2) for each in (key, weight, right))
        self._look(layer, key, weight, right, gold[:, None], visible[:, None])

    def _ends(self, position: int, reading: Reading, direction: int, more: Mapping[int, Any]) -> Ends:
        ends = position, more[position]
        query, gold = ends if DIRECTIONS[direction] == "dependent_to_head" else ends[::-1]
        return query, gold if reading.key == NONE else reading.key, (query, gold)


class NameExamples(_InstanceExamples):
    """Pronouns of GAP: the head prefers the name that it means, or the other one; position 0 is the pronoun."""

    def __init__(self, settings: RunSettings, n: int) -> None:
        super().__init__(settings, n)
        self.directions = NAME_DIRECTIONS[: 1 if self.causal else 2]

    def begin(self, batch: Batch, weights: Tensor) -> None:  # noqa: ARG002 - as other tallies
        """Take up the pronouns of a batch."""
        firsts = self._firsts(batch)
        for first, item in zip(firsts.tolist(), batch.items, strict=True):
            if first >= 0:
                self.texts.of[first] = item.source.text, list(item.source.spans), {}
        self._gold = torch.tensor([1 + bool(item.source.answer) for item in batch.items])
        numbers = torch.arange(len(firsts))
        self._start(firsts, numbers, torch.zeros_like(numbers), {"coreference": numbers.tolist()})

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:
        """Look at one layer's patterns, [batch, n_heads, n, n]."""
        between = between_spans(pattern, [item.members for item in batch.items]).cpu()
        names = torch.stack([between[:, :, 0, 1:3], between[:, :, 1:3, 0]][: len(self.directions)])  # to, from names
        names = names.transpose(1, 2)  # [n_directions, n_heads, batch, 2]
        gold = self._gold.expand(names.shape[:-1])
        right = names.gather(-1, gold[..., None] - 1)[..., 0]
        most, guess = names.max(-1)
        tied = names[..., 0] == names[..., 1]
        self._look(layer, (guess + 1).masked_fill(tied, NONE), most, right, gold)

    def _ends(self, position: int, reading: Reading, direction: int, more: Mapping[int, Any]) -> Ends:  # noqa: ARG002
        key = reading.gold if reading.key == NONE else reading.key
        return (0, key, (0, reading.gold)) if direction == 0 else (key, 0, (reading.gold, 0))


def role_examples(roles: Sequence[Role], tallies: Iterable[object]) -> tuple[RoleExamples, ...]:
    """The examples of the roles that each head passes, and of the relation in which it is most above its baseline."""
    keeping = [tally for tally in tallies if isinstance(tally, ExampleTally)]
    best: dict[HeadId, Role] = {}
    for role in roles:
        if role.role.startswith(SYNTACTIC):
            best[role.id] = max(best.get(role.id, role), role, key=attrgetter("margin"))
    wanted = sorted((role for role in roles if role.passed or role is best.get(role.id)), key=attrgetter("id"))
    found = (tally.examples(role.id, role.role, role.direction) for role in wanted for tally in keeping)
    return tuple(each for each in found if each is not None and (each.best or each.deciles or each.failures))
