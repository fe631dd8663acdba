"""A report: how a command says what it measured, as tables, JSON and CSV; one a command, in its ``report.py``."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rich.console import RenderableType

from attnviz.figures.look import PLAIN, Look
from attnviz.results.view import Choices

R = TypeVar("R")


def _none(*_: Any) -> tuple[str, ...]:
    """No further columns, and no messages."""
    return ()


@dataclass(frozen=True)
class Report(Generic[R]):
    """How a command says what it measured.

    Attributes:
        content: the JSON document but for its version and its list of figures; what was not measured is None.
        columns: of the CSV file.
        more_columns: of the CSV file for some documents only, after the others.
        rows: of the CSV file, from the document; values of other names are left out.
        tables: what the terminal shows, for a width in columns.
        same: keys of the document; where they are equal to those of an earlier run, its files stay in the folder.
        top: rows of the ranked table unless more or fewer are asked for.
        all_selected: with heads selected, all of these are ranked and drawn unless more or fewer are asked for.
        look: of figures, unless another is given.
        extra: names of further files that a run may write itself.
        tensors: name and content of the safetensors file, which is written on request; None where there is none.
        afterwards: messages for standard error, once everything is written; told the document.
    """

    content: Callable[[R, Choices], dict[str, Any]]
    columns: tuple[str, ...]
    rows: Callable[[dict[str, Any]], Iterable[dict[str, Any]]]
    tables: Callable[[R, Choices, int], Iterable[RenderableType]]
    same: tuple[str, ...] = ("attnviz", "model", "text", "pair", "options")
    top: int = 12
    all_selected: bool = False
    look: Look = PLAIN
    extra: tuple[str, ...] = ()
    tensors: tuple[str, Callable[[R, Choices], bytes]] | None = None
    afterwards: Callable[[R, Choices, dict[str, Any]], Iterable[str]] = _none
    more_columns: Callable[[dict[str, Any]], tuple[str, ...]] = _none

    def completed(self, choices: Choices) -> Choices:
        """With the command's own number of rows where the caller gave none."""
        if choices.top is not None:
            return choices
        return replace(choices, top=0 if self.all_selected and choices.select else self.top)
