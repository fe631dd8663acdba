"""What is counted over a corpus, layer by layer and batch by batch: sums that never grow with it."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.measures.bootstrap import REPLICATES
from attnviz.measures.estimates import Estimate, estimated
from attnviz.measures.patterns import PATTERNS, MaskInput, PatternSpec, allowed_units, distances, masks_of
from attnviz.measures.sums import SumTally
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.offloading import parameter_of
from attnviz.reference.attention import entropy, uniform_pattern
from attnviz.texts.batches import Batch
from attnviz.texts.runs import Additive

_MEANS = ("entropy", "distance", "confidence")


def _at(offset: int) -> PatternSpec:
    """The key at one offset from its query, as a pattern."""

    def mask(text: MaskInput) -> Tensor | None:
        return None if text.causal and offset > 0 else text.distances == offset

    name = f"offset:{offset:+d}"
    return PatternSpec(name, name, mask, f"the {{unit}} at {offset:+d}", "positional")


_OFFSETS = [_at(offset) for offset in range(-8, 9) if abs(offset) > 1]

OFFSETS = tuple(spec.name for spec in _OFFSETS)
"""``offset:-8`` and so on: key position minus query position. How far they go is attnviz's own choice."""


class Tally(Additive, Protocol):
    """Something that is counted over batches; counts of several runs or processes add up."""

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Take up a batch.

        Args:
            batch: texts of the corpus.
            weights: [1 + replicates, n_texts] float64, how often each text counts in each replicate of the bootstrap;
                the first row is ones. See :func:`attnviz.measures.bootstrap.text_weights`.
        """

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:
        """Count one layer's patterns, [batch, n_heads, n, n]; layers come in order."""


class _TextTally(SumTally):
    """Sums over texts; after the first of ``sums`` stand those of bootstrap replicates."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__(counted=(2,), **shapes)
        self._weights = torch.empty(0)

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Count the texts and the content of a batch."""
        self._counts["counted"] += torch.tensor([len(batch.items), int(batch.non_sink.sum())])
        self._weights = weights

    def _add_to(self, name: str, place: int, sums: Tensor) -> None:
        """Add sums over texts, [batch, n_heads, n_sums], to a count of each replicate: of a layer, or of a window."""
        self._counts[name][:, place] += torch.einsum("rb,bhk->rhk", self._weights, sums.double().cpu())

    @property
    def n_texts(self) -> int:
        """Texts counted."""
        return int(self._counts["counted"][0])

    @property
    def n_non_sink(self) -> int:
        """Content positions counted."""
        return int(self._counts["counted"][1])


