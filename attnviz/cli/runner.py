"""How every command runs: shared options, folder, measurement, files, tables or JSON, exit codes."""

import gc
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Unpack

import typer

from attnviz.cli.options import Shared, picture_option
from attnviz.cli.terminal import decoded, print_results, printable, progress, say, say_what_was_written, split_names
from attnviz.errors import (
    INTERRUPTED,
    AttnvizError,
    OutOfMemoryError,
    OutputError,
    ProcessError,
    TextError,
    UsageError,
    VerificationError,
)
from attnviz.memory import address_space, limit_note, memory_size, out_of_memory_named
from attnviz.progress import Progress
from attnviz.signals import handled, interruption

if TYPE_CHECKING:
    from attnviz.model.sources import Source
    from attnviz.results.output_folder import OutputFolder
    from attnviz.results.result import Result
    from attnviz.results.view import ChoiceNames, Choices


_TEXTS = ("pair", "target", "token", "label", "against")
"""Options that are in any language, and in UTF-8 whatever the locale is."""

ALL = tuple(inspect.signature(Shared).parameters)
"""The options of a command that measures, draws and writes."""

PRINTED = ("model", "revision", "device", "device_map", "dtype", "as_json", "quiet")
"""Those of a command that measures and prints, and writes no files."""

_LIBRARIES_TAKE = 1e9
"""Bytes of address space, measured with torch 2.13 for CPUs, the smallest."""

_OF_ONE_PROCESS = (VerificationError, OutOfMemoryError, ProcessError, TextError)
"""Errors that one of several processes may have alone, and so tells of; all others all have."""

_UNNAMED = ("heads", "profile")
"""The commands whose folders do not begin with their names."""


