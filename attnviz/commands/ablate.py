"""Ablation: remove heads of a running model and measure the change, one at a time and in sets.

The damage of a head is what the model is worse by without it, as the mean over positions of the texts: with the loss l,
l(without the head) - l(as it is). A head is removed by putting zeros, its mean output, or the mean of the visible
values in the place of its output (Michel et al. 2019, "Are Sixteen Heads Really Better than One?").
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, takewhile
from typing import Any, ClassVar, Unpack

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
from attnviz.measures.decisions import Decision
from attnviz.measures.intervals import ERROR_RATE, TextSamples
from attnviz.measures.predictions import (
    ANSWER,
    CLASS,
    DIFFERENCE,
    FUNCTION,
    LABELLED,
    MARGIN,
    MASKED,
    OF_FUNCTION,
    STATES,
    Metric,
    Scoring,
    metrics_of,
    model_inputs,
    prediction_kind,
)
from attnviz.measures.removals import (
    PROJECTIONS,
    SATURATED,
    Curve,
    HeadEffect,
    Removals,
    SetEffect,
    is_sure,
)
from attnviz.measures.role_tokens import role_tokens, texts_with_roles, token_weights
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, select_heads, selection_texts
from attnviz.models.opening import Model, open_checkpoint
from attnviz.models.quantised import has_gradient
from attnviz.options import CorpusOptions, HeadMetric, Replacement, checked
from attnviz.present.documents import Entry, model_entry, sample_entry
from attnviz.present.fields import Field, Table, pick
from attnviz.present.figure_context import capital
from attnviz.present.removals import EFFECT, amounts, curve_entry, curve_table, roles_table, set_entry, sets_table
from attnviz.present.report import CommandSpec
from attnviz.present.result import OfHeads, Result
from attnviz.present.sentences import first_lines, first_look, resumed_line, too_few
from attnviz.present.tables import notes
from attnviz.present.view import ViewOptions
from attnviz.progress import Progress, tell
from attnviz.run.edit import Removal
from attnviz.run.generate import with_targets
from attnviz.run.passes import SampleVerification, mean_values
from attnviz.wording import amount, counted, percent, quoted, visible

_MANY = 2000  # inputs from which on a message gives their number
# arguments that stand in the document as they are given
_OPTIONS = "method together repeats limit truncate seed curve gradient answer foil target order_by".split()


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
    method: Replacement = "mean",
    select: str | HeadId | Sequence[str | HeadId] = (),
    together: bool = False,
    role: str | Sequence[str] = (),
    repeats: bool = False,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    curve: bool = True,
    gradient: bool = True,
    order_by: HeadMetric | None = None,
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
    given, warn = locals(), warn or (lambda _: None)
    options: dict[str, Any] = {name: given[name] for name in _OPTIONS} | {
        "select": selection_texts(select),
        "label": None if label is None else str(label),
    }
    roles = role_tokens(role, repeats)
    options["role"] = list(dict.fromkeys(each.name for each in roles if each.direction))
    contrast = contrast_named(answer, foil, options["label"])
    columns, opening = Columns.taken(reading, label_column)
    sources = TextSources((), (), ())
    if repeats:
        refuse(given | {**reading})
    else:
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
        read = with_targets(
            checkpoint, read, target, truncate, max_new_tokens, partial(tell, progress, "targets"), warn
        )
        inputs, measured = model_inputs(checkpoint, read, kind, truncate, warn)
        means = None
        if method == "mean":
            whole, _ = model_inputs(checkpoint, measured, STATES, truncate, lambda _: None)
            means = mean_values(checkpoint, whole, batch_size, partial(tell, progress, "means"))
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
        removals.run([*(frozenset([head]) for head in heads), *groups], partial(tell, progress, "removing"))
        options["order_by"] = order_by or (MARGIN if is_sure(removals.clean) else metrics[0].name)
        ranked = removals.ranked_heads(options["order_by"], roles)
        removal = None
        if curve and not together and len(heads) > 1:
            order = [head.id for head in reversed(ranked)]
            removal = removals.curve(order, partial(tell, progress, "curve"))
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
        clean=removals.clean,
        decisions=tuple(removals.decisions[text] for text in sorted(removals.decisions)),
        verified=removals.passes.verified,
        heads=ranked,
        layers=() if together else effects,
        together=effects[0] if together else None,
        curve=removal,
        text_notes=(*filter(None, [unknown]), *unread_columns(corpus.table for corpus, _ in sources.corpora)),
    )


# What is written

_CLEAN = "share_saturated loss accuracy logit_difference metric".split()  # keys of what is known of the whole model


def _content(result: Ablation, _: ViewOptions) -> Entry:
    options, sources, classifier = result.options, result.sources, result.checkpoint.classifier
    content: Entry = {
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
        "layers": list(map(set_entry, result.layers)),
        "together": result.together and set_entry(result.together),
        "curve": result.curve and curve_entry(result.curve),
        "gradient_of": _GRADIENT_OF.get(result.kind, f"{result.kind} loss") if options["gradient"] else None,
        "removable": result.removable,
    }


_DECISIONS: tuple[Field[tuple[Text, Decision]], ...] = (
    Field("Text", lambda row: quoted(row[0].text)),
    Field("Class", lambda row: visible(row[1].label)),
    Field("Probability", lambda row: row[1].probability),
    Field("Right", lambda row: {True: "yes", False: "no", None: None}[row[1].right]),
)


def _tables(result: Ablation, choices: ViewOptions) -> Iterator[RenderableType]:
    whole, has_roles = choices.verbose, any(head.roles for head in result.heads)
    source = f"{result.checkpoint.short_name} on {source_text(result)}"
    if result.n_texts == 1 and result.method == "mean":
        source += (
            ": what a head does alike at all its tokens does not show in one text; give more texts, or --method zero"
        )
    measured = "; ".join(filter(None, measured_text(result)))
    what = f"{capital(measured)}. {capital(REPLACEMENTS[result.method])}."
    yield first_lines(source, [what], resumed_line(result.verified, result.checkpoint, "input" if whole else None))
    first, intervals = result.metrics[0], result.has_intervals
    columns: list[Field[Any]] = pick(EFFECT, "rank", "id")
    for metric in result.metrics:
        columns += amounts(metric, capital(metric.title), "damage", intervals, metric.unit)
    if result.options["gradient"]:
        columns += pick(EFFECT, "gradient")
    title, order = "Heads removed one at a time", "the one that matters most first"
    top = choices.rows(4 if has_roles or result.together else 8)
    yield Table(title, columns, result.heads).first(top, "ablate.csv", order=order)
    if has_roles:
        yield roles_table(result.heads, first, intervals, choices.rows(4))
    if result.decisions:
        rows = [*zip(result.texts, result.decisions, strict=True)]
        yield Table("What the whole model decides", _DECISIONS, rows).first(choices.rows(4), "ablate.json", "text")
    if result.sets and (whole or result.together):
        yield sets_table(result.sets, first, intervals, of_layers=result.together is None)
    if result.curve is not None and whole:
        yield curve_table(result.curve, first, intervals)
    yield notes(*_notes(result, whole))


SPEC = CommandSpec[Ablation](
    content=_content,
    tables=_tables,
    table=lambda result, _: Table("", EFFECT, result.heads, name="heads"),
)


# What is said

# Replacement of a removed head in words, by method.
REPLACEMENTS = {
    "zero": "a removed head outputs zeros (b_O stays)",
    "mean": "a removed head outputs its mean over all tokens of the texts",
    "uniform": "a removed head attends equally to every visible token",
}


def source_text(result: Ablation) -> str:
    """The corpora with their number of sentences, or the text."""
    sources = result.sources
    if result.options["repeats"]:
        return f"random tokens, repeated ({counted(len(sources.texts), 'sequence')})"
    files = [f"{visible(corpus.path.name)} ({counted(read, 'sentence')})" for corpus, read in sources.corpora]
    texts = [quoted(text) for text in sources.given] if len(sources.given) < 3 else [f"{len(sources.given)} texts"]
    return ", ".join([*files, *texts])


def measured_text(result: Ablation) -> tuple[str, str]:
    """On which texts and by what is measured; and what is known of the model as it is, or ''."""
    kind, texts, n = result.kind, result.texts_measured, result.n_positions
    known = {name: amount(value) for name, value in result.clean.items()}
    loss = f"loss of the model as it is {known.get('loss')}"
    if kind == STATES:
        classifier = result.checkpoint.classifier
        why = classifier.why_no_classes if classifier else "the model predicts no tokens"
        return f"final hidden states of {counted(n, 'token')} in {texts}", why
    if kind == ANSWER:
        contrasts = {text.contrast for text in result.texts}
        answer, foil = "each answer", "its foil"
        if len(contrasts) == 1:
            answer, foil = (quoted(str(token)) for token in next(iter(contrasts)) or ())
        return f"logit of {answer} less that of {foil} in {texts}", f"{known[DIFFERENCE]} logits in the model as it is"
    if kind == FUNCTION:
        metric = visible(str(result.options["metric"]))
        return f"metric {metric} in {texts}", f"{known[OF_FUNCTION.name]} in the model as it is"
    if kind == CLASS:
        return f"class probabilities of {texts} without labels", ""
    if kind == LABELLED:
        return f"labelled class of {texts}", f"{loss} nats/text, {percent(result.clean['accuracy'])} right"
    where = f"in {texts}"
    if result.checkpoint.stacks:
        given = result.options["target"] is not None
        where = "of the given target" if given else "of targets that the model writes, greedily"
        where = f"{where}, in {texts}" if result.n_cut else where
    what = f"{counted(n, 'token')}, each masked in turn," if kind == MASKED else counted(n, "next token")
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
        return first_look(result.n_texts, "text")
    first = result.metrics[0]
    effects = [head.damage[first.name] for head in result.heads]
    if not any(effect.side for effect in effects):
        return too_few([(effect.value, effect.interval) for effect in effects], "head", "text", result.n_texts)
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
    if result.metrics[0].name == MARGIN and is_sure(result.clean):
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
