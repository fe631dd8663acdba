"""What a command registers beside its measurement: how it says what it measured, its figures, and its files.

The module ``report`` of a command has its ``REPORT``, with its views; how these are drawn is in its module ``views``.
Both are found by the name of the command when they are first needed: a measurement imports no rich, and a run without
figures no matplotlib.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attnviz.errors import UsageError
from attnviz.present.documents import CAPTIONS, LATEX_CAPTIONS, csv_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnviz.figures.style import Style
    from attnviz.present.view import View, ViewOptions

R = TypeVar("R")


def _none(*_: Any) -> tuple[str, ...]:
    """No further columns, and no messages."""
    return ()


@dataclass(frozen=True)
class CommandSpec(Generic[R]):
    """How a command says what it measured.

    Attributes:
        content: the JSON document but for its version and its list of figures; what was not measured is None.
        columns: of the CSV file.
        more_columns: of the CSV file for some documents only, after the others.
        rows: of the CSV file, from the document; values of other names are left out.
        tables: what the terminal shows, for a width in columns.
        views: its figures, in the order of its documentation.
        same: keys of the document; where they are equal to those of an earlier run, its files stay in the folder.
        top: rows of the ranked table unless more or fewer are asked for.
        all_selected: with heads selected, all of these are ranked and drawn unless more or fewer are asked for.
        style: of figures, unless another is given.
        extra: names of further files that a run may write itself.
        tensors: name and content of the safetensors file, which is written on request; None where there is none.
        afterwards: messages for standard error, once everything is written; told the document.
    """

    content: "Callable[[R, ViewOptions], dict[str, Any]]"
    columns: tuple[str, ...]
    rows: Callable[[dict[str, Any]], Iterable[dict[str, Any]]]
    tables: "Callable[[R, ViewOptions, int], Iterable[RenderableType]]"
    views: "tuple[View, ...]" = ()
    same: tuple[str, ...] = ("attnviz", "model", "text", "pair", "options")
    top: int = 12
    all_selected: bool = False
    style: "Style | None" = None
    extra: tuple[str, ...] = ()
    tensors: "tuple[str, Callable[[R, ViewOptions], bytes]] | None" = None
    afterwards: "Callable[[R, ViewOptions, dict[str, Any]], Iterable[str]]" = _none
    more_columns: Callable[[dict[str, Any]], tuple[str, ...]] = _none

    def completed(self, choices: "ViewOptions") -> "ViewOptions":
        """With the command's own number of rows where the caller gave none."""
        if choices.top is not None:
            return choices
        return replace(choices, top=0 if self.all_selected and choices.select else self.top)


@dataclass(frozen=True)
class FileLayout:
    """The files of one command.

    Attributes:
        manifest: the JSON document, which lists all the files.
        table: the CSV file.
        table_text: from the document to the content of the table.
        others: what the names of all the other files match.
        same: keys of the document; where they are equal to those of an earlier run, its files are kept.
        folders: that some of these are in.
    """

    manifest: str
    table: str
    table_text: Callable[[dict[str, Any]], str]
    others: re.Pattern[str]
    same: tuple[str, ...]
    folders: tuple[str, ...] = ()

    def owns(self, name: str) -> bool:
        """Whether a file of this name, relative to the output folder, is one of the command's."""
        return name == self.table or bool(self.others.fullmatch(name))


def views_of(command: str) -> "tuple[View, ...]":
    """The views of a command, in the order of its documentation."""
    return tuple(replace(view, command=command) for view in report_of(command).views)


def report_of(command: str) -> "CommandSpec[Any]":
    """How a command tells its results."""
    report: CommandSpec[Any] = import_module(f"attnviz.commands.{command}.report").REPORT
    return report


def checked_views(command: str, figures: Sequence[str] | None, formats: Sequence[str] = ("png",)) -> "list[View]":
    """The views of these names, in the order of the command's report; without names those that are drawn by default.

    Raises:
        UsageError: no list of names, or an unknown one, with those that there are.
    """
    from attnviz.figures.style import FORMATS

    views = views_of(command)
    known = [view.name for view in views]
    for kind, given, valid in (("figure", figures, known), ("format", formats, FORMATS)):
        if given is None:
            continue
        if isinstance(given, str) or not isinstance(given, Iterable):
            example = f": write {[name.strip() for name in given.split(',')]}" if isinstance(given, str) else ""
            raise UsageError(f"expected a list of {kind}s, found {given!r}{example}.")
        names = [name if isinstance(name, str) else repr(name) for name in given]
        unknown = [name for name in names if name not in valid and (kind, *names) != ("figure", "all")]
        if unknown:
            alone = " (on the command line also all, or none)" if kind == "figure" else ""
            raise UsageError(f"unknown {kind} {unknown[0]!r}: expected any of {', '.join(valid)}{alone}.")
    if figures is None:
        return [view for view in views if view.default]
    if "all" in figures:
        return list(views)
    return [view for view in views if view.name in figures]


def layout_of(command: str) -> FileLayout:
    """The files of a command, by its views and its report."""
    from attnviz.figures.style import FORMATS

    report, views, name = report_of(command), views_of(command), command.replace(".", "-")
    tensors = [] if report.tensors is None else report.tensors[:1]
    others = map(re.escape, [CAPTIONS, LATEX_CAPTIONS, *report.extra, *tensors])
    pictures = [rf"({view.stems or view.name})\.({view.suffix or '|'.join(FORMATS)})" for view in views]
    return FileLayout(
        manifest=f"{name}.json",
        table=f"{name}.csv",
        table_text=lambda content: csv_text((*report.columns, *report.more_columns(content)), report.rows(content)),
        others=re.compile("|".join([*pictures, *others])),
        same=report.same,
        folders=tuple(view.stems.partition("/")[0] for view in views if "/" in view.stems),
    )
