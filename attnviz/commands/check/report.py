"""JSON, CSV (a row a claim) and the table of checked claims."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.check.claims import FAILS, HOLDS, REPORTED, UNDECIDED, VERDICTS, CheckedClaim
from attnviz.commands.check.measure import Check
from attnviz.measures.estimates import Interval
from attnviz.present.documents import model_entry
from attnviz.present.fields import ENDS, ID, Field, NamedTable, plain
from attnviz.present.figure_context import capital
from attnviz.present.output_folder import OutputFile
from attnviz.present.published import shown_baseline
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable, cell, notes
from attnviz.present.view import ViewOptions
from attnviz.printable import one_line
from attnviz.wording import amount, counted, span

_MEANINGS = {"head": ID, "what": "what is claimed of it"}


def _of_claim(name: str) -> Field[CheckedClaim]:
    """An attribute of the claim; None where it is empty."""

    def value(row: CheckedClaim) -> object:
        given = getattr(row.claim, name)
        return None if given in ("", ()) else [*map(str, given)] if name == "corpus" else given

    return Field(name.capitalize(), value, name=name, meaning=_MEANINGS.get(name, ""))


def _interval(ends: Interval | None) -> str:
    """Both ends; of small numbers, such as effects, in as many digits as the number itself."""
    return span(ends) if ends is None or max(map(abs, ends)) >= 0.1 else " to ".join(map(amount, ends))


_OF_CLAIM = ("line", "head", "kind", "what", "direction", "text", "corpus", "at_least", "at_most", "published")
_MEASURED: tuple[Field[CheckedClaim], ...] = (
    Field(
        "Measured",
        name="measured",
        write=lambda value: amount(value) if isinstance(value, float) else value,
        meaning="the number that decides",
    ),
    Field("Baseline", name="baseline", write=shown_baseline, detail=True, meaning="the same of the best guess"),
    Field("Interval", name="interval", csv=ENDS, write=_interval),
    Field("Untrained", name="untrained", detail=True, meaning="the best head of a freshly initialised copy"),
    Field("n", name="n", detail=True, meaning="cases measured"),
    Field("Verdict", name="verdict"),
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
    claim = Field[CheckedClaim]("Claim", lambda row: row.claim.words)
    lines = [] if check.claims[0].claim.line is None else [_of_claim("line")]
    shown: Sequence[CheckedClaim] = check.claims
    if len(shown) > _FEW and not choices.verbose:
        shown = [checked for checked in check.claims if checked.verdict != HOLDS]
    caption = ""
    if len(shown) < len(check.claims):
        caption = f"{counted(len(check.claims) - len(shown), 'claim')} that hold left out: --verbose lists all."
    measured = [field for field in _MEASURED if any(field.value_for(checked) is not None for checked in shown)]
    yield RowTable(title, [*lines, claim, *measured], shown, caption=caption)
    yield Text("\n".join(f"{checked.sentence}." for checked in shown if checked.verdict == HOLDS and checked.sentence))
    about: dict[str, list[str]] = {}  # each reason once, with the claims that it is about
    for checked in check.claims:
        if checked.reason:
            of_claim = checked.claim
            name = of_claim.words if of_claim.line is None else f"Line {of_claim.line}"
            about.setdefault(checked.reason, []).append(name)
    told = [
        f"{counted(len(names), 'row') if check.paper is not None and len(names) > 1 else ', '.join(names)}: {reason}."
        for reason, names in about.items()
    ]
    sources = dict.fromkeys(checked.source or ", ".join(map(str, checked.claim.corpus)) for checked in check.claims)
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


def junit(check: Check) -> bytes:
    """The verdicts as JUnit XML: a claim that fails is a failure, one that cannot be decided an error."""
    counts = {"tests": len(check.claims), "failures": check.count(FAILS), "errors": check.count(UNDECIDED)}
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", {"name": _SUITE} | _written(counts))
    for checked in check.claims:
        claim = checked.claim
        place = {"classname": check.checkpoint.short_name, "name": claim.words, "file": claim.place, "line": claim.line}
        case = ElementTree.SubElement(suite, "testcase", _written(place))
        if checked.verdict not in (HOLDS, REPORTED):
            numbers = [f"{field.title} {cell(field.write(field.value_for(checked)))}" for field in _MEASURED[:-1]]
            said = {"type": checked.verdict, "message": "; ".join(filter(None, [checked.reason, *numbers]))}
            ElementTree.SubElement(case, "failure" if checked.verdict == FAILS else "error", _written(said))
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, "utf-8", xml_declaration=True)
    return written


def _written(attributes: dict[str, Any]) -> dict[str, str]:
    """As attributes of XML, which has no control characters."""
    return {name: one_line(str(value)) for name, value in attributes.items() if value is not None}


SPEC = CommandSpec[Check](
    content=_content,
    table=lambda check, _: NamedTable("claims", _FIELDS, check.claims),
    tables=_tables,
    paper=tuple(_OF_PAPER.split()),
)
