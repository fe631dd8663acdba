"""Hold claims against what attnviz measures: each profile, analysis, comparison and ablation once for all claims."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path, PurePath
from typing import Any, ClassVar

from attnviz.arguments import check_kind, is_there
from attnviz.commands.ablate.measure import Ablation, ablate
from attnviz.commands.check.claims import (
    CLAIMS_FILE,
    FAILS,
    HOLDS,
    UNDECIDED,
    VERDICTS,
    CheckedClaim,
    Claim,
    HeadList,
    bounded,
    placed,
    read_claims,
    read_head_list,
    write_claims,
)
from attnviz.commands.check.papers import PAPER_TABLES
from attnviz.commands.check.papers.table import OF_TEXTS, PaperRun, PaperTable, profiled
from attnviz.commands.compare.corpus.measure import CorpusComparison, compare_corpus
from attnviz.commands.compare.measure import Comparison, check_shapes, compare
from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.measure import analyze, profile_of
from attnviz.commands.profile.exports import retrieval_scores
from attnviz.commands.profile.measure import Profile
from attnviz.errors import ProcessError, UsageError
from attnviz.inputs.encoding import tokenize
from attnviz.inputs.frequencies import read_frequencies
from attnviz.inputs.reading import open_corpus, read_texts, sources_of
from attnviz.inputs.sources import read_sources
from attnviz.inputs.tables import IN_MEMORY, Columns
from attnviz.judge.roles import Role
from attnviz.judge.rules import RETRIEVED
from attnviz.judge.verdicts import BOTH, ENOUGH, UNNAMED
from attnviz.measures.patterns import RETRIEVAL, ROLES_ON_REPEATS
from attnviz.measures.predictions import metrics_of, prediction_kind
from attnviz.measures.repeats import SEQUENCES
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import head_named
from attnviz.models.opening import Model, named_source, open_checkpoint
from attnviz.options import checked, flag_of, typed
from attnviz.present.claim import sentence
from attnviz.present.kv_heads import kv_groups
from attnviz.present.output_folder import OutputFile
from attnviz.present.published import ARROWS
from attnviz.present.result import Result
from attnviz.profiles.parts import PARTS, SYNTACTIC, corpora_of, measured_on, part_of
from attnviz.profiles.published import heads_of_paper
from attnviz.profiles.store import StoredProfile
from attnviz.progress import Progress
from attnviz.run.processes import this_process
from attnviz.version import __version__
from attnviz.wording import counted, rounded

_WITHOUT_TEXTS = (*ROLES_ON_REPEATS, "previous-token")  # roles that random tokens alone can show

_NOT_THERE = "it does not occur there, or is no role that attnviz measures there"


@dataclass(frozen=True, repr=False, eq=False)
class Check(Result):
    """What :func:`check` found: every claim with its verdict, in the order of the file or the paper."""

    command: ClassVar[str] = "check"

    checkpoint: Checkpoint
    options: dict[str, Any]
    claims: tuple[CheckedClaim, ...]
    paper: PaperTable | None = None  # whose table was measured; None for claims on heads alone

    @property
    def exit_code(self) -> int:
        """0 where all claims hold, 1 where one fails, 3 where none fails and some cannot be decided."""
        return 1 if self.count(FAILS) else 3 if self.count(UNDECIDED) else 0

    def count(self, verdict: str) -> int:
        """How many claims have a verdict."""
        return sum(claim.verdict == verdict for claim in self.claims)

    def _files_read(self, _: dict[str, Any]) -> list[Path]:
        return [file for checked in self.claims for file in (Path(checked.claim.place), *checked.claim.corpus)]

    @property
    def in_words(self) -> str:
        found = ", ".join(f"{self.count(verdict)} {verdict}" for verdict in VERDICTS)
        return f"of {counted(len(self.claims), 'claim')} on {self.checkpoint.short_name}: {found}"


@checked
def check(
    files: Any = (),
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
    """Hold the claims of a TOML file, or a list of heads for DuoAttention, against measurements of a model.

    With ``published``, a paper such as ``clark-2019``, the claims are on the heads that it names, or the rows of its
    table, and ``files`` are corpora, also in memory. With ``init``, corpora, the file is first written: what the
    clearest heads do over them now. ``truncate`` cuts texts that are longer than the model; ``label_column`` is as for
    :func:`attnviz.ablate`. All other arguments are as for :func:`attnviz.profile_heads`.

    Raises:
        UsageError: a claim that cannot be read, or a head that the model lacks; with the line. With ``init`` a file
            that is there, or no head that passes a role.
        AttnvizError: as of the functions that measure.
    """
    if this_process().count > 1:
        raise ProcessError("check runs in one process; start it without torchrun.")
    if published is None:
        check_kind("files", files, str | Path | Sequence[str | Path])
        paths = [Path(file) for file in ([files] if isinstance(files, str | Path) else files)] or [Path(CLAIMS_FILE)]
    else:
        paths = [rows.path for rows in sources_of(files)]
    _check_options(paths, published, init, limit)
    of_tables: Any = {"text_column": text_column, "pair_column": pair_column}
    of_ablation: Any = {"label_column": label_column, "truncate": truncate}
    claims = tuple[Claim, ...]()
    place = ""  # the place of the model, where the file names it
    if published is None and not init:
        claims, named, named_at = read_claims(paths[0])
        if named is not None and model is None and adapter is None:
            model, place = named, named_at
    opened: Any = {"device": device, "dtype": dtype, "attention": attention}
    with placed(place):
        checkpoint, source = open_checkpoint(model, tokenizer, revision, adapter=adapter, **opened)
    of_texts = {"limit": limit, **of_tables, "frequencies": frequencies}
    of_profile = {**of_texts, "batch_size": batch_size, "seed": seed, "progress": progress, "warn": warn}
    profiles = dict[tuple[Path, ...], Profile]()
    table = paper = stored = None
    listed = None if init or published is not None else read_head_list(paths[0])
    if listed is not None:
        listed.refuse(checkpoint)
    if published is not None:
        table, claims = _of_paper(published, checkpoint, tuple(paths))
    used = {*of_texts} if init else set(() if table is None else table.takes)
    used |= {name for claim in claims if claim.corpus for name in OF_TEXTS}
    used |= {"frequencies" for claim in claims if claim.kind == "role" and claim.corpus}
    used |= {"label_column" for claim in claims if claim.kind == "ablate"}
    used |= {"truncate" for claim in claims if claim.kind == "ablate" or claim.text}
    _refuse_unused({**of_texts, **of_ablation}, used)
    if init:
        profile = profiled(checkpoint, init, True, of_profile)
        again = {
            "revision": revision,
            "adapter": adapter,
            "tokenizer": tokenizer if isinstance(tokenizer, str | Path) else None,
            "dtype": dtype,
            "attention": attention,
            "seed": seed,
            **of_texts,
        }
        name = str(model) if isinstance(model, str | Path) else ""
        if model is None and adapter is None:
            name = "minilm"
        write_claims(paths[0], name, init, profile, typed(again))
        claims = read_claims(paths[0])[0]
        profiles[claims[0].corpus] = profile
    of_heads = []
    for claim in claims:
        with placed(claim.prefix):
            id = head_named(claim.head, checkpoint.kinds) if claim.head else claim.id
        of_heads.append(replace(claim, head=claim.head and str(id), id=id))
    if not init and any(claim.kind == "role" for claim in claims):
        stored = profile_of(checkpoint, source, warn)
    if table is not None:
        table.refuse(checkpoint)
        paper = PaperRun(table, checkpoint.encoder, tuple(paths), files, of_profile)
        if table.needs_corpus:
            paper.opened()
    texts = {} if published is None else {tuple(paths): files}
    rows = [*_held(of_heads, checkpoint, stored, profiles, texts, opened, of_ablation, of_profile)]
    if listed is not None:
        rows += _listed(listed, profiled(checkpoint, (), True, of_profile))
    if paper is not None:
        rows += paper.table.measure(paper)
    options = {"published": published, "limit": limit, "truncate": truncate, "seed": seed}
    options["frequencies"] = None if frequencies is None else str(frequencies)
    return Check(checkpoint, options, tuple(rows), table)


def _of_paper(
    name: str, checkpoint: Checkpoint, corpora: tuple[Path, ...]
) -> tuple[PaperTable | None, tuple[Claim, ...]]:
    """A paper's table, None where it takes texts and only its heads can be checked, and its claims on heads."""
    table = PAPER_TABLES.get(name)
    heads = heads_of_paper(name, checkpoint, PAPER_TABLES)
    if table is not None and table.needs_corpus and not corpora:
        if not heads:
            raise UsageError(f"{name} is measured on texts: expected a corpus, such as novel.txt, found none.")
        table = None
    elif table is not None and not table.needs_corpus:
        if corpora and not heads:
            raise UsageError(f"{name} is measured without texts: leave out {corpora[0]}.")
        heads = heads if corpora else ()
    claims = list[Claim]()
    for head in heads:
        if table is None or head.role not in table.roles:
            role, direction = head.universal
            said = "" if head.score is None else f"({rounded(head.score)} there, baseline {rounded(head.baseline)})"
            of_role: Any = {"what": role, "direction": direction or "", "corpus": corpora, "published": said}
            claims.append(Claim(place=name, kind="role", head=str(head.id), **of_role))
    return table, tuple(claims)


