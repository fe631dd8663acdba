"""A view that is a page: one interactive HTML file, whatever the format of figures."""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from attnviz.page.page import page_html
from attnviz.results.view import Choices, File, View

__all__ = ["page_view"]

R = TypeVar("R")


def page_view(
    stem: str, shows: str, content: Callable[[R, Choices], dict[str, Any]], missing: Callable[[R], str] = lambda _: ""
) -> View[R, Any]:
    """The view ``page`` of a command.

    Args:
        stem: of its file.
        shows: as for :class:`attnviz.results.view.View`.
        content: from a result to what ``PageData`` in ``attnviz/page/patterns.js`` describes; with ``caption``.
        missing: as for :class:`attnviz.results.view.View`.
    """

    def written(result: R, choices: Choices, _: str) -> Iterator[File]:
        data = content(result, choices)
        yield f"{stem}.html", page_html(data, choices.look.theme).encode(), str(data["caption"])

    return View(
        "page", shows, lambda *_: iter(()), _no_figure, stems=stem, default=False, missing=missing, files=written,
        suffix="html",
    )  # fmt: skip


def _no_figure(*_: object) -> NoReturn:
    raise AssertionError("a page has no plans")
