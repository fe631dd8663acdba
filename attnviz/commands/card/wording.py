"""A head in words: sentences made of measured numbers, and what was not measured."""

import shlex
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

from attnviz.commands.card.measure import Card
from attnviz.commands.circuits.measure import Circuits, Pair
from attnviz.judge.roles import ERROR_RATE
from attnviz.language.universal import relation_words
from attnviz.measures.patterns import PATTERNS, ROLES_ON_REPEATS
from attnviz.models.head_ids import HeadId, is_of_source
from attnviz.models.wording import amount, counted, ordinal, percent, quoted, rounded, signed, span, unisolated, visible
from attnviz.present.published import role_name, shown_baseline
from attnviz.present.statistics import STATISTICS
from attnviz.profiles.published import PublishedHead
from attnviz.profiles.store import StoredRole

IN_WORDS = 3
"""Roles in the paragraph; the table has all."""

PROMOTED = 3
STRIPS = ("sink", "distance", "entropy")
"""Statistics of the text that say where attention rests."""


class Standing(NamedTuple):
    """A statistic of the head on the text, beside those of all heads of its kind of attention."""

    name: str
    value: float
    others: tuple[float, ...]  # of all heads, itself included

    @property
    def rank(self) -> int:
        """From 1 for the largest."""
        return 1 + sum(other > self.value for other in self.others)

    @property
    def shown(self) -> str:
        """``distance 2.31 tokens (12th of 72)``, its rank counted from the largest."""
        known = STATISTICS[self.name]
        unit = f" {known.unit.format(unit='token')}" if known.unit else ""
        return f"{known.title} {rounded(self.value)}{unit} ({ordinal(self.rank)} of {len(self.others)})"


def standings(card: Card) -> list[Standing]:
    """Where attention rests on the text."""
    found = []
    for name in STRIPS:
        values = {head.id: head.statistics.get(name) for head in card.part.heads}
        own, known = values[card.head], tuple(value for value in values.values() if value is not None)
        if own is not None:
            found.append(Standing(name, own, known))
    return found


def in_words(role: StoredRole) -> str:
    """What a head with this role does, with its numbers: ``attends from determiner to noun (…)``."""
    name, spec = role_name(role.role, role.direction), {each.name: each for each in PATTERNS}.get(role.role)
    ends = relation_words(role.relation or "", role.direction).split("→")
    baseline, of = shown_baseline(role.baseline), f"{percent(role.score)} of {role.n:,}"
    guess = "" if baseline is None else f"uniform attention: {percent(baseline)}"
    if role.relation is not None:
        does = f"attends from {ends[0]} to {ends[1]} ({name}" if len(ends) == 2 else f"finds {name} ("
        does, guess = f"{does}{', ' * (len(ends) == 2)}{of}", f"a guess: {percent(baseline)}"
    elif spec is not None:
        where = "at tokens with a copy before them" if spec.on_repeats else "on content"
        target = spec.target.format(unit="token", window=1, far=4)
        does = f"gives {percent(role.score)} of its attention {where} to {target} ({name}, n = {role.n:,}"
    else:
        does, guess = f"shows the role {name} (score {rounded(role.score)}, n = {role.n:,}", ""
        if baseline is not None:
            guess = f"baseline {rounded(baseline)}"
    control = "" if role.untrained is None else f"untrained: {rounded(role.untrained)} at most"
    if role.role == "broad":
        control = "as untrained heads are, too"
    numbers = (does, f"interval {span(role.interval)}", guess, control)
    return f"{'; '.join(filter(None, numbers))})"


def sentences(card: Card) -> Iterator[str]:
    """What was measured of the head, in words; nothing else."""
    profile, roles = card.profile, card.roles
    name = f"{card.head} of {visible(card.checkpoint.short_name)}"
    if roles:
        more = f", and {counted(len(roles) - IN_WORDS, 'role')} more" * (len(roles) > IN_WORDS)
        yield f"{name} {'; it '.join(map(in_words, roles[:IN_WORDS]))}{more}."
    elif profile is not None and is_of_source(card.head.layer):
        yield f"{name} passes no role over {visible(profile.measured_on)}."
    for head in card.analysis.published:
        if head.id == card.head:
            yield _published(card, head)
    if card.nearest:
        listed = ", ".join(f"{other} ({rounded(distance)})" for other, distance in card.nearest)
        yield f"Its patterns are most like those of {listed}: Jensen-Shannon divergence in nats, at most 0.69."
    standing = "; ".join(each.shown for each in standings(card))
    if standing:
        yield f"On {quoted(card.text)}, by rank among the heads: {standing}."
    yield from _written(card)
    if card.circuits is not None:
        yield from _composed(card.circuits, card.head)
    if card.ablation is not None:
        yield _without(card)


