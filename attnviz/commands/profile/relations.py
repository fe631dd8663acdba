"""Syntactic relations over a corpus: how often each head finds the other end, and what a head has to beat."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.profile.instances import between_spans
from attnviz.corpora.batches import Batch, Item
from attnviz.corpora.bootstrap import REPLICATES, standard_error
from attnviz.patterns.guesses import GUESSES, WordGuesses, votes_elsewhere
from attnviz.patterns.syntax import DIRECTIONS

__all__ = ["BASELINES", "RelationCount", "RelationTally"]

BASELINES = ("fixed offset", "chance", *GUESSES, "other words")
"""What a head has to beat: the best fixed offset, a word drawn at random, always the first, last or longest other word,
and the head itself asked from the other words of the sentence."""


@dataclass(frozen=True)
class RelationCount:
    """One relation over a corpus.

    Attributes:
        relation, n, sentences: its name, how many instances, and in how many sentences.
        offset: the best fixed guess (+1: the head of the relation is the word after the dependent).
        accuracy: by direction, how often each head is right, [n_layers, n_heads].
        baselines: by direction, by name of :data:`BASELINES`, how often that is right: one number, of ``other words``
            [n_layers, n_heads].
        errors: by direction, standard errors over sentences, [2, n_layers, n_heads]: of the accuracy, and of its
            difference to the largest baseline.
    """

    relation: str
    n: int
    sentences: int
    offset: int
    accuracy: dict[str, Tensor]
    baselines: dict[str, dict[str, Tensor]]
    errors: dict[str, Tensor]

    @property
    def offset_accuracy(self) -> float:
        """How often the best fixed offset is right."""
        return float(self.baselines[DIRECTIONS[0]]["fixed offset"])

    def largest_baseline(self, direction: str) -> Tensor:
        """The baseline that decides, [n_layers, n_heads]."""
        accuracy = self.accuracy[direction]
        return torch.stack([torch.as_tensor(b).expand_as(accuracy) for b in self.baselines[direction].values()]).amax(0)


class RelationTally:
    """How often every head's most attended other word is the other end of a relation (Clark et al. 2019).

    All counts stand in [1 + replicates] rows: the corpus as it is, and bootstrap samples of its sentences, so that a
    head and its baselines are compared on the same sentences. Sinks are no words: in a causal model the first position
    is left out, and with it the relations of a first word of one piece.
    """

    def __init__(self, n_layers: int, n_heads: int, causal: bool = False, replicates: int = REPLICATES) -> None:
        self._shape, self._causal = (replicates + 1, len(DIRECTIONS), n_layers, n_heads), causal
        self._counts: dict[str, dict[str, Any]] = {}
        self._weights = torch.empty(0)
        self._sentences: list[_Sentence] = []
        self._members: list[list[tuple[int, ...]]] = []
        self._names: dict[str, int] = {}

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Count the instances of a batch; a subtype (``acl:relcl``) counts as its base relation, too."""
        self._weights = weights
        self._sentences = [_Sentence.of(item, self._causal) for item in batch.items]
        self._names = {name: i for i, name in enumerate(dict.fromkeys(n for s in self._sentences for n in s.names))}
        for text, sentence in enumerate(self._sentences):
            often = weights[:, text]
            for name in dict.fromkeys(sentence.names):
                counts = self._of(name)
                mine = torch.tensor([other == name for other in sentence.names])
                counts["n"] += often * int(mine.sum())
                counts["sentences"] += 1
                counts["guesses"] += sentence.guesses[..., mine].sum(-1) * often[:, None, None]
                for offset in (sentence.head - sentence.dependent)[mine].tolist():
                    counts["offsets"][offset] = counts["offsets"].get(offset, 0.0) + often

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:  # noqa: ARG002 - as other tallies
        """Count one layer's patterns, [batch, n_heads, n, n], of the batch begun last."""
        if not self._names:
            return
        merged = between_spans(pattern, [sentence.members for sentence in self._sentences])
        merged.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
        weight, guess = merged.max(-1)
        guesses = guess.masked_fill(weight <= 0, -1).cpu()
        n_heads = guesses.shape[1]
        sums = torch.zeros(len(self._names), len(self._sentences), len(DIRECTIONS), 2, n_heads, dtype=torch.float64)
        for text, sentence in enumerate(self._sentences):
            if not sentence.names:
                continue
            of_text = guesses[text, :, : len(sentence.members)]
            kinds = torch.tensor([self._names[name] for name in sentence.names])
            for place, (query, target) in enumerate(sentence.ends):
                right = (of_text[:, query] == target).double()
                elsewhere = votes_elsewhere(of_text, sentence.visible, query, target)
                sums[:, text, place].index_add_(0, kinds, torch.stack([right, elsewhere]).permute(2, 0, 1))
        replicates = torch.einsum("rt,ktdsh->krdsh", self._weights, sums)
        for name, kind in self._names.items():
            counts = self._counts[name]
            counts["hits"][:, :, layer] += replicates[kind, :, :, 0]
            counts["elsewhere"][:, :, layer] += replicates[kind, :, :, 1]

    def results(self) -> list[RelationCount]:
        """Every relation, the most frequent first."""
        results = [_result(name, counts) for name, counts in self._counts.items()]
        return sorted(results, key=lambda relation: (-relation.n, relation.relation))

    def state(self) -> dict[str, Any]:
        """What was counted so far."""
        return self._counts

    def absorb(self, state: dict[str, Any]) -> None:
        """Add what another tally counted."""
        for name, theirs in state.items():
            mine = self._of(name)
            for key in ("n", "sentences", "guesses", "hits", "elsewhere"):
                mine[key] = mine[key] + theirs[key]  # ours may have been made in inference mode
            for offset, count in theirs["offsets"].items():
                mine["offsets"][offset] = mine["offsets"].get(offset, 0.0) + count

    def _of(self, name: str) -> dict[str, Any]:
        if name not in self._counts:
            rows = self._shape[0]
            zeros = torch.zeros(self._shape, dtype=torch.float64)
            self._counts[name] = {
                "n": torch.zeros(rows, dtype=torch.float64),
                "sentences": 0,
                "offsets": {},
                "guesses": torch.zeros(rows, len(DIRECTIONS), 1 + len(GUESSES), dtype=torch.float64),
                "hits": zeros,
                "elsewhere": zeros.clone(),
            }
        return self._counts[name]


