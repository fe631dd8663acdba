"""The registry of presentations: what each command prints, draws and writes.

:data:`attnviz.commands.VIEWS` names the figures of each command; its module ``report``, or the one file that it is, has
its ``SPEC``. Both are imported when they are first needed: help imports nothing heavy, and a run without figures no
matplotlib.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attnviz.arguments import as_found, check_kind, did_you_mean
from attnviz.errors import UsageError
from attnviz.options import checked
from attnviz.plugins import Registry
from attnviz.present.fields import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from attnviz.figures.page import PagePlan
    from attnviz.figures.style import Style
    from attnviz.present.view import Drawing, File, ViewOptions

R = TypeVar("R")


@dataclass(frozen=True)
class View:
    """One kind of figure of a command."""

    name: str  # as ``--figures`` takes it
    shows: str  # one line for documentation
    default: bool = True  # whether it is drawn by default
    # of the command's folder, if it has one, with its :class:`attnviz.present.view.Drawing` by its name in capitals.
    module: str = "views"
    command: str = ""
    plugin: bool = False  # whether it is one of :data:`FIGURES`

    @property
    def is_page(self) -> bool:  # in HTML, and no figure
        return self.name == "page"

    @property
    def drawing(self) -> "Drawing[Any, Any]":
        """How it is drawn; imports matplotlib."""
        if self.plugin:
            return FIGURES[f"{self.command}.{self.name}"]
        drawing: Drawing[Any, Any] = getattr(_part_of(self.command, self.module), self.name.upper())
        return drawing

    def plans(self, result: Any, choices: "ViewOptions") -> "Iterator[PagePlan]":
        """Yield the plans of a result's pictures; what a plug-in raises is a UsageError."""
        with FIGURES.errors_named(f"{self.command}.{self.name}"):
            for plan in self.drawing.plans(result, choices):
                if self.plugin and not re.fullmatch(rf"{self.name}([-/][\w-]+)?", plan.stem):
                    raise UsageError(
                        f"the figure {self.name!r} has a picture {plan.stem!r}; expected {self.name}, or {self.name}-…."
                    )
                yield plan

    def picture(self, plan: "PagePlan", style: "Style") -> "Figure":
        """Draw a plan as a new figure; what a plug-in raises is a UsageError."""
        with FIGURES.errors_named(f"{self.command}.{self.name}"):
            return plan.figure(style)

    def fitted(self, result: Any, choices: "ViewOptions") -> "ViewOptions":
        """The options with a style in which a picture that is smaller than the chosen width is magnified to it."""
        style = choices.style
        if style.inches is None or style.font_size is not None or self.is_page:
            return choices
        natural = replace(choices, style=style.filling())
        plan = next(self.plans(result, natural), None)
        if plan is None or self.picture(plan, natural.style).get_figwidth() > style.inches:
            return choices
        return natural

    def render_files(
        self, result: Any, choices: "ViewOptions", formats: Sequence[str], plans: "Sequence[PagePlan] | None" = None
    ) -> "Iterator[File]":
        """Yield every file of the view; ``plans`` are those of its pictures, if they are made already."""
        from attnviz.figures.style import figure_bytes

        drawing = self.drawing
        if drawing.files is not None:
            for file_format in ["html"] if self.is_page else formats:
                yield from drawing.files(result, choices, file_format)
            return
        for plan in self.plans(result, choices) if plans is None else plans:
            for file_format in formats:
                figure = self.picture(plan, choices.style.for_file(file_format))
                yield f"{plan.stem}.{file_format}", figure_bytes(figure, file_format, choices.style), plan.caption

    def drew(self, figure: str) -> bool:
        """Whether a view of a plug-in has a file of this name."""
        return self.plugin and figure.startswith(tuple(f"{self.name}{end}" for end in "-/."))


@dataclass(frozen=True)
class CommandSpec(Generic[R]):
    """What a command prints, draws and writes."""

    # the JSON document but for its version, its figures and the entries of its table
    content: "Callable[[R, ViewOptions], dict[str, Any]]"
    table: "Callable[[R, ViewOptions], Table[Any]]"  # the rows that the JSON document and the CSV file have
    tables: "Callable[[R, ViewOptions], Iterable[RenderableType]]"  # what the terminal shows, above notes
    notes: "Callable[[R, ViewOptions], Iterable[str]]" = lambda *_: ()  # what the numbers mean; empty ones are left out
    patterns: bool = False  # whether heads are labelled, by the patterns of plug-ins too
    top: int | None = 12  # default rows of the ranked table; None where the command decides
    all_selected: bool = False  # whether ``--select`` also sets the default of ``top`` to all
    paper: tuple[str, ...] = ()  # columns of the table for a paper; default all
    # this table, if it has fewer rows or another order
    in_paper: "Callable[[R, ViewOptions], Table[Any]] | None" = None
    kv_heads: "Callable[[R], Table[Any]] | None" = None  # the table of ``--by kv-head``
    # names and contents of other files
    further: "Callable[[R, ViewOptions], Iterable[tuple[str, bytes | str]]]" = lambda *_: ()

    def completed(self, choices: "ViewOptions") -> "ViewOptions":
        """Fill in the command's default of ``top``; who gives it wants every table."""
        if choices.top is not None:
            return replace(choices, verbose=True)
        return replace(choices, top=0 if self.all_selected and choices.select else self.top)


