"""Accuracy of heads at finding the other end of a syntactic relation, beside simple guesses, in texts and corpora.

The measure of Clark et al. 2019, section 4.2: a head's guess is the other word that a word attends to most; its
accuracy stands beside that of the word at one fixed offset and of other guesses (:mod:`attnviz.measures.guesses`).
Sinks are left out of words; a word without other tokens is never guessed and in no relation.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnviz.inputs.prompt import UnitRows, UnitsOfTokens
from attnviz.language.syntax import DIRECTIONS, Arc
from attnviz.measures.estimates import HeadScores, estimated
from attnviz.measures.guesses import GUESSES, WordGuesses, fast_argmax, votes_elsewhere
from attnviz.measures.measure import Measure, PatternRows
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, is_of_source

if TYPE_CHECKING:
    from attnviz.inputs.batches import Batch
    from attnviz.inputs.prompt import Prompt

Spans = Sequence[Sequence[Sequence[int]]]

_MOST_HEADS = 256  # heads that are counted at once, to save memory

_Right = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class RelatedWords:
    """The words of some texts, and the relations between them."""

    members: list[list[tuple[int, ...]]]  # by text and word, its tokens that are not sinks, perhaps none
    sinks: list[tuple[int, ...]]  # by text, their positions
    pairs: Tensor  # text, dependent and head of each instance, [n, 3]
    numbers: dict[str, list[int]]  # by relation, the indices of its instances; acl:relcl counts as acl, too

    @classmethod
    def of(cls, texts: Iterable[tuple[Iterable[Sequence[int]], Iterable[Arc], Collection[int]]]) -> "RelatedWords":
        """From the tokens of each text's words, its arcs, and the positions of its sinks."""
        result = cls([], [], torch.empty(0), defaultdict(list))
        pairs: list[tuple[int, int, int]] = []
        for text, (words, arcs, sinks) in enumerate(texts):
            members = [tuple(position for position in positions if position not in sinks) for positions in words]
            result.members.append(members)
            result.sinks.append(tuple(sorted(sinks)))
            for arc in arcs:
                if members[arc.dependent] and members[arc.head]:
                    for name in dict.fromkeys((arc.relation.partition(":")[0], arc.relation)):
                        result.numbers[name].append(len(pairs))
                    pairs.append((text, arc.dependent, arc.head))
        return cls(result.members, result.sinks, torch.tensor(pairs, dtype=torch.long).reshape(-1, 3), result.numbers)

    @classmethod
    def of_items(cls, items: Iterable["Prompt"]) -> "RelatedWords":
        """From encoded texts."""
        return cls.of((item.members, item.source.arcs, item.sinks) for item in items)

    def instances(self) -> dict[str, list[tuple[int, int]]]:
        """Dependents and heads by relation, of a single text."""
        pairs = [(int(dependent), int(head)) for _, dependent, head in self.pairs]
        return {name: [pairs[number] for number in numbers] for name, numbers in self.numbers.items()}


class SpansOfTexts:
    """The spans of the texts of a batch, for the patterns of all its layers.

    ``members``: for each text, for each of its spans, token positions, perhaps none; ``n``: tokens of the longest text.
    """

    def __init__(self, members: Spans, n: int, device: torch.device) -> None:
        n_spans = self._n_spans = max((len(spans) for spans in members), default=0)
        groups = [
            [text * n + position for position in span]
            for text, spans in enumerate(members)
            for span in [*spans, *[()] * (n_spans - len(spans))]
        ]
        self._spans = UnitsOfTokens(groups, n * len(members), device)
        self._sizes = torch.tensor([len(group) for group in groups], device=device).clamp_(min=1)[:, None]

    def between(self, pattern: Tensor) -> Tensor:
        """Attention between the spans of each text: sums over the pieces attended to, means over those attending.

        From [batch, n_heads, n, n] to [batch, n_heads, n_spans, n_spans]; zeros where a span has no tokens.
        """
        batch, n_heads, n, _ = pattern.shape
        n_spans = self._n_spans
        onto = self._spans.sums(pattern.permute(0, 3, 2, 1).reshape(batch * n, -1), 0)
        onto = onto.view(batch, n_spans, n, n_heads).transpose(1, 2)
        between = self._spans.sums(onto.reshape(batch * n, -1), 0) / self._sizes.to(pattern.device)
        return between.view(batch, n_spans, n_spans, n_heads).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class RelationCount:
    """One relation of a text, or over a corpus."""

    relation: str
    offset: int  # the best fixed offset: +1 if the head is the word after the dependent
    accuracy: HeadScores  # by direction, beside fixed offset, chance, GUESSES and other words
    # Boolean [n_directions, n_layers, n_heads], whether mean attention to sinks exceeds that to the other end; None for
    # a corpus, and for a text without sinks.
    on_sinks: Tensor | None = None
    layers: Sequence[int] = ()  # of the model, which name its heads; of an encoder-decoder those of its encoder

    @property
    def n(self) -> int:
        """Number of instances."""
        return int(self.accuracy.n.max())

    @property
    def offset_accuracy(self) -> float:
        """Accuracy of the best fixed offset."""
        return float(self.accuracy.baselines["fixed offset"].flatten()[0])

    @property
    def best(self) -> tuple[HeadId, str, float]:
        """The head with the highest accuracy, its direction, and this accuracy."""
        scores = self.accuracy.scores
        direction, layer, head = map(int, torch.unravel_index(scores.argmax(), scores.shape))
        id = HeadId(self.layers[layer] if self.layers else layer, head)
        return id, self.accuracy.directions[direction], float(scores.max())


