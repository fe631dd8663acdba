"""JSON, CSV and tables of a card."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.card.measure import Card
from attnviz.commands.card.wording import not_measured, sentences, standings, strongest, unmeasured
from attnviz.models.wording import span, unisolated, visible
from attnviz.present.documents import model_entry, target_entry, tokens_entry, verification_entry
from attnviz.present.fields import Field, entry
from attnviz.present.published import ARROWS, shown_baseline
from attnviz.present.report import CommandSpec
from attnviz.present.tables import first_rows, notes, verification_line
from attnviz.present.view import ViewOptions
from attnviz.profiles.published import published_entries
from attnviz.profiles.store import StoredRole

_FIELDS: tuple[Field[StoredRole], ...] = (
    Field("Role", name="role", left=True, least=10),
    Field("Direction", name="direction", write=lambda name: ARROWS.get(name or "", ""), left=True, optional=1),
    Field("Score", name="score"),
    Field("Baseline", name="baseline", write=shown_baseline),
    Field("Untrained", name="untrained"),
    Field("Interval", lambda role: list(role.interval), name="interval", csv={"low": (0,), "high": (1,)}, write=span),
    Field("n", name="n"),
)


def _content(card: Card, _: ViewOptions) -> dict[str, Any]:
    effects, ablation, circuits = card.outputs.effects, card.ablation, card.circuits
    moved = None if effects is None else effects.promotions.get(card.head)
    pairs = (None, None) if circuits is None else strongest(circuits, card.head)
    return {
        "model": model_entry(card.checkpoint),
        "texts": list(card.texts),
        "corpora": [] if card.corpus is None else [{"path": str(card.corpus)}],
        "shown": card.text,
        "tokens": tokens_entry(card.tokens),
        "verification": verification_entry(card.analysis.verification),
        **target_entry(card.analysis.target),
        "head": str(card.head),
        "sentences": list(sentences(card)),
        "not_measured": [{"what": what, "how": how} for what, how in unmeasured(card).items()],
        "profile": card.profile and card.profile.origin,
        "roles": [entry(_FIELDS, role) for role in card.roles],
        "published": published_entries(head for head in card.analysis.published if head.id == card.head),
        "nearest": [{"id": str(head), "divergence": distance} for head, distance in card.nearest],
        "statistics": [
            {"name": each.name, "value": each.value, "rank": each.rank, "heads": len(each.others)}
            for each in standings(card)
        ],
        "outputs": {
            "projection_share": card.outputs.head(card.head).projection_share,
            "at": effects and effects.position,
            "promoted": moved and [asdict(token) for token in moved.promoted],
        },
        "circuits": circuits and {
            **{
                name: pair and {**asdict(pair), "id": str(pair.id), "writer": str(pair.writer)}
                for name, pair in zip(("reads", "read_by"), pairs, strict=True)
            },
            "copying": circuits.head(card.head).copying,
            "untrained": circuits.head(card.head).untrained,
        },
        "ablation": ablation and {
            "texts": ablation.n_texts, "method": ablation.methods[0],
            **{name: asdict(each) for name, each in ablation.head(card.head).damage.items()},
        },
    }  # fmt: skip


def _tables(card: Card, choices: ViewOptions, width: int) -> Iterator[RenderableType]:
    yield verification_line(card.analysis.verification, card.checkpoint)
    yield Text(unisolated(" ".join(sentences(card))))
    if card.roles and card.profile is not None:
        title = f"Roles over {visible(card.profile.measured_on)} ({{}}, the clearest first)"
        yield first_rows(title, _FIELDS, card.roles, choices.top, "card.csv", width=width, noun="role")
    yield notes(not_measured(card))


def _markdown(card: Card) -> str:
    """The card as Markdown."""
    table = card.paper_table(ViewOptions(table="md")) if card.roles else ""
    parts = (f"# {card.head} of {visible(card.checkpoint.short_name)}", *sentences(card), table, not_measured(card))
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


SPEC = CommandSpec[Card](
    content=_content, tables=_tables, fields=_FIELDS, entries="roles", same=("attnviz", "model", "texts", "corpora"),
    text=("card.md", _markdown),
)  # fmt: skip