def _part_of(command: str, part: str) -> ModuleType:
    """A module of the command's folder; of a command or form in one file, this one, or another that a view names."""
    if hasattr(import_module(f"attnviz.commands.{command.partition('.')[0]}"), "__path__"):
        module = import_module(f"attnviz.commands.{command}")
        return import_module(f"{module.__name__}.{part}") if hasattr(module, "__path__") else module
    name = command.replace(".", "_") if part in ("views", "report") else part
    return import_module(f"attnviz.commands.{name}")


def _native_views(command: str) -> tuple[View, ...]:
    views = import_module("attnviz.commands").VIEWS.get(command, ())
    return tuple(replace(view, command=command) for view in views)


def _check_name(name: str) -> None:
    command, _, own = name.rpartition(".")
    views = _native_views(command)
    if not views or not re.fullmatch(r"[\w-]+", own) or own in ("page", *(view.name for view in views)):
        raise ValueError("expected COMMAND.NAME, such as heads.my-view, with a name that attnviz has no figure of")


# those of plug-ins, by command and name
FIGURES: "Registry[Drawing[Any, Any]]" = Registry("figure", "attnviz.present.view.Drawing", {}, _check_name)


@checked
def register(extension: object, name: object = "") -> None:
    """Add a head pattern, a statistic, a model family or a figure, in this program alone.

    >>> import attnviz
    >>> attnviz.register("two-back", lambda text: text.distances == -2)

    Args:
        extension: a PatternSpec, a Statistic, an Architecture (or its class) or a Drawing; or the name of a pattern.
        name: of a figure, ``heads.my-view``; after the name of a pattern its mask, a function from
            :class:`attnviz.measures.patterns.MaskInput` to a boolean tensor, True for the keys of the pattern.

    Raises:
        UsageError: it cannot be used, or attnviz has one of its name.
    """
    if isinstance(extension, str):
        from attnviz.measures.patterns import pattern_of_mask

        if not callable(name):
            raise UsageError(
                f"expected the mask of the pattern {extension!r} as a function, such as lambda text: text.distances == "
                f"-2, found {as_found(name)}."
            )
        extension, name = pattern_of_mask(extension, name), ""
    import_module("attnviz.measures.statistics")  # its registry: a plug-in imports no more than the class Statistic
    for registry in Registry.every:
        if registry.takes(extension):
            named = name or getattr(extension, "name", "")
            check_kind("the name", named, str)
            return registry.register(str(named), extension)
    raise UsageError(f"expected a PatternSpec, a Statistic, an Architecture or a Drawing, found {as_found(extension)}.")


@checked
def unregister(name: str) -> None:
    """Take back what was registered under a name; UsageError if nothing was."""
    if True not in [registry.unregister(name) for registry in Registry.every]:
        raise UsageError(f"nothing was registered as {name!r}, with attnviz.register.")


def views_of(command: str) -> tuple[View, ...]:
    """The views of a command, in the order of its documentation, then those of plug-ins."""
    names = [name.rpartition(".")[2] for name in FIGURES.plugins if name.rpartition(".")[0] == command]
    plugged = (View(name, "", default=False, command=command, plugin=True) for name in names)
    return (*_native_views(command), *plugged)


def figures_in_words(text: str, command: str) -> str:
    """Write the names of a command's figures into a text for ``{figures}``, and the default ones for ``{default}``.

    Those of the forms ``compare.corpus`` and ``compare.roles`` are drawn with ``--corpus``.
    """
    if "{figures}" not in text:
        return text
    views = views_of(command)
    named = ", ".join(view.name for view in views)
    forms = [form for form in import_module("attnviz.commands").VIEWS if form.startswith(f"{command}.")]
    of_forms = dict.fromkeys(view.name for form in forms for view in views_of(form))
    if of_forms:
        named += f"; with --corpus {', '.join(of_forms)}"
    others = [view.name for view in views if not view.default]
    default = ",".join(view.name for view in views if view.default)
    if len(others) < len(views) / 2:
        default = f"all but {' and '.join(others)}" if others else "all"
    return text.format(figures=named, default=default)


def spec_of(command: str) -> "CommandSpec[Any]":
    """The ``SPEC`` of a command, by name."""
    spec: CommandSpec[Any] = _part_of(command, "report").SPEC
    return spec


def checked_views(command: str, figures: Sequence[str] | None, formats: Sequence[str] = ("png",)) -> list[View]:
    """The views of these names, in the order of the command's list; without names the default ones."""
    from attnviz.figures.style import FORMATS

    views = views_of(command)
    known = [view.name for view in views]
    if figures is None:
        figures = [view.name for view in views if view.default]
    kinds = (("figure", figures, known, "; all, or none, alone"), ("format", formats, FORMATS, ""))
    for kind, requested, valid, alone in kinds:
        if isinstance(requested, str) or not isinstance(requested, Sequence | Set):
            example = f": write {[name.strip() for name in requested.split(',')]}" if isinstance(requested, str) else ""
            raise UsageError(f"expected a list of {kind}s, found {as_found(requested)}{example}.")
        names = [name if isinstance(name, str) else as_found(name) for name in requested]
        unknown = [name for name in names if name not in valid]
        if unknown and not (alone and names in (["all"], ["none"])):
            meant = did_you_mean(unknown[0], valid)
            raise UsageError(f"unknown {kind} {unknown[0]!r}: expected any of {', '.join(valid)}{alone}.{meant}")
    return [view for view in views if view.name in figures or "all" in figures]
