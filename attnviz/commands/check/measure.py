"""Hold claims against what attnviz measures: each profile, analysis, comparison and ablation once for all claims."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from attnviz.commands.ablate.measure import ablate
from attnviz.commands.check.claims import Claim, published_claim, read_claims
from attnviz.commands.compare.corpus.measure import CorpusComparison, compare_corpus
from attnviz.commands.compare.measure import Comparison, compare
from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.measure import analyze, profile_of
from attnviz.commands.profile.measure import profile_heads
from attnviz.errors import ProcessError, UsageError
from attnviz.judge.roles import Role
from attnviz.judge.rules import MARGIN
from attnviz.judge.verdicts import BOTH, ENOUGH, UNNAMED
from attnviz.measures.estimates import Interval
from attnviz.measures.patterns import ROLES_ON_REPEATS
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, head_named
from attnviz.models.opening import Model, open_checkpoint
from attnviz.models.wording import counted, visible
from attnviz.options import checked
from attnviz.present.published import ARROWS
from attnviz.present.result import Result
from attnviz.profiles.parts import SYNTACTIC
from attnviz.profiles.published import heads_of_paper
from attnviz.profiles.store import StoredProfile, StoredRole
from attnviz.progress import Progress
from attnviz.texts.long_runs import this_process

VERDICTS = HOLDS, UNDECIDED, FAILS = "holds", "cannot be decided", "fails"
"""From the best to the worst."""

_WITHOUT_TEXTS = (*ROLES_ON_REPEATS, "previous-token")
"""Roles that random tokens alone can show."""


@dataclass(frozen=True)
class CheckedClaim:
    """A claim, one of the :data:`VERDICTS`, and the evidence.

    Attributes:
        measured: a number, or the label that the head has; None where there is none.
        n: instances, content positions or texts of the number.
        interval: of the number over a corpus.
        source: the corpora that it was measured on; '' for the claim's text.
        reason: why it fails or cannot be decided, where the numbers do not say so.
    """

    claim: Claim
    verdict: str
    measured: float | str | None = None
    n: int | None = None
    baseline: float | None = None
    interval: Interval | None = None
    source: str = ""
    reason: str = ""


@dataclass(frozen=True, repr=False)
class Check(Result):
    """What :func:`check` found: every claim with its verdict, in the order of the file or the paper."""

    command: ClassVar[str] = "check"
    offered: ClassVar[tuple[str, ...]] = ("checkpoint", "claims", "count", "exit_code")

    checkpoint: Checkpoint
    options: dict[str, Any]
    claims: tuple[CheckedClaim, ...]

    @property
    def exit_code(self) -> int:
        """0 where all claims hold, 1 where one fails, 3 where none fails and some cannot be decided."""
        return 1 if self.count(FAILS) else 3 if self.count(UNDECIDED) else 0

    def count(self, verdict: str) -> int:
        """How many claims have a verdict."""
        return sum(each.verdict == verdict for each in self.claims)

    def __repr__(self) -> str:
        found = ", ".join(f"{self.count(verdict)} {verdict}" for verdict in VERDICTS)
        return f"<Check of {counted(len(self.claims), 'claim')} on {visible(self.checkpoint.short_name)}: {found}>"


@checked
def check(
    files: str | Path | Sequence[str | Path],
    model: Model | None = None,
    *,
    published: str | None = None,
    revision: str | None = None,
    adapter: str | Path | None = None,
    device: str | None = None,
    dtype: str | None = None,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Check:
    """Hold the claims of a TOML file against measurements of its model, or of another one.

    With ``published``, a paper such as ``clark-2019``, the claims are on the heads that it names, and ``files`` are
    corpora. All other arguments are as for :func:`attnviz.profile_heads`.

    Raises:
        UsageError: a claim that cannot be read, or a head that the model lacks; with the line.
        AttnvizError: as of the functions that measure; VerificationError where the heads do not reproduce the model.
    """
    if this_process().count > 1:
        raise ProcessError("check runs in one process; start it without torchrun.")
    paths = [str(each) for each in ([files] if isinstance(files, str | Path) else files)]
    claims: tuple[Claim, ...] = ()
    if published is None:
        if len(paths) != 1:
            raise UsageError(f"expected one file of claims (corpora: with --published PAPER), found {len(paths)}.")
        claims, named = read_claims(Path(paths[0]))
        model = named if model is None and adapter is None else model
    opened: Any = {"device": device, "dtype": dtype, "language_head": True, "any_family": True}
    checkpoint, source = open_checkpoint(model, None, revision, adapter=adapter, **opened)
    if published is not None:
        heads = heads_of_paper(published, checkpoint.architecture.name, checkpoint.n_layers, checkpoint.n_heads)
        claims = tuple(published_claim(published, head, paths) for head in heads)
    ids = {claim: _id(claim, checkpoint) for claim in claims if claim.head}
    stored = profile_of(checkpoint, source, warn) if any(each.kind == "role" for each in claims) else None
    found, groups = dict[Claim, CheckedClaim](), dict[tuple[str, ...], list[Claim]]()
    for claim in claims:
        if claim.kind == "role" and (answer := _of_stored(claim, ids[claim], stored)) is not None:
            found[claim] = answer
        else:
            groups.setdefault((claim.text, *claim.corpus), []).append(claim)
    names = {each.what for each in claims if each.kind == "distance_to"}
    others = {name: open_checkpoint(name, **opened)[0] for name in names}
    options = {"published": published, "limit": limit, "seed": seed}
    more: Any = {"limit": limit, "batch_size": batch_size, "seed": seed, "progress": progress, "warn": warn}
    for (text, *corpus), group in groups.items():
        if text:
            measured = _on_text(checkpoint, others, text, group, ids, {"progress": progress})
        else:
            measured = _on_corpus(checkpoint, others, corpus, group, ids, more)
        found |= {each.claim: each for each in measured}
    return Check(checkpoint, options, tuple(found[claim] for claim in claims))


def _id(claim: Claim, model: Checkpoint) -> HeadId:
    """The claim's head; UsageError, with the line, where the model lacks it."""
    try:
        return head_named(claim.head, model.n_layers, model.n_heads, stacks=model.stacks)
    except UsageError as error:
        raise claim.refused(error) from error


