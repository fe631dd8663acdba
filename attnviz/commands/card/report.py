"""JSON, CSV and tables of a card."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.ablate.report import with_intervals
from attnviz.commands.card.measure import NEAREST, Card
from attnviz.commands.card.wording import evidence_of, not_measured, paragraphs, standings, strongest, unmeasured
from attnviz.commands.profile.show import (
    BRACKETS,
    NamedExample,
    example_tables,
    licence_lines,
    named_examples,
    sentence_of,
    which_examples,
)
from attnviz.measures.patterns import ROLES_ON_REPEATS
from attnviz.models.wording import rounded, span, visible
from attnviz.present.documents import markdown_text, model_entry, target_entry, tokens_entry, verification_entry
from attnviz.present.fields import Field, entry
from attnviz.present.published import ARROWS, role_name, shown_baseline
from attnviz.present.report import CommandSpec
from attnviz.present.tables import first_rows, notes, verification_line
from attnviz.present.view import ViewOptions
from attnviz.printable import printable
from attnviz.profiles.examples import examples_entry
from attnviz.profiles.parts import measured_on
from attnviz.profiles.published import published_entries
from attnviz.profiles.store import StoredProfile, StoredRole

ROLES: tuple[Field[StoredRole], ...] = (
    Field("Role", name="role", left=True, least=10),
    Field("Direction", name="direction", write=lambda name: ARROWS.get(name or "", ""), left=True, optional=1),
    Field("Score", name="score"),
    Field("Baseline", name="baseline", write=shown_baseline),
    Field("Untrained", name="untrained"),
    Field("Interval", lambda role: list(role.interval), name="interval", csv={"low": (0,), "high": (1,)}, write=span),
    Field("n", name="n"),
)
"""What is told of a role."""


def head_content(card: Card) -> dict[str, Any]:
    """What a document says of the head, without the model and the texts that were given."""
    effects, ablation, circuits, repeats = card.outputs.effects, card.ablation, card.circuits, card.on_repeats
    shown = card.shown_examples
    moved = None if effects is None else effects.promotions.get(card.head)
    pairs = (None, None) if circuits is None else strongest(circuits, card.head)
    return {
        "shown": card.text,
        "tokens": tokens_entry(card.tokens),
        "verification": verification_entry(card.analysis.verification),
        **target_entry(card.analysis.target),
        "head": str(card.head),
        "words": paragraphs(card),
        "not_measured": [{"what": what, "how": how} for what, how in unmeasured(card).items()],
        "roles": [entry(ROLES, role) for role in card.roles],
        "examples": shown and examples_entry([shown]),
        "published": published_entries(head for head in card.analysis.published if head.id == card.head),
        "nearest": [{"id": str(head), "divergence": distance} for head, distance in card.nearest[:NEAREST]],
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
            "texts": ablation.n_texts, "method": ablation.method,
            **with_intervals(ablation.head(card.head).damage),
            "roles": [with_intervals(vars(role)) for role in ablation.head(card.head).roles],
        },
        "on_repeats": repeats and with_intervals(vars(repeats.head(card.head).roles[0])),
    }  # fmt: skip


"""What two runs have in common whose files belong together."""


def run_content(card: Card, texts: Sequence[str]) -> dict[str, Any]:
    """What a document says of the run, and where roles come from, part by part: of one run, or of several."""
    profile = card.profile
    return {
        "model": model_entry(card.checkpoint),
        "texts": list(texts),
        "corpora": [] if card.corpus is None else [{"path": str(card.corpus)}],
        "options": card.options,
        "profile": profile and {
            **profile.origin, "parts": {name: measured_on(part) for name, part in profile.parts.items()}
        },
    }  # fmt: skip


def roles_on(profile: StoredProfile, roles: Iterable[StoredRole]) -> str:
    """What roles were measured on: corpora, and random tokens."""
    random = "; random tokens" * bool(profile.corpora and {*ROLES_ON_REPEATS} & {role.role for role in roles})
    return visible(profile.measured_on) + random


def _content(card: Card, _: ViewOptions) -> dict[str, Any]:
    return run_content(card, card.texts) | head_content(card)


def _tables(card: Card, choices: ViewOptions, width: int) -> Iterator[RenderableType]:
    yield verification_line(card.analysis.verification, card.checkpoint)
    for heading, text in paragraphs(card).items():
        yield Text.assemble((f"{heading}: ", "bold"), text)
    if card.roles and card.profile is not None:
        title, order = f"Roles over {roles_on(card.profile, card.roles)}", "the clearest first"
        yield first_rows(title, ROLES, card.roles, choices.top, "card.csv", width=width, noun="role", order=order)
    if card.profile is not None and (shown := card.shown_examples) is not None:
        yield from example_tables(card.profile, [shown], 0, width)
    yield notes(evidence_of(card.roles), not_measured(card))


def markdown(card: Card, heading: str = "") -> str:
    """The card as Markdown, below a heading."""
    table = card.paper_table(ViewOptions(table="md")) if card.roles else ""
    shown, model = card.shown_examples, markdown_text(card.checkpoint.short_name)
    parts = [heading or f"# {card.head} of {model}"]
    parts += [f"**{name}.** {markdown_text(text)}" for name, text in paragraphs(card).items()]
    parts += [table, evidence_of(card.roles)]
    if card.profile is not None and shown is not None:
        broad = f" {which_examples([shown])}" * (shown.role == "broad")
        of = markdown_text(role_name(shown.role, shown.direction))
        parts.append(f"**Sentences of {of}.** {BRACKETS}; (the right one).{broad}")
        parts.append("\n".join(map(_line, named_examples(shown))))
        parts += licence_lines(card.profile, [shown])
    parts.append(markdown_text(not_measured(card)))
    return printable("\n\n".join(part.strip() for part in parts if part)) + "\n"


def _line(named: NamedExample) -> str:
    """A sentence as an item of a list."""
    example = named.example
    kind, text = "hit" if example.hit else "failure", markdown_text(sentence_of(example).plain)
    return f"- {kind}, weight {rounded(example.weight)}: {text}"


SPEC = CommandSpec[Card](
    content=_content, tables=_tables, fields=ROLES, entries="roles", patterns=True,
    text=("card.md", markdown),
)  # fmt: skip