def _listed(listed: HeadList, profile: Profile) -> Iterator[CheckedClaim]:
    """The entries of a list: whether a KV head retrieves, or does not."""
    entries = [entry for row in listed.rows for entry in row]
    scores = zip(kv_groups(profile.checkpoint), entries, retrieval_scores(profile), strict=True)
    for (layer, number), entry, (score, interval) in scores:
        what = {"place": str(listed.file), "line": layer + 1, "kind": "kv-head", "what": RETRIEVAL}
        bound = {"at_least" if entry >= listed.threshold else "at_most": RETRIEVED}
        claim: Any = {**what, **bound, "head": f"L{layer} KV {number}", "published": f"({entry:g} there)"}
        yield bounded(Claim(**claim), score, SEQUENCES, interval=interval, source=profile.source(RETRIEVAL))


def _check_options(paths: Sequence[Path], published: str | None, init: Sequence[str | Path], limit: int | None) -> None:
    """Raise UsageError for options that exclude each other, a file that is not new, and too few texts for a table."""
    if init and published is not None:
        raise UsageError("expected init (--init) or published (--published), found both.")
    if published is None and len(paths) != 1:
        raise UsageError(f"expected one file of claims (corpora: with --published PAPER), found {len(paths)}.")
    if init:
        OutputFile(paths[0], "FILE").refuse()
    table = PAPER_TABLES.get(published or "")
    if table is not None and limit is not None:
        most = limit * len(paths) if table.needs_corpus else limit
        if 0 < most < table.least:
            raise UsageError(
                f"{table.name} decides nothing on fewer than {table.least} texts, and --limit (limit=...) leaves "
                f"{most}: raise it, or leave it out."
            )