class RelationTally(Measure):
    """Counts how often every head's most attended other word is the other end of a relation (Clark et al. 2019).

    A corpus is counted batch by batch, a single text in chunks of rows. Counts are by relation and bootstrap sample:
    how often each head is right, and how often it guesses the same from other words.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self._shape = len(DIRECTIONS), 2, checkpoint.n_layers, checkpoint.n_heads
        self._causal = checkpoint.architecture.causal
        self.words: RelatedWords  # of the current batch or text
        self._instances: Tensor
        self._relation_text: Tensor
        self._guesses: WordGuesses | None = None
        self._spans: SpansOfTexts | None = None
        self._layer: WordsOfLayer | None = None

    def begin(self, batch: "Batch", weights: Tensor) -> None:
        """Count the instances of a batch."""
        super().begin(batch, weights)
        self.begin_words(RelatedWords.of_items(batch.items), weights)
        self._spans = SpansOfTexts(self.words.members, batch.valid.shape[1], batch.valid.device)

    def begin_words(self, words: RelatedWords, weights: Tensor | None = None) -> None:
        """Count the instances of some texts; without ``weights`` [1 + replicates, n_texts] each text counts once."""
        self.words, self._guesses, self._kept = words, None, {}
        self._weights = torch.ones(1, len(words.members), dtype=torch.float64) if weights is None else weights
        if not words.numbers:
            return
        longest = max(map(len, words.members))
        sizes = [[len(word) for word in members] + [0] * (longest - len(members)) for members in words.members]
        guesses = self._guesses = WordGuesses.of(torch.tensor(sizes), self._causal)
        self._instances = torch.tensor([number for numbers in words.numbers.values() for number in numbers])
        relations = torch.repeat_interleave(torch.tensor(list(map(len, words.numbers.values()))))
        self._relation_text = relations * len(words.members) + words.pairs[self._instances, 0]

        def right(text: Tensor, query: Tensor, target: Tensor) -> Tensor:
            chance = guesses.chance[text, query] * guesses.visible[text, query, target]
            of_words = ((guesses.words[name][text, query] == target).double() for name in GUESSES)
            return torch.stack([chance, *of_words], 1)

        offsets = words.pairs[:, 2] - words.pairs[:, 1]
        different = sorted(set(offsets.tolist()))
        counted = self._of_relations((offsets[:, None] == torch.tensor(different)).double())
        as_measured, text_of = counted[:, 0].tolist(), words.pairs[:, 0].tolist()
        of_guesses = self._of_relations(self._from_either_end(right))
        for (name, numbers), of_offsets, measured, sums in zip(
            words.numbers.items(), counted, as_measured, of_guesses, strict=True
        ):
            self._sum((name, "instances"), of_offsets.sum(1))
            self._sum((name, "sentences"), torch.tensor(float(len({text_of[number] for number in numbers}))))
            for number, offset in enumerate(different):
                if measured[number]:
                    self._sum((name, offset), of_offsets[:, number])
            if (name, "heads") not in self._counts:
                self._counts[name, "heads"] = torch.zeros(len(self._weights), *self._shape, dtype=torch.float64)
            self._sum((name, "guesses"), sums)

    def update(self, rows: PatternRows) -> None:
        """Count a layer of a batch, or a chunk of rows of the text begun by :meth:`begin_words`.

        Layers of another text than the parsed source are left out.
        """
        if self._guesses is None or not is_of_source(rows.layer):
            return
        if self._spans is not None:
            self._keep("guesses", most_attended_other(self._spans.between(rows.in_float32)))
            return
        if self._layer is None:
            self._layer = WordsOfLayer(self.words, rows)
        self._layer.update(rows)
        if rows.last:
            self._keep("guesses", self._layer.guesses[None])
            if self.words.sinks[0]:
                self._keep("above sinks", self._layer.above_sinks)
            self._layer = None

    def _count(self, name: str, values: Tensor) -> None:
        """Count guesses of some layers, [n_layers, n_texts, n_heads, n_words], or attention above that to sinks."""
        if name == "guesses":
            together = max(1, _MOST_HEADS // values.shape[2])
            for first in range(0, len(values), together):
                self._count_heads(first, values[first : first + together])
            return
        above = values.double().permute(1, 2, 0, 3)  # [n_instances, n_directions, n_layers, n_heads]
        for relation, sums in zip(self.words.numbers, self._of_relations(above), strict=True):
            self._sum((relation, name), sums[0])

    def _count_heads(self, first: int, guesses: Tensor) -> None:
        assert self._guesses is not None
        visible = self._guesses.visible
        of_text = guesses.transpose(0, 1).flatten(1, 2)

        def right(text: Tensor, query: Tensor, target: Tensor) -> Tensor:
            hits = (of_text[text, :, query] == target[:, None]).double()
            return torch.stack([hits, votes_elsewhere(of_text, visible, text, query, target)], 1)

        for name, sums in zip(self.words.numbers, self._of_relations(self._from_either_end(right)), strict=True):
            layers = self._counts[name, "heads"][:, :, :, first : first + len(guesses)]
            layers += sums.view(layers.shape)

    def _from_either_end(self, right: _Right) -> Tensor:
        """``right`` of each instance in both directions, [n_instances, n_directions, …]."""
        text, dependents, heads = self.words.pairs.T
        return torch.stack([right(text, dependents, heads), right(text, heads, dependents)], 1)

    def _of_relations(self, values: Tensor) -> Tensor:
        """Sums of instances' values by relation and bootstrap sample, [n_relations, 1 + replicates, …]."""
        n_relations, n_texts = len(self.words.numbers), len(self.words.members)
        by_text = torch.zeros(n_relations * n_texts, values[0].numel(), dtype=torch.float64)
        by_text.index_add_(0, self._relation_text, values.flatten(1)[self._instances])
        sums = self._weights @ by_text.view(n_relations, n_texts, -1)
        return sums.view(n_relations, -1, *values.shape[1:])

    def results(self) -> list[RelationCount]:
        """Every relation, the most frequent first."""
        relations = []
        for name in [name for name, what in self._counts if what == "instances"]:
            counts = {what: sums for (relation, what), sums in self._counts.items() if relation == name}
            offsets = {k: int(sums[0]) for k, sums in counts.items() if isinstance(k, int)}
            offset = min(offsets, key=lambda k: (-offsets[k], abs(k), -k))  # the most frequent, of these the nearest
            n = counts["instances"]
            heads = counts["heads"] / n[:, None, None, None, None]
            guesses = (counts["guesses"] / n[:, None, None])[..., None, None]
            baselines = {"fixed offset": (counts[offset] / n)[:, None, None, None]}
            baselines |= dict(zip(("chance", *GUESSES), guesses.unbind(2), strict=True))
            baselines["other words"] = heads[:, :, 1]
            accuracy = estimated(heads[:, :, 0], baselines, int(n[0]), int(counts["sentences"]), DIRECTIONS)
            above = counts.get("above sinks")
            relations.append(RelationCount(name, offset, accuracy, None if above is None else above < 0))
        return sorted(relations, key=lambda relation: (-relation.n, relation.relation))


