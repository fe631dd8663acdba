"""Hold claims on heads against what attnviz measures: each profile, analysis, comparison and ablation once for all.

A claim with an interval holds or fails where all of this lies on one side of its bound; without bounds a role must
pass, and a label be there (:mod:`attnviz.commands.claims`). :mod:`attnviz.commands.papers` measures tables of papers.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any, ClassVar
from xml.etree import ElementTree

from rich.console import RenderableType
from rich.text import Text

from attnviz.arguments import check_kind, is_there
from attnviz.commands.ablate import Ablation, ablate
from attnviz.commands.claims import (
    CLAIMS_FILE,
    FAILS,
    HOLDS,
    REPORTED,
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
from attnviz.commands.compare import Comparison, compare
from attnviz.commands.compare_corpus import CorpusComparison, compare_corpus
from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.measure import analyze, profile_of
from attnviz.commands.papers import PAPER_TABLES
from attnviz.commands.papers.table import OF_TEXTS, PaperRun, PaperTable, profiled
from attnviz.commands.profile.exports import retrieval_scores
from attnviz.commands.profile.measure import Profile
from attnviz.errors import ProcessError, UsageError
from attnviz.inputs.frequencies import read_frequencies
from attnviz.inputs.reading import open_corpus, read_texts, sources_of
from attnviz.inputs.sources import read_sources
from attnviz.inputs.tables import IN_MEMORY, Columns
from attnviz.inputs.text import tokenize
from attnviz.judge.roles import Role
from attnviz.judge.rules import RETRIEVED
from attnviz.judge.verdicts import BOTH, ENOUGH, UNNAMED
from attnviz.measures.estimates import Interval
from attnviz.measures.patterns import RETRIEVAL, ROLES_ON_REPEATS
from attnviz.measures.predictions import metrics_of, prediction_kind
from attnviz.measures.repeats import SEQUENCES
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.compared import check_shapes
from attnviz.models.head_ids import head_named
from attnviz.models.opening import Model, named_source, open_checkpoint
from attnviz.options import checked, flag_of, typed
from attnviz.present.claim import sentence
from attnviz.present.documents import model_entry
from attnviz.present.fields import ID, Field, Table, interval_field, plain
from attnviz.present.figure_context import capital
from attnviz.present.kv_heads import kv_groups
from attnviz.present.output_folder import OutputFile
from attnviz.present.published import ARROWS, shown_baseline
from attnviz.present.report import CommandSpec
from attnviz.present.result import Result
from attnviz.present.table_layout import cell
from attnviz.present.tables import notes
from attnviz.present.view import ViewOptions
from attnviz.printable import one_line
from attnviz.profiles.parts import PARTS, SYNTACTIC, corpora_of, measured_on, part_of
from attnviz.profiles.published import heads_of_paper
from attnviz.profiles.store import StoredProfile
from attnviz.progress import Progress
from attnviz.run.processes import this_process
from attnviz.version import __version__
from attnviz.wording import amount, counted, rounded, span

_WITHOUT_TEXTS = (*ROLES_ON_REPEATS, "previous-token")  # roles that random tokens alone can show
_NOT_THERE = "it does not occur there, or is no role that attnviz measures there"

# options of :func:`check` by what takes them
_OPENING = ("device", "dtype", "attention")
_OF_CORPUS = (*OF_TEXTS, "frequencies")
_OF_PROFILE = (*_OF_CORPUS, "batch_size", "seed", "progress", "warn")
_OF_ABLATION = ("label_column", "truncate")


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
    given = locals()
    if this_process().count > 1:
        raise ProcessError("check runs in one process; start it without torchrun.")
    if published is None:
        check_kind("files", files, str | Path | Sequence[str | Path])
        paths = [Path(file) for file in ([files] if isinstance(files, str | Path) else files)] or [Path(CLAIMS_FILE)]
    else:
        paths = [rows.path for rows in sources_of(files)]
    _check_options(paths, published, init, limit)
    claims = tuple[Claim, ...]()
    place = ""  # the place of the model, where the file names it
    if published is None and not init:
        claims, named, named_at = read_claims(paths[0])
        if named is not None and model is None and adapter is None:
            given["model"], place = named, named_at
    opened = {name: given[name] for name in _OPENING}
    with placed(place):
        checkpoint, source = open_checkpoint(given["model"], tokenizer, revision, adapter=adapter, **opened)
    table = listed = None
    if published is not None:
        table, claims = _of_paper(published, checkpoint, tuple(paths))
    elif not init:
        listed = read_head_list(paths[0])
    if listed is not None:
        listed.refuse(checkpoint)
    _refuse_unused(given, {*_OF_CORPUS} if init else _used(claims, table))
    measured = _Measurements(checkpoint, given)
    if published is not None:
        measured.texts[tuple(paths)] = files
    if init:
        profile = measured.profile(tuple(map(Path, init)), repeats=True)
        write_claims(paths[0], _model_named(given), init, profile, _command_line(given))
        claims = read_claims(paths[0])[0]
        measured.profiles[claims[0].corpus] = profile
    of_heads = []
    for claim in claims:
        with placed(claim.prefix):
            id = head_named(claim.head, checkpoint.kinds) if claim.head else claim.id
        of_heads.append(replace(claim, head=claim.head and str(id), id=id))
    if not init and any(claim.kind == "role" for claim in claims):
        measured.stored = profile_of(checkpoint, source, warn)
    paper = None
    if table is not None:
        table.refuse(checkpoint)
        paper = PaperRun(table, checkpoint.encoder, tuple(paths), files, measured.of_profile)
        if table.needs_corpus:
            paper.opened()
    rows = [*measured.held(of_heads)]
    if listed is not None:
        rows += _listed(listed, measured.profile((), repeats=True))
    if paper is not None:
        rows += paper.table.measure(paper)
    options = {name: given[name] for name in ("published", "limit", "truncate", "seed")}
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


def _used(claims: Sequence[Claim], table: PaperTable | None) -> set[str]:
    """The options over texts that change something of what is claimed."""
    used = set(() if table is None else table.takes)
    for claim in claims:
        used |= {
            *(OF_TEXTS if claim.corpus else ()),
            *(["frequencies"] if claim.kind == "role" and claim.corpus else ()),
            *(["label_column"] if claim.kind == "ablate" else ()),
            *(["truncate"] if claim.kind == "ablate" or claim.text else ()),
        }
    return used


def _refuse_unused(given: Mapping[str, object], used: Collection[str]) -> None:
    for name in (*_OF_CORPUS, *_OF_ABLATION):
        if given[name] not in (None, False) and name not in used:
            raise UsageError(f"{flag_of(name)} ({name}=...) changes nothing of what is checked here: leave it out.")


def _model_named(given: Mapping[str, Any]) -> str:
    """The model as a file of claims names it; '' where it has no name."""
    if given["model"] is None and given["adapter"] is None:
        return "minilm"
    return str(given["model"]) if isinstance(given["model"], str | Path) else ""


def _command_line(given: Mapping[str, Any]) -> list[str]:
    """The options that measure the same again."""
    names = ("revision", "adapter", "tokenizer", "dtype", "attention", "seed", *_OF_CORPUS)
    again = {name: given[name] for name in names if given[name] is not None}
    if not isinstance(given["tokenizer"], str | Path):
        again.pop("tokenizer", None)
    return typed(again)


class _Measurements:
    """What claims are held against, each measured once."""

    def __init__(self, checkpoint: Checkpoint, given: Mapping[str, Any]) -> None:
        """``given``: the arguments of :func:`check` by name."""
        self.checkpoint = checkpoint
        self.stored: StoredProfile | None = None
        self.profiles = dict[tuple[Path, ...], Profile]()
        self.texts = dict[tuple[Path, ...], Any]()  # those of corpora, where not in their files alone
        self.of_profile, self._of_ablation, self._opening = (
            {name: given[name] for name in names} for names in (_OF_PROFILE, _OF_ABLATION, _OPENING)
        )
        self._over_texts = {name: value for name, value in self.of_profile.items() if name != "frequencies"}
        self._columns = Columns(given["text_column"], given["pair_column"])
        self._model = cache(lambda name: open_checkpoint(name, **self._opening)[0] if name else checkpoint)
        self._analysis = cache(self._analyze)
        self._comparison = cache(self._compare)
        self._same = cache(self._is_same)

    def profile(self, corpus: tuple[Path, ...], repeats: bool) -> Profile:
        """The roles of the model over a corpus, with or without random repeats."""
        if corpus not in self.profiles:
            texts = self.texts.get(corpus, corpus)
            self.profiles[corpus] = profiled(self.checkpoint, texts, repeats, self.of_profile)
        return self.profiles[corpus]

    def _analyze(self, text: str, name: str = "") -> Analysis:
        truncate, progress = self._of_ablation["truncate"], self.of_profile["progress"]
        return analyze(text, self._model(name), truncate=truncate, progress=progress)

    def _compare(self, text: str, corpus: tuple[Path, ...], model: str) -> Comparison | CorpusComparison:
        if text:
            return compare(self._analysis(text), self._analysis(text, model))
        comparison = compare_corpus(self.checkpoint, self._model(model), *corpus, **self._over_texts)
        assert isinstance(comparison, CorpusComparison)  # of one shape, as was checked
        return comparison

    def held(self, claims: Sequence[Claim]) -> Iterator[CheckedClaim]:
        """Each claim against the measurement that it is about."""
        asked = any(self.of_profile[name] is not None for name in _OF_CORPUS)
        answers = list[CheckedClaim | None]()
        for claim in claims:  # what cannot be measured is refused before anything takes long
            with placed(claim.prefix):
                other_options = asked and not all(map(is_there, claim.corpus))  # than the stored profile's, named alone
                answer = self._of_stored(claim) if claim.kind == "role" and not other_options else None
                if answer is None:
                    self._check_measurable(claim)
            answers.append(answer)

        @cache
        def ablation(corpus: tuple[Path, ...]) -> Ablation:
            heads = [claim.id for claim in claims if (claim.kind, claim.corpus) == ("ablate", corpus)]
            options: Any = self._of_ablation | self._over_texts
            return ablate(corpus, self.checkpoint, select=heads, curve=False, gradient=False, **options)

        for claim, answer in zip(claims, answers, strict=True):
            with placed(claim.prefix):
                if answer is not None:
                    found = answer
                elif claim.kind == "role":
                    on_corpus = (other.what for other in claims if other.corpus == claim.corpus)
                    repeats = not claim.corpus or not {*on_corpus}.isdisjoint(ROLES_ON_REPEATS)
                    profile = self.profile(claim.corpus, repeats)
                    role = profile.role(claim.id, claim.what, claim.direction)
                    found = CheckedClaim(claim, UNDECIDED, source=profile.source(), reason=_NOT_THERE)
                    if role is not None:
                        found = _judged(claim, role, profile.source(), self.checkpoint.full_name)
                elif claim.kind == "distance_to":
                    found = _distance(claim, self._comparison(claim.text, claim.corpus, claim.what))
                elif claim.kind == "ablate":
                    removed = ablation(claim.corpus)
                    effect = removed.head(claim.id).damage[claim.what]
                    found = bounded(claim, effect.value, removed.n_texts, interval=effect.interval)
                else:
                    found = _on_text(claim, self._analysis(claim.text))
            yield found

    def _check_measurable(self, claim: Claim) -> None:
        checkpoint, label = self.checkpoint, self._of_ablation["label_column"]
        if claim.text:
            tokenize(checkpoint, claim.text, None, self._of_ablation["truncate"])
        if claim.kind == "distance_to":
            check_shapes(checkpoint, named_source(claim.what, None))
        if claim.kind == "ablate":
            columns = replace(self._columns, label=label)
            texts = read_sources(claim.corpus, self.of_profile["limit"], None, None, columns).texts
            kind = prediction_kind(checkpoint, texts, wanted=label is not None)
            metrics = [metric.name for metric in metrics_of(kind)]
            if claim.what not in metrics:
                raise UsageError(f"this model is measured by {' and '.join(metrics)}, not by {claim.what}.")
        for corpus in set(claim.corpus) - {IN_MEMORY}:
            open_corpus(corpus, self._columns)

    def _of_stored(self, claim: Claim) -> CheckedClaim | None:
        """A role by the stored profile of such a corpus, or of the same texts; None where it has to be measured."""
        stored = self.stored
        name = part_of(claim.what, dict.fromkeys(PARTS, "") if claim.corpus or stored is None else stored.parts)
        part = {} if stored is None else stored.parts.get(name, {})
        here = bool(claim.corpus) and all(map(is_there, claim.corpus))
        names = {PurePath(corpus["path"]).name for corpus in part.get("corpora", ())}
        is_same = bool(part) and (self._same(name, claim.corpus) if here else {p.name for p in claim.corpus} <= names)
        if stored is not None and is_same:
            source, why = f"stored profile: {measured_on(part)}", "the stored profile has no such role of this head"
            role = next((role for role in stored.roles.get(claim.id, ()) if role.role == claim.what), None)
            if role is not None and claim.direction in ("", role.direction):
                return _judged(claim, role, source, self.checkpoint.full_name)
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

    def _is_same(self, name: str, corpora: tuple[Path, ...]) -> bool:
        """Whether a part of the stored profile is what would be measured on these corpora."""
        assert self.stored is not None
        options, part = self.of_profile, self.stored.parts[name]
        opened = {str(corpus): open_corpus(corpus, self._columns) for corpus in corpora}
        gold = any(corpus.kind == "conllu" for corpus in opened.values())
        if name == "syntax" and not gold:  # it does not say by which parser
            return False
        listed, dtype = read_frequencies(options["frequencies"]), str(self.checkpoint.dtype).removeprefix("torch.")
        of_part = [part.get(key) for key in ("attnviz", "seed", "frequencies")]
        if [*of_part, self.stored.model.get("dtype")] != [__version__, options["seed"], listed and listed.name, dtype]:
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


# What is written and said

_MEANINGS = {"head": ID, "what": "what is claimed of it"}


def _of_claim(name: str) -> Field[CheckedClaim]:
    """An attribute of the claim; None where it is empty."""

    def value(row: CheckedClaim) -> object:
        given = getattr(row.claim, name)
        return None if given in ("", ()) else given

    return Field(value=value, name=name, meaning=_MEANINGS.get(name, ""))


def _interval(ends: Interval | None) -> str:
    """Both ends; of small numbers, such as effects, in as many digits as the number itself."""
    return span(ends) if ends is None or max(map(abs, ends)) >= 0.1 else " to ".join(map(amount, ends))


_OF_CLAIM = ("line", "head", "kind", "what", "direction", "text", "corpus", "at_least", "at_most", "published")
_MEASURED: tuple[Field[CheckedClaim], ...] = (
    Field(
        name="measured",
        write=lambda value: amount(value) if isinstance(value, float) else value,
        meaning="the number that decides",
    ),
    Field(name="baseline", write=shown_baseline, detail=True, meaning="the same of the best guess"),
    interval_field(write=_interval),
    Field(name="untrained", detail=True, meaning="the best head of a freshly initialised copy"),
    Field("n", name="n", detail=True, meaning="cases measured"),
    Field(name="verdict"),
)
_FIELDS = (*map(_of_claim, _OF_CLAIM), *_MEASURED, *plain("source", "reason"), Field(name="sentence", csv={}))
_OF_PAPER = "head what verdict measured low high baseline untrained n at_least at_most direction text corpus"
_FEW = 14  # claims on the first screen; of more those that hold are left out


def _content(check: Check, _: ViewOptions) -> dict[str, Any]:
    counts = {verdict: check.count(verdict) for verdict in VERDICTS}
    content = {"model": model_entry(check.checkpoint), "options": check.options, "counts": counts}
    paper = check.paper
    return content if paper is None else content | {"paper": paper.words}


def _tables(check: Check, choices: ViewOptions) -> Iterator[RenderableType]:
    counts = ", ".join(f"{verdict}: {check.count(verdict)}" for verdict in VERDICTS)
    title = f"Claims on {check.checkpoint.short_name} ({counts})"
    claim = Field[CheckedClaim]("Claim", "claim.words")
    lines = [] if check.claims[0].claim.line is None else [_of_claim("line")]
    shown: Sequence[CheckedClaim] = check.claims
    if len(shown) > _FEW and not choices.verbose:
        shown = [row for row in check.claims if row.verdict != HOLDS]
    caption = ""
    if len(shown) < len(check.claims):
        caption = f"{counted(len(check.claims) - len(shown), 'claim')} that hold left out: --verbose lists all."
    measured = [field for field in _MEASURED if any(field.value_for(row) is not None for row in shown)]
    yield Table(title, [*lines, claim, *measured], shown, caption=caption)
    yield Text("\n".join(f"{row.sentence}." for row in shown if row.verdict == HOLDS and row.sentence))
    about: dict[str, list[str]] = {}  # each reason once, with the claims that it is about
    for row in check.claims:
        if row.reason:
            of_claim = row.claim
            name = of_claim.words if of_claim.line is None else f"Line {of_claim.line}"
            about.setdefault(row.reason, []).append(name)
    told = [
        f"{counted(len(names), 'row') if check.paper is not None and len(names) > 1 else ', '.join(names)}: {reason}."
        for reason, names in about.items()
    ]
    sources = dict.fromkeys(row.source or ", ".join(map(str, row.claim.corpus)) for row in check.claims)
    told += [f"On {source}." for source in sources if source]
    if check.paper is not None and choices.verbose:
        told += [f"{capital(name)}: {words}." for name, words in check.paper.words.items()]
    elif check.paper is not None:
        told.append(f"{check.paper.words['cited']}. --verbose tells data, metric and threshold.")
    yield notes(*told)


_SUITE = "attnviz check"


def junit_file(path: Path) -> OutputFile:
    """The file of ``--junit``, which replaces that of an earlier run."""
    return OutputFile(path, "--junit", f'name="{_SUITE}"'.encode())


def junit_text(check: Check) -> bytes:
    """The verdicts as JUnit XML: a claim that fails is a failure, one that cannot be decided an error."""
    counts = {"tests": len(check.claims), "failures": check.count(FAILS), "errors": check.count(UNDECIDED)}
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", {"name": _SUITE} | _written(counts))
    for row in check.claims:
        claim = row.claim
        place = {"classname": check.checkpoint.short_name, "name": claim.words, "file": claim.place, "line": claim.line}
        case = ElementTree.SubElement(suite, "testcase", _written(place))
        if row.verdict not in (HOLDS, REPORTED):
            numbers = [f"{field.heading} {cell(field.shown_for(row))}" for field in _MEASURED[:-1]]
            said = {"type": row.verdict, "message": "; ".join(filter(None, [row.reason, *numbers]))}
            ElementTree.SubElement(case, "failure" if row.verdict == FAILS else "error", _written(said))
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, "utf-8", xml_declaration=True)
    return written


def _written(attributes: dict[str, Any]) -> dict[str, str]:
    """As attributes of XML, which has no control characters."""
    return {name: one_line(str(value)) for name, value in attributes.items() if value is not None}


SPEC = CommandSpec[Check](
    content=_content,
    table=lambda check, _: Table("", _FIELDS, check.claims, name="claims"),
    tables=_tables,
    paper=tuple(_OF_PAPER.split()),
)