class StatisticsTally(_TextTally):
    """Entropy, distance, confidence, sink and shares of every head over a corpus, those of :data:`OFFSETS` among them.

    Means are over all positions of the corpus, shares are ratios of sums over the corpus; the spread of ``replicates``
    bootstrap samples of its texts is the standard error. A mask that reads the text is made for each text.

    ``roles`` are the names of the patterns.
    """

    def __init__(
        self,
        n_layers: int,
        n_heads: int,
        causal: bool,
        replicates: int = REPLICATES,
        windows: Sequence[int | None] = (),
    ) -> None:
        self.causal = causal
        self._windows, self._of_layer = _different(windows or [None] * n_layers)
        self._patterns = [*(spec for spec in PATTERNS if not spec.on_repeats), *_OFFSETS]
        self.roles = [spec.name for spec in self._patterns]
        without = masks_of(MaskInput(("",), (0,), causal), self._patterns)
        self._possible = {name: mask is not None for name, mask in without.items()}
        n_shares = len(self._patterns)
        super().__init__(
            sums=(replicates + 1, n_layers, n_heads, len(_MEANS) + 1 + n_shares),
            positions=(replicates + 1, 2),  # all, content
            uniform=(replicates + 1, len(self._windows), 2, len(_MEANS) + 1 + n_shares),  # see :meth:`_uniform`
        )
        self._masks = torch.empty(0)

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Count the positions of a batch, and what uniform attention does there."""
        super().begin(batch, weights)
        positions = torch.stack([batch.valid.sum(1), batch.non_sink.sum(1)], 1)
        self._counts["positions"] += weights @ positions.double().cpu()
        self._masks = self.masks_of(batch)
        for place, window in enumerate(self._windows):
            self._add_to("uniform", place, self._sums(self._uniform(batch, window), batch))

    def _uniform(self, batch: Batch, window: int | None) -> Tensor:
        """Two heads whose attention is uniform over all keys that they see, and over content, [batch, 2, n, n]."""
        keys = torch.stack([batch.valid, batch.non_sink], 1)[:, :, None]
        return uniform_pattern(keys & allowed_units(keys.shape[-1], self.causal, window).to(keys.device))

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:
        """Count one layer's patterns, [batch, n_heads, n, n]."""
        self._add_to("sums", layer, self._sums(pattern, batch))

    def _sums(self, pattern: Tensor, batch: Batch) -> Tensor:
        """Of patterns [batch, n_heads, n, n] what is summed over each text, [batch, n_heads, n_sums]."""
        n = pattern.shape[-1]
        queries = batch.valid[:, None, :].to(pattern)
        pairs = (batch.non_sink[:, None, :, None] & batch.non_sink[:, None, None, :]).to(pattern)
        far = torch.einsum("bhqk,qk->bhq", pattern, distances(n).abs().to(pattern))
        means = torch.stack([entropy(pattern), far, pattern.amax(-1)], -1)
        means = (means * queries[..., None]).sum(2)
        masks = pad(self._masks.flatten(2), (0, 0, 1, 0), value=True).mT.to(pattern)  # first all content pairs
        shares = (pattern * pairs).flatten(2) @ (masks[0] if len(masks) == 1 else masks)
        return torch.cat([means, shares], -1)

    def masks_of(self, batch: Batch) -> Tensor:
        """The masks of the patterns in each text, boolean [n_texts, n_shares, n, n]; [1, …] where none reads it."""
        n = batch.valid.shape[1]
        texts = [MaskInput(("",) * n, range(n), self.causal)]
        if any(spec.reads_text for spec in self._patterns):
            texts = [MaskInput(item.pieces, item.ids, self.causal) for item in batch.items]
        masks = torch.zeros(len(texts), len(self._patterns), n, n, dtype=torch.bool)
        for of_text, text in zip(masks, texts, strict=True):
            for place, mask in enumerate(masks_of(text, self._patterns).values()):
                if mask is not None:
                    of_text[place, : text.n, : text.n] = mask
        return masks

    def _samples(self, name: str = "sums") -> dict[str, Tensor]:
        """Each statistic in every bootstrap sample, [1 + replicates, n_layers, n_heads]; NaN where not measurable."""
        sums, positions = self._counts[name], self._counts["positions"][:, :, None, None]
        total = sums[..., len(_MEANS)]
        values = {mean: sums[..., i] / positions[:, 0] for i, mean in enumerate(_MEANS)}
        values["sink"] = 1 - total / positions[:, 1]
        for i, (share, possible) in enumerate(self._possible.items(), start=len(_MEANS) + 1):
            values[share] = sums[..., i] / total if possible else torch.full_like(total, torch.nan)
        return values

    def _baselines(self) -> dict[str, Tensor | None]:
        """Those of uniform attention, [1 + replicates, n_layers]; None of a pattern that the model cannot have."""
        of_all, of_content = ({name: values[:, self._of_layer, head] for name, values in found.items()}
                              for found in [self._samples("uniform")] for head in (0, 1))  # fmt: skip
        shares = {name: of_content[name] if possible else None for name, possible in self._possible.items()}
        return shares | {name: of_all[name] for name in ("sink", "entropy")}

    def results(self) -> dict[str, Tensor]:
        """Each statistic, [n_layers, n_heads]; NaN where not measurable."""
        return {name: values[0] for name, values in self._samples().items()}

    def estimates(self) -> dict[str, Estimate]:
        """Each share, the sink, and entropy as a share of uniform attention's (``broad``), beside uniform attention."""
        samples, uniform = self._samples(), self._baselines()
        entropy = uniform.pop("entropy")
        assert entropy is not None
        broad = samples["entropy"] / entropy[..., None]
        found = {name: self._estimate(samples[name], each) for name, each in uniform.items() if each is not None}
        return found | {"broad": self._estimate(broad, torch.ones_like(entropy))}

    def _estimate(self, values: Tensor, uniform: Tensor) -> Estimate:
        baselines = {"uniform attention": uniform[:, None, :, None]}
        return estimated(values[:, None], baselines, self.n_non_sink, self.n_texts)

    def baselines(self) -> dict[str, float | None]:
        """The same under uniform attention: of each share, of the sink, and the uniform entropy in nats.

        Where layers have windows of their own, the mean over the layers.
        """
        layers = slice(None) if self.windowed else slice(1)
        return {
            name: None if each is None else float(each[0, layers].mean()) for name, each in self._baselines().items()
        }

    @property
    def windowed(self) -> bool:
        """Whether layers differ in how many tokens a query sees."""
        return len(self._windows) > 1


def _different(windows: Sequence[int | None]) -> tuple[list[int | None], list[int]]:
    """The different windows of a model's layers, and for each layer the place of its own among them."""
    different = list(dict.fromkeys(windows))
    return different, [different.index(window) for window in windows]


