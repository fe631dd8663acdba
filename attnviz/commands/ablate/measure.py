"""Remove heads of a running model and measure the change, one at a time and in sets."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, takewhile
from typing import Any, ClassVar, Unpack

import torch

from attnviz.commands.ablate.effects import Curve, HeadEffect, Removals, SetEffect
from attnviz.commands.ablate.gradients import GradientTally
from attnviz.errors import UsageError
from attnviz.inputs.encoding import unknown_note_of
from attnviz.inputs.prompt import Text
from attnviz.inputs.reading import unread_columns
from attnviz.inputs.refusals import refuse
from attnviz.inputs.sources import TextSources, contrast_named, read_sources
from attnviz.inputs.tables import Columns
from attnviz.inputs.text import rendered
from attnviz.measures.decisions import Decision
from attnviz.measures.intervals import TextSamples
from attnviz.measures.predictions import (
    CLASSES,
    LABELLED,
    MARGIN,
    STATES,
    Metric,
    Scoring,
    metrics_of,
    model_inputs,
    prediction_kind,
)
from attnviz.measures.role_tokens import role_tokens, texts_with_roles, token_weights
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, select_heads, selection_texts
from attnviz.models.opening import Model, open_checkpoint
from attnviz.models.quantised import has_gradient
from attnviz.options import CorpusOptions, checked
from attnviz.present.result import OfHeads, Result
from attnviz.progress import Progress
from attnviz.run.edit import Removal
from attnviz.run.generate import with_targets
from attnviz.run.passes import SampleVerification, mean_values
from attnviz.wording import counted

MANY = 2000  # inputs from which on a message gives their number
# arguments that stand in the document as they are given
_OPTIONS = "method together repeats limit truncate seed curve gradient answer foil target order_by".split()
SATURATED = 0.05  # A loss of a class, in nats, below which it hardly tells heads apart: its margin does


@dataclass(frozen=True, repr=False, eq=False)
class Ablation(Result, OfHeads[HeadEffect]):
    """Result of :func:`ablate`: heads ranked by the effect of removing them."""

    command: ClassVar[str] = "ablate"

    checkpoint: Checkpoint
    sources: TextSources
    options: dict[str, Any]  # arguments of :func:`ablate` by name
    kind: str  # next-token, masked-token, states, labelled-class, class, answer or function
    metrics: tuple[Metric, ...]  # that which heads are ordered by first
    texts: tuple[Text, ...]  # that were measured
    n_cut: int  # of these, longer than the model and cut
    n_positions: int  # measured tokens in them; a text that is classified counts once
    # of the unchanged model, means over them, by name as in documents: loss in nats, logit_difference, metric; of a
    # classifier also accuracy, where it has labels, and share_saturated, of texts whose loss is below SATURATED
    clean: dict[str, float]
    decisions: tuple[Decision, ...]  # of a classifier as it is, for each text; empty where it has no classes
    verified: SampleVerification  # of the sample
    heads: tuple[HeadEffect, ...]  # that were removed, the most important first
    layers: tuple[SetEffect, ...]  # the removed heads of each layer with two or more
    together: SetEffect | None  # the selected heads as one set; None if not requested
    curve: Curve | None  # more and more heads; None if not requested
    text_notes: tuple[str, ...] = ()  # sentences on how the texts were read

    @property
    def method(self) -> str:
        """What takes the place of a removed head: ``zero``, ``mean`` or ``uniform``."""
        return str(self.options["method"])

    @property
    def n_texts(self) -> int:
        return len(self.texts)

    @property
    def texts_measured(self) -> str:
        cut = f" ({self.n_cut} cut to the model's length)" if self.n_cut else ""
        return counted(self.n_texts, "text") + cut

    @property
    def sets(self) -> tuple[SetEffect, ...]:
        """The heads that were removed together: those selected, or those of each layer."""
        return self.layers if self.together is None else (self.together,)

    @property
    def has_intervals(self) -> bool:
        return any(estimate.interval for head in self.heads for estimate in head.damage.values())

    @property
    def removable(self) -> int | None:
        """Number of least important heads that can go, in steps of the curve, before the loss is clearly higher.

        None without a curve or intervals, or for a metric that cannot be negative.
        """
        first = self.metrics[0]
        if self.curve is None or first.score is None or not self.has_intervals:
            return None
        free = takewhile(lambda point: point.least.damage[first.name].side != 1, self.curve.points)
        return max((point.removed for point in free), default=0)

    @property
    def in_words(self) -> str:
        most = self.heads[0]
        metric = self.metrics[0]
        return (
            f"({self.method}) of {self.checkpoint.short_name}: {counted(len(self.heads), 'head')} on "
            f"{counted(self.n_texts, 'text')}, {most.id} first ({metric.title} {most.damage[metric.name].value:.3g})"
        )


@checked
def ablate(
    texts: Any = (),
    model: Model | None = None,
    *,
    method: str = "mean",
    select: str | HeadId | Sequence[str | HeadId] = (),
    together: bool = False,
    role: str | Sequence[str] = (),
    repeats: bool = False,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    curve: bool = True,
    gradient: bool = True,
    order_by: str | None = None,
    metric: Scoring | None = None,
    label: str | int | None = None,
    labels: Any = None,
    answer: str | int | None = None,
    foil: str | int | None = None,
    label_column: str | None = None,
    target: str | None = None,
    max_new_tokens: int | None = None,
    truncate: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    **reading: Unpack[CorpusOptions],
) -> Ablation:
    """Remove every head of a model, one at a time, and measure the change of its predictions or final states.

    >>> result = attnviz.ablate("corpus.txt", "tiny-gpt2")  # doctest: +SKIP
    >>> result.heads[0].id, result.heads[0].damage["loss"]  # doctest: +SKIP

    Arguments are the options of ``attnviz ablate --help``. ``texts`` are texts and corpora, as for
    :func:`attnviz.profile_heads`, those in memory perhaps with ``labels``, a class each. ``method`` says what takes the
    place of a removed head (:class:`attnviz.run.edit.Removal`). ``together`` leaves out layers and the curve.
    ``order_by`` is by default the first metric that the model has, but the margin of a classifier whose loss is below
    0.05 on most texts.

    ``metric`` is a function of your own, ``metric(logits, row)``: of logits [batch, n_vocab] (or of classes) at the
    last token of one text, or its mask, and of a dict of the ``text``, ``pair``, ``id``, ``label``, ``answer`` and
    ``foil``, None where there is none. It returns a number for each row of logits, [batch], higher where the
    prediction is better. Damage is what the whole model has less what it has without the head.

    ``progress`` is called for each stage with how much of it is done, and of how much; ``warn`` for each sentence that
    is left out because the model cannot read it.

    Raises:
        AttnvizError: see :mod:`attnviz.errors`; VerificationError where the heads, or passes resumed at a layer, do
            not reproduce the model.
    """
    given = locals()
    tell, warn = progress or (lambda *_: None), warn or (lambda _: None)
    options: dict[str, Any] = {name: given[name] for name in _OPTIONS} | {
        "select": selection_texts(select),
        "label": None if label is None else str(label),
    }
    roles = role_tokens(role, repeats)
    options["role"] = list(dict.fromkeys(each.name for each in roles if each.direction))
    contrast = contrast_named(answer, foil, options["label"])
    columns, opening = Columns.taken(reading, label_column)
    beside = (label, labels, limit, contrast)
    has_texts = not isinstance(texts, list | tuple) or len(texts) > 0
    if repeats and (has_texts or truncate or any(value is not None for value in beside) or columns != Columns()):
        raise UsageError(
            "random tokens (--repeats, repeats=True) are instead of texts: expected no text, limit, truncate, label, "
            "answer or column."
        )
    sources = TextSources((), (), ())
    if not repeats:
        sources = read_sources(texts, limit, None if contrast else options["label"], contrast, columns, labels)
    checkpoint, _ = open_checkpoint(model, **opening)
    read: Sequence[Text] = [rendered(text, checkpoint) for text in sources.texts]
    refuse({"target": target, "max_new_tokens": max_new_tokens}, checkpoint)
    wanted = any(value is not None for value in (label, labels, label_column))
    kind = prediction_kind(checkpoint, read, wanted, metric)
    metrics = metrics_of(kind, metric)
    heads = select_heads(options["select"], checkpoint.kinds)
    options["metric"] = None if metric is None else metrics[0].unit
    names = [metric.name for metric in metrics]
    if order_by is not None and order_by not in names:
        raise UsageError(
            f"--order-by (order_by=...) names a metric of this model, {', '.join(names)}; found {order_by}."
        )
    if gradient and not has_gradient(checkpoint.model):
        raise UsageError("weights of 4 bits have no gradient on this CPU: expected --no-gradient (gradient=False).")
    if together and len(heads) < 2:
        raise UsageError(f"expected two heads or more to remove together, found {heads[0]} alone; --select more.")
    if roles:
        read = texts_with_roles(checkpoint, read, kind, repeats, seed)
    layers = [frozenset(of_layer) for _, of_layer in groupby(heads, key=lambda head: head.layer)] if curve else []
    groups = [frozenset(heads)] if together else [of_layer for of_layer in layers if len(of_layer) > 1]
    with torch.inference_mode(mode=False):  # a caller may be in it, and gradients are wanted
        read = with_targets(checkpoint, read, target, truncate, max_new_tokens, partial(tell, "targets"), warn)
        inputs, measured = model_inputs(checkpoint, read, kind, truncate, warn)
        means = None
        if method == "mean":
            whole, _ = model_inputs(checkpoint, measured, STATES, truncate, lambda _: None)
            means = mean_values(checkpoint, whole, batch_size, partial(tell, "means"))
        if len(inputs) > MANY:
            removed = f"{counted(len(heads), 'head')} to remove"
            warn(f"{len(inputs):,} inputs, each with {removed}; a --limit reads fewer sentences")
        removals = Removals(
            checkpoint=checkpoint,
            inputs=inputs,
            metrics=metrics,
            weights=token_weights(checkpoint, inputs, roles),
            removal=Removal(checkpoint, method, means),
            samples=TextSamples(seed, [text.number for text in measured]),
            batch_size=batch_size,
        )
        tally = GradientTally(checkpoint, metrics[0].of_predictions, removals.counts[:, 0], seed)
        sets = [*(frozenset([head]) for head in heads), *groups]
        removals.run(sets, partial(tell, "removing"), *([tally.add] if gradient else []))
        decided = [removals.decisions[text] for text in sorted(removals.decisions)]
        clean = dict(removals.clean)
        if kind == LABELLED:
            clean["accuracy"] = sum(bool(each.right) for each in decided) / len(decided)
        if kind in CLASSES:
            sure = [each for each in decided if each.right is not False and each.probability > math.exp(-SATURATED)]
            clean["share_saturated"] = len(sure) / len(decided)
        options["order_by"] = order_by or (MARGIN if is_sure(clean) else metrics[0].name)
        ranked = removals.ranked_heads(options["order_by"], roles, tally.importance if gradient else None)
        removal = None
        if curve and not together and len(heads) > 1:
            order = [head.id for head in reversed(ranked)]
            removal = removals.curve(order, seed, partial(tell, "curve"))
    encoded = {text.text: text.item for text in inputs}.values()
    unknown = unknown_note_of(checkpoint, sum(item.n_unknown for item in encoded), sum(map(len, encoded)))
    effects = tuple(removals.of_sets(groups))
    return Ablation(
        checkpoint=checkpoint,
        sources=replace(sources, texts=tuple(read)),
        options=options,
        kind=kind,
        metrics=tuple(sorted(metrics, key=lambda metric: metric.name != options["order_by"])),
        texts=tuple(measured),
        n_cut=len({text.text for text in inputs if text.item.truncated}),
        n_positions=int(removals.counts[:, 0].sum()),
        clean=clean,
        decisions=tuple(decided),
        verified=removals.passes.verified,
        heads=ranked,
        layers=() if together else effects,
        together=effects[0] if together else None,
        curve=removal,
        text_notes=(*filter(None, [unknown]), *unread_columns(corpus.table for corpus, _ in sources.corpora)),
    )


def is_sure(clean: Mapping[str, float]) -> bool:
    """Whether losses of a classifier are near 0 on most texts, so that they hardly tell heads apart."""
    return clean.get("share_saturated", 0.0) > 0.5
