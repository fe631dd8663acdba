"""Hold claims against what attnviz measures: each profile, analysis, comparison and ablation once for all claims."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any, ClassVar

from attnviz.arguments import is_there
from attnviz.commands.ablate.inputs import kind_of, metrics_of, read_sources
from attnviz.commands.ablate.measure import Ablation, ablate
from attnviz.commands.check.checked import FAILS, HOLDS, UNDECIDED, VERDICTS, CheckedClaim, bounded
from attnviz.commands.check.claims import (
    CLAIMS_FILE,
    Claim,
    claims_file,
    lower_bound,
    placed,
    published_claim,
    read_claims,
    write_claims,
)
from attnviz.commands.check.papers import PAPER_TABLES
from attnviz.commands.check.papers.table import OF_TEXTS, PaperRun, PaperTable
from attnviz.commands.compare.corpus.measure import CorpusComparison, compare_corpus
from attnviz.commands.compare.measure import Comparison, compare
from attnviz.commands.compare.sides import check_shapes
from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.measure import analyze, profile_of
from attnviz.commands.profile.measure import Profile, profile_heads
from attnviz.errors import ProcessError, UsageError
from attnviz.judge.roles import MIN_TEXTS_SHARES, Role, role_key
from attnviz.judge.verdicts import BOTH, ENOUGH, UNNAMED
from attnviz.measures.patterns import ROLES_ON_REPEATS
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, head_named
from attnviz.models.opening import Model, named_source, open_checkpoint
from attnviz.options import COMMANDS, checked
from attnviz.present.published import ARROWS
from attnviz.present.result import Result
from attnviz.profiles.parts import PARTS, SYNTACTIC, corpora_of, measured_on, part_of
from attnviz.profiles.published import heads_of_paper
from attnviz.profiles.store import StoredProfile
from attnviz.progress import Progress
from attnviz.texts.long_runs import this_process
from attnviz.texts.reading import open_corpus, read_texts
from attnviz.texts.runs import read_frequencies
from attnviz.texts.tables import Columns
from attnviz.version import __version__
from attnviz.wording import counted, rounded

_WITHOUT_TEXTS = (*ROLES_ON_REPEATS, "previous-token")  # roles that random tokens alone can show


CLAIMED = 10
"""Heads that a new file of claims has."""

_NOT_THERE = "it does not occur there, or is no role that attnviz measures there"


@dataclass(frozen=True, repr=False, eq=False)
class Check(Result):
    """What :func:`check` found: every claim with its verdict, in the order of the file or the paper.

    ``paper`` is the table of a paper that was measured; None for claims on heads alone.
    """

    command: ClassVar[str] = "check"

    checkpoint: Checkpoint
    options: dict[str, Any]
    claims: tuple[CheckedClaim, ...]
    paper: PaperTable | None = None

    @property
    def exit_code(self) -> int:
        """0 where all claims hold, 1 where one fails, 3 where none fails and some cannot be decided."""
        return 1 if self.count(FAILS) else 3 if self.count(UNDECIDED) else 0

    def count(self, verdict: str) -> int:
        """How many claims have a verdict."""
        return sum(each.verdict == verdict for each in self.claims)

    def _files_read(self, _: dict[str, Any]) -> list[Path]:
        return [file for each in self.claims for file in (Path(each.claim.place), *each.claim.corpus)]

    def __repr__(self) -> str:
        found = ", ".join(f"{self.count(verdict)} {verdict}" for verdict in VERDICTS)
        return f"<Check of {counted(len(self.claims), 'claim')} on {self.checkpoint.short_name}: {found}>"


@checked
def check(
    files: str | Path | Sequence[str | Path] = (),
    model: Model | None = None,
    *,
    published: str | None = None,
    init: Sequence[str | Path] = (),
    revision: str | None = None,
    adapter: str | Path | None = None,
    tokenizer: Any = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    truncate: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    attention: str | None = None,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    frequencies: str | Path | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Check:
    """Hold the claims of a TOML file against measurements of its model, or of another one.

    With ``published``, a paper such as ``clark-2019``, the claims are on the heads that it names, or the rows of its
    table, and ``files`` are corpora. With ``init``, corpora, the file is first written: what the clearest heads do over
    them now. ``truncate`` cuts texts that are longer than the model; ``label_column`` is as for
    :func:`attnviz.ablate`. All other arguments are as for :func:`attnviz.profile_heads`.

    Raises:
        UsageError: a claim that cannot be read, or a head that the model lacks; with the line. With ``init`` a file
            that is there, or no head that passes a role.
        AttnvizError: as of the functions that measure.
    """
    if this_process().count > 1:
        raise ProcessError("check runs in one process; start it without torchrun.")
    paths, claims = [Path(each) for each in ([files] if isinstance(files, str | Path) else files)], tuple[Claim, ...]()
    place = ""  # of the model, where the file names it
    if published is None:
        paths = paths or [Path(CLAIMS_FILE)]
    _check_options(paths, published, init, limit)
    typed_options = {
        "limit": limit, "text_column": text_column, "pair_column": pair_column, "frequencies": frequencies,
        "label_column": label_column, "truncate": truncate,
    }  # fmt: skip
    if init:
        _refuse_unused(typed_options, {*OF_TEXTS, "frequencies"})
    if published is None and not init:
        claims, named, at = read_claims(paths[0])
        if named is not None and model is None and adapter is None:
            model, place = named, at
    opened: Any = {"device": device, "dtype": dtype, "attention": attention}
    with placed(place):
        checkpoint, source = open_checkpoint(model, tokenizer, revision, adapter=adapter, **opened)
    of_tables = {"text_column": text_column, "pair_column": pair_column}
    more: Any = of_tables | {
        "limit": limit, "batch_size": batch_size, "seed": seed, "progress": progress, "warn": warn,
    }  # fmt: skip
    of_profile = more | {"frequencies": frequencies}
    profiles = dict[tuple[Path, ...], Profile]()
    if init:
        profile = _profile(checkpoint, init, True, of_profile)
        tokenizer_name = tokenizer if isinstance(tokenizer, str | Path) else None
        same = {
            "revision": revision, "adapter": adapter, "tokenizer": tokenizer_name, "dtype": dtype,
            "attention": attention, "limit": limit, "seed": seed, **of_tables, "frequencies": frequencies,
        }  # fmt: skip
        typed = COMMANDS["check"].typed({name: value for name, value in same.items() if value is not None})
        default = "minilm" if model is None and adapter is None else ""
        write_claims(
            paths[0], str(model) if isinstance(model, str | Path) else default, init, _clearest(profile), typed
        )
        claims = read_claims(paths[0])[0]
        profiles[claims[0].corpus] = profile
    table = None
    if published is not None:
        table, claims = _of_paper(published, checkpoint, tuple(paths))
    if not init:
        _refuse_unused(typed_options, {*_options_of(claims), *(() if table is None else table.takes)})
    about = [(claim, _id(claim, checkpoint) if claim.head else None) for claim in claims]
    held = [(replace(claim, head=str(id)) if id else claim, id or HeadId(0, 0)) for claim, id in about]
    stored = None
    if not init and any(each.kind == "role" for each in claims):
        stored = profile_of(checkpoint, source, warn)
    options = {"published": published, "limit": limit, "truncate": truncate, "seed": seed}
    options["frequencies"] = None if frequencies is None else str(frequencies)
    of_ablation = {"truncate": truncate, "label_column": label_column}
    paper = None if table is None else _paper_run(table, checkpoint, tuple(paths), of_profile)
    found = [*_held(held, checkpoint, stored, profiles, opened, of_ablation, of_profile, more)]
    if paper is not None:
        found += paper.table.measure(paper)
    return Check(checkpoint, options, tuple(found), table)


def _paper_run(table: PaperTable, checkpoint: Checkpoint, corpora: tuple[Path, ...], of_profile: Any) -> PaperRun:
    """A run of a table; raises an AttnvizError where model or corpora cannot be measured."""
    table.refuse(checkpoint)
    profile_once = cache(lambda: _profile(checkpoint, corpora, False, of_profile))
    run = PaperRun(table, checkpoint.encoder, corpora, of_profile, profile_once)
    if table.needs_corpus:
        run.opened()
    return run


def _of_paper(
    name: str, checkpoint: Checkpoint, corpora: tuple[Path, ...]
) -> tuple[PaperTable | None, tuple[Claim, ...]]:
    """A paper's table, None where it takes texts and only its heads can be checked, and its claims on heads."""
    shape, table = (checkpoint.architecture.name, checkpoint.n_layers, checkpoint.n_heads), PAPER_TABLES.get(name)
    heads = heads_of_paper(name, *shape, PAPER_TABLES)
    if table is not None and table.needs_corpus and not corpora:
        if not heads:
            raise UsageError(f"{name} is measured on texts: expected a corpus, such as novel.txt, found none.")
        table = None
    elif table is not None and not table.needs_corpus:
        if corpora and not heads:
            raise UsageError(f"{name} is measured without texts: leave out {corpora[0]}.")
        heads = heads if corpora else ()
    measured = () if table is None else table.roles
    return table, tuple(published_claim(name, head, corpora) for head in heads if head.role not in measured)


