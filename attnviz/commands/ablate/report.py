"""JSON, CSV and tables of an ablation, and sentences shared with its figures."""

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import RenderableType

from attnviz.commands.ablate.effects import Curve, CurvePoint, HeadEffect, SetEffect
from attnviz.commands.ablate.gradients import PROJECTIONS
from attnviz.commands.ablate.measure import SATURATED, Ablation, is_sure
from attnviz.inputs.prompt import Text
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.decisions import Decision
from attnviz.measures.intervals import ERROR_RATE, Estimate, texts_needed
from attnviz.measures.predictions import (
    ANSWER,
    CLASS,
    DIFFERENCE,
    FUNCTION,
    LABELLED,
    MARGIN,
    MASKED,
    METRICS,
    OF_FUNCTION,
    STATES,
    Metric,
)
from attnviz.present.documents import layer_entry, model_entry, sample_entry
from attnviz.present.fields import HEAD, Field, NamedTable, pick
from attnviz.present.figure_context import capital
from attnviz.present.published import role_name
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable, first_lines, first_rows, notes
from attnviz.present.view import ViewOptions
from attnviz.wording import about_needed, amount, bracketed, counted, percent, quoted, visible

# Replacement of a removed head in words, by method.
REPLACEMENT_TEXT = {
    "zero": "a removed head outputs zeros (b_O stays)",
    "mean": "a removed head outputs its mean over all tokens of the texts",
    "uniform": "a removed head attends equally to every visible token",
}


def source_line(result: Ablation) -> str:
    """The corpora with their number of sentences, or the text."""
    sources = result.sources
    if result.options["repeats"]:
        return f"random tokens, repeated ({counted(len(sources.texts), 'sequence')})"
    files = [f"{visible(corpus.path.name)} ({counted(read, 'sentence')})" for corpus, read in sources.corpora]
    texts = [quoted(text) for text in sources.given] if len(sources.given) < 3 else [f"{len(sources.given)} texts"]
    return ", ".join([*files, *texts])


def what_is_measured(result: Ablation) -> tuple[str, str]:
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


def conclusion(result: Ablation) -> str:
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
            {"number": text.number, **decision.entry}
            for text, decision in zip(result.texts, result.decisions, strict=False)  # none without classes
        ],
        "verification": sample_entry(result.verified),
        "layers": [*map(_set_entry, result.layers)],
        "together": result.together and _set_entry(result.together),
        "curve": result.curve and _curve_entry(result.curve),
        "gradient_of": _GRADIENT_OF.get(result.kind, f"{result.kind} loss") if options["gradient"] else None,
        "removable": result.removable,
    }


def with_intervals(content: Any) -> Any:
    """A document, or a part of one, with every estimate as value and interval."""
    if isinstance(content, Estimate):
        return {"value": content.value, "interval": content.interval and list(content.interval)}
    if isinstance(content, dict):
        return {key: with_intervals(value) for key, value in content.items()}
    return [with_intervals(value) for value in content] if isinstance(content, list) else content


def _effect_entry(effect: SetEffect, name: str, together: str = "together") -> dict[str, Any]:
    return {together: effect.damage[name], "one_at_a_time": effect.singles[name], "difference": effect.excess[name]}


def _set_entry(effect: SetEffect) -> dict[str, Any]:
    names = {"heads": [str(head) for head in effect.heads]}
    return layer_entry(effect.layer) | names | {name: _effect_entry(effect, name) for name in effect.damage}


def _point_entry(point: CurvePoint, name: str) -> dict[str, Any]:
    return _effect_entry(point.least, name, "least_important") | {"random_order": point.random.damage[name]}


def _curve_entry(curve: Curve) -> dict[str, Any]:
    return {
        "order": [str(head) for head in curve.order],
        "random_order": [str(head) for head in curve.random_order],
        "points": [
            {"removed": point.removed, **{name: _point_entry(point, name) for name in point.least.damage}}
            for point in curve.points
        ],
    }


_FIELDS: tuple[Field[HeadEffect], ...] = (
    *HEAD,
    Field(value=lambda head: with_intervals([vars(role) for role in head.roles]), name="roles", csv={}),
    Field("Rank", name="rank"),
    *(
        Field[HeadEffect](
            value=lambda head, name=name: with_intervals(head.damage.get(name)),  # type: ignore[misc]
            name=name,
            csv={name: ("value",), f"{name}_low": ("interval", 0), f"{name}_high": ("interval", 1)},
            meaning=f"{metric.title} without the head ({metric.unit or 'of the function'})",
        )
        for name, metric in (METRICS | {OF_FUNCTION.name: OF_FUNCTION}).items()
    ),
    Field("Gradient", name="gradient", write=amount, meaning="how much the loss changes with the head's scale"),
)