def _refuse_unused(given: Mapping[str, object], used: Collection[str]) -> None:
    for name, value in given.items():
        if value not in (None, False) and name not in used:
            raise UsageError(f"{flag_of(name)} ({name}=...) changes nothing of what is checked here: leave it out.")


def _held(
    claims: Sequence[Claim],
    checkpoint: Checkpoint,
    stored: StoredProfile | None,
    profiles: Mapping[tuple[Path, ...], Profile],
    given: Mapping[tuple[Path, ...], Any],
    opened: Any,
    of_ablation: Mapping[str, Any],
    of_profile: Mapping[str, Any],
) -> Iterator[CheckedClaim]:
    """Each claim against the measurement that it is about; ``profiles`` are made already.

    ``given`` are the texts of corpora, where not in their files alone.
    """
    over_texts: Any = {name: value for name, value in of_profile.items() if name != "frequencies"}

    @cache
    def profile(corpus: tuple[Path, ...]) -> Profile:
        repeats = not corpus or any(claim.what in ROLES_ON_REPEATS for claim in claims if claim.corpus == corpus)
        return profiles.get(corpus) or profiled(checkpoint, given.get(corpus, corpus), repeats, of_profile)

    @cache
    def ablation(corpus: tuple[Path, ...]) -> Ablation:
        heads = [claim.id for claim in claims if (claim.kind, claim.corpus) == ("ablate", corpus)]
        return ablate(corpus, checkpoint, select=heads, curve=False, gradient=False, **of_ablation, **over_texts)

    model_named = cache(lambda name: open_checkpoint(name, **opened)[0] if name else checkpoint)

    @cache
    def analysis(text: str, name: str = "") -> Analysis:
        return analyze(text, model_named(name), truncate=of_ablation["truncate"], progress=over_texts["progress"])

    @cache
    def compared(text: str, corpus: tuple[Path, ...], model: str) -> Comparison | CorpusComparison:
        if text:
            return compare(analysis(text), analysis(text, model))
        comparison = compare_corpus(checkpoint, model_named(model), *corpus, **over_texts)
        assert isinstance(comparison, CorpusComparison)  # of one shape, as was checked
        return comparison

    def held(claim: Claim) -> CheckedClaim:
        if claim.kind == "role":
            measured = profile(claim.corpus)
            role = measured.role(claim.id, claim.what, claim.direction)
            if role is None:
                return CheckedClaim(claim, UNDECIDED, source=measured.source(), reason=_NOT_THERE)
            return _judged(claim, role, measured.source(), checkpoint.full_name)
        if claim.kind == "distance_to":
            return _distance(claim, compared(claim.text, claim.corpus, claim.what))
        if claim.kind == "ablate":
            removed = ablation(claim.corpus)
            effect = removed.head(claim.id).damage[claim.what]
            return bounded(claim, effect.value, removed.n_texts, interval=effect.interval)
        return _on_text(claim, analysis(claim.text))

    same = cache(partial(_is_same, stored, checkpoint, of_profile))
    asked = any(of_profile[name] is not None for name in (*OF_TEXTS, "frequencies"))
    answers = list[CheckedClaim | None]()
    for claim in claims:  # what cannot be measured is refused before anything takes long
        with placed(claim.prefix):
            other_options = asked and not all(map(is_there, claim.corpus))  # than the stored profile's, named alone
            answer = None
            if claim.kind == "role" and not other_options:
                answer = _of_stored(claim, stored, same, checkpoint.full_name)
            if answer is None:
                _check_measurable(claim, checkpoint, of_profile, of_ablation)
        answers.append(answer)
    for claim, answer in zip(claims, answers, strict=True):
        with placed(claim.prefix):
            checked_claim = answer or held(claim)
        yield checked_claim


