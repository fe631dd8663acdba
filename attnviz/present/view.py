"""How views are drawn, and the options of figures and tables."""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attnviz.arguments import as_found
from attnviz.errors import UsageError
from attnviz.figures.style import PLAIN, Style
from attnviz.models.head_ids import selection_texts
from attnviz.options import DrawingOptionNames, ViewOptionNames
from attnviz.page.page import BUDGET, page_html

if TYPE_CHECKING:
    from attnviz.figures.page import PagePlan

R = TypeVar("R")
P = TypeVar("P", bound="PagePlan")
File = tuple[str, bytes, str]  # name relative to the folder, content, caption


@dataclass(frozen=True)
class ViewOptions:
    """Options of figures and tables, by their names in :mod:`attnviz.options`, and two more."""

    style: Style = PLAIN  # theme, scale and width of figures
    budget: int = BUDGET  # bytes that the patterns of a page may take
    select: tuple[str, ...] = ()
    top: int | None = None  # rows of a table; None for the command's own number
    verbose: bool = False  # whether every table is printed, with what the numbers mean; also where ``top`` is given
    drop_special: bool = False
    token: str | int | None = None
    maps: tuple[str, ...] = ()
    save_attention: bool = False
    save_npz: bool = False
    relation: str | None = None
    table: str | None = None
    by: str | None = None  # kv-head: also a table by KV head

    def rows(self, few: int) -> int | None:
        """Rows of a table: ``top``, on the first screen ``few`` at most."""
        return self.top if self.verbose else min(few, self.top or few)

    @classmethod
    def from_keywords(cls, style: Style | None, choices: DrawingOptionNames | ViewOptionNames) -> "ViewOptions":
        """The options of a view, those of the style given as ``style`` or one by one; UsageError for both."""
        known = ViewOptionNames.__annotations__
        options: dict[str, Any] = {name: value for name, value in choices.items() if name in known}
        look: dict[str, Any] = {name: value for name, value in choices.items() if name not in known}
        if look and style is not None:
            raise UsageError(
                f"expected style=Style(...) or {next(iter(look))}=... by itself, found both; a Style takes "
                f"{', '.join(look)}, too."
            )
        if style is not None and not isinstance(style, Style):
            raise UsageError(
                f"expected style as attnviz.figures.Style(theme, scale, width, …), found {as_found(style)}."
            )
        options["maps"] = tuple(options.get("maps", ()))
        options["select"] = tuple(selection_texts(choices.get("select", ())))
        return cls(style=style or Style(**look), **options)


@dataclass(frozen=True)
class Drawing(Generic[R, P]):
    """The pictures of a view; see :attr:`attnviz.present.report.View.drawing`."""

    # yields a result's pictures, which draw themselves; ``result.figure(name)`` draws the first
    plans: Callable[[R, ViewOptions], Iterator[P]]
    _: KW_ONLY
    missing: Callable[[R], str] = lambda _: ""  # reason why a result has no such picture, or ''
    # writes all pictures of a view in one format, if that is faster than figure by figure
    files: Callable[[R, ViewOptions, str], Iterator[File]] | None = None
    # narrows the options for a view that was not asked for by name, such as to fewer heads
    by_default: Callable[[R, ViewOptions], ViewOptions] = lambda _, choices: choices


def page_drawing(
    stem: str, content: Callable[[R, ViewOptions], dict[str, Any]], missing: Callable[[R], str] = lambda _: ""
) -> Drawing[R, Any]:
    """Make the drawing of the view ``page``; ``content`` gives ``PageData`` as in ``patterns.js``, and ``caption``."""

    def render_page(result: R, choices: ViewOptions, _: str) -> Iterator[File]:
        data = content(result, choices)
        yield f"{stem}.html", page_html(data, choices.style.theme).encode(), str(data["caption"])

    return Drawing(lambda *_: iter(()), missing=missing, files=render_page)