@dataclass(frozen=True)
class _Sentence:
    """The instances of one sentence: ``dependent`` and ``head`` [n_instances], and what head-free guesses find.

    ``guesses`` is [n_directions, 1 + n_guesses, n_instances]: how often chance and each guess is right.
    """

    members: list[tuple[int, ...]]
    names: list[str]
    dependent: Tensor
    head: Tensor
    visible: Tensor
    guesses: Tensor

    @property
    def ends(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Who attends and what is to be found, in the order of DIRECTIONS."""
        return (self.dependent, self.head), (self.head, self.dependent)

    @classmethod
    def of(cls, item: Item, causal: bool) -> "_Sentence":
        members = [tuple(place for place in word if not item.sink[place]) for word in item.members]
        instances = [
            (name, arc.dependent, arc.head)
            for arc in item.source.arcs
            if members[arc.dependent] and members[arc.head]
            for name in dict.fromkeys((arc.relation, arc.relation.partition(":")[0]))
        ]
        names = [name for name, _, _ in instances]
        dependent, head = torch.tensor([ends for _, *ends in instances], dtype=torch.long).reshape(-1, 2).T
        words = WordGuesses.of([len(word) for word in members], causal)
        found = []
        for query, target in ((dependent, head), (head, dependent)):
            chance = words.chance[query] * words.visible[query, target]
            found.append(torch.stack([chance, *((words.words[name][query] == target).double() for name in GUESSES)]))
        return cls(members, names, dependent, head, words.visible, torch.stack(found))


def _result(name: str, counts: dict[str, Any]) -> RelationCount:
    n, offsets = counts["n"], counts["offsets"]
    offset = min(offsets, key=lambda offset: (-float(offsets[offset][0]), abs(offset), -offset))
    accuracy, baselines, errors = {}, {}, {}
    for place, direction in enumerate(DIRECTIONS):
        scores, elsewhere = (counts[key][:, place] / n[:, None, None] for key in ("hits", "elsewhere"))
        plain = torch.stack([offsets[offset], *counts["guesses"][:, place].unbind(-1)], -1) / n[:, None]
        largest = plain[0].argmax()
        beaten = torch.where(elsewhere[0] > plain[0, largest], elsewhere, plain[:, largest, None, None])
        accuracy[direction] = scores[0]
        baselines[direction] = dict(zip(BASELINES, (*plain[0].unbind(), elsewhere[0]), strict=True))
        errors[direction] = torch.stack([standard_error(scores[1:]), standard_error((scores - beaten)[1:])])
    return RelationCount(name, int(n[0]), counts["sentences"], offset, accuracy, baselines, errors)
