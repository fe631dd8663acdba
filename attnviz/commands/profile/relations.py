"""How often heads find the other end of a syntactic relation, beside guesses that track none, over a corpus."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnviz.commands.profile.estimates import Estimate, estimated
from attnviz.commands.profile.tallies import SumTally
from attnviz.corpora.batches import Batch
from attnviz.corpora.bootstrap import REPLICATES
from attnviz.model.head_ids import HeadId
from attnviz.patterns.guesses import GUESSES, WordGuesses, votes_elsewhere
from attnviz.patterns.syntax import DIRECTIONS, best_offset, most_attended_other

Spans = Sequence[Sequence[Sequence[int]]]
_Right = Callable[[Tensor, Tensor, Tensor], Tensor]


def between_spans(pattern: Tensor, members: Spans) -> Tensor:
    """Attention between the spans of each text: sums over the pieces attended to, means over those attending.

    Args:
        pattern: [batch, n_heads, n, n].
        members: for each text, for each of its spans, token positions; a span may have none.

    Returns:
        [batch, n_heads, n_spans, n_spans]; zeros for spans without tokens and beyond a text's last span.
    """
    batch, _, n, _ = pattern.shape
    n_spans = max((len(spans) for spans in members), default=0)
    belongs = torch.zeros(batch, n_spans, n)
    for text, spans in enumerate(members):
        rows = [row for row, positions in enumerate(spans) for _ in positions]
        columns = [position for positions in spans for position in positions]
        belongs[text, rows, columns] = 1.0
    belongs = belongs.to(pattern)[:, None]
    means = belongs / belongs.sum(-1, keepdim=True).clamp(min=1)
    return means @ pattern @ belongs.transpose(-1, -2)


def relation_instances(batch: Batch) -> tuple[list[list[list[int]]], Tensor, dict[str, list[int]]]:
    """The instances of relations in a batch; a subtype (``acl:relcl``) counts as its base relation, too.

    Returns:
        for each text and word its tokens that are no sinks; of each instance the text, the dependent and the head,
        [n, 3]; for each relation the numbers of its instances.
    """
    words = [
        [[place for place in positions if not item.sink[place]] for positions in item.members] for item in batch.items
    ]
    pairs: list[tuple[int, int, int]] = []
    places: dict[str, list[int]] = defaultdict(list)
    for text, (item, members) in enumerate(zip(batch.items, words, strict=True)):
        for arc in item.source.arcs:
            if members[arc.dependent] and members[arc.head]:
                for name in dict.fromkeys((arc.relation.partition(":")[0], arc.relation)):
                    places[name].append(len(pairs))
                pairs.append((text, arc.dependent, arc.head))
    return words, torch.tensor(pairs, dtype=torch.long).reshape(-1, 3), places


@dataclass(frozen=True)
class RelationCount:
    """One relation over a corpus.

    Attributes:
        relation: its name.
        offset: the best fixed guess: +1 means that the head is the word after the dependent.
        accuracy: of every head by direction, beside the guesses of :data:`attnviz.patterns.guesses.BASELINES`.
        layers: of the model, which name its heads; of an encoder-decoder those of its encoder.
    """

    relation: str
    offset: int
    accuracy: Estimate
    layers: Sequence[int] = ()

    @property
    def n(self) -> int:
        """Instances."""
        return self.accuracy.n

    @property
    def offset_accuracy(self) -> float:
        """How often the best fixed guess is right."""
        return float(self.accuracy.baselines["fixed offset"].flatten()[0])

    @property
    def best(self) -> tuple[HeadId, str, float]:
        """The head that is right most often, its direction, and how often."""
        scores = self.accuracy.scores
        direction, layer, head = map(int, torch.unravel_index(scores.argmax(), scores.shape))
        return (
            HeadId(self.layers[layer] if self.layers else layer, head),
            self.accuracy.directions[direction],
            float(scores.max()),
        )


class RelationTally(SumTally):
    """How often every head's most attended other word is the other end of a relation (Clark et al. 2019).

    Sinks are no words, as in :func:`attnviz.patterns.syntax.relation_accuracy`. Counts are of relations and bootstrap
    samples of sentences; of heads, how often they are right, and how often they guess the same from other words.

    Attributes:
        members: for each text of the batch begun last and each word, its tokens that are no sinks.
        pairs: of each instance of that batch the text, the dependent and the head, [n, 3].
        numbers: for each relation the numbers of its instances.
    """

    def __init__(self, n_layers: int, n_heads: int, causal: bool, replicates: int = REPLICATES) -> None:
        super().__init__()
        self._shape = 1 + replicates, len(DIRECTIONS), 2, n_layers, n_heads
        self._causal = causal
        self.members: list[list[list[int]]] = []
        self.numbers: dict[str, list[int]] = {}
        self.pairs = torch.empty(0, 3, dtype=torch.long)
        self._weights = self._instances = self._places = torch.empty(0)
        self._words: WordGuesses | None = None

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Count the instances of a batch."""
        self.members, self.pairs, self.numbers = relation_instances(batch)
        self._weights, self._words = weights, None
        if not self.numbers:
            return
        sizes = [torch.tensor(list(map(len, members)), dtype=torch.long) for members in self.members]
        self._words = WordGuesses.of(pad_sequence(sizes, batch_first=True), self._causal)
        self._instances = torch.tensor([number for numbers in self.numbers.values() for number in numbers])
        relations = torch.repeat_interleave(torch.tensor(list(map(len, self.numbers.values()))))
        self._places = relations * len(self.members) + self.pairs[self._instances, 0]
        self._count_guesses(self._words)

    def _count_guesses(self, words: WordGuesses) -> None:
        """Instances, sentences, offsets and guesses of the batch, in every bootstrap sample."""

        def right(text: Tensor, query: Tensor, target: Tensor) -> Tensor:
            chance = words.chance[text, query] * words.visible[text, query, target]
            return torch.stack([chance, *((words.words[name][text, query] == target).double() for name in GUESSES)], 1)

        offsets = self.pairs[:, 2] - self.pairs[:, 1]
        different = sorted(set(offsets.tolist()))
        counted = self._of_relations((offsets[:, None] == torch.tensor(different)).double())
        for name, of_offsets in zip(self.numbers, counted, strict=True):
            self._sum((name, "instances"), of_offsets.sum(1))
            self._sum((name, "sentences"), torch.tensor(float(len(set(self.pairs[self.numbers[name], 0].tolist())))))
            for offset, sums in zip(different, of_offsets.T, strict=True):
                if sums[0]:
                    self._sum((name, offset), sums)
            if (name, "heads") not in self._counts:
                self._counts[name, "heads"] = torch.zeros(self._shape, dtype=torch.float64)
        for name, sums in zip(self.numbers, self._of_relations(self._from_either_end(right)), strict=True):
            self._sum((name, "guesses"), sums)

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:  # noqa: ARG002 - as other tallies
        """Count one layer's patterns, [batch, n_heads, n, n]."""
        if self._words is None:
            return
        guesses = most_attended_other(between_spans(pattern, self.members).cpu())
        visible = self._words.visible

        def right(text: Tensor, query: Tensor, target: Tensor) -> Tensor:
            own = (guesses[text, :, query] == target[:, None]).double()
            return torch.stack([own, votes_elsewhere(guesses, visible, text, query, target)], 1)

        for name, sums in zip(self.numbers, self._of_relations(self._from_either_end(right)), strict=True):
            self._counts[name, "heads"][:, :, :, layer] += sums

    def _from_either_end(self, right: _Right) -> Tensor:
        """What is right of each instance, [n_instances, n_directions, …]."""
        text, dependents, heads = self.pairs.T
        return torch.stack([right(text, dependents, heads), right(text, heads, dependents)], 1)

    def _of_relations(self, values: Tensor) -> Tensor:
        """Values of instances, summed over each relation in each bootstrap sample, [n_relations, 1 + replicates, …]."""
        n_relations, n_texts = len(self.numbers), len(self.members)
        by_text = torch.zeros(n_relations * n_texts, values[0].numel(), dtype=torch.float64)
        by_text.index_add_(0, self._places, values.flatten(1)[self._instances])
        sums = self._weights @ by_text.view(n_relations, n_texts, -1)
        return sums.view(n_relations, -1, *values.shape[1:])

    def results(self) -> list[RelationCount]:
        """Every relation, the most frequent first."""
        names = [name for name, what in self._counts if what == "instances"]
        counts = [self._result(name) for name in names]
        return sorted(counts, key=lambda relation: (-relation.n, relation.relation))

    def _result(self, name: str) -> RelationCount:
        counts = {what: sums for (of_name, what), sums in self._counts.items() if of_name == name}
        offset, _ = best_offset(Counter({k: int(sums[0]) for k, sums in counts.items() if isinstance(k, int)}))
        n = counts["instances"]
        heads = counts["heads"] / n[:, None, None, None, None]
        guesses = (counts["guesses"] / n[:, None, None])[..., None, None]
        baselines = {"fixed offset": (counts[offset] / n)[:, None, None, None]}
        baselines |= dict(zip(("chance", *GUESSES), guesses.unbind(2), strict=True)) | {"other words": heads[:, :, 1]}
        accuracy = estimated(heads[:, :, 0], baselines, int(n[0]), int(counts["sentences"]), DIRECTIONS)
        return RelationCount(name, offset, accuracy)
