"""Ablation: remove heads of a running model and measure the change, one at a time and in sets.

The damage of a head is what the model is worse by without it, as the mean over positions of the texts: with the loss l,
l(without the head) - l(as it is). A head is removed by putting zeros, its mean output, or the mean of the visible
values in the place of its output (Michel et al. 2019, "Are Sixteen Heads Really Better than One?").
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, takewhile
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Unpack

import torch
from rich.console import RenderableType

from attnviz.errors import UsageError
from attnviz.inputs.encoding import unknown_note_of
from attnviz.inputs.prompt import Text
from attnviz.inputs.reading import unread_columns
from attnviz.inputs.refusals import refuse
from attnviz.inputs.sources import TextSources, contrast_named, read_sources
from attnviz.inputs.tables import Columns
from attnviz.inputs.text import rendered
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.decisions import Decision
from attnviz.measures.intervals import ERROR_RATE, TextSamples, texts_needed
from attnviz.measures.predictions import (
    ANSWER,
    CLASS,
    CLASSES,
    DIFFERENCE,
    FUNCTION,
    LABELLED,
    MARGIN,
    MASKED,
    METRICS,
    OF_FUNCTION,
    STATES,
    Metric,
    Scoring,
    metrics_of,
    model_inputs,
    prediction_kind,
)
from attnviz.measures.removals import PROJECTIONS, Curve, HeadEffect, Removals, RoleEffect, SetEffect
from attnviz.measures.role_tokens import role_tokens, texts_with_roles, token_weights
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, select_heads, selection_texts
from attnviz.models.opening import Model, open_checkpoint
from attnviz.models.quantised import has_gradient
from attnviz.options import CorpusOptions, checked
from attnviz.present.documents import layer_entry, model_entry, sample_entry
from attnviz.present.fields import HEAD, Field, Table, pick
from attnviz.present.figure_context import capital, caption_of
from attnviz.present.published import role_name
from attnviz.present.report import CommandSpec
from attnviz.present.result import OfHeads, Result
from attnviz.present.sentences import first_lines, resumed_line
from attnviz.present.tables import notes
from attnviz.present.view import Drawing, ViewOptions, in_figures
from attnviz.progress import Progress
from attnviz.run.edit import Removal
from attnviz.run.generate import with_targets
from attnviz.run.passes import SampleVerification, mean_values
from attnviz.wording import about_needed, amount, bracketed, counted, percent, quoted, visible

if TYPE_CHECKING:
    from attnviz.figures.charts import CurvesPlan, Estimates, RowsPlan

_MANY = 2000  # inputs from which on a message gives their number
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
        if len(inputs) > _MANY:
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
            seed=seed,
            gradient=gradient,
        )
        removals.run([*(frozenset([head]) for head in heads), *groups], partial(tell, "removing"))
        decided = [removals.decisions[text] for text in sorted(removals.decisions)]
        clean = dict(removals.clean)
        if kind == LABELLED:
            clean["accuracy"] = sum(bool(each.right) for each in decided) / len(decided)
        if kind in CLASSES:
            sure = [each for each in decided if each.right is not False and each.probability > math.exp(-SATURATED)]
            clean["share_saturated"] = len(sure) / len(decided)
        options["order_by"] = order_by or (MARGIN if _is_sure(clean) else metrics[0].name)
        ranked = removals.ranked_heads(options["order_by"], roles)
        removal = None
        if curve and not together and len(heads) > 1:
            order = [head.id for head in reversed(ranked)]
            removal = removals.curve(order, partial(tell, "curve"))
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


def _is_sure(clean: Mapping[str, float]) -> bool:
    """Whether losses of a classifier are near 0 on most texts, so that they hardly tell heads apart."""
    return clean.get("share_saturated", 0.0) > 0.5


# What is written

_CLEAN = "share_saturated loss accuracy logit_difference metric".split()  # keys of what is known of the whole model


def _content(result: Ablation, _: ViewOptions) -> dict[str, Any]:
    options, sources, classifier = result.options, result.sources, result.checkpoint.classifier
    content: dict[str, Any] = {
        "model": model_entry(result.checkpoint),
        "corpora": [{**corpus.entry, "sentences": read} for corpus, read in sources.corpora],
        "texts": list(sources.given),
    }
    if result.checkpoint.stacks:
        content["targets"] = [text.target and text.target.text for text in sources.texts]
    return content | {
        "options": {name: value for name, value in options.items() if name != "target"},
        "measured": {
            "kind": result.kind,
            "importance": result.metrics[0].name,
            "texts": result.n_texts,
            "texts_cut": result.n_cut,
            "tokens": result.n_positions,
            **{name: result.clean.get(name) for name in _CLEAN},
            "classes": list(classifier.labels) if classifier else None,
        },
        "decisions": [
            {"number": text.number, **decision._asdict()}
            for text, decision in zip(result.texts, result.decisions, strict=False)  # none without classes
        ],
        "verification": sample_entry(result.verified),
        "layers": list(map(_set_entry, result.layers)),
        "together": result.together and _set_entry(result.together),
        "curve": result.curve and _curve_entry(result.curve),
        "gradient_of": _GRADIENT_OF.get(result.kind, f"{result.kind} loss") if options["gradient"] else None,
        "removable": result.removable,
    }


def _effect_entry(effect: SetEffect, name: str, together: str = "together") -> dict[str, Any]:
    return {together: effect.damage[name], "one_at_a_time": effect.singles[name], "difference": effect.excess[name]}


def _set_entry(effect: SetEffect) -> dict[str, Any]:
    return (
        layer_entry(effect.layer)
        | {"heads": effect.heads}
        | {name: _effect_entry(effect, name) for name in effect.damage}
    )


def _curve_entry(curve: Curve) -> dict[str, Any]:
    points = []
    for point in curve.points:
        entry: dict[str, Any] = {"removed": point.removed}
        for name, estimate in point.random.damage.items():
            entry[name] = _effect_entry(point.least, name, "least_important") | {"random_order": estimate}
        points.append(entry)
    return {"order": curve.order, "random_order": curve.random_order, "points": points}


_FIELDS: tuple[Field[HeadEffect], ...] = (
    *HEAD,
    Field(name="roles", csv={}),
    Field(name="rank"),
    *(
        Field[HeadEffect](
            value=lambda head, name=name: head.damage.get(name),  # type: ignore[misc]
            name=name,
            csv={name: ("value",), f"{name}_low": ("interval", 0), f"{name}_high": ("interval", 1)},
            meaning=f"{metric.title} without the head ({metric.unit or 'of the function'})",
        )
        for name, metric in (METRICS | {OF_FUNCTION.name: OF_FUNCTION}).items()
    ),
    Field(name="gradient", write=amount, meaning="how much the loss changes with the head's scale"),
)


_DECISIONS: tuple[Field[tuple[Text, Decision]], ...] = (
    Field("Text", lambda row: quoted(row[0].text)),
    Field("Class", lambda row: visible(row[1].label)),
    Field("Probability", lambda row: row[1].probability),
    Field("Right", lambda row: {True: "yes", False: "no", None: None}[row[1].right]),
)


def _tables(result: Ablation, choices: ViewOptions) -> Iterator[RenderableType]:
    whole, has_roles = choices.verbose, any(head.roles for head in result.heads)
    source = f"{result.checkpoint.short_name} on {_source_text(result)}"
    if result.n_texts == 1 and result.method == "mean":
        source += (
            ": what a head does alike at all its tokens does not show in one text; give more texts, or --method zero"
        )
    measured = "; ".join(filter(None, _measured_text(result)))
    what = f"{capital(measured)}. {capital(_REPLACEMENTS[result.method])}."
    yield first_lines(source, [what], resumed_line(result.verified, result.checkpoint, "input" if whole else None))
    columns: list[Field[Any]] = pick(_FIELDS, "rank", "id")
    for metric in result.metrics:
        columns += _amounts(result, capital(metric.title), "damage", interval=True, metric=metric)
    if result.options["gradient"]:
        columns += pick(_FIELDS, "gradient")
    title, order = "Heads removed one at a time", "the one that matters most first"
    top = choices.rows(4 if has_roles or result.together else 8)
    yield Table(title, columns, result.heads).first(top, "ablate.csv", order=order)
    if has_roles:
        yield _role_table(result, choices.rows(4))
    if result.decisions:
        rows = [*zip(result.texts, result.decisions, strict=True)]
        yield Table("What the whole model decides", _DECISIONS, rows).first(choices.rows(4), "ablate.json", "text")
    of_first = f"{result.metrics[0].title}, {result.metrics[0].unit}"
    if result.sets and (whole or result.together):
        which = "Selected heads" if result.together else "Heads of a layer"
        layer = [] if result.together else [Field[Any]("Layer", lambda effect: effect.heads[0].layer_name)]
        columns = [
            *layer,
            *_amounts(result, "Together", "damage"),
            *_amounts(result, "One at a time", "singles"),
            *_amounts(result, "Difference", "excess", interval=True),
        ]
        yield Table(f"{which} removed together ({of_first})", columns, result.sets)
    if result.curve is not None and whole:
        columns = [
            Field("Heads", name="removed"),
            *_amounts(result, "Least important", "least.damage", interval=True),
            *_amounts(result, "Sum of one at a time", "least.singles"),
            *_amounts(result, "Random order", "random.damage"),
        ]
        yield Table(f"More and more heads removed ({of_first})", columns, result.curve.points)
    yield notes(*_notes(result, whole))


def _amounts(
    result: Ablation, title: str, path: str, interval: bool = False, metric: Metric | None = None
) -> list[Field[Any]]:
    """A column of estimates by the first metric, or another one, and perhaps one of their intervals."""
    name, of_row = (metric or result.metrics[0]).name, attrgetter(path)
    columns = [Field[Any](title, lambda row: amount(of_row(row)[name].value), "" if metric is None else metric.unit)]
    if interval and result.has_intervals:
        short = title.partition(" ")[0]
        columns.append(Field("Interval", lambda row: bracketed(of_row(row)[name].interval, amount), short, detail=True))
    return columns


class _RoleOfHead(NamedTuple):
    id: HeadId
    effect: RoleEffect


def _role_table(result: Ablation, top: int | None) -> Table[Any]:
    metric = result.metrics[0]
    columns = [
        *pick(HEAD, "id"),
        Field[Any]("Role", lambda row: role_name(row.effect.role, row.effect.direction)),
        *_amounts(result, "On its tokens", "effect.queries"),
        *_amounts(result, "On others", "effect.others"),
        *_amounts(result, "Difference", "effect.difference", interval=True),
        Field("n", "effect.n", detail=True),
    ]
    rows = [_RoleOfHead(head.id, effect) for head in result.heads for effect in head.roles]
    rows.sort(key=lambda row: -row.effect.difference[metric.name].value)
    title, order = f"Heads on the tokens of roles, {metric.title} in {metric.unit}", "the largest difference first"
    return Table(title, columns, rows).first(top, "ablate.json", "row", order)


SPEC = CommandSpec[Ablation](
    content=_content,
    tables=_tables,
    table=lambda result, _: Table("", _FIELDS, result.heads, name="heads"),
)


# What is said

# Replacement of a removed head in words, by method.
_REPLACEMENTS = {
    "zero": "a removed head outputs zeros (b_O stays)",
    "mean": "a removed head outputs its mean over all tokens of the texts",
    "uniform": "a removed head attends equally to every visible token",
}


def _source_text(result: Ablation) -> str:
    """The corpora with their number of sentences, or the text."""
    sources = result.sources
    if result.options["repeats"]:
        return f"random tokens, repeated ({counted(len(sources.texts), 'sequence')})"
    files = [f"{visible(corpus.path.name)} ({counted(read, 'sentence')})" for corpus, read in sources.corpora]
    texts = [quoted(text) for text in sources.given] if len(sources.given) < 3 else [f"{len(sources.given)} texts"]
    return ", ".join([*files, *texts])


def _measured_text(result: Ablation) -> tuple[str, str]:
    """On which texts and by what is measured; and what is known of the model as it is, or ''."""
    texts, n, clean = result.texts_measured, result.n_positions, result.clean
    loss = f"loss of the model as it is {amount(clean.get('loss', 0.0))}"
    if result.kind == STATES:
        classifier = result.checkpoint.classifier
        why = classifier.why_no_classes if classifier else "the model predicts no tokens"
        return f"final hidden states of {counted(n, 'token')} in {texts}", why
    if result.kind == ANSWER:
        contrasts = {text.contrast for text in result.texts}
        answer, foil = "each answer", "its foil"
        if len(contrasts) == 1:
            answer, foil = (quoted(str(token)) for token in next(iter(contrasts)) or ())
        unchanged = f"{amount(clean[DIFFERENCE])} logits in the model as it is"
        return f"logit of {answer} less that of {foil} in {texts}", unchanged
    if result.kind == FUNCTION:
        unchanged = f"{amount(clean[OF_FUNCTION.name])} in the model as it is"
        return f"metric {visible(str(result.options['metric']))} in {texts}", unchanged
    if result.kind == CLASS:
        return f"class probabilities of {texts} without labels", ""
    if result.kind == LABELLED:
        return f"labelled class of {texts}", f"{loss} nats/text, {percent(clean['accuracy'])} right"
    what = f"{counted(n, 'token')}, each masked in turn," if result.kind == MASKED else counted(n, "next token")
    where = f"in {texts}"
    if result.checkpoint.stacks:
        given = result.options["target"] is not None
        where = "of the given target" if given else "of targets that the model writes, greedily"
        where = f"{where}, in {texts}" if result.n_cut else where
    return f"{what} {where}", f"{loss} nats/token"


# What gradients are taken of by kind, where it is not the loss that is measured.
_GRADIENT_OF = {
    STATES: f"{PROJECTIONS} random projections of the final states",
    CLASS: "loss of the class that the whole model decides for",
    ANSWER: "logit of the foil less that of the answer",
    FUNCTION: "metric, with the other sign",
}


def _conclusion(result: Ablation) -> str:
    """Whether the numbers have intervals, and how many heads can go."""
    if not result.has_intervals:
        few = "1 text is" if result.n_texts == 1 else f"{result.n_texts} texts are"
        return f"{few} too few for intervals (at least {ENOUGH_TEXTS}), so these numbers are a first look."
    first = result.metrics[0]
    effects = [head.damage[first.name] for head in result.heads]
    if not any(effect.side for effect in effects):
        needed = texts_needed([(effect.value, effect.interval) for effect in effects], result.n_texts)
        what = f"none has a {first.title} with an interval without 0"
        return f"Too few texts to name a head: {what}{about_needed(needed, 'text')}."
    if result.removable is None:
        return ""
    worse = f"the {first.title.removesuffix(' lost')} is clearly smaller"
    worse = "the loss is clearly higher" if first.name == "loss" else worse
    if result.removable == 0:
        return f"{capital(worse)} as soon as the least important head is removed."
    heads = counted(result.removable, "head")
    return f"{heads}, the least important, can go before {worse} (in the steps of the curve)."


def _notes(result: Ablation, whole: bool) -> Iterator[str]:
    if result.kind == ANSWER:
        yield "Negative: without the head the answer gains, so the head works against it."
    if result.kind == FUNCTION:
        yield "Negative: the metric is higher without the head."
    if result.metrics[0].name == MARGIN and _is_sure(result.clean):
        yield (
            f"Ordered by the margin: the model is so sure that its loss is below {SATURATED} nats on "
            f"{percent(result.clean['share_saturated'])} of the texts, and hardly tells heads apart (--order-by)."
        )
    yield _conclusion(result)
    if not whole:
        return
    if result.options["gradient"]:
        loss = f"; L: {_GRADIENT_OF[result.kind]}" if result.kind in _GRADIENT_OF else ""
        first_order = "" if result.method == "zero" else f", to first order what zero does, not {result.method}"
        yield f"Gradient: mean over texts of |Att·dL/dAtt| (Michel et al. 2019){loss}{first_order}."
    if result.options["repeats"]:
        yield "Repeated tokens: those of the second copy; others: the same tokens of the first, which nothing predicts."
    elif result.options["role"]:
        yield (
            "On its tokens: those of words that attend by the relation; on others: for each the nearest other token "
            "of a word in its text."
        )
    if result.curve is not None:
        yield "The order was found on the same texts: on others the sum of the least important heads would be larger."
    if result.sets and result.kind == STATES:
        yield (
            "Together: part of the difference may come from the measure, since cosine distances add up only for "
            "changes in unrelated directions."
        )
    if result.has_intervals:
        yield (
            f"Intervals: at {ERROR_RATE} over all rows of a table together, by a bootstrap over texts; they hold for "
            "texts like these, not for all texts."
        )


def _interval_text(result: Ablation, drawn: str) -> str:
    if not result.has_intervals:
        return f"{counted(result.n_texts, 'text')}: too few for intervals"
    return f"{drawn}: intervals at {ERROR_RATE} over all of them together, bootstrap over texts; none where not known"


# What is drawn


def _no_curve(result: Ablation) -> str:
    if result.curve is not None:
        return ""
    if len(result.heads) == 1:
        return "one head alone was removed"
    return "the selected heads were removed as one set" if result.together is not None else "no curve was asked for"


def _plan(result: Ablation, name: str, title: str, what: str, *facts: str) -> dict[str, Any]:
    """Name, caption, title and notes of a figure."""
    model, source = result.checkpoint.short_name, _source_text(result)
    measured, unchanged = _measured_text(result)
    replaced = _REPLACEMENTS[result.method]
    last = " ".join(f"{capital(fact)}." for fact in facts if fact)
    noted = (f"{source}: {measured}.", unchanged and f"{capital(unchanged)}.", f"{capital(replaced)}.", last)
    measured = "; ".join(filter(None, (measured, unchanged)))
    return {
        "stem": f"ablate-{name}",
        "caption": caption_of(f"{model} on {source}, {measured}: {what}", replaced, *facts),
        "title": model + title,
        "notes": tuple(filter(None, noted)),
    }


def _drawn(rows: Sequence[Any], path: str, metric: Metric) -> "Estimates":
    """The estimates of a metric that rows have at a path of attributes."""
    from attnviz.figures.charts import Estimates

    estimates = [attrgetter(path)(row)[metric.name] for row in rows]
    return Estimates.of([(one.value, one.interval) for one in estimates])


def _plan_heads(result: Ablation, choices: ViewOptions) -> "Iterator[RowsPlan]":
    from attnviz.figures.charts import Column, RowsPlan

    heads = result.heads[: choices.top or None]
    n = len(result.heads)
    count = counted(n, "head") if len(heads) == n else f"{len(heads)} of {n} heads"
    columns = []
    for metric in result.metrics[:2]:
        drawn = _drawn(heads, "damage", metric)
        middle = median(head.damage[metric.name].value for head in result.heads)
        columns.append(Column(metric.title, metric.unit, drawn, middle))
    titles = " and ".join(column.title for column in columns)
    what = f"{titles} on removing one head, {count}, the one that matters most first"
    facts = _interval_text(result, "bars"), "dotted: the median of all heads"
    about = _plan(result, "heads", f" without one head: {count}", what, *facts)
    yield RowsPlan(**about, names=tuple(str(head.id) for head in heads), columns=tuple(columns))


def _plan_curve(result: Ablation, _: ViewOptions) -> "Iterator[CurvesPlan]":
    from attnviz.figures.charts import CurvesPlan

    assert result.curve is not None
    metric, points = result.metrics[0], result.curve.points
    what = (
        f"{metric.title} on removing ever more of {len(result.heads)} heads, the least important first (line), beside "
        "the sum of what these do one at a time (dashed) and a random order (dotted)"
    )
    facts = "the order was found on the same texts", "above the dashed line: more than the sum"
    title = " without more and more of its heads"
    yield CurvesPlan(
        **_plan(result, "curve", title, what, _interval_text(result, "bands"), *facts),
        removed=tuple(point.removed for point in points),
        least=_drawn(points, "least.damage", metric),
        singles=_drawn(points, "least.singles", metric),
        random=_drawn(points, "random.damage", metric),
        label=f"{metric.title} ({metric.unit})",
    )


HEADS = Drawing(_plan_heads, in_figures("charts.rows_figure"))
CURVE = Drawing(_plan_curve, in_figures("charts.curves_figure"), in_figures("charts.draw_curves"), missing=_no_curve)
