"""A view: one kind of figure that a command draws, registered in the command's report; and how it is drawn.

Everything that speaks of figures reads the registry: ``--figures``, ``result.figure(name)``, the files of a folder,
their captions, and the table of views in the guide. Only what draws imports matplotlib: the command's ``views.py``.
"""

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
    """What a caller chose to see of a result; a command reads those that have a meaning for it.

    Attributes:
        style: theme, scale and width of figures.
        select: heads to draw and list, as for ``--select``; empty for all.
        top: rows of a table, and heads of a figure that ranks them; 0 for all, None for the command's own number.
        drop_special: draw patterns without special tokens, rows renormalised.
        token: the token whose attention is drawn; None for all.
        maps: the statistics that maps are drawn of; empty for the command's own.
        tensors: also write the file of tensors.
        relations: outline the pairs of each head's relation.
        relation: which one, for all heads; None for that of the head's label or role.
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
        """Check what a caller passed from Python.

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
        given: dict[str, Any] = {**choices, "maps": tuple(maps)}
        given |= {"select": tuple(selection_texts(choices.get("select", ())))}
        given |= {"relations": choices.get("relations", False) or relation is not None}
        return cls(style=style or PLAIN, **given)


class Plan(Protocol):
    """What a figure shows, as plain data, before anything is drawn."""

    @property
    def stem(self) -> str:
        """Name of its file without suffix, relative to the folder: ``map-entropy``, ``heads/L02H08``."""

    @property
    def caption(self) -> str:
        """One honest sentence: model, text, what is shown, scale."""


def _nothing_missing(_: Any) -> str:
    """Every result has such a picture."""
    return ""


@dataclass(frozen=True)
class Drawing(Generic[R, P]):
    """How the pictures of a view are made; see ``DRAWINGS`` in a command's ``views.py``.

    Attributes:
        plans: from a result to the plans of its pictures; the first is what ``result.figure(name)`` draws.
        figure: a plan as a new figure; told whether it is for a vector file.
        draw: a plan onto a caller's Axes; None where a picture has several panels.
        missing: reason why a result has no such picture, or ''.
        files: all pictures of a view in one format, where that is faster than one figure after another.
    """

    plans: Callable[[R, ViewOptions], Iterator[P]]
    figure: "Callable[[P, Style, bool], Figure]"
    draw: "Callable[[Axes, P, Style], Artist] | None" = None
    missing: Callable[[R], str] = _nothing_missing
    files: Callable[[R, ViewOptions, str], Iterator[File]] | None = None


@dataclass(frozen=True)
class View:
    """One kind of figure of a command, as its report registers it.

    Attributes:
        name: as ``--figures`` takes it.
        shows: what it shows, in a line, for help and documentation.
        stems: what the names of its files match, without suffix; default the name.
        default: whether it is drawn unless others are asked for.
        suffix: the only format of its files, whatever is asked for: ``html`` of a page, which is no figure.
        command: that draws it; :func:`attnviz.present.report.views_of` fills it in.
    """

    name: str
    shows: str
    stems: str = ""
    default: bool = True
    suffix: str = ""
    command: str = ""

    @property
    def drawing(self) -> Drawing[Any, Any]:
        """How it is drawn; imports matplotlib."""
        drawings: dict[str, Drawing[Any, Any]] = import_module(f"attnviz.commands.{self.command}.views").DRAWINGS
        return drawings[self.name]

    def written(self, result: Any, choices: ViewOptions, formats: Sequence[str]) -> Iterator[File]:
        """Every file of the view, drawn one after another."""
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
    """The view ``page`` of a command, in a file of this stem."""
    return View("page", shows, stems=stem, default=False, suffix="html")


def page_drawing(
    stem: str, content: Callable[[R, ViewOptions], dict[str, Any]], missing: Callable[[R], str] = _nothing_missing
) -> Drawing[R, Any]:
    """That view's drawing, of the same stem.

    ``content`` makes of a result what ``PageData`` in ``attnviz/page/patterns.js`` describes; with ``caption``.
    """

    def written(result: R, choices: ViewOptions, _: str) -> Iterator[File]:
        data = content(result, choices)
        yield f"{stem}.html", page_html(data, choices.style.theme).encode(), str(data["caption"])

    return Drawing(lambda *_: iter(()), _no_figure, missing=missing, files=written)


def _no_figure(*_: object) -> NoReturn:
    raise AssertionError("a page has no plans")
