"""How every command runs: folder, measurement, files, tables or JSON, exit codes."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnviz.cli.terminal import print_results, printable, progress, say, say_what_was_written, split_names
from attnviz.errors import AttnvizError, ProcessError, UsageError, VerificationError

if TYPE_CHECKING:
    from attnviz.progress import Progress
    from attnviz.results.output_folder import OutputFolder
    from attnviz.results.result import Result
    from attnviz.results.view import Choices

__all__ = [
    "Run",
    "Show",
    "check_out",
    "errors_to_exit_codes",
    "results_folder",
]

_INTERRUPTED = 130


@dataclass(frozen=True)
class Show:
    """What is to be drawn and listed, as it was typed; :meth:`read` makes sense of it.

    Attributes:
        figures: names with commas between, ``all`` or ``none``; None for the command's own.
        no_figures: the same as ``none``.
        formats: of the figures; None for PNG.
        theme, scale, width: as for :class:`attnviz.figures.look.Look`.
        select: heads; None for all.
        top: rows and heads that are ranked; None for the command's own number.
        drop_special, from_token, maps, tensors: as for :class:`attnviz.results.view.Choices`.
        adds: figures that other options ask for, such as ``lines`` for ``--from``.
    """

    figures: str | None = None
    no_figures: bool = False
    formats: list[str] | None = None
    theme: str = "light"
    scale: str = "shared"
    width: str | None = None
    select: list[str] | None = None
    top: int | None = None
    drop_special: bool = False
    from_token: str | None = None
    maps: list[str] | None = None
    tensors: bool = False
    adds: tuple[str, ...] = ()

    def read(self, command: str) -> "tuple[Choices, list[str] | None, list[str]]":
        """What the options mean; names of figures; formats.

        Raises:
            UsageError: an unknown theme, scale, width, figure or format.
        """
        from attnviz.figures.look import Look, parse_width
        from attnviz.results.result import checked_views
        from attnviz.results.view import Choices

        look = Look(self.theme, self.scale, None if self.width is None else parse_width(self.width))
        figures, formats = self._figures(command), split_names(self.formats) or ["png"]
        checked_views(command, figures, formats)
        choices = Choices(
            look=look,
            select=tuple(self.select or ()),
            top=self.top,
            drop_special=self.drop_special,
            from_token=self.from_token,
            maps=tuple(split_names(self.maps)),
            tensors=self.tensors,
        )
        return choices, figures, formats

    def _figures(self, command: str) -> list[str] | None:
        if self.no_figures:
            if self.figures not in (None, "none"):
                raise UsageError(f"expected --figures or --no-figures, found both (--figures {self.figures}).")
            return []
        from attnviz.results.result import views_of

        if self.figures is None:
            default = [view.name for view in views_of(command) if view.default]
            return [*default, *self.adds] if self.adds else None
        named = split_names([self.figures])
        alone = [name for name in named if name in ("all", "none")]
        if alone and len(named) > 1:
            known = ", ".join(view.name for view in views_of(command))
            raise UsageError(
                f"expected --figures {alone[0]} alone, or names with commas between ({known}), found {self.figures!r}."
            )
        if named == ["all"]:
            return named
        return list(dict.fromkeys([*([] if named == ["none"] else named), *self.adds]))


@dataclass
class Run:
    """One run of a command: it opens the folder, measures, writes and prints, and knows how far it came.

    Attributes:
        folder: that it writes to, once there is one.
        kept: the file in which it keeps what it has measured, until it is done.
        silent: whether another process says what is to be said.
    """

    folder: "OutputFolder | None" = None
    kept: Path | None = None
    silent: bool = False

    def execute(
        self,
        name: str,
        measure: "Callable[[Progress, Callable[[str], None]], Result | None]",
        show: Show,
        *,
        models: Sequence[str],
        out: str | None,
        as_json: bool = False,
        quiet: bool = False,
        folder_name: str | None = None,
        rate: bool = False,
        finish: "Callable[[dict[str, Any]], Iterable[str]]" = lambda _: (),
    ) -> None:
        """Run a command: open the folder, measure, write, print.

        A process of several that is not the first (``silent``) only measures.

        Args:
            name: of the command, and of its folder in :mod:`attnviz.commands`.
            measure: makes the result; told of progress and given a function for messages. None where another process
                writes it.
            show: what to draw and list.
            models: their names, for the name of the folder.
            out: the folder that the user chose; None for ``attnviz-out/COMMAND-MODEL``.
            as_json: print the document instead of tables.
            quiet: print nothing.
            folder_name: what stands before the model in the default folder's name; default the command's name.
            rate: show how fast the work goes and how long it will take.
            finish: what else is to be done once everything is written; told the document, gives messages.

        Raises:
            AttnvizError: see :mod:`attnviz.errors`.
        """
        check_out(out)
        choices, figures, formats = show.read(name)
        from attnviz.results.output_folder import OutputFolder
        from attnviz.results.result import layout_of, report_of
        from attnviz.results.tables import spaced

        if self.silent:
            measure(lambda *_: None, lambda _: None)
            return
        folder = results_folder(out, models, name if folder_name is None else folder_name)
        with OutputFolder(folder, layout_of(name)) as output, progress(quiet, rate) as tell:
            self.folder = output
            tell("loading", 0, 0)
            result = measure(tell, lambda message: say(message, quiet))
            if result is None:
                return
            document = result.write(output, choices, figures=figures, formats=formats, progress=tell)
        messages = list(finish(document))
        report = report_of(name)
        wanted = report.completed(choices)
        print_results(folder, document, lambda width: spaced(report.tables(result, wanted, width)), as_json, quiet)
        for message in [*report.afterwards(result, wanted, document), *messages]:
            say(message, quiet)
        say_what_was_written(output, quiet)

    @property
    def what_is_kept(self) -> str:
        """A sentence on what an unfinished run leaves, with a space before it; empty where it leaves nothing."""
        if self.kept is None or not self.kept.exists():
            return ""
        return f" What was measured is kept in {self.kept}: the same command goes on from there."


@contextmanager
def errors_to_exit_codes() -> Iterator[Run]:
    """One line on standard error for what the user can mend; 130 for Ctrl-C and SIGTERM; bugs keep their traceback."""
    outcome = Run()
    try:
        with _terminated_as_interrupted():
            yield outcome
    except AttnvizError as error:
        if not outcome.silent or isinstance(error, VerificationError | ProcessError):
            typer.echo(f"attnviz: {printable(str(error) + outcome.what_is_kept)}", err=True)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        written = outcome.folder is not None and outcome.folder.committed
        how_far = "all files were written" if written else "nothing was written"
        kept = outcome.what_is_kept
        if not outcome.silent:
            typer.echo(f"attnviz: interrupted{'.' if kept else f'; {how_far}.'}{printable(kept)}", err=True)
        raise typer.Exit(_INTERRUPTED) from error


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """A scheduler's SIGTERM is Ctrl-C: what a run leaves half-done is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def results_folder(out: str | None, models: Sequence[str], command: str = "") -> Path:
    """Where results go: the folder that the user names, or else ``attnviz-out/COMMAND-MODEL``."""
    return Path(out) if out is not None else Path("attnviz-out") / "-".join([command] * bool(command) + _names(models))


def check_out(out: str | None) -> None:
    """Refuse an empty name of a folder, which Path would take for this one.

    Raises:
        UsageError: it is empty or blank.
    """
    if out is not None and not out.strip():
        raise UsageError("-o is empty; expected a folder (. for this one).")


def _names(models: Sequence[str]) -> list[str]:
    """Models as parts of a folder's name: the last part of a checkpoint folder, or the name, slashes replaced."""
    from attnviz.model.sources import BUILT_IN

    names = []
    for model in models:
        is_folder = model not in BUILT_IN and Path(model).expanduser().is_dir()
        name = Path(model).expanduser().resolve().name if is_folder else model.replace("/", "--")
        names.append(name or "model")
    return names
