"""Effects of removing heads, from an unchanged pass per batch, and one resumed at a layer for each set of heads.

A sample of the batches is compared with the reference attention, and with the model's own final states.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from attnviz.commands.ablate.inputs import (
    DIFFERENCE,
    STATES,
    InputBatch,
    ModelInput,
    RoleTokens,
    Tell,
    input_batches,
    metrics_of,
    prediction_kind,
)
from attnviz.errors import VerificationError
from attnviz.measures.bootstrap import text_weights
from attnviz.measures.estimates import Interval
from attnviz.measures.intervals import SAMPLES, of_ratios
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.reference import attention
from attnviz.reference.attention import HeadParameters, upcast
from attnviz.run import edit
from attnviz.run.checks import Verification
from attnviz.run.finite import refuse_not_finite
from attnviz.run.stream import check_logits
from attnviz.run.verify import VerifiedRows
from attnviz.texts.batches import EVERY, SampledAttention
from attnviz.texts.reading import Text
from attnviz.wording import amount

MORE, LESS, SAME = "more", "less", "no difference shown"  # verdicts on the tokens of a role; see RoleEffect
_CHUNK = 2**24  # logits that are computed at a time: 64 MiB in float32
HeadSet = frozenset[HeadId]


class BatchMetrics:
    """Metrics of a batch, relative to the unchanged model.

    ``clean`` are its loss and right predictions, sums [2, rows]; None without targets. Where answers have foils, the
    loss is the logit of the foil less that of the answer; without labels it is that of the predicted class.
    """

    def __init__(self, checkpoint: Checkpoint, inputs: InputBatch, final: Tensor, weights: Sequence[Tensor]) -> None:
        """Predict from the last hidden states of the unchanged model, [rows, n, d_model].

        ``weights``: by text, how often each token counts in each sum, [n_tokens, n_sums]; the first sum is of all.
        """
        self._checkpoint, self._n_rows = checkpoint, len(inputs.inputs)
        measured = [(row, position) for row, text in enumerate(inputs.inputs) for position in text.positions]
        self._row, self._position = torch.tensor(measured, device=final.device).T
        self._counts = torch.cat([weights[text.text][list(text.positions)] for text in inputs.inputs])  # [.., n_sums]
        labels = [label for text in inputs.inputs for label in text.labels]
        foils = [foil for text in inputs.inputs for foil in text.foils]
        self._labels = torch.tensor(labels, device=final.device) if labels else None
        self._labelled = bool(labels)
        self._foils = torch.tensor(foils, device=final.device) if foils else None
        self._states = final[self._row, self._position]  # [positions, d_model]
        self.clean: Tensor | None = None
        if not labels and prediction_kind(checkpoint) == STATES:
            return
        self._predicted = torch.cat([self._predict(self._states[part]) for part in self._parts()])
        decided = self._predicted.argmax(-1)
        if self._labels is None:
            self._labels = decided
        self._losses = self._loss(self._predicted, slice(None))
        clean = torch.stack([self._losses, (decided == self._labels).to(self._losses)], -1)
        self.clean = self._by_row(clean[None])[0, :, 0].T

    def changes(self, final: Tensor, inputs: InputBatch | None = None) -> Tensor:
        """The metrics of :func:`metrics_of`, summed over each row, [copies, rows, n_sums, n_metrics], float64.

        ``final``: last hidden states of copies of the batch, [copies * rows, n, d_model]; or of ``inputs``, other texts
        with as many positions to predict at.
        """
        sums = []
        copies = final.reshape(-1, self._n_rows, *final.shape[1:])
        position = self._position
        if inputs is not None:
            position = torch.tensor([at for text in inputs.inputs for at in text.positions], device=final.device)
        step = max(1, self._at_once // len(self._row))
        for first in range(0, len(copies), step):
            changes = self._changes(copies[first : first + step, self._row, position])
            refuse_not_finite(changes, "change without some of its heads")
            sums.append(self._by_row(changes))
        return torch.cat(sums)

    def _changes(self, states: Tensor) -> Tensor:
        """The metrics of each position, [copies, positions, n_metrics]."""
        if self._labels is None:
            before, after = upcast(self._states), upcast(states)
            towards = normalize(after, dim=-1) - normalize(before, dim=-1)
            cosine = towards.square().sum(-1) / 2  # 1 - cos, without its rounding
            return torch.stack([cosine, (after - before).norm(dim=-1)], dim=-1)
        changes = []
        for part in self._parts():
            predicted, before = self._predict(states[:, part]), self._predicted[part]
            divergence = (before.exp() * (before - predicted)).sum(-1).clamp_min(0)  # negative only by rounding
            labels = self._labels[part]
            if self._labelled:
                metrics = [self._loss(predicted, part) - self._losses[part], divergence]
            else:
                metrics = [divergence, (predicted.argmax(-1) != labels).to(divergence)]
            if self._checkpoint.classifier is not None and self._foils is None:
                metrics.append(_margin(before, labels) - _margin(predicted, labels))
            changes.append(torch.stack(metrics, dim=-1))
        return torch.cat(changes, dim=1)

    def loss_gradient(self, final: Tensor, weights: Tensor) -> Tensor:
        """Gradient by the unchanged model's final states, of the sum of each row's losses times its weight, [rows]."""
        assert self._labels is not None
        gradient = torch.zeros_like(final)
        for part in self._parts():
            with torch.enable_grad():
                states = self._states[part].detach().requires_grad_()
                losses = self._loss(self._predict(states), part)
                total = (losses * weights.to(losses)[self._row[part]]).sum()
            (gradient[self._row[part], self._position[part]],) = torch.autograd.grad(total, states)
        return gradient

    def _loss(self, predicted: Tensor, part: slice) -> Tensor:
        assert self._labels is not None
        answers = _at(predicted, self._labels[part])
        return -answers if self._foils is None else _at(predicted, self._foils[part]) - answers

    def _predict(self, states: Tensor) -> Tensor:
        """Log-probabilities, [.., vocabulary] or of classes, in float32 at least."""
        head = self._checkpoint.prediction_head
        assert head is not None
        predicted = log_softmax(upcast(head(states)), dim=-1)
        refuse_not_finite(predicted, f"prediction of {'tokens' if self._checkpoint.classifier is None else 'classes'}")
        return predicted

    @property
    def _at_once(self) -> int:
        return max(1, _CHUNK // int(self._checkpoint.config.vocab_size))

    def _parts(self) -> Iterator[slice]:
        for first in range(0, len(self._row), self._at_once):
            yield slice(first, first + self._at_once)

    def _by_row(self, values: Tensor) -> Tensor:
        """Sums over each row, [copies, rows, n_sums, n_metrics], of [copies, positions, n_metrics]."""
        counted = self._counts[..., None] * values.detach().double().cpu()[:, :, None]
        sums = torch.zeros(len(values), self._n_rows, *counted.shape[2:], dtype=torch.float64)
        return sums.index_add_(1, self._row.cpu(), counted)


def _at(predicted: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of each label, [.., positions], of [.., positions, vocabulary]."""
    return predicted.gather(-1, labels.expand(predicted.shape[:-1])[..., None])[..., 0]


