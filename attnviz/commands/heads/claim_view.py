"""The view ``claim``: one head and one statement, one column wide."""

from collections.abc import Iterator, Sequence
from typing import Any

from attnviz.analysis.findings import sorted_by_selection
from attnviz.analysis.result import Analysis
from attnviz.commands.heads.first_look import listed_heads, profile_command
from attnviz.errors import UsageError
from attnviz.figures.card import Bar, ClaimPlan, example_words
from attnviz.judge.roles import Role
from attnviz.measures.patterns import PATTERNS
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, ids_and_names, is_of_source, number_of, select_heads
from attnviz.present.claim import claim, held_against, in_unit, score_and_interval, sentence
from attnviz.present.figure_context import caption_of
from attnviz.present.view import Drawing, ViewOptions
from attnviz.profiles.parts import part_of
from attnviz.profiles.store import StoredProfile
from attnviz.wording import visible


def claim_plan(
    profile: StoredProfile, checkpoint: Checkpoint, role: Role, stem: str, effect: str = "", removed: Sequence[Bar] = ()
) -> ClaimPlan:
    """Plan the figure of a role of a head; ``removed`` are effects of removing it, ``effect`` their name and unit."""
    heads = [head for head in select_heads((), checkpoint.kinds) if is_of_source(head.layer)]
    known = scores_of(profile, heads, role)
    dots = [(head.head, number_of(head.layer), known.get(head, 0.0)) for head in heads if head != role.id]
    score, interval = score_and_interval(role)
    bars = [Bar(str(role.id), role.score, f"{score} ({interval})" if interval else score, role.interval)]
    bars += [Bar(name, value, in_unit(role, value)[0]) for name, value in held_against(role)]
    of_role = (found for found in profile.examples if (found.id, found.role) == (role.id, role.role))
    examples = [example for found in of_role for example in (*found.best[:1], *found.failures[:1])]
    caption = caption_of(
        sentence(role, checkpoint.full_name),
        f"over {visible(profile.measured_by([role]))}",
        f"the area of a dot is the score of that head ({len(known)} of {len(heads)} known)",
        *map(example_words, examples),
        "" if examples else "no example is stored",
        f"without it, {effect}: {'; '.join(f'{bar.name} {bar.written}' for bar in removed)}" if removed else "",
    )
    return ClaimPlan(
        stem=stem,
        caption=caption,
        title=claim(role, checkpoint.full_name),
        notes=(),
        dots=(*dots, (role.id.head, number_of(role.id.layer), role.score)),
        bars=tuple(bars),
        end=in_unit(role, 1.0)[0],
        strips=tuple(("", example) for example in examples),
        removed=tuple(removed),
        effect=effect,
    )


def scores_of(profile: StoredProfile, heads: Sequence[HeadId], role: Role) -> dict[HeadId, float]:
    """The scores of a model's heads for a role in its direction: of all where the profile has them, else of some."""
    part: Any = profile.document.get(part_of(role.role, profile.parts)) or {}
    if role.relation is not None:
        part = next((each for each in part.get("relations", ()) if each["relation"] == role.relation), {})
    statistics = {spec.name: spec.statistic for spec in PATTERNS.values()}
    values: Any = part.get("accuracy", part).get(role.direction or statistics.get(role.role, role.role)) or ()
    of_heads = [value for of_layer in values for value in of_layer]
    scores = {head: value for head, value in zip(heads, of_heads, strict=False) if value is not None}
    every = (each for of_head in profile.roles.values() for each in of_head)
    return scores | {
        each.id: each.score for each in every if (each.role, each.direction) == (role.role, role.direction)
    }


def no_claim(profile: StoredProfile | None, checkpoint: Checkpoint, heads: Sequence[HeadId] = ()) -> str:
    """Why nothing can be claimed of these heads, or of any, and what to do."""
    over = "no corpus was measured" if profile is None else f"no role over {visible(profile.measured_on)}"
    whose = ", ".join(map(str, heads)) or "any head"
    return f"nothing can be claimed of {whose}: {over} (to measure all heads: {profile_command(checkpoint)})"


def _plans(analysis: Analysis, choices: ViewOptions) -> Iterator[ClaimPlan]:
    heads = analysis.select(choices.select) if choices.select else listed_heads(analysis)
    heads = sorted_by_selection(heads, ids_and_names(choices.select)[1])
    roles = [head.role for head in heads if head.role is not None]
    if not roles or analysis.profile is None:
        raise UsageError(f"{no_claim(analysis.profile, analysis.checkpoint, [head.id for head in heads])}.")
    for role in roles:
        stem = "claim" if len(roles) == 1 else f"claims/{role.id.file_stem}"
        yield claim_plan(analysis.profile, analysis.checkpoint, role, stem)


def _missing(analysis: Analysis) -> str:
    if not analysis.verification.level:
        return "weights were given, of which no role over a corpus is known"
    has_role = any(head.role is not None for head in analysis.heads)
    return "" if has_role else no_claim(analysis.profile, analysis.checkpoint)


CLAIM = Drawing(_plans, missing=_missing)
