"""How every command runs: its options, folder, measurement, files, tables or JSON, exit codes."""

import gc
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate

import typer

from attnviz.cli.terminal import decoded, print_results, progress, say, say_what_was_written, split_names
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
from attnviz.options import COMMANDS, Command, Option
from attnviz.progress import Progress
from attnviz.signals import handled, interruption
from attnviz.texts.long_runs import this_process

if TYPE_CHECKING:
    from attnviz.models.sources import Source
    from attnviz.present.output_folder import OutputFolder
    from attnviz.present.result import Result
    from attnviz.present.view import ViewOptions

Measure = Callable[["OutputFolder", Progress, Callable[[str], None]], "Result | None"]
"""Makes a result, given the folder that it will be written to, and functions for progress and messages.

None where another process writes it.
"""

_LIBRARIES_TAKE = 1e9
"""Bytes of address space, measured with torch 2.13 for CPUs, the smallest."""

_OF_ONE_PROCESS = (VerificationError, OutOfMemoryError, ProcessError, TextError)
"""Errors that one of several processes may have alone, and so tells of; all others all have."""

_UNNAMED = ("heads", "profile")
"""The commands whose folders do not begin with their names."""


def _nothing() -> str:
    """No sentence: nothing is kept."""
    return ""


@dataclass(frozen=True)
class Job:
    """What a command line asks for, once that is known.

    Attributes:
        work: does it.
        output: the folder that it writes to, if any.
        kept: a sentence on what stays where it is stopped; empty for nothing.
        silent: whether another process says what is to be said.
    """

    work: Callable[[], None]
    output: "OutputFolder | None" = None
    kept: Callable[[], str] = _nothing
    silent: bool = False


