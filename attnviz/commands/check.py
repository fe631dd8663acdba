"""Check claims on heads, from a file, a list of heads or a paper: what they need, their verdicts, and what is said.

A claim with an interval holds or fails where all of this lies on one side of its bound; without bounds a role must
pass, and a label be there (:mod:`attnviz.commands.claims`). :mod:`attnviz.commands.held_claims` measures what they are
about, :mod:`attnviz.commands.papers` tables of papers.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

from rich.console import RenderableType
from rich.text import Text

from attnviz.arguments import check_kind
from attnviz.commands.claims import (
    CLAIMS_FILE,
    FAILS,
    HOLDS,
    REPORTED,
    UNDECIDED,
    VERDICTS,
    CheckedClaim,
    Claim,
    placed,
    read_claims,
    read_head_list,
    write_claims,
)
from attnviz.commands.heads.measure import profile_of
from attnviz.commands.held_claims import OF_ABLATION, OF_CORPUS, Measurements
from attnviz.commands.papers import PAPER_TABLES
from attnviz.commands.papers.table import OF_TEXTS, PaperRun, PaperTable
from attnviz.errors import ProcessError, UsageError
from attnviz.inputs.reading import sources_of
from attnviz.inputs.refusals import option_name, refuse
from attnviz.measures.estimates import Interval
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import head_named
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import checked
from attnviz.present.documents import model_entry
from attnviz.present.fields import ID, Field, Table, interval_field, plain
from attnviz.present.figure_context import capital
from attnviz.present.output_folder import OutputFile
from attnviz.present.published import shown_baseline
from attnviz.present.report import CommandSpec
from attnviz.present.result import Result
from attnviz.present.tables import cell, notes
from attnviz.present.view import ViewOptions
from attnviz.printable import one_line
from attnviz.profiles.published import heads_of_paper
from attnviz.progress import Progress
from attnviz.run.processes import this_process
from attnviz.wording import amount, counted, rounded, span


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
    refuse({"init": init, "published": published})
    claims, listed, place = tuple[Claim, ...](), None, ""  # the place of the model, where the file names it
    if published is not None:
        paths = [rows.path for rows in sources_of(files)]
        if published in PAPER_TABLES:
            PAPER_TABLES[published].check_limit(limit, len(paths))
    else:
        check_kind("files", files, str | Path | Sequence[str | Path])
        paths = [Path(file) for file in ([files] if isinstance(files, str | Path) else files)] or [Path(CLAIMS_FILE)]
        if len(paths) != 1:
            raise UsageError(f"expected one file of claims (corpora: with --published PAPER), found {len(paths)}.")
        if init:
            OutputFile(paths[0], "FILE").refuse()
        else:
            listed = read_head_list(paths[0])
            claims, named, named_at = read_claims(paths[0])
            if named is not None and model is None and adapter is None:
                given["model"], place = named, named_at
    opening: Any = {"device": device, "dtype": dtype, "attention": attention}
    with placed(place):
        checkpoint, source = open_checkpoint(given["model"], tokenizer, revision, adapter=adapter, **opening)
    table = None
    if published is not None:
        table, claims = _of_paper(published, checkpoint, tuple(paths))
    if listed is not None:
        listed.refuse(checkpoint)
    _refuse_unused(given, claims, OF_CORPUS if init else () if table is None else table.takes)
    measured = Measurements(checkpoint, given, opening)
    if published is not None:
        measured.texts[tuple(paths)] = files
    if init:
        profile = measured.profile(tuple(map(Path, init)), repeats=True)
        write_claims(paths[0], given, profile)
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
        paper = PaperRun(table, checkpoint.encoder, tuple(paths), files, given)
        if table.needs_corpus:
            paper.opened()
    rows = [*measured.held(of_heads)]
    if listed is not None:
        rows += measured.listed(listed)
    if paper is not None:
        rows += paper.table.measure(paper)
    options = {name: given[name] for name in ("published", "limit", "truncate", "seed", "frequencies")}
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


def _refuse_unused(given: Mapping[str, object], claims: Sequence[Claim], takes: Collection[str]) -> None:
    """Raise UsageError for an option over texts that changes nothing of what is claimed, or of what ``takes`` it."""
    used = set(takes)
    for claim in claims:
        used |= {
            *(OF_TEXTS if claim.corpus else ()),
            *(["frequencies"] if claim.kind == "role" and claim.corpus else ()),
            *(["label_column"] if claim.kind == "ablate" else ()),
            *(["truncate"] if claim.kind == "ablate" or claim.text else ()),
        }
    for name in (*OF_CORPUS, *OF_ABLATION):
        if given[name] not in (None, False) and name not in used:
            raise UsageError(f"{option_name(name)} changes nothing of what is checked here: leave it out.")


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
