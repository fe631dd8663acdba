"""How every command runs: its options, folder, measurement, files, tables or JSON, exit codes."""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate

import typer

import attnviz
from attnviz.arguments import as_found, is_there
from attnviz.cli.terminal import (
    decoded,
    print_results,
    progress,
    read_text,
    results_alone,
    say,
    say_where_to_look,
    split_names,
)
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
from attnviz.memory import out_of_memory_named
from attnviz.options import COMMANDS, PLUGIN, Command, DrawingOptionNames, Option
from attnviz.plugins import run_file
from attnviz.present.report import checked_views, spec_of, views_of
from attnviz.progress import Progress
from attnviz.run.processes import Process, own_file, remove_kept, this_process
from attnviz.signals import Interrupted

if TYPE_CHECKING:
    from attnviz.models.sources import Source
    from attnviz.present.output_folder import OutputFolder
    from attnviz.present.result import Result
    from attnviz.present.view import ViewOptions

# makes a result, with callbacks for progress and messages; None where another process writes it
Measure = Callable[[Progress, Callable[[str], None]], "Result | None"]

# errors that one of several processes may have alone, and so tells of; all others all have
_PER_PROCESS_ERRORS = (VerificationError, OutOfMemoryError, ProcessError, TextError)
_WRITTEN = "out", "junit"
_OF_MODEL = "model", "revision", "adapter", "tokenizer"
_LANGUAGES = "source_language", "target_language"


@dataclass(frozen=True)
class Job:
    """The work of a parsed command line."""

    work: Callable[[], None]
    output: "OutputFolder | None" = None  # that it writes to
    recovery_hint: Callable[[BaseException], str] = lambda _: ""  # a sentence on what an error leaves
    silent: bool = False  # whether another process prints messages