class WordsOfLayer:
    """Guesses for the words of one text in one layer, from chunks of rows."""

    def __init__(self, words: RelatedWords, rows: PatternRows) -> None:
        pieces = words.members[0]
        pattern = rows.in_float32
        n_heads, device = pattern.shape[1], pattern.device
        kept = [word for word, member in enumerate(pieces) if member]
        members = [pieces[word] for word in kept]
        self._merge = UnitRows(members, [*members, words.sinks[0]], rows.n_queries, rows.n_keys)
        self._kept = torch.tensor(kept, device=device)
        index = np.zeros(len(pieces), dtype=np.int64)
        index[kept] = np.arange(len(kept))
        self._ends = index[words.pairs[:, 1:].numpy()]
        # the other word that each word attends to most, [n_heads, n_words]; -1 for none
        self.guesses = torch.full((n_heads, len(pieces)), -1, device=device)
        # attention to the other end less attention to sinks, [n_instances, n_directions, n_heads]
        self.above_sinks = torch.zeros(len(self._ends), 2, n_heads, device=device)

    def update(self, rows: PatternRows) -> None:
        """Add the next chunk of rows."""
        first, merged = self._merge.add(rows.first, rows.in_float32[0])
        last = first + merged.shape[1]
        pattern = merged[..., :-1]
        guesses = most_attended_other(pattern, first)
        self.guesses[:, self._kept[first:last]] = torch.where(guesses < 0, -1, self._kept[guesses])
        for direction, (query, target) in enumerate((self._ends.T, self._ends[:, ::-1].T)):
            instances = np.flatnonzero((query >= first) & (query < last))
            indices = query[instances] - first, target[instances], instances
            row, key, number = (torch.from_numpy(index).to(merged.device) for index in indices)
            above = pattern[:, row, key] - merged[:, row, -1]
            self.above_sinks[number, direction] = above.to(self.above_sinks).T


def most_attended_other(pattern: Tensor, first: int = 0) -> Tensor:
    """The other word that each word from ``first`` on attends to most, [..., rows] of [..., rows, n]; -1 for none."""
    others = pattern.clone()
    others.diagonal(first, dim1=-2, dim2=-1).fill_(-1.0)
    guess = fast_argmax(others)
    return guess.masked_fill(others.gather(-1, guess[..., None])[..., 0] <= 0, -1)