def _check_measurable(
    claim: Claim, checkpoint: Checkpoint, of_profile: Mapping[str, Any], of_ablation: Mapping[str, Any]
) -> None:
    columns = Columns(of_profile["text_column"], of_profile["pair_column"])
    label = of_ablation["label_column"]
    if claim.text:
        tokenize(checkpoint, claim.text, None, of_ablation["truncate"])
    if claim.kind == "distance_to":
        check_shapes(checkpoint, named_source(claim.what, None))
    if claim.kind == "ablate":
        texts = read_sources(claim.corpus, of_profile["limit"], None, None, replace(columns, label=label)).texts
        metrics = [metric.name for metric in metrics_of(prediction_kind(checkpoint, texts, wanted=label is not None))]
        if claim.what not in metrics:
            raise UsageError(f"this model is measured by {' and '.join(metrics)}, not by {claim.what}.")
    for corpus in set(claim.corpus) - {IN_MEMORY}:
        open_corpus(corpus, columns)


def _distance(claim: Claim, compared: Comparison | CorpusComparison) -> CheckedClaim:
    """The distance of the claim's head, or of every head the one that decides."""
    n = compared.texts if isinstance(compared, CorpusComparison) else len(compared.first.units)
    by_head = []
    for head in compared.select(claim.head or ()):
        reason = "" if claim.head else f"decided by {head.id}"
        by_head.append(bounded(claim, head.distance, n, interval=head.interval, reason=reason))
    sign = -1 if claim.at_most is None else 1  # of several heads the farthest from what is claimed
    return max(by_head, key=lambda head: (VERDICTS.index(head.verdict), sign * float(head.measured or 0)))


