"""Views: the kinds of figures that a command draws, and their drawing.

Everything about figures reads the registry: ``--figures``, ``result.figure(name)``, the files of a folder,
their captions, and the table of views in the guide. Only what draws imports matplotlib: the command's ``views.py``.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypedDict, TypeVar

from attnviz.arguments import check_switch, check_whole
from attnviz.errors import UsageError
from attnviz.figures.style import PLAIN, Style, figure_bytes
from attnviz.models.head_ids import HeadId, selection_texts
from attnviz.page.page import BUDGET, page_html

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

R = TypeVar("R")
P = TypeVar("P", bound="Plan")

File = tuple[str, bytes, str]
"""Name relative to the folder, content, caption."""


class ViewOptionNames(TypedDict, total=False):
    """The keywords of ``figure``, ``draw``, ``save``, ``report`` and ``document``; see :class:`ViewOptions`."""

    select: str | HeadId | Sequence[str | HeadId]
    top: int | None
    drop_special: bool
    token: str | None
    maps: Sequence[str]
    tensors: bool
    relations: bool
    relation: str | None


@dataclass(frozen=True)
class ViewOptions:
    """Options of figures and tables; each command reads those that concern it.

    Attributes:
        style: theme, scale and width of figures.
        select: heads to draw and list, as for ``--select``; empty for all.
        top: rows of a table, and heads of a figure that ranks them; 0 for all, None for the command's own number.
        drop_special: draw patterns without special tokens, rows renormalised.
        token: the token whose attention is drawn; None for all.
        maps: the statistics that maps are drawn of; empty for the command's own.
        tensors: also write the file of tensors.
        relations: outline the pairs of each head's relation.
        relation: the relation for all heads; None for that of each head's label or role.
        budget: bytes that the patterns of a page may take.
    """

    style: Style = PLAIN
    select: tuple[str, ...] = ()
    top: int | None = None
    drop_special: bool = False
    token: str | None = None
    maps: tuple[str, ...] = ()
    tensors: bool = False
    relations: bool = False
    relation: str | None = None
    budget: int = BUDGET

    @classmethod
    def of(cls, style: Style | None, choices: ViewOptionNames) -> "ViewOptions":
        """Check options from Python.

        Raises:
            UsageError: an unknown name, or a value of another kind.
        """
        unknown = sorted(set(choices) - set(ViewOptionNames.__annotations__))
        if unknown:
            raise UsageError(
                f"unknown option {unknown[0]!r}: expected any of {', '.join(ViewOptionNames.__annotations__)}."
            )
        if style is not None and not isinstance(style, Style):
            raise UsageError(f"expected style as attnviz.figures.Style(theme, scale, width, …), found {style!r}.")
        if (top := choices.get("top")) is not None:
            check_whole("top", top)
        for name in ("drop_special", "tensors", "relations"):
            check_switch(name, choices.get(name, False))
        relation = choices.get("relation")
        if not isinstance(relation, str | None):
            raise UsageError(f"expected relation as the name of one, such as 'obj', found {relation!r}.")
        maps = choices.get("maps", ())
        if isinstance(maps, str) or not isinstance(maps, Sequence):
            raise UsageError(f"expected maps as a list of statistics, found {maps!r}: write [{maps!r}].")
        options: dict[str, Any] = {**choices, "maps": tuple(maps)}
        options |= {"select": tuple(selection_texts(choices.get("select", ())))}
        options |= {"relations": choices.get("relations", False) or relation is not None}
        return cls(style=style or PLAIN, **options)


class Plan(Protocol):
    """Data of a figure, before drawing."""

    @property
    def stem(self) -> str:
        """Name of its file without suffix, relative to the folder: ``map-entropy``, ``heads/L02H08``."""

    @property
    def caption(self) -> str:
        """One sentence: model, text, what is shown, scale."""


def _nothing_missing(_: Any) -> str:
    """Every result has the figure."""
    return ""


@dataclass(frozen=True)
class Drawing(Generic[R, P]):
    """The functions that draw a view; see ``DRAWINGS`` in a command's ``views.py``.

    Attributes:
        plans: yields the plans of a result's pictures; ``result.figure(name)`` draws the first.
        figure: draws a plan as a new figure, for a raster or a vector file.
        draw: draws a plan on a caller's Axes; None for pictures of several panels.
        missing: reason why a result has no such picture, or ''.
        files: writes all pictures of a view in one format, if that is faster than figure by figure.
    """

    plans: Callable[[R, ViewOptions], Iterator[P]]
    figure: "Callable[[P, Style, bool], Figure]"
    draw: "Callable[[Axes, P, Style], Artist] | None" = None
    missing: Callable[[R], str] = _nothing_missing
    files: Callable[[R, ViewOptions, str], Iterator[File]] | None = None


@dataclass(frozen=True)
class View:
    """One kind of figure of a command, as its ``SPEC`` registers it.

    Attributes:
        name: as ``--figures`` takes it.
        shows: one line for help and documentation.
        stems: regular expression of its files' names without suffix; default the name.
        default: whether it is drawn by default.
        suffix: the only format of its files: ``html`` of a page, which is no figure.
        command: that draws it; :func:`attnviz.present.report.views_of` fills it in.
    """

    name: str
    shows: str
    stems: str = ""
    default: bool = True
    suffix: str = ""
    command: str = ""

    def has_stem(self, name: str) -> bool:
        """Whether this is the name of one of its files, without suffix."""
        return re.fullmatch(self.stems or re.escape(self.name), name) is not None

    @property
    def drawing(self) -> Drawing[Any, Any]:
        """How it is drawn; imports matplotlib."""
        drawings: dict[str, Drawing[Any, Any]] = import_module(f"attnviz.commands.{self.command}.views").DRAWINGS
        return drawings[self.name]

    def written(self, result: Any, choices: ViewOptions, formats: Sequence[str]) -> Iterator[File]:
        """Yield every file of the view."""
        drawing = self.drawing
        if drawing.files is not None:
            for file_format in [self.suffix] if self.suffix else formats:
                yield from drawing.files(result, choices, file_format)
            return
        for plan in drawing.plans(result, choices):
            for file_format in formats:
                figure = drawing.figure(plan, choices.style, file_format != "png")
                yield f"{plan.stem}.{file_format}", figure_bytes(figure, file_format, choices.style), plan.caption


def page_view(stem: str, shows: str) -> View:
    """Make the view ``page`` of a command, with this file stem."""
    return View("page", shows, stems=stem, default=False, suffix="html")


def page_drawing(
    stem: str, content: Callable[[R, ViewOptions], dict[str, Any]], missing: Callable[[R], str] = _nothing_missing
) -> Drawing[R, Any]:
    """Make the drawing of the view ``page``.

    ``content`` returns ``PageData`` as in ``attnviz/page/patterns.js``, with ``caption``.
    """

    def written(result: R, choices: ViewOptions, _: str) -> Iterator[File]:
        data = content(result, choices)
        yield f"{stem}.html", page_html(data, choices.style.theme).encode(), str(data["caption"])

    return Drawing(lambda *_: iter(()), _no_figure, missing=missing, files=written)


def _no_figure(*_: object) -> NoReturn:
    raise AssertionError("a page has no plans")
