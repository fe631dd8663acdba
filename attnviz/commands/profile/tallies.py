"""What is counted over a corpus, layer by layer and batch by batch: sums that never grow with it."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from attnviz.corpora.batches import Batch
from attnviz.corpora.bootstrap import REPLICATES, standard_error
from attnviz.patterns.masks import allowed_units, distances
from attnviz.patterns.registry import PATTERNS, SHARES, MaskInput, masks_of
from attnviz.patterns.syntax import DIRECTIONS, best_offset

__all__ = ["NameTally", "RelationCount", "RelationTally", "StatisticsTally", "SumTally", "Tally", "between_spans"]

_MEANS = ("entropy", "distance", "confidence")


class Tally(Protocol):
    """Something that is counted over batches; counts of several runs or processes add up."""

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Take up a batch.

        Args:
            batch: texts of the corpus.
            weights: [1 + replicates, n_texts] float64, how often each text counts in each replicate of the bootstrap;
                the first row is ones. See :func:`attnviz.corpora.bootstrap.text_weights`.
        """

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:
        """Count one layer's patterns, [batch, n_heads, n, n]; layers come in order."""

    def state(self) -> dict[str, Any]:
        """What was counted so far: tensors, numbers and dicts of them."""

    def absorb(self, state: dict[str, Any]) -> None:
        """Add what another tally of the same kind counted."""


class SumTally:
    """A tally whose counts are tensors of sums."""

    _sums_by_name: dict[str, Tensor]

    def state(self) -> dict[str, Tensor]:
        """What was counted so far."""
        return self._sums_by_name

    def absorb(self, state: dict[str, Tensor]) -> None:
        """Add what another tally of the same kind and shape counted."""
        for name, sums in state.items():
            self._sums_by_name[name] += sums


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