def _judged(claim: Claim, role: Role, source: str, model: str) -> CheckedClaim:
    """A role by the claim's bounds; without any the head must have it."""
    ends = (role.score, role.score) if role.describes else role.interval
    found = {"baseline": role.baseline, "untrained": role.untrained, "sentence": sentence(role, model) or None}
    by_bounds = bounded(claim, role.score, role.n, interval=ends, source=source, **found)
    if role.too_few:
        return replace(by_bounds, verdict=UNDECIDED, reason=f"too few for a verdict: {role.too_few}")
    if role.describes:
        by_bounds = replace(by_bounds, interval=None)
    if claim.at_least is not None or claim.at_most is not None or role.holds:
        return by_bounds
    verdict, why = UNDECIDED, "the role does not pass, but its threshold is within the interval"
    if role.describes:
        verdict, why = FAILS, "the head is below the threshold"
    elif role.refuted:
        verdict, why = FAILS, "the role does not pass"
    return replace(by_bounds, verdict=verdict, reason=why)


def _of_stored(
    claim: Claim, stored: StoredProfile | None, same: Callable[[str, tuple[Path, ...]], bool], model: str
) -> CheckedClaim | None:
    """A role by the stored profile of such a corpus, or of the ``same`` texts; None where it has to be measured."""
    name = part_of(claim.what, dict.fromkeys(PARTS, "") if claim.corpus or stored is None else stored.parts)
    part = {} if stored is None else stored.parts.get(name, {})
    here = bool(claim.corpus) and all(map(is_there, claim.corpus))
    names = {PurePath(corpus["path"]).name for corpus in part.get("corpora", ())}
    if stored is not None and part and (same(name, claim.corpus) if here else {p.name for p in claim.corpus} <= names):
        source, why = f"stored profile: {measured_on(part)}", "the stored profile has no such role of this head"
        role = next((role for role in stored.roles.get(claim.id, ()) if role.role == claim.what), None)
        if role is not None and claim.direction in ("", role.direction):
            return _judged(claim, role, source, model)
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


def _is_same(
    stored: StoredProfile | None,
    checkpoint: Checkpoint,
    options: Mapping[str, Any],
    name: str,
    corpora: tuple[Path, ...],
) -> bool:
    """Whether a part of the stored profile is what would be measured on these corpora."""
    assert stored is not None
    columns = Columns(options["text_column"], options["pair_column"])
    part = stored.parts[name]
    opened = {str(corpus): open_corpus(corpus, columns) for corpus in corpora}
    gold = any(corpus.kind == "conllu" for corpus in opened.values())
    if name == "syntax" and not gold:  # it does not say by which parser
        return False
    listed = read_frequencies(options["frequencies"])
    here = __version__, options["seed"], listed and listed.name, str(checkpoint.dtype).removeprefix("torch.")
    if here != (part.get("attnviz"), part.get("seed"), part.get("frequencies"), stored.model.get("dtype")):
        return False
    if part.get("control_texts") is None:
        return False
    entries = {"corpora": [corpus.entry for corpus in opened.values()], "syntax": {"gold": gold}}
    left = {entry["sha256"]: entry for entry in corpora_of(name, entries)}
    for corpus in part["corpora"]:
        entry = left.pop(corpus.get("sha256"), None)
        if entry is None or entry.get("columns") != corpus.get("columns"):
            return False
        n_texts = sum(1 for _ in read_texts(opened[entry["path"]], options["limit"]))
        if n_texts != corpus["sentences"] + (corpus.get("left_out") or 0):
            return False
    return not left


def _on_text(claim: Claim, analysis: Analysis) -> CheckedClaim:
    head = analysis.head(claim.id)
    name = claim.what.rpartition(BOTH)[2]  # of a label its last part
    named = {(SYNTACTIC if verdict.kind == "syntactic" else "") + verdict.name: verdict for verdict in head.verdicts}
    verdict = named.get(name)
    n = analysis.context_of(claim.id.layer).n_non_sink if verdict is None else verdict.n
    score, baseline = (head.statistics.get(name), None) if verdict is None else verdict.judged
    if claim.kind == "score" and score is not None:  # on a fixed text it is what it is, whatever n
        return bounded(claim, score, n, baseline=baseline)
    if claim.kind == "score" or (verdict is None and name != UNNAMED):
        return CheckedClaim(claim, UNDECIDED, n=n, reason="it cannot be measured on this text")
    shown = head.labelled.shown
    if n < ENOUGH:
        return CheckedClaim(claim, UNDECIDED, shown, n, baseline, reason=f"n = {n} is below {ENOUGH}")
    there = claim.what in (head.label, *head.label.split(BOTH))
    return CheckedClaim(claim, HOLDS if there else FAILS, shown, n, baseline)
