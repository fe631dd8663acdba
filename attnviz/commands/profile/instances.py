"""Tallies that need no bootstrap: relations, pronouns with two names, repeated random tokens, distances of heads."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.profile.tallies import SumTally
from attnviz.corpora.batches import Batch, Item, SampledAttention, Text, collate
from attnviz.errors import CheckpointError
from attnviz.model.checkpoint import Checkpoint
from attnviz.patterns.syntax import DIRECTIONS, best_offset, most_attended_other

__all__ = ["MOST_QUERIES", "SEQUENCES", "HeadDistanceTally", "NameTally", "RelationCount", "RelationTally",
           "RepeatScores", "RepeatTally", "between_spans"]  # fmt: skip

SEQUENCES, LENGTH = 32, 50
"""Random sequences, and their tokens before they are repeated: 25 in Olsson et al. 2022, 100 in Wang et al. 2022."""

SMOOTHING = 0.001
"""Share of every pattern that is made uniform over the tokens of its text first (Clark et al. 2019, their code)."""

MOST_QUERIES = 512
"""Most queries of a batch that are compared; attnviz's own choice, so that 144 heads take a second or two."""

_TOGETHER = 32
"""Queries that are compared at once, few enough for the processor's cache."""


def between_spans(pattern: Tensor, members: Sequence[Sequence[Sequence[int]]]) -> Tensor:
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


@dataclass(frozen=True)
class RelationCount:
    """One relation over a corpus.

    Attributes:
        relation, n: its name, and how many instances.
        offset, offset_hits: the best fixed guess (+1: the head is the word after the dependent), how often it is right.
        hits: by direction, instances for which each head is right, [n_layers, n_heads].
    """

    relation: str
    n: int
    offset: int
    offset_hits: int
    hits: dict[str, Tensor]


class RelationTally:
    """How often every head's most attended other word is the other end of a relation (Clark et al. 2019)."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self._offsets: dict[str, Counter[int]] = defaultdict(Counter)
        shape = len(DIRECTIONS), n_layers, n_heads
        self._hits: dict[str, Tensor] = defaultdict(lambda: torch.zeros(shape, dtype=torch.long))
        self._ends = torch.empty(0, dtype=torch.long)
        self._names: list[str] = []

    def begin(self, batch: Batch, weights: Tensor) -> None:  # noqa: ARG002 - counts need no bootstrap
        """Count the instances of a batch; a subtype (``acl:relcl``) counts as its base relation, too."""
        ends, names = [], []
        for text, item in enumerate(batch.items):
            for arc in item.source.arcs:
                if item.members[arc.dependent] and item.members[arc.head]:
                    for name in dict.fromkeys((arc.relation, arc.relation.partition(":")[0])):
                        ends.append((text, arc.dependent, arc.head))
                        names.append(name)
                        self._offsets[name][arc.head - arc.dependent] += 1
        self._ends, self._names = torch.tensor(ends, dtype=torch.long).reshape(-1, 3), names

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:
        """Count one layer's patterns, [batch, n_heads, n, n]."""
        if not self._names:
            return
        merged = between_spans(pattern, [item.members for item in batch.items])
        guess = most_attended_other(merged).cpu()
        text, dependent, head = self._ends.T
        right = (guess[text, :, dependent] == head[:, None], guess[text, :, head] == dependent[:, None])
        kinds = {name: i for i, name in enumerate(dict.fromkeys(self._names))}
        of_kind = torch.tensor([kinds[name] for name in self._names])
        for direction, hits in enumerate(right):
            sums = torch.zeros(len(kinds), hits.shape[1], dtype=torch.long).index_add_(0, of_kind, hits.long())
            for name, i in kinds.items():
                self._hits[name][direction, layer] += sums[i]

    def results(self) -> list[RelationCount]:
        """Every relation, the most frequent first."""
        counts = [
            RelationCount(
                name, offsets.total(), *best_offset(offsets), dict(zip(DIRECTIONS, self._hits[name], strict=True))
            )
            for name, offsets in self._offsets.items()
        ]
        return sorted(counts, key=lambda relation: (-relation.n, relation.relation))

    def state(self) -> dict[str, Any]:
        """What was counted so far."""
        return {"offsets": {name: dict(counts) for name, counts in self._offsets.items()}, "hits": dict(self._hits)}

    def absorb(self, state: dict[str, Any]) -> None:
        """Add what another tally counted."""
        for name, counts in state["offsets"].items():
            self._offsets[name].update(counts)
        for name, hits in state["hits"].items():
            self._hits[name] = self._hits[name] + hits  # ours may have been made in inference mode


