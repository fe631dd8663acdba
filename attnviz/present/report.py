"""The registry of presentations: what each command prints, draws and writes.

The module ``report`` of a command has its ``SPEC``, with its views; how these are drawn is in its module ``views``.
Both are found by the name of the command when they are first needed: a measurement imports no rich, and a run without
figures no matplotlib.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attnviz.arguments import did_you_mean
from attnviz.errors import UsageError
from attnviz.present.documents import CAPTIONS, LATEX_CAPTIONS, csv_text
from attnviz.present.fields import Field, csv_rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnviz.present.view import View, ViewOptions

R = TypeVar("R")


def _none(*_: Any) -> tuple[Any, ...]:
    """No messages."""
    return ()


@dataclass(frozen=True)
class CommandSpec(Generic[R]):
    """What a command prints, draws and writes.

    Attributes:
        content: the JSON document but for its version and its list of figures; what was not measured is None.
        tables: what the terminal shows, for a width in columns.
        fields: of the entries that the CSV file has rows of.
        entries: the key of the document with these entries, or from the document to them.
        views: its figures, in the order of its documentation.
        same: keys of the document that, where equal to those of an earlier run, keep its files in the folder.
        top: default rows of the ranked table; None where the command decides.
        all_selected: whether ``--select`` also sets the default of ``top`` to all.
        paper: columns of the table for a paper, where none are named.
        extra: names of further files that a run may write.
        tensors: name and content of the safetensors file, written on request; None if there is none.
        afterwards: called with the document once everything is written; returns messages for standard error.
    """

    content: "Callable[[R, ViewOptions], dict[str, Any]]"
    tables: "Callable[[R, ViewOptions, int], Iterable[RenderableType]]"
    fields: tuple[Field[Any], ...] = ()
    entries: str | Callable[[dict[str, Any]], Iterable[dict[str, Any]]] = "heads"
    views: "tuple[View, ...]" = ()
    same: tuple[str, ...] = ("attnviz", "model", "text", "pair", "options")
    top: int | None = 12
    all_selected: bool = False
    paper: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    tensors: "tuple[str, Callable[[R, ViewOptions], bytes]] | None" = None
    afterwards: "Callable[[R, ViewOptions, dict[str, Any]], Iterable[str]]" = _none

    def completed(self, choices: "ViewOptions") -> "ViewOptions":
        """Fill in the command's default of ``top``."""
        if choices.top is not None:
            return choices
        return replace(choices, top=0 if self.all_selected and choices.select else self.top)

    def csv_rows(self, content: dict[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
        """Columns and rows of the CSV file of a document, with values as in the document."""
        entries = content[self.entries] if isinstance(self.entries, str) else self.entries(content)
        return csv_rows(self.fields, entries, "target" in content)

    def csv(self, content: dict[str, Any]) -> str:
        """The CSV file of a document."""
        return csv_text(*self.csv_rows(content))


@dataclass(frozen=True)
class FileLayout:
    """The files of one command.

    Attributes:
        manifest: the JSON document, which lists all the files.
        table: the CSV file.
        table_text: from the document to the content of the table.
        others: what the names of all the other files match.
        same: as for :class:`CommandSpec`.
        folders: of these files, those below the output folder.
    """

    manifest: str
    table: str
    table_text: Callable[[dict[str, Any]], str]
    others: re.Pattern[str]
    same: tuple[str, ...]
    folders: tuple[str, ...] = ()

    def owns(self, name: str) -> bool:
        """Whether the command writes files of this name, relative to the output folder."""
        return name == self.table or bool(self.others.fullmatch(name))


def views_of(command: str) -> "tuple[View, ...]":
    """The views of a command, in the order of its documentation."""
    return tuple(replace(view, command=command) for view in spec_of(command).views)


def spec_of(command: str) -> "CommandSpec[Any]":
    """The ``SPEC`` of a command, by name."""
    spec: CommandSpec[Any] = import_module(f"attnviz.commands.{command}.report").SPEC
    return spec


def checked_views(command: str, figures: Sequence[str] | None, formats: Sequence[str] = ("png",)) -> "list[View]":
    """The views of these names in the order of the command's list; without names the default ones.

    A name may also be that of a view's file, without its suffix.

    Raises:
        UsageError: no list of names, or an unknown one; the message lists the known ones.
    """
    from attnviz.figures.style import FORMATS

    views = views_of(command)
    known = [view.name for view in views]
    for kind, requested, valid in (("figure", figures, known), ("format", formats, FORMATS)):
        if requested is None:
            continue
        if isinstance(requested, str) or not isinstance(requested, Iterable):
            example = f": write {[name.strip() for name in requested.split(',')]}" if isinstance(requested, str) else ""
            raise UsageError(f"expected a list of {kind}s, found {requested!r}{example}.")
        names = [name if isinstance(name, str) else repr(name) for name in requested]
        unknown = [name for name in names if name not in valid and (kind, *names) != ("figure", "all")]
        if kind == "figure":
            unknown = [name for name in unknown if not any(view.has_stem(name) for view in views)]
        if unknown:
            alone = " (on the command line also all, or none)" if kind == "figure" else ""
            meant = did_you_mean(unknown[0], valid)
            raise UsageError(f"unknown {kind} {unknown[0]!r}: expected any of {', '.join(valid)}{alone}.{meant}")
    if figures is None:
        return [view for view in views if view.default]
    if "all" in figures:
        return list(views)
    stems = [name for name in figures if name not in known]
    return [view for view in views if view.name in figures or any(map(view.has_stem, stems))]


def layout_of(command: str) -> FileLayout:
    """The files of a command, by its views and its spec."""
    from attnviz.figures.style import FORMATS

    spec, views, name = spec_of(command), views_of(command), command.replace(".", "-")
    tensors = [] if spec.tensors is None else spec.tensors[:1]
    others = map(re.escape, [CAPTIONS, LATEX_CAPTIONS, f"{name}.tex", f"{name}.md", *spec.extra, *tensors])
    pictures = [rf"({view.stems or view.name})\.({view.suffix or '|'.join(FORMATS)})" for view in views]
    return FileLayout(
        manifest=f"{name}.json",
        table=f"{name}.csv",
        table_text=spec.csv,
        others=re.compile("|".join([*pictures, *others])),
        same=spec.same,
        folders=tuple(view.stems.partition("/")[0] for view in views if "/" in view.stems),
    )