def ordinary_ids(checkpoint: Checkpoint) -> list[int]:
    """Vocabulary entries that a text can have: no special token, no ``[unused…]``, no row without a token."""
    special = set(checkpoint.tokenizer.all_special_ids)
    n = min(int(checkpoint.config.vocab_size), len(checkpoint.tokenizer))
    tokens = checkpoint.tokenizer.convert_ids_to_tokens(list(range(n)))
    given = [token is not None and not token.startswith("[unused") for token in tokens]
    return [i for i in range(n) if given[i] and i not in special]


def mean_embedding(checkpoint: Checkpoint) -> Tensor:
    """Mean input embedding of :func:`ordinary_ids`, [d_model].

    Embeddings share a large common direction that makes all words look alike; without it, cosines tell words apart
    (Mu & Viswanath 2018).
    """
    return _embeddings(checkpoint)[ordinary_ids(checkpoint)].double().mean(0)


class MeaningTally(_TextTally):
    """Over a corpus, the mean cosine of the words that a head's attention joins, beside uniform attention.

    Counted are pairs of a content query and a content key that it may attend to. Left out are a position and itself,
    and two positions with the same vocabulary entry: their cosine is 1 by definition, so every duplicate-token head
    would pass for a semantic one. A pair's cosine is that of the input embeddings (BERT's word embeddings, GPT-2's
    wte; no positions) less :func:`mean_embedding`.
    """

    def __init__(self, checkpoint: Checkpoint, replicates: int = REPLICATES) -> None:
        self._embeddings, self._mean = _embeddings(checkpoint), mean_embedding(checkpoint)
        self._causal = checkpoint.architecture.causal
        self._windows, self._of_layer = _different(checkpoint.windows)
        super().__init__(
            sums=(replicates + 1, checkpoint.n_layers, checkpoint.n_heads, 2),  # attention times cosine, and attention
            uniform=(replicates + 1, len(self._windows), 1, 2),  # the same of uniform attention to the pairs
        )
        self._masks = torch.empty(0)

    def cosines(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The pairs of a batch, boolean [n_texts, n, n], and the cosines of any two of its tokens."""
        ids, non_sink = batch.inputs["input_ids"], batch.non_sink
        vectors = torch.nn.functional.normalize((self._embeddings[ids].double() - self._mean).float(), dim=-1)
        other = non_sink[:, :, None] & non_sink[:, None, :] & (ids[:, :, None] != ids[:, None, :])
        allowed = allowed_units(ids.shape[1], self._causal).to(ids.device)
        return other & allowed, vectors @ vectors.mT  # 0 for an embedding that is the mean itself

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Take the cosines of a batch."""
        super().begin(batch, weights)
        every, cosines = self.cosines(batch)
        self._masks = torch.stack([cosines * every, every.to(cosines)], -1).flatten(1, 2)
        for place, window in enumerate(self._windows):
            pairs = every & allowed_units(every.shape[1], self._causal, window).to(every.device)
            self._add_to("uniform", place, self._sums(uniform_pattern(pairs)[:, None]))

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:  # noqa: ARG002 - as other tallies
        """Count one layer's patterns, [batch, n_heads, n, n], of the batch begun last."""
        self._add_to("sums", layer, self._sums(pattern))

    def _sums(self, pattern: Tensor) -> Tensor:
        return pattern.flatten(2) @ self._masks.to(pattern)

    def results(self) -> Estimate:
        """Scores beside what uniform attention would score; all are cosines.

        The score is sum A cos / sum A over the pairs; NaN for a head that leaves none of its attention there. The
        baseline is the mean over queries with a pair of the mean cosine of their pairs; NaN where there are none.
        """
        sums, uniform = self._counts["sums"], self._counts["uniform"][:, self._of_layer, 0]
        baselines = {"uniform attention": (uniform[..., 0] / uniform[..., 1])[:, None, :, None]}
        return estimated((sums[..., 0] / sums[..., 1])[:, None], baselines, self.n_queries, self.n_texts)

    def on_pairs(self) -> Tensor:
        """Share of the attention of those queries that lands on such pairs, [n_layers, n_heads]."""
        return self._counts["sums"][0, ..., 1] / self._counts["uniform"][0, self._of_layer, :, 1]

    @property
    def n_queries(self) -> int:
        """Content queries with at least one pair, in the layer with the shortest window."""
        return round(float(self._counts["uniform"][0, :, 0, 1].min()))


def _embeddings(checkpoint: Checkpoint) -> Tensor:
    """The input embeddings, [n_entries, d_model]."""
    model: Any = checkpoint.model
    weight: Tensor = parameter_of(model.get_input_embeddings(), "weight")
    return weight.detach()