class StatisticsTally(SumTally):
    """Entropy, distance, confidence, sink and shares of every head over a corpus.

    Means are over all positions of the corpus, shares are ratios of sums over the corpus. Beside the
    sums stand ``replicates`` others of a bootstrap over texts, whose spread is the standard error.
    """

    def __init__(self, n_layers: int, n_heads: int, causal: bool, replicates: int = REPLICATES) -> None:
        self.causal = causal
        shares = len(SHARES) + 1
        self._sums = torch.zeros(replicates + 1, n_layers, n_heads, len(_MEANS) + shares, dtype=torch.float64)
        self._positions = torch.zeros(replicates + 1, 3, dtype=torch.float64)  # all, content, texts
        self._baselines = torch.zeros(len(SHARES) + 2, dtype=torch.float64)
        self._sums_by_name = {"sums": self._sums, "positions": self._positions, "baselines": self._baselines}
        self._weights = torch.empty(0)

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Count the positions of a batch."""
        self._weights = weights
        positions = torch.stack([batch.valid.sum(1), batch.content.sum(1), batch.valid.any(1)], 1)
        self._positions += self._weights @ positions.double().cpu()
        self._add_baselines(batch)

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:
        """Count one layer's patterns, [batch, n_heads, n, n]."""
        n = pattern.shape[-1]
        queries = batch.valid[:, None, :].to(pattern)
        pairs = (batch.content[:, None, :, None] & batch.content[:, None, None, :]).to(pattern)
        far = torch.einsum("bhqk,qk->bhq", pattern, distances(n).abs().to(pattern))
        means = torch.stack([torch.special.entr(pattern).sum(-1), far, pattern.amax(-1)], -1)
        means = (means * queries[..., None]).sum(2)
        masks = torch.stack([torch.ones(n, n, dtype=torch.bool), *self._masks(n)]).flatten(1).T.to(pattern)
        shares = (pattern * pairs).flatten(2) @ masks
        sums = torch.cat([means, shares], -1).double().cpu()
        self._sums[:, layer] += torch.einsum("rb,bhk->rhk", self._weights, sums)

    def _masks(self, n: int) -> list[Tensor]:
        text = MaskInput(("",) * n, range(n), self.causal)
        masks = masks_of(text, [spec for spec in PATTERNS if not spec.on_repeats])
        nothing = torch.zeros(n, n, dtype=torch.bool)
        return [nothing if (mask := masks[name]) is None else mask for name in SHARES]

    def _add_baselines(self, batch: Batch) -> None:
        """Sums over content queries of each mask's share of the keys, over queries of ln of their number."""
        n = batch.valid.shape[1]
        content, valid = batch.content.cpu(), batch.valid.cpu()
        allowed = allowed_units(n, self.causal)
        keys = content[:, None, :] & allowed & content[:, :, None]
        count = keys.sum(-1).clamp(min=1)
        for place, mask in enumerate(self._masks(n)):
            self._baselines[place] += ((keys & mask).sum(-1) / count).double().sum()
        seen = (valid[:, None, :] & allowed).sum(-1).clamp(min=1)
        sinks = (valid & ~content)[:, None, :] & allowed
        self._baselines[-2] += (sinks.sum(-1) / seen)[content].double().sum()
        self._baselines[-1] += seen.double().log()[valid].sum()

    def results(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Each statistic, [n_layers, n_heads], and its standard error over texts; NaN where not measurable."""
        positions = self._positions[:, :, None, None]
        means = {name: self._sums[..., i] / positions[:, 0] for i, name in enumerate(_MEANS)}
        total = self._sums[..., len(_MEANS)]
        values = means | {"sink": 1 - total / positions[:, 1]}
        for i, name in enumerate(SHARES, start=len(_MEANS) + 1):
            share = self._sums[..., i] / total
            values[name] = torch.full_like(share, torch.nan) if name == "next" and self.causal else share
        return {name: value[0] for name, value in values.items()}, {
            name: standard_error(value[1:]) for name, value in values.items()
        }

    def baselines(self) -> dict[str, float | None]:
        """The same under uniform attention: of each share, of the sink, and the uniform entropy in nats."""
        n_queries, n_content, _ = self._positions[0].tolist()
        shares = {name: float(value / n_content) for name, value in zip(SHARES, self._baselines, strict=False)}
        if self.causal:
            shares["next"] = None  # type: ignore[assignment]
        sink, entropy = float(self._baselines[-2] / n_content), float(self._baselines[-1] / n_queries)
        return {**shares, "sink": sink, "entropy": entropy}

    @property
    def n_content(self) -> int:
        """Content positions counted."""
        return int(self._positions[0, 1])

    @property
    def n_texts(self) -> int:
        """Texts counted."""
        return int(self._positions[0, 2])


@dataclass(frozen=True)
class RelationCount:
    """One relation over a corpus.

    Attributes:
        relation: its name.
        n: instances.
        offset: the best fixed guess: +1 means that the head is the word after the dependent.
        offset_hits: instances for which that guess is right.
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
        self._hits: dict[str, Tensor] = defaultdict(
            lambda: torch.zeros(len(DIRECTIONS), n_layers, n_heads, dtype=torch.long)
        )
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
        merged.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
        weight, guess = merged.max(-1)
        guess = guess.masked_fill(weight <= 0, -1).cpu()
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
        offsets = {name: dict(counts) for name, counts in self._offsets.items()}
        return {"offsets": offsets, "hits": dict(self._hits)}

    def absorb(self, state: dict[str, Any]) -> None:
        """Add what another tally counted."""
        for name, counts in state["offsets"].items():
            self._offsets[name].update(counts)
        for name, hits in state["hits"].items():
            self._hits[name] = self._hits[name] + hits  # ours may have been made in inference mode


class NameTally:
    """How often every head finds which of two names a pronoun means (GAP, Webster et al. 2018).

    The spans of a text are the pronoun and the two names. A head's guess is the name with more attention: from the
    pronoun to the name, or from the name to the pronoun. A causal model cannot look ahead: give it only examples with
    both names before the pronoun; the second direction is then not measurable.
    """

    DIRECTIONS = ("pronoun_to_name", "name_to_pronoun")

    def __init__(self, n_layers: int, n_heads: int, causal: bool = False) -> None:
        self.n = 0
        self.nearer = 0.0
        directions = self.DIRECTIONS[:1] if causal else self.DIRECTIONS
        self.hits = {name: torch.zeros(n_layers, n_heads, dtype=torch.long) for name in directions}

    def begin(self, batch: Batch, weights: Tensor) -> None:  # noqa: ARG002 - counts need no bootstrap
        """Count the examples of a batch and how often the nearer name is right, by first tokens; half where equal."""
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