def _check_options(paths: Sequence[Path], published: str | None, init: Sequence[str | Path], limit: int | None) -> None:
    """Raise UsageError for options that exclude each other, a file that is not new, and too few texts for a table."""
    if init and published is not None:
        raise UsageError("expected init (--init) or published (--published), found both.")
    if published is None and len(paths) != 1:
        raise UsageError(f"expected one file of claims (corpora: with --published PAPER), found {len(paths)}.")
    if init:
        claims_file(paths[0]).refuse()
    table = PAPER_TABLES.get(published or "")
    if table is not None and limit is not None:
        most = limit * len(paths) if table.needs_corpus else limit
        if 0 < most < table.least:
            raise UsageError(
                f"{table.name} decides nothing on fewer than {table.least} texts, and --limit (limit=...) leaves "
                f"{most}: raise it, or leave it out."
            )


def _options_of(claims: Sequence[Claim]) -> set[str]:
    """The options over texts that change what these claims are measured by."""
    used = set(OF_TEXTS) if any(each.corpus for each in claims) else set()
    for each in claims:
        if each.kind == "role" and each.corpus:
            used.add("frequencies")
        if each.kind == "ablate":
            used.add("label_column")
        if each.kind == "ablate" or each.text:
            used.add("truncate")
    return used


def _refuse_unused(given: Mapping[str, object], used: Collection[str]) -> None:
    """Raise UsageError for a given option that would change nothing."""
    flags = {option.name: option.flags[0] for option in COMMANDS["check"].options}
    for name, value in given.items():
        if value not in (None, False) and name not in used:
            raise UsageError(f"{flags[name]} ({name}=...) changes nothing of what is checked here: leave it out.")