@dataclass
class Run(Shared):
    """One run of a command: the shared options as they were typed, and how far it came.

    Attributes:
        command: its name, which is also that of its folder in :mod:`attnviz.commands`.
        folder: that it writes to, once there is one.
        kept: the file in which it keeps what it has measured, until it is done; see :meth:`keeps`.
        kept_before: which file of an earlier run stood there.
        partly: what it has written for good before it is done, as a sentence; empty for nothing.
        silent: whether another process says what is to be said.
    """

    command: str = ""
    folder: "OutputFolder | None" = None
    kept: Path | None = None
    kept_before: tuple[int, int] | None = None
    partly: str = ""
    silent: bool = False

    def find_model(self, model: str | None = None, revision: str | None = None) -> "Source":
        """Where a model lies, by default that of ``--model``; see :func:`attnviz.model.sources.find_checkpoint`."""
        from attnviz.model.sources import find_checkpoint

        wanted = (self.model, self.revision) if model is None else (model, revision)
        with progress(self.quiet or self.silent) as tell:
            return find_checkpoint(*wanted, tell)

    def results_folder(self, models: Sequence[str], texts: Sequence[str], corpora: Sequence[Path] = ()) -> Path:
        """Where results go: ``--out``, or else ``attnviz-out/COMMAND-MODEL/TEXT-HASH``, without the command for some.

        A form of a command (``compare.corpus``) goes where the command does.
        """
        from attnviz.results.output_folder import text_folder

        if self.out is not None:
            return Path(self.out)
        command = self.command.partition(".")[0]
        named = [command] * (command not in _UNNAMED) + [_model_in_path(model) for model in models]
        return Path("attnviz-out") / "-".join(named) / text_folder(texts, corpora)

    def execute(
        self,
        measure: "Callable[[Progress, Callable[[str], None]], Result | None]",
        *,
        texts: Sequence[str | None] = (),
        corpora: Sequence[Path] = (),
        models: Sequence[str] = (),
        scale: str = "shared",
        scales: Sequence[str] = (),
        adds: Sequence[str] = (),
        rate: bool = False,
        finish: Callable[[dict[str, Any]], Iterable[str]] = lambda _: (),
        **choices: "Unpack[ChoiceNames]",
    ) -> None:
        """Open the folder, measure, write, print.

        A process of several that is not the first (``silent``) only measures.

        Args:
            measure: makes the result; told of progress and given a function for messages. None where another process
                writes it.
            texts: that the results are of; they name the folder, whose pictures of others are not removed.
            corpora: likewise.
            models: that name the folder too; default the one of ``--model``.
            scale: of colours.
            scales: that the command has; empty for all.
            adds: figures that other options ask for, such as ``lines`` for ``--token``.
            rate: show how fast the work goes and how long it will take.
            finish: what else is to be done once everything is written; told the document, gives messages.
            choices: what to draw and list; see :class:`attnviz.results.view.Choices`.

        Raises:
            AttnvizError: see :mod:`attnviz.errors`.
        """
        from attnviz.results.output_folder import OutputFolder
        from attnviz.results.report import layout_of, report_of

        report, wanted = report_of(self.command), self.choices(scale, choices, scales)
        figures, formats = self.figure_names(adds), self.format_names
        if self.silent:
            measure(collecting(lambda *_: None), lambda _: None)
            return
        given = [text for text in texts if text is not None]
        path = self.results_folder(models or [self.model], given, corpora)
        with (
            OutputFolder(path, layout_of(self.command), self.overwrite) as output,
            progress(self.quiet, rate) as tell,
        ):
            self.folder = output
            output.refuse_other_texts([*given, *map(str, corpora)])
            tell("loading", 0, 0)
            result = measure(collecting(tell), lambda message: say(message, self.quiet))
            if result is None:
                return
            document = result.write(output, wanted, figures=figures, formats=formats, progress=tell)
        messages = list(finish(document))
        if fonts := sys.modules.get("attnviz.figures.fonts"):  # something was drawn
            messages.append(fonts.fonts_to_install())
        print_results(document, lambda width: result.tables(wanted, width), self.as_json, self.quiet, path)
        for message in [*report.afterwards(result, wanted, document), *messages]:
            if message:
                say(message, self.quiet)
        say_what_was_written(output, self.quiet)

    def choices(self, scale: str, choices: "ChoiceNames", scales: Sequence[str] = ()) -> "Choices":
        """What is to be drawn and listed, and how it looks; arguments as for :meth:`execute`."""
        from attnviz.figures.style import SCALES, Style
        from attnviz.results.report import report_of
        from attnviz.results.view import Choices

        if scale not in (*(scales or SCALES), "log"):  # what cannot be logarithmic says why
            raise UsageError(f"unknown scale {scale!r}: expected one of {', '.join(scales or SCALES)}.")
        style = Style(self.theme, scale, self.width, self.bare, self.panel)
        return report_of(self.command).completed(Choices.of(style, choices))

    @property
    def format_names(self) -> list[str]:
        """What ``--format`` means."""
        return split_names(self.formats) or ["png"]

    def figure_names(self, adds: Sequence[str] = ()) -> list[str] | None:
        """What ``--figures`` and ``--no-figures`` mean, checked; None for the command's own figures."""
        from attnviz.results.report import checked_views, views_of

        views, names = views_of(self.command), None
        if self.no_figures:
            if self.figures not in (None, "none"):
                raise UsageError(f"expected --figures or --no-figures, found both (--figures {self.figures}).")
            names = list[str]()
        elif self.figures is not None:
            names = split_names([self.figures])
            if len(names) > 1 and (alone := [name for name in names if name in ("all", "none")]):
                known = ", ".join(view.name for view in views)
                raise UsageError(
                    f"expected --figures {alone[0]} alone, or names with commas between ({known}), found "
                    f"{self.figures!r}."
                )
            if names != ["all"]:
                names = list(dict.fromkeys([*([] if names == ["none"] else names), *adds]))
        elif adds:
            names = [*(view.name for view in views if view.default), *adds]
        checked_views(self.command, names, self.format_names)
        return names

    def keeps(self, file: Path) -> None:
        """Name the file in which it will keep what it has measured."""
        self.kept, self.kept_before = file, _which(file)

    @property
    def what_is_kept(self) -> str:
        """A sentence on what this run has kept, with a space before it; empty where it has kept nothing."""
        if self.partly:
            return f" {self.partly}"
        if self.kept is None or _which(self.kept) in (None, self.kept_before):
            return ""
        return f" What was measured is kept in {self.kept}: the same command goes on from there."


def collecting(tell: Progress) -> Progress:
    """Progress that begins to collect garbage at its first sign: loading has made a million objects, and all stay."""

    def told(what: str, done: int, total: int) -> None:
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        tell(what, done, total)

    return told