_DECISIONS: tuple[Field[tuple[Text, Decision]], ...] = (
    Field("Text", lambda row: quoted(row[0].text)),
    Field("Class", lambda row: visible(row[1].label)),
    Field("Probability", lambda row: row[1].probability),
    Field("Right", lambda row: {True: "yes", False: "no", None: None}[row[1].right]),
)


def _tables(result: Ablation, choices: ViewOptions) -> Iterator[RenderableType]:
    whole, has_roles = choices.verbose, any(head.roles for head in result.heads)
    source = f"{result.checkpoint.short_name} on {source_line(result)}"
    if result.n_texts == 1 and result.method == "mean":
        source += (
            ": what a head does alike at all its tokens does not show in one text; give more texts, or --method zero"
        )
    measured = "; ".join(filter(None, what_is_measured(result)))
    what = f"{capital(measured)}. {capital(REPLACEMENT_TEXT[result.method])}."
    yield first_lines(source, what, result.verified, result.checkpoint, "input" if whole else None)
    columns = pick(_FIELDS, "rank", "id")
    for metric in result.metrics:
        columns += _amounts(result, capital(metric.title), lambda head: head.damage, metric)
    if result.options["gradient"]:
        columns += pick(_FIELDS, "gradient")
    title, order = "Heads removed one at a time", "the one that matters most first"
    top = choices.rows(4 if has_roles or result.together else 8)
    yield first_rows(title, columns, result.heads, top, "ablate.csv", order=order)
    if has_roles:
        yield _role_table(result, choices.rows(4))
    if result.decisions:
        rows = [*zip(result.texts, result.decisions, strict=True)]
        yield first_rows("What the whole model decides", _DECISIONS, rows, choices.rows(4), "ablate.json", noun="text")
    if result.sets and (whole or result.together):
        of_sets = [
            *_amounts(result, "Together", lambda effect: effect.damage, interval=False),
            *_amounts(result, "One at a time", lambda effect: effect.singles, interval=False),
            *_amounts(result, "Difference", lambda effect: effect.excess),
        ]
        which = "Selected heads" if result.together else "Heads of a layer"
        if not result.together:
            of_sets.insert(0, Field("Layer", lambda effect: effect.heads[0].layer_name))
        yield RowTable(f"{which} removed together ({_of_first(result)})", of_sets, result.sets)
    if result.curve is not None and whole:
        of_points = [
            Field[Any]("Heads", name="removed"),
            *_amounts(result, "Least important", lambda point: point.least.damage),
            *_amounts(result, "Sum of one at a time", lambda point: point.least.singles, interval=False),
            *_amounts(result, "Random order", lambda point: point.random.damage, interval=False),
        ]
        yield RowTable(f"More and more heads removed ({_of_first(result)})", of_points, result.curve.points)
    yield notes(*_notes(result, whole))


def _amounts(
    result: Ablation,
    title: str,
    of: Callable[[Any], dict[str, Estimate]],
    metric: Metric | None = None,
    interval: bool = True,
) -> list[Field[Any]]:
    """A column of estimates by the first metric, or another one, and perhaps one of their intervals."""
    name = result.metrics[0].name if metric is None else metric.name
    columns = [Field[Any](title, lambda row: amount(of(row)[name].value), "" if metric is None else metric.unit)]
    if interval and result.has_intervals:
        short = title.partition(" ")[0]
        columns.append(Field("Interval", lambda row: bracketed(of(row)[name].interval, amount), short, detail=True))
    return columns


def _of_first(result: Ablation) -> str:
    return f"{result.metrics[0].title}, {result.metrics[0].unit}"


def _role_table(result: Ablation, top: int | None) -> RowTable[Any]:
    metric = result.metrics[0]
    columns = [
        Field[Any]("Head", lambda row: row[0]),
        Field[Any]("Role", lambda row: role_name(row[1].role, row[1].direction)),
        *_amounts(result, "On its tokens", lambda row: row[1].queries, interval=False),
        *_amounts(result, "On others", lambda row: row[1].others, interval=False),
        *_amounts(result, "Difference", lambda row: row[1].difference),
        Field("n", lambda row: row[1].n, detail=True),
    ]
    rows = [(head.id, role) for head in result.heads for role in head.roles]
    rows.sort(key=lambda row: -row[1].difference[metric.name].value)
    title, order = f"Heads on the tokens of roles, {metric.title} in {metric.unit}", "the largest difference first"
    return first_rows(title, columns, rows, top, "ablate.json", noun="row", order=order)


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
    yield conclusion(result)
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


SPEC = CommandSpec[Ablation](
    content=lambda result, choices: with_intervals(_content(result, choices)),
    tables=_tables,
    table=lambda result, _: NamedTable("heads", _FIELDS, result.heads),
)
