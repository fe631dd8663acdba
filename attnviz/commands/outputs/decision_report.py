"""How a classifier's decision is told: its table, its sentences and its entry in outputs.json."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from attnviz.commands.outputs.decision import NOT_LINEAR, Decision
from attnviz.commands.outputs.measure import HeadOutputs
from attnviz.commands.outputs.shares import HeadContribution
from attnviz.model.head_ids import HeadId
from attnviz.model.wording import quoted, rounded, signed, unisolated
from attnviz.results.tables import Column, column_table, left_out, listed_of

_OF_LAYERS = {
    "attention bias": "b_O of all layers",
    "feed-forward": "feed-forward networks",
    "norm bias": "biases of norms",
    "classifier bias": "biases of the classifier",
    NOT_LINEAR: "what is not linear in the classifier",
}


def decision_entry(decision: Decision) -> dict[str, Any]:
    """For outputs.json; what each head adds stands with the head."""
    named = ("position", "difference", "linear", "error", "scale", "tolerance")
    return {
        **{name: getattr(decision, name) for name in named},
        **{name: getattr(decision, name).name for name in ("label", "against", "predicted")},
        "classes": [asdict(each) for each in decision.classes],
        "parts": [asdict(part) for part in decision.parts],
    }


def versus(decision: Decision) -> str:
    """The two classes: ``“good” against “bad”``."""
    return f"{quoted(decision.label.name)} against {quoted(decision.against.name)}"


def decision_table(decision: Decision, heads: Sequence[HeadContribution], top: int, width: int) -> Table:
    """What heads add to the difference of the logits, the largest part first."""
    ranked = sorted((head.id for head in heads), key=lambda head: (-abs(decision.heads[head]), head))[:top]
    columns: list[Column[HeadId]] = [
        Column("Head", lambda head: head, left=True),
        Column("Adds", lambda head: signed(decision.heads[head]), "logits"),
        Column("Speaks for", lambda head: _side(decision, decision.heads[head]), left=True),
    ]
    title = f"Parts of the decision ({listed_of(len(ranked), len(heads))} heads, the largest direct effect first)"
    return column_table(
        title, columns, ranked, width=width, caption=left_out(len(ranked), len(heads), "head", "outputs.csv")
    )


def _side(decision: Decision, value: float) -> str:
    side = decision.label if value > 0 else decision.against
    return "–" if signed(value) == rounded(0.0) else unisolated(quoted(side.name))


def listed_parts(heads: str, total: float, parts: Iterable[tuple[str, float]]) -> str:
    """What heads and all that is no head add, those of all layers together, so that the reader can add up."""
    sums = {heads: total}
    for name, value in parts:
        sums[_OF_LAYERS.get(name, name)] = sums.get(_OF_LAYERS.get(name, name), 0.0) + value
    return ", ".join(f"{name} {signed(value)}" for name, value in sums.items())


def decision_text(result: HeadOutputs, decision: Decision) -> Text:
    """What is decided where, and all parts of the difference."""
    predicted, token = decision.predicted, result.tokens.labels[decision.position]
    named = ((part.name, part.value) for part in decision.parts)
    parts = listed_parts("heads", sum(decision.heads.values()), named)
    return Text(
        f"At #{decision.position} (‘{token}’) the model decides for {unisolated(quoted(predicted.name))} (probability "
        f"{rounded(predicted.probability)}). The logit of {unisolated(versus(decision))}: "
        f"{signed(decision.difference)}, of which {parts}."
    )


def how_it_is_read(result: HeadOutputs, decision: Decision) -> str:
    """Which path is linear and which is not, in a sentence or two."""
    norms = "the final norm" if result.checkpoint.architecture.pre_norm else "every later norm"
    held = f"direct effect alone, through {norms} with its scale at this token held fixed"
    classifier = result.checkpoint.classifier
    if decision.linear or classifier is None:
        return f"Decision: {held}, and through the classifier, which is linear."
    return (
        f"Decision: {held}, up to the classifier's {classifier.activation}, which is not linear: from there along its "
        f"gradient at this text, a linearisation. What that leaves out is a part of its own."
    )