def _which(file: Path) -> tuple[int, int] | None:
    """What tells a file from another one that is put in its place; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def command(
    *, figures: str = "", note: str = "Default: all.", shared: Sequence[str] = ALL
) -> Callable[[Callable[Concatenate[Run, ...], None]], Callable[..., None]]:
    """Make a command of a function of a :class:`Run` and of the command's own options.

    The command also has options of :class:`Shared`, but those that the function has itself; they come to it as the Run.
    Errors become exit codes.

    Args:
        figures: the names of the command's views, for the help of ``--figures``.
        note: what else is to be said of them.
        shared: the names of these options: all, or for a command that only prints :data:`PRINTED`, or fewer.
    """
    text = f"Any of {figures} (with commas between), all, or none. {note}"
    of_figures = Annotated[str | None, picture_option(metavar="FIGURES", help=text)]

    def decorate(function: Callable[Concatenate[Run, ...], None]) -> Callable[..., None]:
        _, *own = inspect.signature(function).parameters.values()
        declared = {option.name for option in own}
        added = [
            option.replace(annotation=of_figures if option.name == "figures" else option.annotation)
            for option in inspect.signature(Shared).parameters.values()
            if option.name in shared and option.name not in declared
        ]

        @wraps(function)
        def run_command(**given: Any) -> None:
            options = {option.name: given.pop(option.name) for option in added}
            with errors_to_exit_codes(Run(**options, command=function.__name__)) as run:
                if "out" in given:
                    given["out"] = _folder(given["out"])
                run.out = _folder(run.out)
                if "device" in options:
                    _check_working_folder()
                    _check_address_space()
                texts = {name: decoded(f"--{name}", given[name]) for name in _TEXTS if given.get(name) is not None}
                function(run, **{**given, **texts})

        of_model = [option for option in added if option.name in ("model", "revision")]
        ordered = [*of_model, *own, *(option for option in added if option not in of_model)]
        run_command.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # typer reads it
            [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in ordered]
        )
        return run_command

    return decorate


@contextmanager
def errors_to_exit_codes(run: Run) -> Iterator[Run]:
    """One line on standard error for what the user can mend; 130 for an interruption; bugs keep their traceback."""
    try:
        with handled(interruption()), out_of_memory_named():
            yield run
    except AttnvizError as error:
        if not run.silent or isinstance(error, _OF_ONE_PROCESS):
            kept = "" if isinstance(error, VerificationError) else run.what_is_kept  # it would fail there again
            typer.echo(f"attnviz: {printable(str(error) + kept)}", err=True)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        written = run.folder is not None and run.folder.committed
        how_far = "all files were written" if written else "nothing was written"
        kept = run.what_is_kept
        if not run.silent:
            typer.echo(f"attnviz: interrupted{'.' if kept else f'; {how_far}.'}{printable(kept)}", err=True)
        raise typer.Exit(INTERRUPTED) from error


def _folder(out: str | None) -> str | None:
    """What ``--out`` names, with ``~`` for a home, which shells leave as it is after ``=``.

    Refused is an empty name, which Path would take for this folder, and one that no folder can have.
    """
    if out is None:
        return None
    if not out.strip():
        raise UsageError("-o is empty; expected a folder (. for this one).")
    if "\0" in out:
        raise UsageError(f"-o has a null character, {out!r}; expected the name of a folder.")
    from attnviz.results.output_folder import folder_named

    return str(folder_named(out))


def _check_working_folder() -> None:
    """Refuse to work in a folder that was removed, in which torch's libraries end the process."""
    try:
        Path.cwd()
    except OSError as error:
        raise OutputError(f"the working folder was removed ({error.strerror}); change to one that exists.") from error


def _check_address_space() -> None:
    """Refuse to work with less than torch's libraries take themselves, which end the process or hang in it then."""
    if address_space() < _LIBRARIES_TAKE:
        least = memory_size(_LIBRARIES_TAKE)
        raise OutOfMemoryError(f"torch and transformers alone need {least} of memory{limit_note()}; allow more.")


def is_file(name: str) -> bool:
    """Whether there is a file of this name; a text may be too long for one."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def _model_in_path(model: str) -> str:
    """A model as part of a folder's name: the last part of a checkpoint folder, or the name, slashes replaced."""
    from attnviz.model.sources import BUILT_IN

    folder = Path(model).expanduser()
    name = folder.resolve().name if model not in BUILT_IN and folder.is_dir() else model.replace("/", "--")
    return name or "model"
