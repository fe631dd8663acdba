"""Statistics over a corpus, counted layer by layer and batch by batch in sums of constant size."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.inputs.batches import Batch
from attnviz.inputs.prompt import told_apart
from attnviz.measures.bootstrap import text_weights
from attnviz.measures.estimates import HeadScores, estimated
from attnviz.measures.measure import LayerRows, Measure, PatternRows, copy_to_host, following
from attnviz.measures.patterns import (
    CHOSEN,
    PATTERNS,
    SHUFFLED,
    SINK_ONLY,
    MaskInput,
    PatternSpec,
    allowed_units,
    applicable,
    masks_of,
)
from attnviz.measures.rows import LEARNED_SINKS, ONE_TEXT, SINKS, AttentionRows, RowPlan
from attnviz.measures.statistics import NOWHERE, LayerSums, measurable, quotients, statistics, uniform_sums
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.offloading import parameter_of
from attnviz.reference.attention import allowed_positions, uniform_pattern


def _at(offset: int) -> PatternSpec:

    def mask(text: MaskInput) -> Tensor | None:
        return None if text.causal and offset > 0 else text.distances == offset

    name = f"offset:{offset:+d}"
    return PatternSpec(name, name, mask, f"the {{unit}} at {offset:+d}", "local")


_OFFSETS = [_at(offset) for offset in range(-8, 9) if abs(offset) > 1]

# ``offset:-8`` to ``offset:+8``: key position minus query position; the range is attnviz's own choice.
OFFSETS = tuple(spec.name for spec in _OFFSETS)


_TEXTS_APART = 1 << 40  # between the numbers of texts of two corpora, so that each has its own bootstrap weights


def batch_weights(seed: int, batch: Batch, corpus: int = 0) -> Tensor:
    """The :func:`attnviz.measures.bootstrap.text_weights` of a batch of the corpus with this index."""
    return text_weights(seed, [corpus * _TEXTS_APART + item.source.number for item in batch.items])


@contextmanager
def counting(measures: Sequence[Measure], batch: Batch, weights: Tensor) -> Iterator[Callable[[int, Tensor], None]]:
    """Count a batch: what it gives is to be called with each layer and its patterns, in order.

    At the end what the measures keep on the device is copied to the host at once.
    """
    for measure in measures:
        measure.begin(batch, weights)

    update = following(measures)
    yield lambda layer, pattern: update(LayerRows(layer, pattern))
    copy_to_host(measures)


class TextTally(Measure):
    """A measure over texts that counts their positions, too.

    What is kept once for each of the model's different windows has these in place of layers.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self._causal = checkpoint.architecture.causal
        self._windows, self._of_layer = different_windows(checkpoint.windows)

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Count the texts and the positions of a batch, all and those that are not sinks."""
        super().begin(batch, weights)
        n, n_non_sink = batch.valid.sum(1), batch.non_sink.sum(1)
        self._keep("positions", torch.stack([n, n_non_sink, torch.ones_like(n)], 1))

    def _visible(self, window: int | None) -> Tensor:
        """The tokens that each position may attend to, boolean [batch, n, n]."""
        return allowed_positions(self._batch.valid, self._causal, window)[:, 0]

    @property
    def _positions(self) -> Tensor:
        """All positions, those that are not sinks, and texts, [1 + replicates, 3]."""
        return self._counts["positions"][:, 0]

    @property
    def n_texts(self) -> int:
        return int(self._positions[0, 2])

    @property
    def n_non_sink(self) -> int:
        return int(self._positions[0, 1])


class StatisticsTally(TextTally):
    """The statistics of every head over a corpus, shares at :data:`OFFSETS` among them.

    Each is the mean over all queries of the corpus that it counts; the spread of ``replicates`` bootstrap samples of
    its texts is the standard error. Masks that depend on the text are made for each text. ``roles`` are the names of
    the patterns that apply. Patterns of repeated tokens, which are judged on random ones, are left out.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self._learned = checkpoint.architecture.learned_sinks
        self._patterns = (*(spec for spec in PATTERNS.values() if not spec.on_repeats), *_OFFSETS)
        self._applicable = applicable(self._patterns, checkpoint.architecture.causal)
        self.roles = [spec.name for spec in self._applicable]
        has = [ONE_TEXT, SINKS, *([LEARNED_SINKS] if self._learned else [])]
        self._statistics = measurable(self._applicable, has)
        names = [*(spec.statistic for spec in self._patterns), *(statistic.name for statistic in self._statistics)]
        self._names = [*dict.fromkeys([*(name for name in statistics() if name in names), *names])]
        self._under: Tensor  # of the batch: its masks, what its rows may attend to, and the sums of its layers
        self._plans: dict[object, RowPlan]
        self._layers: LayerSums

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Count the positions of a batch, and the sums of uniform attention."""
        super().begin(batch, weights)
        self._under, self._plans, self._layers = self.masks_of(batch), {}, LayerSums(lambda _: self._statistics)
        for number, window in enumerate(self._windows):  # two heads: uniform over all visible keys, and over content
            plan, visible = self._plan(number, batch.valid.device), self._visible(window)
            uniform = uniform_pattern(torch.stack([visible, visible & batch.non_sink[:, None]]), self._learned)
            self._keep("uniform", uniform_sums(self._statistics, AttentionRows(uniform.flatten(1, 2), plan)).T)
            has_key = plan.has_key.view(len(plan.names), len(batch.valid), -1)
            self._keep("queries", has_key.sum(-1).T)  # content with a key under the mask

    def _plan(self, window: int, device: torch.device) -> RowPlan:
        if (window, device) not in self._plans:
            valid, non_sink = self._batch.valid, self._batch.non_sink
            under = self._under.expand(len(valid), -1, -1, -1).transpose(0, 1).flatten(1, 2)
            self._plans[window, device] = RowPlan(
                device,
                queries=valid.flatten(),
                non_sink=non_sink.flatten(),
                n_texts=len(valid),
                allowed=self._visible(self._windows[window]).flatten(0, 1),
                content=non_sink.repeat_interleave(non_sink.shape[1], 0),
                names=[spec.statistic for spec in self._applicable],
                masks=under,
                learned_sinks=self._learned,
            )
        return self._plans[window, device]

    def update(self, rows: PatternRows) -> None:
        """Count one layer's patterns."""
        pattern = rows.in_float32
        plan = self._plan(self._of_layer[rows.layer], pattern.device)
        self._layers.add_rows(rows.layer, pattern.transpose(0, 1).flatten(1, 2), plan)

    def on_device(self) -> list[Tensor]:
        """The sums of all layers, [batch, n_heads, n_sums] each."""
        self._layers.finish()
        for _, sums in sorted(self._layers.by_layer.items()):
            self._keep("sums", sums.permute(2, 1, 0))
        return super().on_device()

    def masks_of(self, batch: Batch) -> Tensor:
        """The masks of the patterns in each text, boolean [n_texts, n_shares, n, n]; [1, …] if none depends on it."""
        n, device = batch.valid.shape[1], batch.valid.device
        texts = [MaskInput(("",) * n, range(n), self._causal, device=device)]
        if any(spec.reads_text for spec in self._applicable):
            texts = [
                MaskInput(item.pieces, told_apart(item.ids, item.unknown_id), self._causal, device=device)
                for item in batch.items
            ]
        masks = (masks_of(text, self._applicable) for text in texts)
        return torch.stack([pad(of_text, (0, n - of_text.shape[1], 0, n - of_text.shape[2])) for of_text in masks])

    def _samples(self, name: str = "sums") -> dict[str, Tensor]:
        """Each statistic in every bootstrap sample, [1 + replicates, n_layers, n_heads]; NaN where not measurable."""
        samples = quotients(self._statistics, self._counts[name].movedim(-1, 0))
        nothing = torch.full_like(samples["entropy"], torch.nan)
        return {name: samples.get(name, nothing) for name in self._names}

    def _baselines(self) -> dict[str, Tensor]:
        """Values of uniform attention, [1 + replicates, n_layers]; of shares those of uniform attention to content."""
        samples = self._samples("uniform")
        baselines = {statistic.name: samples[statistic.name][:, self._of_layer] for statistic in self._statistics}
        baselines["sink"] = baselines["sink"] + baselines.get(NOWHERE, 0.0)
        return baselines

    def results(self) -> dict[str, Tensor]:
        """Each statistic, [n_layers, n_heads]; NaN where not measurable."""
        return {name: values[0] for name, values in self._samples().items()}

    def estimates(self) -> dict[str, HeadScores]:
        """Each share, the sink, and entropy as a share of uniform attention's (``broad``), beside their baselines.

        These are uniform attention, and of patterns of chosen keys the head's own weights with its keys shuffled. A
        head with more than :data:`SINK_ONLY` of its attention on sinks is not the best one for a share of the rest.
        """
        samples, uniform = self._samples(), self._baselines()
        samples["sink"] = samples["sink"] + samples.get(NOWHERE, 0.0)  # a learned sink is one, too
        samples["broad"] = samples["entropy"] / uniform["entropy"][..., None]
        uniform["broad"] = torch.ones_like(uniform["entropy"])
        names = [spec.statistic for spec in self._applicable]
        queries = dict(zip(names, self._counts["queries"][0, self._of_layer].long().T, strict=True))
        on_content, estimates = samples["sink"][0] <= SINK_ONLY, {}
        for name in (*names, "sink", "broad"):
            baselines = {"uniform attention": uniform[name][:, None, :, None]}
            if name == CHOSEN:
                baselines = {"keys shuffled": samples[SHUFFLED][:, None]}
            n = queries[name][:, None] if name in queries else self.n_non_sink
            eligible = on_content if name in queries else None
            estimates[name] = estimated(samples[name][:, None], baselines, n, self.n_texts, eligible=eligible)
        return estimates

    def baselines(self) -> dict[str, float | None]:
        """Each statistic of uniform attention, None where not measurable; means over layers where windows differ."""
        layers = slice(None) if self.windowed else slice(1)
        known = {name: float(values[0, layers].mean()) for name, values in self._baselines().items()}
        return {name: known.get(name) for name in self._names if name != SHUFFLED}

    @property
    def windowed(self) -> bool:
        return len(self._windows) > 1