def _published(card: Card, head: PublishedHead) -> str:
    """What a paper says of it, and whether that holds here."""
    role, direction = head.universal
    passes = any(each.role == role and direction in (None, each.direction) for each in card.roles)
    here = "which it passes here" if passes else "which is not among its roles here"
    score = "" if head.score is None else f" ({rounded(head.score)})"
    return f"{head.paper}: {role_name(role, direction)}{score}, {here}."


def _written(card: Card) -> Iterator[str]:
    """Sentences on what it adds to the stream on the text."""
    share, effects = card.outputs.head(card.head).projection_share, card.outputs.effects
    if share is not None:
        yield f"It makes {percent(share)} of what its layer's attention adds to the stream there."
    moved = None if effects is None else effects.promotions.get(card.head)
    if effects is not None and moved is not None and moved.promoted:
        tokens = ", ".join(
            f"{unisolated(quoted(each.text))} {signed(each.logit)}" for each in moved.promoted[:PROMOTED]
        )
        at = f"‘{card.outputs.read.labels[effects.position]}’ #{effects.position}"
        yield f"At {at} it raises most the logits of {tokens}."


def strongest(circuits: Circuits, head: HeadId) -> tuple[Pair | None, Pair | None]:
    """The pair in which it reads, and that in which it writes, furthest above random rotations.

    None where it is not beyond what is normal for the furthest of all pairs of the model, at an error rate of 0.05.
    """
    n_pairs = sum(int((~scores.isnan()).sum()) for scores in circuits.scores.values())
    limit = NormalDist().inv_cdf(1 - ERROR_RATE / max(n_pairs, 1))
    clear = [pair for pair in circuits.pairs([head]) if pair.deviations > limit]
    reads = next((pair for pair in clear if pair.id == head), None)
    return reads, next((pair for pair in clear if pair.writer == head), None)


def _composed(circuits: Circuits, head: HeadId) -> Iterator[str]:
    """Sentences on the weights."""
    parts = []
    for pair, verb, other in zip(strongest(circuits, head), ("reads", "is read by"), ("writer", "id"), strict=True):
        if pair is not None:
            above = f"{rounded(pair.deviations, 0)} SD above random rotations"
            parts.append(f"{verb} {getattr(pair, other)} most ({pair.kind} composition {rounded(pair.score)}, {above})")
    if parts:
        yield f"By its weights it {'; it '.join(parts)}."
    of_head = circuits.head(head)
    if of_head.copying is not None:
        yield f"Copying by its weights: {signed(of_head.copying)} (random weights: {signed(of_head.untrained or 0.0)})."


def _without(card: Card) -> str:
    """The effect of removing it."""
    ablation = card.ablation
    assert ablation is not None
    metric = ablation.metrics[0]
    effect = ablation.head(card.head).damage[metric.name]
    on = counted(ablation.n_texts, "text")
    value = f"{metric.title} {amount(effect.value)} ({metric.unit})"
    if effect.low is None or effect.high is None:
        return f"Without it: {value} on {on}, too few for an interval."
    shown = "" if effect.side else ", so no effect is shown"
    interval = f"{amount(effect.low)} to {amount(effect.high)}"
    return f"Without it: {value} on {on} (95 % interval {interval}{shown})."


def unmeasured(card: Card) -> dict[str, str]:
    """What the card does not know, with the command that measures it, or the reason."""
    name, of_source = card.checkpoint.name, is_of_source(card.head.layer)
    model = "" if name == "minilm" else f" -m {shlex.quote(name)}"
    whole = f"attnviz card {card.head} {'CORPUS' if of_source else 'TEXT'}{model}"
    reason = card.outputs.no_effects.partition(": ")[2].partition(";")[0].removesuffix(".")
    linear = "an encoder's stream makes no logits" if card.checkpoint.stacks and of_source else "no linear logits"
    moved = card.outputs.effects is not None and card.head in card.outputs.effects.promotions
    profile, judged = card.profile, card.profile.roles.values() if card.profile else ()
    repeats = any(role.role in ROLES_ON_REPEATS for of_head in judged for role in of_head)
    lacking: dict[str, str | bool] = {
        "roles, nearest heads, composition": not of_source and "of an encoder-decoder, of its encoder alone",
        "roles in sentences": of_source and (profile is None or not profile.corpora) and whole,
        "roles on repeats": profile is not None and not profile.shipped and not repeats and f"{whole} --repeats",
        "nearest heads": of_source and not card.nearest and whole,
        "composition, copying": of_source and card.circuits is None and f"attnviz circuits{model}",
        "promoted tokens": not moved and (reason or linear),
        "what happens without it": card.ablation is None and f"{whole} --ablate",
    }
    return {what: str(how) for what, how in lacking.items() if how}


def not_measured(card: Card) -> str:
    """A line that names all that was not measured; '' for nothing."""
    listed = "; ".join(f"{what} ({how})" for what, how in unmeasured(card).items())
    return f"Not measured: {listed}." if listed else ""