def _margin(predicted: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of each label less the largest other one: the same of logits."""
    others = predicted.scatter(-1, labels.expand(predicted.shape[:-1])[..., None], -torch.inf)
    return _at(predicted, labels) - others.amax(-1)


@dataclass(frozen=True)
class Estimate:
    """A number and its interval, at 0.05 over all rows of its table; None with too few texts that have an effect."""

    value: float
    low: float | None
    high: float | None

    def __float__(self) -> float:
        return self.value

    @property
    def interval(self) -> Interval | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def side(self) -> int | None:
        """Sign of the interval: 1 above zero, -1 below, 0 if it includes zero; None without an interval."""
        return None if self.interval is None else (self.interval[0] > 0) - (self.interval[1] < 0)


@dataclass(frozen=True)
class RoleEffect:
    """Effect of removing one head on the tokens of a role's queries, beside matched ones."""

    role: str
    direction: str | None
    n: int  # tokens of the queries, and as many matches
    texts: int  # that have some
    queries: dict[str, Estimate]  # mean damage by metric
    others: dict[str, Estimate]  # of the matches
    difference: dict[str, Estimate]  # queries less others
    verdict: str | None  # by the metric that heads are ordered by: MORE, LESS or SAME; None without intervals


@dataclass(frozen=True)
class HeadEffect:
    """Effect of removing one head."""

    id: HeadId
    rank: int  # from 1 for the largest effect by the metric that heads are ordered by; of logit differences by size
    damage: dict[str, Estimate]  # by metric, per token: positive where the metric gets worse without the head
    gradient: float | None = None  # importance by Michel et al. 2019; None if not measured
    roles: tuple[RoleEffect, ...] = ()  # on the tokens of the roles that were asked for, and have some

    def __repr__(self) -> str:
        damage = ", ".join(f"{metric} {amount(estimate.value)}" for metric, estimate in self.damage.items())
        return f"<HeadEffect of {self.id}: {damage}, rank {self.rank}>"


@dataclass(frozen=True)
class SetEffect:
    """Effect of removing several heads at once, beside their effects one at a time."""

    heads: tuple[HeadId, ...]
    layer: int | None  # None for a set over layers
    damage: dict[str, Estimate]  # of the set, by metric, per token; positive as for a head
    singles: dict[str, Estimate]  # sum of what its heads do one at a time
    excess: dict[str, Estimate]  # effect of the set minus that sum


@dataclass(frozen=True)
class CurvePoint:
    """Effect of removing a number of heads: the least important ones, and as many at random."""

    removed: int
    least: SetEffect
    random: SetEffect


@dataclass(frozen=True)
class Curve:
    """Effects of removing more and more heads: the least important first, and in random order."""

    order: tuple[HeadId, ...]
    random_order: tuple[HeadId, ...]
    points: tuple[CurvePoint, ...]


class Bootstrap:
    """Bootstrap over texts: from sums per text to means per token with intervals."""

    def __init__(
        self,
        seed: int,
        texts: Sequence[Text],
        counts: Tensor,
        kind: str,
        order_by: str,
        sums: Mapping[HeadSet, Tensor],
        roles: Sequence[RoleTokens],
    ) -> None:
        """``sums`` of heads and sets, [n_texts, n_sums, n_metrics], over measured positions, [n_texts, n_sums].

        The first sum is of all positions, then come those of the queries and of the matches of each role.
        ``order_by``: the name of the metric that ranks heads.
        """
        self._weights = text_weights(seed, [text.number for text in texts], SAMPLES)
        self._metrics, self._order_by, self._counts, self._roles = metrics_of(kind), order_by, counts, roles
        self.sums = dict(sums)

    def _estimates(self, sums: Sequence[Tensor], counts: Tensor) -> list[dict[str, Estimate]]:
        """Estimates by metric of the rows of a table, whose intervals hold together.

        ``sums``: of each row, [n_texts, n_metrics]; ``counts``: of positions, [n_texts, n_rows], or [n_texts, 1].
        """
        rows = [dict[str, Estimate]() for _ in sums]
        for at, metric in enumerate(self._metrics):
            ratios = of_ratios(torch.stack([of_row[:, at] for of_row in sums], 1), counts, self._weights)
            for number, row in enumerate(rows):
                ends = ratios.interval(number) or (None, None)
                row[metric.name] = Estimate(float(ratios.estimates[number]), *ends)
        return rows

    def _of_all(self, sums: Sequence[Tensor]) -> list[dict[str, Estimate]]:
        """Estimates by metric of all positions, from sums [n_texts, n_sums, n_metrics] of each row."""
        return self._estimates([of_row[:, 0] for of_row in sums], self._counts[:, :1])

    def _of_roles(self, heads: Sequence[HeadId]) -> dict[HeadId, list[RoleEffect]]:
        """Of each head its effects on the tokens of roles; intervals hold together for all heads and roles."""
        effects: dict[HeadId, list[RoleEffect]] = {head: [] for head in heads}
        measured = [number for number in range(len(self._roles)) if self._counts[:, 1 + 2 * number].any()]
        if not measured:
            return effects
        rows = [(head, number) for head in heads for number in measured]
        of_queries = [1 + 2 * number for _, number in rows]  # as many matches, whose sums come next
        queries = [self.sums[frozenset([head])][:, at] for (head, _), at in zip(rows, of_queries, strict=True)]
        others = [self.sums[frozenset([head])][:, at + 1] for (head, _), at in zip(rows, of_queries, strict=True)]
        differences = [query - other for query, other in zip(queries, others, strict=True)]
        counts = self._counts[:, of_queries]
        estimates = (self._estimates(sums, counts) for sums in (queries, others, differences))
        for at, (head, number), *estimated in zip(of_queries, rows, *estimates, strict=True):
            on_queries, on_others, difference = estimated
            effects[head].append(
                RoleEffect(
                    role=self._roles[number].role,
                    direction=self._roles[number].direction,
                    n=int(self._counts[:, at].sum()),
                    texts=int((self._counts[:, at] > 0).sum()),
                    queries=on_queries,
                    others=on_others,
                    difference=difference,
                    verdict={1: MORE, -1: LESS, 0: SAME, None: None}[difference[self._order_by].side],
                )
            )
        return effects

    def ranked_heads(self, importance: Tensor | None) -> tuple[HeadEffect, ...]:
        """Heads by their rank, the most important first; ``importance`` by gradients, [n_layers, n_heads]."""
        heads = [head for of_set in self.sums if len(of_set) == 1 for head in of_set]
        damage = dict(zip(heads, self._of_all([self.sums[frozenset([head])] for head in heads]), strict=True))
        of_roles = self._of_roles(heads)
        size = abs if self._order_by == DIFFERENCE else float
        ranked = sorted(heads, key=lambda head: (-size(damage[head][self._order_by].value), head))
        return tuple(
            HeadEffect(
                id=head,
                rank=rank,
                damage=damage[head],
                gradient=None if importance is None else float(importance[head]),
                roles=tuple(of_roles[head]),
            )
            for rank, head in enumerate(ranked, start=1)
        )

    def of_sets(self, sets: Sequence[HeadSet]) -> list[SetEffect]:
        """Effects of sets beside their heads one at a time; intervals hold together for all sets."""
        if not sets:
            return []
        together = [self.sums[heads] for heads in sets]
        singles = [torch.stack([self.sums[frozenset([head])] for head in heads]).sum(0) for heads in sets]
        excess = [both - alone for both, alone in zip(together, singles, strict=True)]
        return [
            SetEffect(
                heads=tuple(sorted(heads)),
                layer=min(heads).layer if len({head.layer for head in heads}) == 1 else None,
                damage=of_set,
                singles=one_at_a_time,
                excess=difference,
            )
            for heads, of_set, one_at_a_time, difference in zip(
                sets, *map(self._of_all, (together, singles, excess)), strict=True
            )
        ]


_VERIFIED = 8  # least number of verified inputs; after these one batch in EVERY is verified
_AT_ONCE = 2048  # least tokens of a resumed pass, which runs several copies of a small batch

# Positions of the first input of a verified batch whose logits are compared with the whole model's.
_LOGITS_COMPARED = 8


@dataclass(frozen=True)
class SampleVerification:
    """Errors of the verified sample, which passed: largest differences, as a share of the largest value compared."""

    attention: Verification  # patterns and attention outputs, by the reference attention
    n_inputs: int  # on which all of this was compared
    values_error: float  # of each head's weighted values from the reference's
    # of final states resumed at any layer by the model's own blocks, nothing removed, from those of a whole pass: that
    # resuming changes nothing
    resumed_error: float
    tolerance: float  # of both errors


class PassVerifier:
    """Compares a sample of unchanged passes with the reference attention, and with passes resumed at every layer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._attention = SampledAttention(checkpoint)
        self._tolerance = checkpoint.tolerance.output
        self._errors = {"values_error": 0.0, "resumed_error": 0.0}

    @property
    def verified(self) -> SampleVerification:
        attention = self._attention
        return SampleVerification(
            attention.verification, attention.texts_verified, **self._errors, tolerance=self._tolerance
        )

    def is_sampled(self, number: int) -> bool:
        """Whether the batch of this number, of those in a drawn order, is to be compared."""
        return self._attention.texts_verified < _VERIFIED or number % EVERY == 0

    def verify(self, inputs: InputBatch, kept: edit.KeptPass, resumed: bool = True) -> None:
        """Compare an unchanged pass with the reference, its logits with the model's, and passes ``resumed`` from it."""
        checkpoint = self._checkpoint
        batch = inputs.batch
        heads: dict[int, tuple[HeadParameters, Tensor]] = {}  # of the layer that attends, with their values

        def compare(rows: VerifiedRows) -> None:
            layer = rows.layer
            x = kept.attention_inputs[layer]
            if layer not in heads:
                heads.clear()
                parameters = checkpoint.architecture.parameters(checkpoint.model, layer)
                heads[layer] = parameters, attention.values(x, parameters)
            parameters, value = heads[layer]
            n_rows, n_keys = rows.pattern.shape[-2:]
            chunk = slice(rows.first, rows.first + n_rows)
            valid = batch.queries(layer)
            weighted = torch.matmul(rows.pattern, value[..., :n_keys, :].to(rows.pattern.dtype))
            expected = attention.gated(weighted, x[:, chunk], parameters).transpose(1, 2)[valid[:, chunk]]
            if not len(expected):  # padding alone
                return
            removed = kept.o_proj[layer]
            difference = removed[:, chunk][valid[:, chunk]].reshape(expected.shape) - expected
            by_head = difference.abs().amax((0, 2))
            head = HeadId(layer, int(by_head.nan_to_num(nan=torch.inf).argmax()))
            what = f"what is to be removed of {head} differs from what the reference gives for it"
            self._check("values_error", by_head, removed[valid], what, "the layer's largest weighted value")

        self._attention.verify(batch, compare)
        final = kept.final[batch.predicting]
        if prediction_kind(checkpoint) != STATES:
            at = list(inputs.inputs[0].positions[-_LOGITS_COMPARED:])
            first = {name: tensor[:1] for name, tensor in batch.inputs.items()}
            check_logits(checkpoint, first, kept.final[0, at], at)
        for layer in checkpoint.layers if resumed else ():
            again = edit.resume(checkpoint, kept, layer)[batch.predicting]
            what = (
                f"a pass resumed at layer {layer}, with nothing removed, does not reproduce the model's final states: "
                "they differ"
            )
            self._check("resumed_error", (again - final).abs(), final, what, "the largest")

    def _check(self, name: str, difference: Tensor, values: Tensor, what: str, largest: str) -> None:
        """Compare as a share of the largest value; NaN is within no tolerance."""
        scale, error = float(values.abs().max()), float(difference.max())
        error = error / scale if scale > 0 else error
        self._errors[name] = max(self._errors[name], error)
        if not error <= self._tolerance:
            raise VerificationError(
                f"{what} by {error:.1e} of {largest} (tolerance {self._tolerance:g}). Nothing was written."
            )


def resumed_passes(
    checkpoint: Checkpoint,
    inputs: InputBatch,
    kept: edit.KeptPass,
    replacement: edit.Replacement,
    wanted: Sequence[HeadSet],
) -> Iterator[tuple[list[int], Tensor]]:
    """Yield numbers of sets of heads, and the final states of the batch without each, [n_sets * rows, n, d_model].

    Sets of one first layer share passes.
    """
    by_layer: dict[int, list[int]] = {}
    for number, heads in enumerate(wanted):
        by_layer.setdefault(min(heads).layer, []).append(number)
    tensors = inputs.batch.inputs
    masks = [tensors[name] for name in ("attention_mask", "decoder_attention_mask") if name in tensors]
    copies = max(1, _AT_ONCE // masks[0].numel())
    for layer, numbers in by_layer.items():
        for first in range(0, len(numbers), copies):
            some = numbers[first : first + copies]
            variants = [wanted[number] for number in some]
            with edit.removed_heads(checkpoint, variants, replacement, *masks):
                final = edit.resume(checkpoint, kept, layer, len(some))
            yield some, final


class Passes:
    """Measures sets of heads on the inputs of texts, batch by batch."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        inputs: Sequence[ModelInput],
        batch_size: int,
        weights: Sequence[Tensor],
        kind: str,
    ) -> None:
        self._checkpoint, self._inputs, self._batch_size, self._weights = checkpoint, inputs, batch_size, weights
        self._n_metrics = len(metrics_of(kind))
        self.counts = torch.stack([of_text.sum(0) for of_text in weights])  # [n_texts, n_sums], the first sum of all
        self.clean: Tensor | None = None  # as of BatchMetrics, by text, [2, n_texts]; None before the first run, too
        self.verifier = PassVerifier(checkpoint)

    def run(
        self,
        replacement: edit.Replacement,
        wanted: Sequence[HeadSet],
        tell: Tell,
        on_batch: Callable[[InputBatch, edit.KeptPass, BatchMetrics], None] = lambda *_: None,
    ) -> dict[HeadSet, Tensor]:
        """The metrics without each set of heads, in sums: [n_texts, n_sums, n_metrics], float64.

        All share the unchanged passes, which ``on_batch`` gets. The first run verifies a sample of the batches.
        """
        sums = torch.zeros(len(wanted), *self.counts.shape, self._n_metrics, dtype=torch.float64)
        clean = torch.zeros(2, len(self.counts), dtype=torch.float64)
        first_run = not self.verifier.verified.n_inputs
        done = 0
        tell(done, len(self._inputs))
        with edit.running(self._checkpoint):
            for number, inputs in enumerate(input_batches(self._checkpoint, self._inputs, self._batch_size)):
                texts = torch.tensor([text.text for text in inputs.inputs])
                verifying = first_run and self.verifier.is_sampled(number)
                kept = edit.run_and_keep(self._checkpoint, inputs.batch.inputs, inside=verifying)
                if verifying:
                    self.verifier.verify(inputs, kept)
                metrics = BatchMetrics(self._checkpoint, inputs, kept.final, self._weights)
                for numbers, final in resumed_passes(self._checkpoint, inputs, kept, replacement, wanted):
                    sums[numbers] = sums[numbers].index_add(1, texts, metrics.changes(final))
                on_batch(inputs, kept, metrics)
                if metrics.clean is not None:
                    self.clean = clean.index_add_(1, texts, metrics.clean)
                done += len(inputs.inputs)
                tell(done, len(self._inputs))
        return dict(zip(wanted, sums, strict=True))


def mean_values(checkpoint: Checkpoint, inputs: Sequence[ModelInput], batch_size: int, tell: Tell) -> list[Tensor]:
    """Mean weighted values of all heads over all tokens, special ones too, a layer each [n_heads, d_head], float64."""
    sums: list[Tensor | float] = [0.0] * checkpoint.n_layers
    tokens = torch.zeros(checkpoint.n_layers, dtype=torch.float64)
    done = 0
    with edit.running(checkpoint):
        for some in input_batches(checkpoint, inputs, batch_size):
            kept = edit.run_and_keep(checkpoint, some.batch.inputs)
            for layer in checkpoint.layers:
                valid = some.batch.queries(layer)
                sums[layer] = sums[layer] + kept.o_proj[layer][valid].double().sum(0).cpu()
                tokens[layer] += int(valid.sum())
            done += len(some.inputs)
            tell(done, len(inputs))
    means = [torch.as_tensor(of_layer) / n for of_layer, n in zip(sums, tokens, strict=True)]
    return [mean.reshape(checkpoint.n_heads_of(layer), -1) for layer, mean in enumerate(means)]
