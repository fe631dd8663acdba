"""The view ``claim``: one head and one statement, one column wide."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import sorted_by_selection
from attnviz.commands.heads.first_look import profile_command
from attnviz.commands.heads.summary import listed_heads
from attnviz.errors import UsageError
from attnviz.figures.claim import Bar, ClaimPlan, claim_figure
from attnviz.figures.matrix import Array
from attnviz.judge.roles import Role
from attnviz.measures.patterns import PATTERNS
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, ids_and_names, is_of_source, number_of, select_heads
from attnviz.present.claim import claim, guesses, in_words, is_cosine, score_in_words, sentence
from attnviz.present.figure_context import caption_of
from attnviz.present.view import Drawing, ViewOptions
from attnviz.profiles.examples import Example, RoleExamples
from attnviz.profiles.parts import part_of
from attnviz.profiles.store import StoredProfile
from attnviz.wording import rounded, visible

_GUESSES = 2  # that are drawn, the largest
_FEW = 3  # heads that a message names
_TELLING = 6  # words from which on a sentence makes a telling picture


def claim_plan(
    profile: StoredProfile, checkpoint: Checkpoint, role: Role, stem: str, effect: str = "", removed: Sequence[Bar] = ()
) -> ClaimPlan:
    """Plan the figure of a role of a head; ``removed`` are effects of removing it, named and in the unit ``effect``."""
    known = scores_of(profile, checkpoint, role)
    heads = [head for head in select_heads((), checkpoint.kinds) if is_of_source(head.layer)]
    layers = list(dict.fromkeys(head.layer for head in heads))
    scores = np.full((len(layers), max(head.head for head in heads) + 1), np.nan)
    for head in heads:
        scores[layers.index(head.layer), head.head] = known.get(head, np.nan)
    score, interval = score_in_words(role)
    written = f"{score} ({interval})" if interval else score
    bars = [Bar(str(role.id), role.score, written, role.interval, own=True)]
    bars += [Bar(name, score, in_words(role, score)) for name, score in guesses(role)[:_GUESSES]]
    if role.untrained is not None:
        bars.append(Bar("best untrained head", role.untrained, in_words(role, role.untrained)))
    examples = next((of for of in profile.examples if (of.id, of.role) == (role.id, role.role)), None)
    shown = [] if examples is None else _hit_and_miss(examples)
    model = checkpoint.full_name
    caption = caption_of(
        sentence(role, model),
        f"over {visible(profile.measured_by([role]))}",
        f"{_map_in_words(role, scores)}, {role.id} in blue",
        "; ".join(f"{bar.name} {bar.written}" for bar in bars[2 : _GUESSES + 1]),
        *map(_in_words, shown),
        "" if shown else "no example is stored",
        f"without it, {effect}: {'; '.join(f'{bar.name} {bar.written}' for bar in removed)}" if removed else "",
        *(f"{visible(name)}: {visible(text)}" for name, text in _licences(profile, shown)),
    )
    return ClaimPlan(
        stem=stem,
        caption=caption,
        title=claim(role, model),
        notes=(),
        scores=scores,
        layers=[number_of(layer) for layer in layers],
        lit=(layers.index(role.id.layer), role.id.head),
        bars=tuple(bars),
        is_share=not is_cosine(role),
        strips=tuple(("", example) for example in shown),
        heading=_heading(shown),
        removed=tuple(removed),
        effect=effect,
    )


def scores_of(profile: StoredProfile, checkpoint: Checkpoint, role: Role) -> dict[HeadId, float]:
    """The scores of heads for a role in its direction: of all where the profile has them, else of those that pass."""
    part: Any = profile.document.get(part_of(role.role, profile.parts)) or {}
    if role.relation is not None:
        part = next((one for one in part.get("relations", ()) if one["relation"] == role.relation), {})
    statistic = {spec.name: spec.statistic for spec in PATTERNS}.get(role.role, role.role)
    values: Any = part.get("accuracy", part).get(role.direction or statistic) or ()
    scores = dict[HeadId, float]()
    for layer, of_layer in zip(checkpoint.layers, values, strict=False):
        scores |= {HeadId(layer, head): value for head, value in enumerate(of_layer) if value is not None}
    for of_head in profile.roles.values():
        same = (one for one in of_head if (one.role, one.direction) == (role.role, role.direction))
        scores |= {one.id: one.score for one in same}
    return scores


def _map_in_words(role: Role, scores: Array) -> str:
    known = int(np.isfinite(scores).sum())
    which = "all heads" if known == scores.size else f"only heads that pass are drawn ({known})"
    return f"map: {which}, areas by score, the largest {in_words(role, float(np.nanmax(scores)))}"


def _hit_and_miss(examples: RoleExamples) -> list[Example]:
    """The clearest of each, of a telling text if there is one."""

    def is_short(example: Example) -> bool:
        return len(example.text.split()) < _TELLING

    return [min(some, key=is_short) for some in (examples.best, examples.failures) if some]


def _heading(shown: Sequence[Example]) -> str:
    kinds = " and ".join("hit" if example.hit else "miss" for example in shown)
    dotted = any(not example.hit and example.gold is not None for example in shown)
    return f"Clearest {kinds} (dotted: the right one)" if dotted else f"Clearest {kinds}"


def _in_words(example: Example) -> str:
    if example.hit:
        return f"hit: weight {rounded(example.weight)}"
    right = "" if example.gold_weight is None else f", the right one (dotted) {rounded(example.gold_weight)}"
    return f"miss: weight {rounded(example.weight)}{right}"


def _licences(profile: StoredProfile, shown: Sequence[Example]) -> list[tuple[str, str]]:
    corpora = dict.fromkeys(example.corpus for example in shown)
    return [(name, profile.licences[name]) for name in corpora if name in profile.licences]


def _plans(analysis: Analysis, choices: ViewOptions) -> Iterator[ClaimPlan]:
    heads = analysis.select(choices.select) if choices.select else listed_heads(analysis)
    chosen = [head for head in sorted_by_selection(heads, ids_and_names(choices.select)[1]) if head.role is not None]
    if not chosen:
        raise UsageError(no_claim(analysis.profile, analysis.checkpoint, [head.id for head in heads]))
    assert analysis.profile is not None
    for head in chosen:
        assert head.role is not None
        stem = "claim" if len(chosen) == 1 else f"claims/{head.id.file_stem}"
        yield claim_plan(analysis.profile, analysis.checkpoint, head.role, stem)


def no_claim(profile: StoredProfile | None, checkpoint: Checkpoint, heads: Sequence[HeadId]) -> str:
    """Why nothing is claimed of these heads, and what to do."""
    named = ", ".join(map(str, heads)) if len(heads) <= _FEW else "any head"
    over = "no corpus was measured" if profile is None else f"no role over {visible(profile.measured_on)}"
    return f"nothing can be claimed of {named}: {over}. Name another head, or measure: {profile_command(checkpoint)}"


def _missing(analysis: Analysis) -> str:
    has_role = any(head.role is not None for head in analysis.heads)
    return "" if has_role else no_claim(analysis.profile, analysis.checkpoint, [head.id for head in analysis.heads])


CLAIM = Drawing(_plans, claim_figure, missing=_missing)