class NameTally:
    """How often every head finds which of two names a pronoun means (GAP, Webster et al. 2018).

    The spans of a text are the pronoun and the two names. A head's guess is the name with more attention from the
    pronoun, or to it; a causal model, which must be given both names before the pronoun, has the first direction only.
    """

    DIRECTIONS = ("pronoun_to_name", "name_to_pronoun")

    def __init__(self, n_layers: int, n_heads: int, causal: bool = False) -> None:
        self.n = 0
        self.nearer = 0.0
        directions = self.DIRECTIONS[:1] if causal else self.DIRECTIONS
        self.hits = {name: torch.zeros(n_layers, n_heads, dtype=torch.long) for name in directions}

    def begin(self, batch: Batch, weights: Tensor) -> None:  # noqa: ARG002 - counts need no bootstrap
        """Count examples, and how often the nearer name is right, by first tokens; half where both are as near."""
        self.n += len(batch.items)
        for item in batch.items:
            pronoun, *names = (positions[0] for positions in item.members)
            near = [abs(name - pronoun) for name in names]
            self.nearer += 0.5 if near[0] == near[1] else float((near[1] < near[0]) == item.source.answer)

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:
        """Count one layer's patterns, [batch, n_heads, n, n]."""
        merged = between_spans(pattern, [item.members for item in batch.items])
        answers = [item.source.answer for item in batch.items]
        wanted = torch.tensor(answers, device=merged.device)[:, None] == 0
        first = (merged[:, :, 0, 1] > merged[:, :, 0, 2], merged[:, :, 1, 0] > merged[:, :, 2, 0])
        for name, guess in zip(self.hits, first, strict=False):
            self.hits[name][layer] += (guess == wanted).sum(0).cpu()

    def state(self) -> dict[str, Any]:
        """What was counted so far."""
        return {"n": self.n, "nearer": self.nearer, "hits": self.hits}

    def absorb(self, state: dict[str, Any]) -> None:
        """Add what another tally counted."""
        self.n += state["n"]
        self.nearer += state["nearer"]
        for name, hits in state["hits"].items():
            self.hits[name] += hits


@dataclass(frozen=True)
class RepeatScores:
    """Scores on random tokens repeated once.

    Attributes:
        scores: by ``previous``, ``duplicate``, ``induction``, means on a diagonal, [n_sequences, n_layers, n_heads].
        length: tokens before they are repeated.
        baselines: the scores of uniform attention.
    """

    scores: dict[str, Tensor]
    length: int
    baselines: dict[str, float]