@dataclass(frozen=True)
class Run:
    """One call of a command.

    Attributes:
        command: its name, or that of a form of it (``heads.texts``), which is also a folder of :mod:`attnviz.commands`.
        options: by name, those of :data:`attnviz.options.COMMANDS`.
    """

    command: str
    options: Mapping[str, Any]

    @property
    def known(self) -> Command:
        """The options that the command has."""
        return COMMANDS[self.command.partition(".")[0]]

    @property
    def changed(self) -> dict[str, str]:
        """The options that have other values than by default, as they were typed."""
        given = ((option, self.options[option.name]) for option in self.known.options)
        return {option.name: option.spelled(value) for option, value in given if value != option.default}

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise UsageError where one of these options was typed."""
        for name in names:
            if name in self.changed:
                raise UsageError(f"{self.changed[name]} {why}.")

    @property
    def quiet(self) -> bool:
        """Whether nothing but errors is said."""
        return bool(self.options.get("quiet"))

    def find_model(self, model: str | None = None, revision: str | None = None) -> "Source":
        """Where a model lies, by default that of ``--model``; see :func:`attnviz.models.sources.find_checkpoint`."""
        from attnviz.models.sources import find_checkpoint

        if model is None:
            model, revision = self.options["model"], self.options["revision"]
        with progress(self.quiet or _another_speaks()) as tell:
            return find_checkpoint(model, revision, tell)

    def results_folder(self, models: Sequence[str], texts: Sequence[str], corpora: Sequence[Path] = ()) -> Path:
        """Where results go: ``--out``, or else ``attnviz-out/COMMAND-MODEL/TEXT-HASH``, without the command for some.

        A form of a command (``compare.corpus``) goes where the command does.
        """
        from attnviz.present.output_folder import text_folder

        if self.options["out"] is not None:
            return Path(self.options["out"])
        command = self.command.partition(".")[0]
        named = [command] * (command not in _UNNAMED) + [_model_in_path(model) for model in models]
        return Path("attnviz-out") / "-".join(named) / text_folder(texts, corpora)

    def job(
        self,
        measure: Measure,
        *,
        texts: Sequence[str | None] = (),
        corpora: Sequence[Path] = (),
        models: Sequence[str] = (),
        adds: Sequence[str] = (),
        rate: bool = False,
        finish: Callable[[dict[str, Any]], Iterable[str]] = lambda _: (),
        kept: Callable[[], str] = _nothing,
        silent: bool = False,
    ) -> Job:
        """Open the folder, measure, write, print; options of pictures and output are checked at once.

        Args:
            measure: makes the result.
            texts: that the results are of; they name the folder, whose pictures of others are not removed.
            corpora: likewise.
            models: that name the folder too; default the one of ``--model``.
            adds: figures that other options ask for, such as ``lines`` for ``--token``.
            rate: show how fast the work goes and how long it will take.
            finish: what else is to be done once everything is written; told the document, gives messages.
            kept: as for :class:`Job`.
            silent: likewise; such a process only measures.

        Raises:
            UsageError: an unknown figure, format, scale, theme or width.
        """
        from attnviz.present.output_folder import OutputFolder
        from attnviz.present.report import layout_of, report_of

        report, choices, figures, quiet = report_of(self.command), self.choices(), self.figure_names(adds), self.quiet
        given = [text for text in texts if text is not None]
        path = self.results_folder(models or [self.options["model"]], given, corpora)
        output = OutputFolder(path, layout_of(self.command), self.options["overwrite"])

        def work() -> None:
            with output, progress(quiet, rate) as tell:
                output.refuse_other_texts([*given, *map(str, corpora)])
                tell("loading", 0, 0)
                result = measure(output, collecting(tell), partial(say, quiet=quiet))
                if result is None:
                    return
                document = result.write(output, choices, figures=figures, formats=self.format_names, progress=tell)
            messages = list(finish(document))
            if fonts := sys.modules.get("attnviz.figures.fonts"):  # something was drawn
                messages.append(fonts.fonts_to_install())
            print_results(document, lambda width: result.tables(choices, width), self.options["as_json"], quiet, path)
            for message in [*report.afterwards(result, choices, document), *messages]:
                if message:
                    say(message, quiet)
            say_what_was_written(output, quiet)

        def only_measure() -> None:
            measure(output, collecting(lambda *_: None), lambda _: None)

        return Job(only_measure if silent else work, output, kept, silent)

    def choices(self) -> "ViewOptions":
        """What is to be drawn and listed, and how it looks."""
        from attnviz.figures.style import Style
        from attnviz.present.report import report_of
        from attnviz.present.view import ViewOptionNames, ViewOptions

        names = set(ViewOptionNames.__annotations__).difference(self.known.measuring)
        drawn: Any = {name: value for name, value in self.options.items() if name in names}
        if "maps" in drawn:
            drawn["maps"] = split_names(drawn["maps"])
        scale = self.options.get("scale", "shared")
        style = Style(scale=scale, **{name: self.options[name] for name in ("theme", "width", "bare", "panel")})
        return report_of(self.command).completed(ViewOptions.of(style, drawn))

    @property
    def format_names(self) -> list[str]:
        """What ``--format`` means."""
        return split_names(self.options["formats"]) or ["png"]

    def figure_names(self, adds: Sequence[str] = ()) -> list[str] | None:
        """What ``--figures`` and ``--no-figures`` mean, checked; None for the command's own figures."""
        from attnviz.present.report import checked_views, views_of

        views, typed = views_of(self.command), self.options["figures"]
        names: list[str] | None
        if self.options["no_figures"]:
            if typed not in (None, "none"):
                raise UsageError(f"expected --figures or --no-figures, found both (--figures {typed}).")
            names = []
        elif typed is None:
            names = [*(view.name for view in views if view.default), *adds] if adds else None
        else:
            names = split_names([typed])
            if len(names) > 1 and (alone := [name for name in names if name in ("all", "none")]):
                known = ", ".join(view.name for view in views)
                raise UsageError(
                    f"expected --figures {alone[0]} alone, or names with commas between ({known}), found {typed!r}."
                )
            if names != ["all"]:
                names = list(dict.fromkeys([*(name for name in names if name != "none"), *adds]))
        checked_views(self.command, names, self.format_names)
        return names


