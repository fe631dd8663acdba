"""A head in words: paragraphs made of measured numbers, and what was not measured."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath
from statistics import NormalDist, median
from typing import Any, NamedTuple

from attnviz.commands.ablate.effects import LESS, MORE, SAME, Estimate, RoleEffect
from attnviz.commands.ablate.inputs import Metric
from attnviz.commands.card.measure import NEAREST, Card, first_relation
from attnviz.commands.circuits.measure import Circuits, Pair
from attnviz.commands.heads.findings import evidence
from attnviz.commands.heads.page_view import model_settings
from attnviz.judge.roles import ENOUGH_TEXTS, ERROR_RATE
from attnviz.judge.verdicts import NO_LABEL, UNNAMED
from attnviz.language.universal import relation_words
from attnviz.measures.patterns import COPY_SUPPRESSION, COPYING, INACTIVE, PATTERNS, RETRIEVAL, ROLES_ON_REPEATS, SINK
from attnviz.models.head_ids import HeadId, is_of_source
from attnviz.models.wording import amount, counted, ordinal, percent, quoted, rounded, signed, visible
from attnviz.options import COMMANDS
from attnviz.present.figure_context import capital
from attnviz.present.published import role_name, shown_baseline
from attnviz.present.statistics import STATISTICS, filled
from attnviz.profiles.parts import part_of
from attnviz.profiles.published import PublishedHead
from attnviz.profiles.store import StoredProfile, StoredRole

IN_SENTENCES = ("statistics", "syntax")
"""Parts of a profile that sentences have."""

IN_WORDS = 3
"""Roles in the paragraph; the table has all."""

PROMOTED = 3
STRIPS = ("sink", "distance", "entropy")
"""Statistics of the text that say where attention rests."""

DOES, RESTS, WRITES, COMPOSES, WITHOUT = (
    "What it does", "Where it rests", "What it writes", "Composition", "Without it"
)  # fmt: skip
"""Headings of the paragraphs."""

UNIFORM = "uniform attention"

_BESIDES = {
    "coreference": ("attends between a pronoun and the name that it means in {score} of {n} instances", "a guess"),
    "semantic": ("attends to words similar in meaning: mean cosine {score}", UNIFORM),
    SINK: ("gives {score} of its attention to sinks: special tokens, or the first", UNIFORM),
    "broad": ("spreads its attention: its entropy is {score} of uniform attention's, as untrained heads' is", ""),
    RETRIEVAL: ("attends most to the token to copy next in {score} of repeats of random tokens", "a random token"),
    COPYING: ("raises the logit of the token that it attends to in {score} of cases", "shuffled attention"),
    COPY_SUPPRESSION: ("lowers the logit of the token that it attends to in {score} of cases", "shuffled attention"),
    INACTIVE: ("writes next to nothing at {score} of tokens", ""),
}
"""Roles that are neither patterns nor relations, in words, and what their baselines are."""


_MOVES = {
    "loss": ("the loss", "it", "rises", "{} {}"),
    "kl": ("the class probabilities", "they", "move", "a KL divergence of {} {}"),
    "cosine": ("the final states", "they", "move", "a cosine distance of {}"),
}
"""What happens without a head, by metric, and how much of it is written."""

_VERDICTS = {
    MORE: ", so they depend on it more", LESS: ", so they depend on it less",
    SAME: ", so it is not shown that they depend on it more",
}  # fmt: skip


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
    def forms(self) -> tuple[str, ...]:
        """``distance 2.31 tokens (12th highest of 72)``, and shorter ones."""
        known = STATISTICS[self.name]
        unit = f" {filled(known.unit, unit='token')}" if known.unit else ""
        value, place = f"{known.title} {rounded(self.value)}{unit}", ordinal(self.rank)
        return f"{value} ({place} highest of {len(self.others)})", f"{value} ({place} of {len(self.others)})", value


def standings(card: Card) -> list[Standing]:
    """Where attention rests on the text."""
    found = []
    for name in STRIPS:
        values = {head.id: head.statistics.get(name) for head in card.part.heads}
        own, known = values[card.head], tuple(value for value in values.values() if value is not None)
        if own is not None and len({*known}) > 1:  # else there is nothing to compare
            found.append(Standing(name, own, known))
    return found


def in_words(role: StoredRole, *, briefly: bool = False) -> str:
    """What a head with this role does, with its numbers: ``attends from determiner to noun in 81 % of … (…)``."""
    name, share = role_name(role.role, role.direction), rounded if role.role == "semantic" else percent
    spec, offset = {each.name: each for each in PATTERNS}.get(role.role), role.role.partition("offset:")[2]
    does, guesser = _BESIDES.get(role.role, ("gives {score} of its attention on content to {where}", UNIFORM))
    where = f"the token {abs(int(offset))} {'after' if '+' in offset else 'before'}" if offset else ""
    if role.relation is not None:
        ends = relation_words(role.relation, role.direction).split("→")
        where = f"attends from {ends[0]} to {ends[1]}" if len(ends) == 2 else f"finds {visible(role.relation)}"
        does, guesser = "{where} in {score} of {n} instances", "a guess"
    elif spec is not None:
        where = filled(spec.target, unit="token", window=1, far=4)
        does = does.replace("on content", "on repeated random tokens") if spec.on_repeats else does
    baseline = shown_baseline(role.baseline) if guesser else None
    guess = "" if baseline is None else f"{guesser}: {share(baseline)}"
    if briefly:
        said, numbers = does.replace("{n} ", ""), [name, guess]
    else:
        untrained = "" if role.untrained is None else f"untrained: {share(role.untrained)} at most"
        ends = [share(end) for end in role.interval]
        interval = f"interval {ends[0].removesuffix(' %')}–{ends[1]}"
        said, numbers = does, [name, "" if "{n" in does else f"n = {role.n:,}", interval, guess, untrained]
    said = filled(said, score=share(role.score), n=f"{role.n:,}", where=where)
    return f"{said} ({'; '.join(filter(None, numbers))})"


def evidence_of(roles: Iterable[StoredRole]) -> str:
    """What the numbers of these roles are; '' without any."""
    known = list(roles)
    of_instances = (
        "An instance counts where the head attends to the right word more than to any other, special tokens left out. "
        "A guess: the best of six that track no relation, such as a fixed offset."
    )
    of_copy = "Untrained: the best head of an untrained copy of the model."
    of_all = (
        "Intervals hold at 95 % for all heads together, roles at a false discovery rate of 0.05 over all roles and "
        "all heads."
    )
    said = [
        of_instances * any(role.relation is not None or role.role == "coreference" for role in known),
        of_copy * any(role.untrained is not None for role in known),
        of_all * bool(known),
    ]
    return " ".join(filter(None, said))


def paragraphs(card: Card) -> dict[str, str]:
    """What was measured of the head, in words and nothing else, by heading; empty ones are left out."""
    standing = "; ".join(each.forms[0] for each in standings(card))
    of_weights = () if card.circuits is None else _composed(card.circuits, card.head)
    parts = {
        DOES: _roles(card),
        RESTS: [f"On {card.part.figure_context.text_line}: {standing}."] * bool(standing),
        WRITES: _written(card),
        COMPOSES: of_weights,
        WITHOUT: _without(card),
    }
    words = {heading: " ".join(sentences) for heading, sentences in parts.items()}
    return {heading: text for heading, text in words.items() if text}


def _roles(card: Card) -> Iterator[str]:
    """Roles, what a paper says of the head, and its nearest heads."""
    profile, roles = card.profile, card.roles
    name = f"{card.head} of {card.checkpoint.short_name}"
    if roles and profile is not None:
        places = [_over(profile, role) for role in roles[:IN_WORDS]]
        yield f"{places[0]}{name} {in_words(roles[0])}."
        if roles[1:]:
            more = f"; and it has {counted(len(roles) - IN_WORDS, 'more role')}" * (len(roles) > IN_WORDS)
            news = (place * (place != last) for last, place in pairwise(places))
            others = zip(news, roles[1:IN_WORDS], strict=True)
            said = "; ".join(f"{new}it {in_words(role, briefly=True)}" for new, role in others)
            yield f"{capital(said)}{more}."
    elif profile is not None and is_of_source(card.head.layer):
        read = [profile.parts.get(part, {}).get("n") or 0 for part in IN_SENTENCES]
        few = f" ({ENOUGH_TEXTS} texts are enough for every role)" * (0 < max(read) < ENOUGH_TEXTS)
        yield f"Over {visible(profile.measured_on)}, {name} passes no role{few}."
    if not roles:
        own = card.analysis.head(card.head)
        shows = f"shows {'no pattern that has a name' if own.label == UNNAMED else visible(own.shown)}"
        shows = "cannot be labelled" if own.label in NO_LABEL else shows
        yield f"On {quoted(card.text)} alone {name} {shows} ({evidence(own)})."
    for head in card.analysis.published:
        if head.id == card.head:
            yield _published(card, head)
    middle = rounded(median(distance for _, distance in card.nearest) if card.nearest else 0.0)
    if middle != rounded(0.0):  # else all heads are alike
        listed = ", ".join(f"{other} ({rounded(distance)})" for other, distance in card.nearest[:NEAREST])
        yield (
            f"Its patterns are most like those of {listed}; in brackets the Jensen-Shannon divergence in nats, whose "
            f"median over the other heads is {middle}."
        )


def _over(profile: StoredProfile, role: StoredRole) -> str:
    """The corpora of a role, to begin a sentence with; '' for random tokens."""
    read = profile.parts.get(part_of(role.role, profile.parts), {}).get("corpora", ())
    named = ", ".join(f"{visible(PurePath(each['path']).name)} ({counted(each['sentences'], 'text')})" for each in read)
    return f"Over {named}, " if named else ""


def _published(card: Card, head: PublishedHead) -> str:
    """What a paper says of it, and whether that holds here."""
    role, direction = head.universal
    passes = any(each.role == role and direction in (None, each.direction) for each in card.roles)
    here = "which it passes here" if passes else "which is not among its roles here"
    score = "" if head.score is None else f" ({rounded(head.score)})"
    return f"{head.paper}: {role_name(role, direction)}{score}, {here}."


def _written(card: Card) -> Iterator[str]:
    """What it adds to the stream on the text, and what it copies by its weights."""
    share, effects = card.outputs.head(card.head).projection_share, card.outputs.effects
    if share is not None:
        even = percent(1 / card.checkpoint.n_heads_of(card.head.layer))
        yield f"{percent(share)} of what its layer's attention adds to the stream on this text (an even share: {even})."
    moved = None if effects is None else effects.promotions.get(card.head)
    raised = (
        [] if moved is None else [each for each in moved.promoted[:PROMOTED] if rounded(each.logit) != rounded(0.0)]
    )
    if effects is not None and raised:
        tokens = ", ".join(f"{quoted(each.text)} {signed(each.logit)}" for each in raised)
        at = f"‘{card.outputs.read.labels[effects.position]}’ #{effects.position}"
        yield f"At {at} it raises most the logits of {tokens}."
    copying = None if card.circuits is None else card.circuits.head(card.head)
    if copying is not None and copying.copying is not None:
        yield (
            f"Copying by its weights: {signed(copying.copying)} (from −1 to 1; random weights: "
            f"{signed(copying.untrained or 0.0)})."
        )


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
    """The heads that it reads, and that read it, by the weights."""
    parts = []
    for pair, verb, other in zip(strongest(circuits, head), ("reads", "is read by"), ("writer", "id"), strict=True):
        if pair is not None:
            above = f"{rounded(pair.deviations, 0)} SD above random rotations"
            parts.append(f"{verb} {getattr(pair, other)} most ({pair.kind} composition {rounded(pair.score)}, {above})")
    if parts:
        yield f"By its weights it {'; it '.join(parts)}."


def _without(card: Card) -> Iterator[str]:
    """What happens without it: on all tokens, on those of its first relation, on random tokens that repeat."""
    if card.ablation is not None:
        (metric, second, *_), on = card.ablation.metrics, card.ablation.texts_measured
        effect = card.ablation.head(card.head)
        whole = effect.damage[metric.name]
        none = f", so no effect on {_MOVES[metric.name][0]} is shown" * (whole.side == 0)
        yield f"With its mean output in its place, on {on} {_moved(whole, metric)}{_interval(whole, metric)}{none}."
        if whole.side == 0:
            other = effect.damage[second.name]
            yield f"By {second.title} it is {amount(other.value)} {second.unit}{_interval(other)}."
        if (role := _on_relation(card)) is not None:
            tokens = f"the {counted(role.n, 'token')} of {role_name(role.role, role.direction)} there"
            yield from _on_tokens(role, card.ablation.metrics, tokens, "on the nearest other words")
    if card.on_repeats is not None:
        (role,), metrics = card.on_repeats.head(card.head).roles, card.on_repeats.metrics
        yield from _on_tokens(role, metrics, "the second copy of random tokens", "on the first")


def _on_relation(card: Card) -> RoleEffect | None:
    """The effect on the tokens of its first relation."""
    relation, effects = first_relation(card.roles), () if card.ablation is None else card.ablation.head(card.head).roles
    of = None if relation is None else (relation.role, relation.direction)
    return next((effect for effect in effects if (effect.role, effect.direction) == of), None)


def _on_tokens(role: RoleEffect, metrics: Sequence[Metric], on: str, others: str) -> Iterator[str]:
    """The effect on the tokens of a role, and on matched ones."""
    first = metrics[0]
    here, elsewhere, difference = (each[first.name] for each in (role.queries, role.others, role.difference))
    yield (
        f"On {on} {_moved(here, first)}, {others} {_moved(elsewhere, first, True)}; the difference is "
        f"{amount(difference.value)}{_interval(difference)}"
        + (f"{_VERDICTS[role.verdict]}." if role.verdict in _VERDICTS else ".")
    )


def _moved(estimate: Estimate, metric: Metric, again: bool = False) -> str:
    """What happens without the head, and how much of it: ``the loss rises by 0.031 nats/token``, ``it falls by 1``."""
    what, pronoun, verb, unit = _MOVES[metric.name]
    value = estimate.value
    if metric.signed:
        verb, value = "rises" if value >= 0 else "falls", abs(value)
    if again:
        return f"{pronoun} {verb} by {amount(value)}"
    return f"{what} {verb} by {unit.format(amount(value), metric.unit)}"


def _interval(estimate: Estimate, metric: Metric | None = None) -> str:
    """The interval of an effect in brackets; of a metric that falls it is that of the fall."""
    if estimate.low is None or estimate.high is None:
        return ", too few texts for an interval"
    low, high = estimate.low, estimate.high
    if metric is not None and metric.signed and estimate.value < 0:
        low, high = -high, -low
    return f" (95 % interval {amount(low)} to {amount(high)})"


def unmeasured(card: Card) -> dict[str, str]:
    """What the card does not know, with the command that measures it, or the reason."""
    of_source, of_model = is_of_source(card.head.layer), model_settings(card.checkpoint)
    model = [] if card.checkpoint.name == "minilm" else card.checkpoint.model_options
    read = card.corpus is not None and card.corpus.suffix.lower() != ".tsv"
    corpus = str(card.corpus) if read else "CORPUS.conllu"

    def typed(command: str, options: dict[str, Any], *words: str) -> str:
        return shlex.join(["attnviz", command, *words, *model, *COMMANDS[command].typed(options | of_model)])

    whole = typed("card", card.options, str(card.head), corpus if of_source else "TEXT")
    of_others = typed("ablate", {"limit": card.options["limit"]}, corpus)
    reason = card.outputs.no_effects.partition(": ")[2].partition(";")[0].removesuffix(".")
    linear = "an encoder's stream makes no logits" if card.checkpoint.stacks and of_source else "no linear logits"
    moved = card.outputs.effects is not None and card.head in card.outputs.effects.promotions
    of_repeats = "roles on repeated random tokens, such as induction"
    parts = set(card.profile.parts) if card.profile else set[str]()
    copies = (
        card.checkpoint.language_head is not None
        if card.circuits is None
        else (card.circuits.head(card.head).copying is not None)
    )
    cut = card.tokens.truncated
    lacking: dict[str, str | bool] = {
        f"the last {counted(cut, 'token')} of the text": cut > 0 and "cut by --truncate",
        "roles, nearest heads, composition": not of_source and "of an encoder-decoder, of its encoder alone",
        "roles in sentences": of_source and parts.isdisjoint(IN_SENTENCES) and whole,
        of_repeats: of_source and "repeats" not in parts and f"{whole} --repeats",
        "nearest heads": of_source and not card.nearest and whole,
        f"composition{', copying' * copies}": of_source and card.circuits is None and typed("circuits", {}),
        f"promoted tokens{', copying' * (not copies)}": not moved and (reason or linear),
        "what happens without it": card.ablation is None and f"{whole} --ablate",
        "what the tokens of its role lose without it": card.ablation is not None and _why_no_tokens(card, whole),
        "effects of the other heads, to compare": card.ablation is not None and of_others,
    }
    return {what: str(how) for what, how in lacking.items() if how}


def _why_no_tokens(card: Card, command: str) -> str:
    """The command that removes the head on the tokens of its role, or why there is none; '' where that was measured."""
    relation, repeats = first_relation(card.roles), {role.role for role in card.roles} & {*ROLES_ON_REPEATS}
    tried = card.corpus is not None if relation else card.options["repeats"]
    if not card.roles or (relation and _on_relation(card)) or card.on_repeats is not None:
        return ""
    if not relation and not repeats:
        return "only relations and repeats have such tokens"
    return "this model has no such tokens" if tried else f"{command}{'' if relation else ' --repeats'}"


def not_measured(card: Card) -> str:
    """A line that names all that was not measured; '' for nothing."""
    listed = "; ".join(f"{what} ({how})" for what, how in unmeasured(card).items())
    return f"Not measured: {listed}." if listed else ""