def _clearest(profile: Profile) -> list[Role]:
    """The clearest role of each head that has any, those of the clearest heads; general roles and sinks last."""
    first = [roles[0] for roles in profile.roles_by_head().values() if roles]
    claimed = [role for role in sorted(first, key=role_key) if role.describes or lower_bound(role) > 0][:CLAIMED]
    if not claimed:
        raise UsageError(
            f"no head has a role on {profile.source()}: nothing to claim. Give more texts: patterns such as "
            f"previous-token are roles from {MIN_TEXTS_SHARES} texts on."
        )
    return claimed


def _profile(checkpoint: Checkpoint, corpus: Sequence[str | Path], repeats: bool, more: Any) -> Profile:
    found = profile_heads(checkpoint, corpus, repeats=repeats, examples=0, **more)
    assert found is not None  # there is one process
    return found


def _id(claim: Claim, model: Checkpoint) -> HeadId:
    with placed(claim.at):
        return head_named(claim.head, model.kinds)


def _held(
    claims: Sequence[tuple[Claim, HeadId]], checkpoint: Checkpoint, stored: StoredProfile | None,
    profiles: Mapping[tuple[Path, ...], Profile], opened: Any, of_ablation: Any, of_profile: Any, more: Any,
) -> Iterator[CheckedClaim]:  # fmt: skip
    @cache
    def profile(corpus: tuple[Path, ...]) -> Profile:
        repeats = not corpus or any(each.what in ROLES_ON_REPEATS for each, _ in claims if each.corpus == corpus)
        return profiles.get(corpus) or _profile(checkpoint, corpus, repeats, of_profile)

    @cache
    def same(part: str, corpus: tuple[Path, ...]) -> bool:
        return stored is not None and _is_same(stored, checkpoint, of_profile, part, corpus)

    @cache
    def ablation(corpus: tuple[Path, ...]) -> Ablation:
        heads = [id for each, id in claims if (each.kind, each.corpus) == ("ablate", corpus)]
        return ablate(corpus, checkpoint, select=heads, curve=False, gradient=False, **of_ablation, **more)

    @cache
    def analysis(text: str, model: str = "") -> Analysis:
        read = other(model) if model else checkpoint
        return analyze(text, read, truncate=of_ablation["truncate"], progress=more["progress"])

    @cache
    def other(model: str) -> Checkpoint:
        return open_checkpoint(model, **opened)[0]

    @cache
    def compared(text: str, corpus: tuple[Path, ...], model: str) -> Comparison | CorpusComparison:
        if text:
            return compare(analysis(text), analysis(text, model))
        found = compare_corpus(checkpoint, other(model), *corpus, **more)
        assert found is not None
        return found

    def held(claim: Claim, id: HeadId) -> CheckedClaim:
        if claim.kind == "role":
            return _role(claim, id, profile(claim.corpus))
        if claim.kind == "distance_to":
            return _distance(claim, compared(claim.text, claim.corpus, claim.what))
        if claim.kind == "ablate":
            return _effect(claim, id, ablation(claim.corpus))
        return _on_text(claim, id, analysis(claim.text))

    asked = any(of_profile[name] is not None for name in (*OF_TEXTS, "frequencies"))
    answers = list[CheckedClaim | None]()
    for claim, id in claims:  # what is known already, and what cannot be measured: before anything is
        with placed(claim.at):
            of_name = asked and not all(map(is_there, claim.corpus))  # what was measured with other options
            answers.append(_of_stored(claim, id, stored, same) if claim.kind == "role" and not of_name else None)
            if answers[-1] is None:
                _check_measurable(claim, checkpoint, of_ablation, of_profile)
    for (claim, id), answer in zip(claims, answers, strict=True):
        with placed(claim.at):
            found = answer or held(claim, id)
        yield found