def _on_text(
    checkpoint: Checkpoint, others: Mapping[str, Checkpoint], text: str, claims: list[Claim],
    ids: Mapping[Claim, HeadId], more: dict[str, Any],
) -> Iterator[CheckedClaim]:  # fmt: skip
    """Claims on a text, from one analysis by each model."""
    analysis = analyze(text, checkpoint, any_family=True, profile=False, **more)
    compared = {
        name: compare(analysis, analyze(text, others[name], profile=False, **more))
        for name in {claim.what for claim in claims if claim.kind == "distance_to"}
    }
    for claim in claims:
        if claim.kind == "level":
            yield _level(claim, analysis.verification.level)
        elif claim.kind == "distance_to":
            yield _distance(claim, compared[claim.what], len(analysis.units))
        else:
            yield _of_head(claim, ids[claim], analysis)


def _on_corpus(
    checkpoint: Checkpoint, others: Mapping[str, Checkpoint], corpus: list[str], claims: list[Claim],
    ids: Mapping[Claim, HeadId], more: dict[str, Any],
) -> Iterator[CheckedClaim]:  # fmt: skip
    """Claims on corpora, from one profile, one ablation, and a comparison with each other model; or on repeats."""
    of = {
        kind: [claim for claim in claims if claim.kind == kind] for kind in ("role", "level", "ablate", "distance_to")
    }
    if of["role"] or of["level"]:
        repeats = not corpus or any(claim.what in ROLES_ON_REPEATS for claim in of["role"])
        profile = profile_heads(checkpoint, corpus, repeats=repeats, examples=0, **more)
        assert profile is not None  # there is one process
        yield from (_level(claim, profile.verification.level, profile.source()) for claim in of["level"])
        roles = {(role.id, role.role): role for role in profile.roles}
        why = "too rare there, or no role that attnviz measures there"
        yield from (_role(claim, roles.get((ids[claim], claim.what)), profile.source(), why) for claim in of["role"])
    if of["ablate"]:
        heads = [ids[claim] for claim in of["ablate"]]
        ablation = ablate(corpus, checkpoint, select=heads, curve=False, gradient=False, **more)
        for claim in of["ablate"]:
            effects, n = ablation.head(ids[claim]).damage, ablation.n_texts
            if claim.what not in effects:
                raise claim.refused(f"this model is measured by {' and '.join(effects)}, not by {claim.what}.")
            value, low, high = vars(effects[claim.what]).values()
            source = f"{', '.join(corpus)} ({counted(n, 'text')})"
            yield _bounded(claim, value, n, interval=None if low is None else (low, high), source=source)
    for name in {claim.what for claim in of["distance_to"]}:
        compared = compare_corpus(checkpoint, others[name], corpus[0], **more)
        assert compared is not None
        yield from (
            _distance(claim, compared, compared.texts, compared.source)
            for claim in of["distance_to"]
            if claim.what == name
        )