@dataclass(frozen=True)
class Run:
    """One call of a command."""

    command: str  # its name, or that of a form of it (``heads.texts``), which is also a folder of attnviz.commands
    options: Mapping[str, Any]  # by name, those of :data:`attnviz.options.COMMANDS`

    @property
    def spec(self) -> Command:
        return COMMANDS[self.command.partition(".")[0]]

    @property
    def changed(self) -> dict[str, str]:  # options that differ from their defaults, as typed
        values = ((option, self.options[option.name]) for option in self.spec.options)
        return {option.name: option.spelled(value) for option, value in values if value != option.default}

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise UsageError where one of these options was typed."""
        for name in names:
            if name in self.changed:
                raise UsageError(f"{self.changed[name]} {why}.")

    @property
    def quiet(self) -> bool:
        return bool(self.options.get("quiet"))

    @property
    def inputs(self) -> list[Path]:  # files and folders that are there and that the options but those of output name
        given = [self.options[option.name] for option in self.spec.options if option.name not in _WRITTEN]
        names = chain.from_iterable(value if isinstance(value, tuple) else [value] for value in given)
        return [Path(name) for name in names if isinstance(name, str | Path) and is_there(name)]

    @property
    def model_names(self) -> list[str]:
        return [name for name in (self.options["model"], self.options["adapter"]) if name is not None] or ["minilm"]

    def find_model(self, *named: str | None) -> "Source":
        """Find a model by name, revision and adapter; default those of the options. It must have the selected heads."""
        from attnviz.models.head_ids import ids_and_names, select_heads
        from attnviz.models.reproduced import kinds_in
        from attnviz.models.sources import find_checkpoint, with_tokenizer

        model, revision, adapter = named or [self.options[name] for name in _OF_MODEL[:3]]
        with progress(self.quiet or _another_speaks()) as tell:
            found = with_tokenizer(find_checkpoint(model, revision, tell, adapter), self.options["tokenizer"])
        ids, _ = ids_and_names(self.options.get("select", ()))
        if ids:
            select_heads(ids, kinds_in(found.folder))
        return replace(found, languages={name: self.options[name] for name in _LANGUAGES if self.options.get(name)})

    def results_folder(self, models: Sequence[str], texts: Sequence[str], corpora: Sequence[Path] = ()) -> Path:
        """The output folder: ``--out``, else ``attnviz-out/COMMAND-MODEL/TEXT-HASH``, of ``heads`` without the command.

        A form of a command (``compare.corpus``) goes where the command does.
        """
        from attnviz.models.sources import BUILT_IN
        from attnviz.present.output_folder import text_folder

        if self.options["out"] is not None:
            return Path(self.options["out"])
        command = self.command.partition(".")[0]
        names = [] if command == "heads" else [command]
        folders = list[Path]()
        for model in models:
            folder = Path(model).expanduser()
            if model in BUILT_IN or not folder.is_dir():
                names.append(model.replace("/", "--"))
            else:
                folders.append(folder.resolve())
                names.append(folders[-1].name or "model")
        without = "weights" if command == "circuits" else "repeats"
        return Path("attnviz-out") / "-".join(names) / text_folder(texts, corpora, folders, without)

    def of_text(self, text: str, **options: Any) -> Job:
        """The job of a command whose function reads one text, with the options of measurement."""
        text, source = read_text(text), self.find_model()
        return self.job(
            self.measuring(*self.spec.functions, text, source, **options),
            texts=(text, options["pair"], options.get("target")),
        )

    def measuring(self, name: str, *given: Any, **options: Any) -> Measure:
        """What calls a function of :mod:`attnviz`, which is imported then."""

        def measure(progress: Progress, warn: Callable[[str], None]) -> "Result | None":
            function = getattr(attnviz, name)
            callbacks: dict[str, Any] = {"progress": progress, "warn": warn}
            taken = callbacks.keys() & inspect.signature(function).parameters
            result: Result | None = function(*given, **options, **{name: callbacks[name] for name in taken})
            return result

        return measure

    def job(
        self,
        measure: Measure,
        *,
        texts: Sequence[str | None] = (),  # that the results are of; they name the folder, as corpora do
        corpora: Sequence[Path] = (),
        models: Sequence[str] = (),  # that name the folder too; default the one of ``--model``
        reads: Sequence[Path] = (),  # files that the run reads and no option names
        implied_figures: Sequence[str] = (),  # by other options, such as ``lines`` for ``--token``
        rate: bool = False,  # show how fast the work goes and how long it will take
        # called with result and document once everything is written; returns messages
        finish: Callable[[Any, dict[str, Any]], Iterable[str]] = lambda *_: (),
        # where a run over corpora keeps what it measured until all is written; of several processes the first writes
        unfinished: Path | None = None,
        more: str = "; more tables: --verbose",  # where the first screen does not print all
    ) -> Job:
        """The job that measures, writes and prints; UsageError at once for wrong options of figures and output."""
        from attnviz.present.output_folder import OutputFolder

        choices = self.choices()
        figures = self.figure_names(implied_figures)
        quiet = self.quiet
        path = self.results_folder(models or self.model_names, [text for text in texts if text is not None], corpora)
        output = OutputFolder(path, self.command, [*self.inputs, *reads])
        process = Process() if unfinished is None else this_process()

        def work() -> None:
            with output, progress(quiet, rate) as tell:
                tell("loading", 0, 0)
                for name in choices.maps:
                    from attnviz.measures.statistics import statistic_named

                    statistic_named(name)  # it raises before anything is measured
                result = measure(tell, partial(say, quiet=quiet))
                if result is None:
                    return
                by_default = self.options.get("figures") is None
                document = result.write(
                    output, choices, figures=figures, formats=self.format_names, by_default=by_default, progress=tell
                )
                output.put_in_place()
            if unfinished is not None:
                remove_kept(unfinished, process)
            messages = list(finish(result, document))
            if fonts := sys.modules.get("attnviz.figures.fonts"):  # something was drawn
                messages.append(fonts.fonts_to_install())
            print_results(document, lambda: result.tables(choices), self.options["as_json"], quiet, path)
            for message in messages:
                if message:
                    say(message, quiet)
            is_short = not (choices.verbose or self.options["as_json"])
            say_where_to_look(output, quiet, more if is_short else "")
            if code := getattr(result, "exit_code", 0):
                raise typer.Exit(code)

        def only_measure() -> None:
            measure(lambda *_: None, lambda _: None)

        if unfinished is None:
            return Job(work, output)
        hint = unfinished_note(own_file(unfinished, process))
        return Job(work if process.first else only_measure, output, hint, silent=not process.first)

    def choices(self) -> "ViewOptions":
        """The options of figures and tables."""
        from attnviz.present.view import ViewOptions

        names = set(DrawingOptionNames.__annotations__).difference(self.spec.measuring)
        drawn: Any = {name: value for name, value in self.options.items() if name in names}
        if "maps" in drawn:
            drawn["maps"] = split_names(drawn["maps"])
        return spec_of(self.command).completed(ViewOptions.from_keywords(None, drawn))

    @property
    def format_names(self) -> list[str]:
        return split_names(self.options.get("formats", ())) or ["png"]

    def figure_names(self, implied_figures: Sequence[str] = ()) -> list[str] | None:
        """Checked names of ``--figures``; None for the command's defaults."""
        if "figures" not in self.options:
            return []
        views = views_of(self.command)
        typed = self.options["figures"]
        names: list[str] | None = None
        if typed is None and implied_figures:
            names = [*(view.name for view in views if view.default), *implied_figures]
        elif typed is not None:
            names = split_names([typed])
            if len(names) > 1 and (alone := [name for name in names if name in ("all", "none")]):
                known = ", ".join(view.name for view in views)
                raise UsageError(
                    f"expected --figures {alone[0]} alone, or names with commas between ({known}), found {typed!r}."
                )
            if names != ["all"]:
                names = list(dict.fromkeys([*(name for name in names if name != "none"), *implied_figures]))
        checked_views(self.command, names, self.format_names)
        return names