def _check_measurable(claim: Claim, checkpoint: Checkpoint, of_ablation: Any, more: Any) -> None:
    """Raise an AttnvizError for a claim on files, a model, a metric or a text that cannot be measured."""
    columns = Columns(more["text_column"], more["pair_column"])
    if claim.text:
        checkpoint.tokenize(claim.text, None, of_ablation["truncate"])
    if claim.kind == "distance_to":
        check_shapes(checkpoint, named_source(claim.what, None))
    if claim.kind == "ablate":
        columns = replace(columns, label=of_ablation["label_column"])
        texts = read_sources(claim.corpus, more["limit"], None, None, columns).texts
        metrics = [metric.name for metric in metrics_of(kind_of(checkpoint, texts, wanted=columns.label is not None))]
        if claim.what not in metrics:
            raise UsageError(f"this model is measured by {' and '.join(metrics)}, not by {claim.what}.")
    for corpus in claim.corpus:
        open_corpus(corpus, columns)


def _distance(claim: Claim, compared: Comparison | CorpusComparison) -> CheckedClaim:
    """The distance of the claim's head, or of every head the one that decides."""
    n, found = (compared.texts if isinstance(compared, CorpusComparison) else len(compared.first.units)), []
    for each in compared.select(claim.head or ()):
        reason = "" if claim.head else f"decided by {each.id}"
        found.append(bounded(claim, each.distance, n, interval=each.interval, reason=reason))
    sign = -1 if claim.at_most is None else 1  # of several heads the farthest from what is claimed
    return max(found, key=lambda each: (VERDICTS.index(each.verdict), sign * float(each.measured or 0)))


def _effect(claim: Claim, id: HeadId, ablation: Ablation) -> CheckedClaim:
    effect = ablation.head(id).damage[claim.what]
    return bounded(claim, effect.value, ablation.n_texts, interval=effect.interval)


def _role(claim: Claim, id: HeadId, profile: Profile) -> CheckedClaim:
    role = profile.role(id, claim.what, claim.direction)
    if role is None:
        return CheckedClaim(claim, UNDECIDED, source=profile.source(), reason=_NOT_THERE)
    return _judged(claim, role, profile.source())


def _judged(claim: Claim, role: Role, source: str) -> CheckedClaim:
    """A role by the claim's bounds; without any the head must have it."""
    ends = (role.score, role.score) if role.describes else role.interval
    found = bounded(claim, role.score, role.n, baseline=role.baseline, interval=ends, source=source)
    if role.too_few:
        return replace(found, verdict=UNDECIDED, reason=f"too few for a verdict: {role.too_few}")
    if role.describes:
        found = replace(found, interval=None)
    if claim.bounded or role.holds:
        return found
    if role.describes:
        return replace(found, verdict=FAILS, reason="the head is below the threshold")
    if role.refuted:
        return replace(found, verdict=FAILS, reason="the role does not pass")
    return replace(found, verdict=UNDECIDED, reason="the role does not pass, but its threshold is within the interval")