def _bounded(claim: Claim, value: float, n: int, **more: Any) -> CheckedClaim:
    """A number by the claim's bounds; over a corpus there are too few texts where it has no interval."""
    low, high = more.get("interval") or (value, value)
    sides = [HOLDS]
    if claim.at_least is not None:
        sides.append(FAILS if high < claim.at_least else HOLDS if low >= claim.at_least else UNDECIDED)
    if claim.at_most is not None:
        sides.append(FAILS if low > claim.at_most else HOLDS if high <= claim.at_most else UNDECIDED)
    found = CheckedClaim(claim, max(sides, key=VERDICTS.index), value, n, **more)
    if found.interval is None and not claim.text:
        return replace(found, verdict=UNDECIDED, reason="too few texts for an interval")
    return replace(found, reason="the bound is within the interval") if found.verdict == UNDECIDED else found


def _distance(claim: Claim, compared: Comparison | CorpusComparison, n: int, source: str = "") -> CheckedClaim:
    """The distance of the claim's head, or of every head the one that decides."""
    found = []
    for each in compared.select(claim.head or ()):
        reason = "" if claim.head else f"decided by {each.id}"
        found.append(_bounded(claim, each.distance, n, interval=each.interval, source=source, reason=reason))
    return max(found, key=lambda each: (VERDICTS.index(each.verdict), each.measured))


def _level(claim: Claim, level: int, source: str = "") -> CheckedClaim:
    return CheckedClaim(claim, HOLDS if level >= int(claim.what) else FAILS, level, source=source)


def _role(claim: Claim, role: Role | StoredRole | None, source: str, why_none: str) -> CheckedClaim:
    """A role by its bounds; without any it must pass, in the direction of the claim."""
    if role is None:
        return CheckedClaim(claim, UNDECIDED, source=source, reason=why_none)
    bounded = claim.at_least is not None or claim.at_most is not None
    found = _bounded(claim, role.score, role.n, baseline=role.baseline, interval=role.interval, source=source)
    if claim.direction not in ("", role.direction):
        reason = f"its better direction is {ARROWS[role.direction or '']}, which alone is judged"
        return replace(found, verdict=UNDECIDED if bounded else FAILS, reason=reason)
    if bounded or role.passed:
        return found
    if isinstance(role, Role) and role.p is None:
        return replace(found, verdict=UNDECIDED, reason="too few texts or instances")
    if isinstance(role, Role) and role.difference[0] <= 0 and (role.margin >= MARGIN or role.role == "broad"):
        return replace(found, verdict=UNDECIDED, reason="the interval of score less baseline has 0 in it")
    return replace(found, verdict=FAILS, reason="the role does not pass")


def _of_stored(claim: Claim, id: HeadId, stored: StoredProfile | None) -> CheckedClaim | None:
    """A role by the stored profile: of no corpus, or of one that is not here; None where it has to be measured."""
    absent = {Path(each).name for each in claim.corpus if not Path(each).exists()}
    if claim.corpus and not absent:
        return None
    if stored is not None and {Path(each).name for each in claim.corpus} <= {each.name for each in stored.corpora}:
        role = next((each for each in stored.roles.get(id, ()) if each.role == claim.what), None)
        if role is not None or claim.what not in _WITHOUT_TEXTS:
            why = "the stored profile has no such role of this head; measure it, with a corpus"
            return _role(claim, role, f"{stored.measured_on} (stored profile)", why)
    if claim.corpus or claim.what in _WITHOUT_TEXTS:
        return None
    raise claim.refused("expected a corpus, since there is no stored profile of this model.")


def _of_head(claim: Claim, id: HeadId, analysis: Analysis) -> CheckedClaim:
    """A label, or a score, of a head on a text."""
    head, name = analysis.head(id), claim.what.rpartition(BOTH)[2]
    named = {f"{SYNTACTIC * (each.kind == 'syntactic')}{each.name}": each for each in head.patterns}
    verdict = named.get(name)
    n = analysis.context_of(id.layer).n_non_sink if verdict is None else verdict.n
    score, baseline = (head.statistics.get(name), None) if verdict is None else verdict.judged
    reason = f"n = {n} is below {ENOUGH}" * (n < ENOUGH)
    if claim.kind == "score" and score is not None and not reason:
        return _bounded(claim, score, n, baseline=baseline)
    if verdict is None and (claim.kind == "score" or name != UNNAMED):
        reason = "it cannot be measured on this text"
    there = claim.what in (head.label, *head.label.split(BOTH))
    shown = score if claim.kind == "score" else head.labelled.shown
    return CheckedClaim(claim, UNDECIDED if reason else HOLDS if there else FAILS, shown, n, baseline, reason=reason)