def different_windows(windows: Sequence[int | None]) -> tuple[list[int | None], list[int]]:
    """The different windows of a model's layers, and the index of each layer's window among them."""
    different = list(dict.fromkeys(windows))
    return different, [different.index(window) for window in windows]


def ordinary_ids(checkpoint: Checkpoint) -> list[int]:
    """Vocabulary entries of ordinary tokens: without special tokens, ``[unused…]`` and rows without a token."""
    special = set(checkpoint.tokenizer.all_special_ids)
    n = min(int(checkpoint.config.vocab_size), len(checkpoint.tokenizer))
    tokens = checkpoint.tokenizer.convert_ids_to_tokens(list(range(n)))
    used = [token is not None and not token.startswith("[unused") for token in tokens]
    return [i for i in range(n) if used[i] and i not in special]


def mean_embedding(checkpoint: Checkpoint) -> Tensor:
    """Mean input embedding of :func:`ordinary_ids`, [d_model]: a large direction that makes all words look alike.

    Without it, cosines tell words apart (Mu & Viswanath 2018).
    """
    return _embeddings(checkpoint)[ordinary_ids(checkpoint)].mean(0, dtype=torch.float64)


class MeaningTally(TextTally):
    """Attention-weighted mean cosine between embeddings of queries and keys over a corpus, beside uniform attention.

    Counted are pairs of a query and a visible key that are not sinks. Pairs with the same vocabulary entry are left
    out: their cosine is 1, so that every duplicate-token head would count as semantic. A pair's cosine is that of
    the input embeddings (BERT's word embeddings, GPT-2's wte; no positions) less :func:`mean_embedding`.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self._embeddings, self._mean = _embeddings(checkpoint), mean_embedding(checkpoint)
        self._masks: Tensor

    def cosines(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The pairs of a batch, boolean [n_texts, n, n], and the cosines of any two of its tokens."""
        ids, non_sink = batch.inputs["input_ids"], batch.non_sink
        vectors = torch.nn.functional.normalize((self._embeddings[ids].double() - self._mean).float(), dim=-1)
        other = non_sink[:, :, None] & non_sink[:, None, :] & (ids[:, :, None] != ids[:, None, :])
        allowed = allowed_units(ids.shape[1], self._causal).to(ids.device)
        return other & allowed, vectors @ vectors.mT  # 0 for an embedding that is the mean itself

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Compute the cosines of a batch, and the sums of uniform attention."""
        super().begin(batch, weights)
        all_pairs, cosines = self.cosines(batch)
        self._masks = torch.stack([cosines * all_pairs, all_pairs.to(cosines)], -1).flatten(1, 2)
        for window in self._windows:
            self._keep("uniform", self._sums(uniform_pattern(all_pairs & self._visible(window))[:, None]))

    def update(self, rows: PatternRows) -> None:
        """Count one layer's patterns."""
        self._keep("sums", self._sums(rows.in_float32))

    def _sums(self, pattern: Tensor) -> Tensor:
        """Attention times cosine, and attention, of the pairs, [batch, n_heads, 2]."""
        return pattern.flatten(2) @ self._masks.to(pattern)

    def results(self) -> HeadScores:
        """The cosines sum A cos / sum A over the pairs, beside those of uniform attention; NaN where there are none."""
        sums, uniform = self._counts["sums"], self._counts["uniform"][:, self._of_layer, 0]
        baselines = {"uniform attention": (uniform[..., 0] / uniform[..., 1])[:, None, :, None]}
        return estimated((sums[..., 0] / sums[..., 1])[:, None], baselines, self.n_queries, self.n_texts)

    def on_pairs(self) -> Tensor:
        """Share of these queries' attention that is on the pairs, [n_layers, n_heads]."""
        return self._counts["sums"][0, ..., 1] / self._counts["uniform"][0, self._of_layer, :, 1]

    @property
    def n_queries(self) -> int:
        """Number of queries with at least one pair, in the layer with the shortest window."""
        return round(float(self._counts["uniform"][0, :, 0, 1].min()))


def _embeddings(checkpoint: Checkpoint) -> Tensor:
    model: Any = checkpoint.model
    weight: Tensor = parameter_of(model.get_input_embeddings(), "weight")
    return weight.detach()