def unfinished_file(folder: Path) -> Path:
    """Where a run over corpora keeps what it has measured until its folder is written: ``FOLDER.unfinished``."""
    return folder.with_name(f"{folder.name}.unfinished")


def unfinished_note(file: Path) -> Callable[[BaseException], str]:
    """Make ``Job.recovery_hint``: empty unless this run wrote ``file``, or where heads did not verify."""

    def identity() -> tuple[int, int] | None:
        try:
            status = file.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    before = identity()

    def note(error: BaseException) -> str:
        if identity() in (None, before) or isinstance(error, VerificationError):
            return ""
        first = "mend that, and the" if isinstance(error, AttnvizError) else "the same"  # else it would fail again
        return f"What was measured is kept in {file}: {first} command goes on from there."

    return note


def command(function: Callable[Concatenate[Run, ...], Job]) -> Callable[..., None]:
    """Make a typer command of a function, with the options of its name in :data:`attnviz.options.COMMANDS`.

    The function is called with a :class:`Run` and, by name, the options of text and measurement except those that name
    the model. It validates only; :attr:`Job.work` works. Errors become exit codes.
    """
    known = COMMANDS[function.__name__]

    def run_command(**typed: Any) -> None:
        job: Job | None = None
        try:
            with out_of_memory_named(), results_alone():
                values = {option.name: _checked(option, typed[option.name]) for option in known.options}
                for file in values.get(PLUGIN, ()):
                    run_file(file)
                select = values.get("select", ())
                if select and (function.__name__ != "heads" or values["each_line"]):  # before anything is measured
                    from attnviz.models.head_ids import check_ids

                    check_ids(select, "heads --each-line" if function.__name__ == "heads" else function.__name__)
                if "device" in values:
                    _check_working_folder()
                arguments = {name: values[name] for name in known.measuring if name not in (*_OF_MODEL, *_LANGUAGES)}
                run = Run(function.__name__, values)
                job = function(run, **arguments)
                job.work()
        except (AttnvizError, KeyboardInterrupt, Interrupted) as error:
            silent = _another_speaks() if job is None else job.silent
            kept = "" if job is None else job.recovery_hint(error)
            if isinstance(error, AttnvizError):
                message, code = f"{error} {kept}".rstrip(), error.exit_code
                silent = silent and not isinstance(error, _PER_PROCESS_ERRORS)
            else:
                in_place = job is not None and job.output is not None and job.output.in_place
                how_far = "; all files were written." if in_place else "; nothing was written."
                message, code = f"interrupted{f'. {kept}' if kept else how_far}", INTERRUPTED
            if not silent:
                say(message)
            raise typer.Exit(code) from error

    run_command.__name__ = function.__name__
    run_command.__doc__ = function.__doc__
    parameters = [_parameter(option) for option in known.options]
    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    return run_command


def _parameter(option: Option) -> inspect.Parameter:
    shown: dict[str, Any] = {"metavar": option.metavar, "help": option.help}
    shown |= {"min": option.least, "max": option.most, "rich_help_panel": option.group}
    declared = typer.Argument(**shown) if option.positional else typer.Option(*option.flags, **shown)
    default = None if option.default == () else option.default
    kind: Any = option.kind
    if option.given_once:  # all that is typed is taken, so that no value takes the place of another
        kind = list[kind]
        default = None if default is None else [default]
    if default is None:
        kind = kind | None
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def _checked(option: Option, value: Any) -> Any:
    """Check and convert a typed value: lists to tuples, texts to UTF-8, ``--out`` to a folder's path."""
    if option.given_once:
        values = value or [option.default]
        if len(values) > 1:  # perhaps under several names of the option
            found = " and ".join(map(as_found, values))
            raise UsageError(f"expected {' or '.join(option.flags)} once, found {found}.")
        value = values[0]
    if option.default == () or isinstance(value, list):
        value = tuple(value or ())
    if option.any_language and isinstance(value, tuple):
        value = tuple(decoded(option.spelled(value), text) for text in value)
    elif option.any_language and value is not None:
        value = decoded(option.spelled(value), value)
    if option.name == "out" and value is not None:
        from attnviz.present.output_folder import folder_named

        if not value.strip():
            raise UsageError("-o is empty; expected a folder (. for this one).")
        if "\0" in value:
            raise UsageError(f"-o has a null character, {value!r}; expected the name of a folder.")
        value = str(folder_named(value))  # shells leave ~ alone after =
    option.check_value(value)
    return value


def _another_speaks() -> bool:
    try:
        return not this_process().first
    except ProcessError:
        return False


def _check_working_folder() -> None:
    """Raise OutputError in a removed working folder, where torch's libraries abort."""
    try:
        Path.cwd()
    except OSError as error:
        raise OutputError(f"the working folder was removed ({error.strerror}); change to one that exists.") from error