class RepeatTally(SumTally):
    """The scores of each random sequence (Wang et al. 2022, Olsson et al. 2022), no special tokens around it."""

    def __init__(self, checkpoint: Checkpoint, seed: int) -> None:
        self._checkpoint = checkpoint
        self._length = min(LENGTH, int(checkpoint.config.max_position_embeddings) // 2)
        self._offsets = {"previous": -1, "duplicate": -self._length, "induction": 1 - self._length}
        super().__init__(**dict.fromkeys(self._offsets, (SEQUENCES, checkpoint.n_layers, checkpoint.n_heads)))
        special = set(checkpoint.tokenizer.all_special_ids)
        ordinary = torch.tensor([i for i in range(int(checkpoint.config.vocab_size)) if i not in special])
        generator = torch.Generator().manual_seed(seed)
        self._drawn = ordinary[torch.randint(len(ordinary), (SEQUENCES, self._length), generator=generator)]

    def measure(
        self, attention: SampledAttention, numbers: list[int], batch_size: int, tell: Callable[[int], None]
    ) -> None:
        """Measure the sequences with these numbers; ``tell`` hears how many are done."""
        if self._length < 1:
            raise CheckpointError(
                "the model has a single position; --repeats needs two at least, for a token and its copy"
            )
        for first in range(0, len(numbers), batch_size):
            chosen = numbers[first : first + batch_size]
            drawn = self._drawn[chosen].tolist()
            items = [Item((*once, *once), (False,) * (2 * self._length), (), Text("")) for once in drawn]

            def visit(layer: int, pattern: Tensor, chosen: list[int] = chosen) -> None:
                for name, offset in self._offsets.items():
                    means = torch.diagonal(pattern, offset, -2, -1).double().mean(-1)
                    self._counts[name][chosen, layer] = means.cpu()

            attention.run(collate(self._checkpoint, items), visit)
            tell(first + len(chosen))

    def results(self) -> RepeatScores:
        """The scores, beside those of uniform attention."""
        n = 2 * self._length
        seen = torch.arange(1, n + 1) if self._checkpoint.architecture.causal else torch.full((n,), n)
        baselines = {name: float((1 / seen[-offset:]).mean()) for name, offset in self._offsets.items()}
        return RepeatScores(self._counts, self._length, baselines)


class HeadDistanceTally(SumTally):
    """The mean Jensen-Shannon divergence between the patterns of any two heads of a model.

    For two heads and one query let p and q be their attention over the n tokens of the query's text, smoothed to
    0.999 p + 0.001 / n. The divergence is H((p + q) / 2) - (H(p) + H(q)) / 2 in nats, H being the entropy: 0 where the
    heads attend alike, and close to ln 2 where they attend to different tokens. It is averaged over ``n_queries``;
    Clark et al. 2019 (section 6) sum it, which arranges the heads alike. Every token of a text counts as a query,
    special tokens too, as for Clark et al.; padding is neither query nor key. Of a batch at most :data:`MOST_QUERIES`
    queries are compared, evenly spread over it. Only the compared rows are kept, until a batch's last layer.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        super().__init__(sums=(n_layers * n_heads, n_layers * n_heads), queries=())
        self.n_layers = n_layers
        self._rows: list[Tensor] = []
        self._text = self._query = torch.empty(0, dtype=torch.long)

    def begin(self, batch: Batch, weights: Tensor | None = None) -> None:  # noqa: ARG002 - means need no bootstrap
        """Choose the queries of a batch; rows of an earlier one whose last layer never came are forgotten."""
        queries = batch.valid.nonzero()
        count = min(len(queries), MOST_QUERIES)
        chosen = torch.arange(count, device=queries.device) * len(queries) // max(count, 1)
        self._text, self._query = queries[chosen].T
        self._rows = []

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:
        """Take one layer's patterns, [batch, n_heads, n, n]; with the last layer's, the heads are compared.

        Raises:
            ValueError: layers are left out, or come twice.
        """
        if layer != len(self._rows):
            raise ValueError(f"layers must come in order, each once. Expected layer {len(self._rows)}. Got {layer}.")
        wide = pattern if pattern.dtype == torch.float64 else pattern.float()
        valid = batch.valid[self._text].to(wide)
        uniform = valid / valid.sum(-1, keepdim=True)
        rows = wide[self._text, :, self._query] * valid[:, None]
        self._rows.append((1 - SMOOTHING) * rows + SMOOTHING * uniform[:, None])
        if len(self._rows) == self.n_layers:
            self._compare(torch.cat(self._rows, dim=1))
            self._rows = []

    def _compare(self, rows: Tensor) -> None:
        """Add the divergences of [n_queries, n_all_heads, n] rows, each pair of heads computed once."""
        for first in range(0, len(rows), _TOGETHER):
            some = rows[first : first + _TOGETHER].transpose(0, 1).contiguous()
            entropy = _entropy(some)
            sums = some.new_zeros(len(some), len(some))
            for head in range(len(some) - 1):
                mixed = _entropy((some[head + 1 :] + some[head]) / 2)
                sums[head, head + 1 :] = (mixed - (entropy[head + 1 :] + entropy[head]) / 2).clamp(min=0).sum(1)
            upper = sums.cpu().double()
            self._counts["sums"] += upper + upper.T
        self._counts["queries"] += len(rows)

    @property
    def n_queries(self) -> int:
        """Queries compared."""
        return int(self._counts["queries"])

    def results(self) -> Tensor:
        """The mean divergence of any two heads in nats, 0 to ln 2, [n_all_heads, n_all_heads], layer by layer.

        Symmetric, zeros on the diagonal; NaN where nothing was compared.
        """
        return self._counts["sums"] / self._counts["queries"]


def _entropy(rows: Tensor) -> Tensor:
    """Of the last axis, in nats."""
    return torch.special.entr(rows).sum(-1)  # type: ignore[no-any-return]