def unfinished_note(file: Path) -> Callable[[], str]:
    """Gives a sentence once there is a file with what was measured, that is not the one that is there now."""

    def which() -> tuple[int, int] | None:
        """Inode and mtime."""
        try:
            found = file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def note() -> str:
        kept = f"What was measured is kept in {file}: the same command goes on from there."
        return "" if which() in (None, before) else kept

    before = which()
    return note


def collecting(tell: Progress) -> Progress:
    """Progress that begins to collect garbage at its first sign: loading has made a million objects, and all stay."""

    def told(what: str, done: int, total: int) -> None:
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        tell(what, done, total)

    return told


def command(function: Callable[Concatenate[Run, ...], Job]) -> Callable[..., None]:
    """Make a command of a function, with the options that :data:`attnviz.options.COMMANDS` has under its name.

    The function is given a :class:`Run`, and by name the options of text and measurement, but for those that name a
    model. Nothing is written and little is read before the :class:`Job` that it gives. Errors become exit codes.
    """
    known = COMMANDS[function.__name__]

    def run_command(**given: Any) -> None:
        job: Job | None = None
        try:
            with handled(interruption()), out_of_memory_named():
                values = {option.name: _checked(option, given[option.name]) for option in known.options}
                if "device" in values:
                    _check_working_folder()
                    _check_address_space()
                arguments = {name: values[name] for name in known.measuring if name not in ("model", "revision")}
                job = function(Run(function.__name__, values), **arguments)
                job.work()
        except (AttnvizError, KeyboardInterrupt) as error:
            raise typer.Exit(_tell(error, job)) from error

    run_command.__name__, run_command.__doc__ = function.__name__, function.__doc__
    parameters = [_parameter(option) for option in known.options]
    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    return run_command


def _parameter(option: Option) -> inspect.Parameter:
    """As typer reads it."""
    shown: dict[str, Any] = {"metavar": option.metavar, "help": option.help, "hidden": option.hidden}
    shown |= {"min": option.least, "max": option.most, "rich_help_panel": option.group}
    declared = typer.Argument(**shown) if option.positional else typer.Option(*option.flags, **shown)
    default = None if option.default == () else option.default
    kind = option.kind if default is not None else option.kind | None
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def _checked(option: Option, value: Any) -> Any:
    """What was typed, or UsageError; of lists a tuple, of texts UTF-8, of ``--out`` a folder that there can be."""
    if option.default == () or isinstance(value, list):
        value = tuple(value or ())
    if option.any_language and value is not None:
        value = decoded(option.spelled(value), value)
    if option.name == "out":
        value = _folder(value)
    option.check_value(value)
    return value


def _tell(error: AttnvizError | KeyboardInterrupt, job: Job | None) -> int:
    """One line on standard error on what stopped a command, and what it has kept; gives the exit code."""
    silent = _another_speaks() if job is None else job.silent
    kept = "" if job is None or isinstance(error, VerificationError) else job.kept()  # it would fail there again
    if isinstance(error, AttnvizError):
        message, code = f"{error} {kept}".rstrip(), error.exit_code
        silent = silent and not isinstance(error, _OF_ONE_PROCESS)
    else:
        written = job is not None and job.output is not None and job.output.committed
        how_far = "; all files were written." if written else "; nothing was written."
        message, code = f"interrupted{f'. {kept}' if kept else how_far}", INTERRUPTED
    if not silent:
        say(message)
    return code


def _another_speaks() -> bool:
    """Whether this is one of several processes, and not the first."""
    try:
        return not this_process().first
    except ProcessError:
        return False


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
    from attnviz.present.output_folder import folder_named

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
    from attnviz.models.sources import BUILT_IN

    folder = Path(model).expanduser()
    name = folder.resolve().name if model not in BUILT_IN and folder.is_dir() else model.replace("/", "--")
    return name or "model"