def _of_stored(
    claim: Claim, id: HeadId, stored: StoredProfile | None, same: Callable[[str, tuple[Path, ...]], bool]
) -> CheckedClaim | None:
    """A role by the stored profile of such a corpus, or of the ``same`` texts; None where it has to be measured."""
    name = part_of(claim.what, dict.fromkeys(PARTS, "") if claim.corpus or stored is None else stored.parts)
    part = {} if stored is None else stored.parts.get(name, {})
    here = bool(claim.corpus) and all(map(is_there, claim.corpus))
    read = {PurePath(each["path"]).name for each in part.get("corpora", ())}
    if stored is not None and part and (same(name, claim.corpus) if here else {p.name for p in claim.corpus} <= read):
        source, why = f"stored profile: {measured_on(part)}", "the stored profile has no such role of this head"
        role = next((each for each in stored.roles.get(id, ()) if each.role == claim.what), None)
        if role is not None and claim.direction in ("", role.direction):
            return _judged(claim, role, source)
        if role is not None:
            better = f"{ARROWS[role.direction or '']} ({rounded(role.score)})"
            why = f"the stored profile has its better direction alone, {better}"
        if here and role is None and not stored.shipped:  # it has all roles
            return CheckedClaim(claim, UNDECIDED, source=source, reason=_NOT_THERE)
        if not here and (role is not None or claim.what not in _WITHOUT_TEXTS):
            return CheckedClaim(claim, UNDECIDED, source=source, reason=f"{why}; measure it, with a corpus")
    if claim.corpus or claim.what in _WITHOUT_TEXTS:
        return None
    raise UsageError("expected a corpus, since there is no stored profile of this model with such roles.")


def _is_same(stored: StoredProfile, checkpoint: Checkpoint, more: Any, name: str, corpora: Sequence[Path]) -> bool:
    """Whether a part of the stored profile is what would be measured on these corpora."""
    columns = Columns(more["text_column"], more["pair_column"])
    part, opened = stored.parts[name], {str(each): open_corpus(each, columns) for each in corpora}
    gold = any(each.kind == "conllu" for each in opened.values())
    if name == "syntax" and not gold:  # it does not say by which parser
        return False
    listed = read_frequencies(more["frequencies"])
    if part.get("frequencies") != (listed and listed.name):
        return False
    run = part.get("attnviz"), part.get("seed"), stored.model.get("dtype"), part.get("control_texts") is not None
    if run != (__version__, more["seed"], str(checkpoint.dtype).removeprefix("torch."), True):
        return False
    of_part = corpora_of(name, {"corpora": [each.entry for each in opened.values()], "syntax": {"gold": gold}})
    read = {each["sha256"]: each for each in of_part}
    counts = {each["path"]: sum(1 for _ in read_texts(opened[each["path"]], more["limit"])) for each in of_part}
    for each in part["corpora"]:
        here = read.pop(each.get("sha256"), {})
        n_texts = each["sentences"] + (each.get("left_out") or 0)
        if here.get("columns") != each.get("columns") or n_texts != counts.get(here.get("path", "")):
            return False
    return not read


def _on_text(claim: Claim, id: HeadId, analysis: Analysis) -> CheckedClaim:
    head, name = analysis.head(id), claim.what.rpartition(BOTH)[2]  # of a label its last part
    named = {f"{SYNTACTIC * (each.kind == 'syntactic')}{each.name}": each for each in head.verdicts}
    verdict = named.get(name)
    n = analysis.context_of(id.layer).n_non_sink if verdict is None else verdict.n
    score, baseline = (head.statistics.get(name), None) if verdict is None else verdict.judged
    missing = score is None if claim.kind == "score" else verdict is None and name != UNNAMED
    if missing:
        return CheckedClaim(claim, UNDECIDED, n=n, reason="it cannot be measured on this text")
    if claim.kind == "score":  # on a fixed text it is what it is, whatever n
        assert score is not None
        return bounded(claim, score, n, baseline=baseline)
    there, shown = claim.what in (head.label, *head.label.split(BOTH)), head.labelled.shown
    if n < ENOUGH:
        return CheckedClaim(claim, UNDECIDED, shown, n, baseline, reason=f"n = {n} is below {ENOUGH}")
    return CheckedClaim(claim, HOLDS if there else FAILS, shown, n, baseline)
