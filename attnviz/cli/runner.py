"""How every command runs: its options, folder, measurement, files, tables or JSON, exit codes."""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, get_type_hints

import typer

import attnviz
from attnviz.arguments import choices_of, is_there
from attnviz.cli.terminal import print_results, progress, read_text, results_alone, say, say_where_to_look, split_names
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
from attnviz.options import OUTPUT, PICTURES, DrawingOptionNames, keywords_of
from attnviz.plugins import run_file
from attnviz.present.report import checked_views, spec_of, views_of
from attnviz.run.processes import Process, own_file, remove_kept, this_process
from attnviz.signals import Interrupted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnviz.models.sources import Source
    from attnviz.present.output_folder import OutputFolder
    from attnviz.present.result import Result
    from attnviz.present.view import ViewOptions

# errors that one of several processes may have alone, and so tells of; all others all have
_PER_PROCESS_ERRORS = (VerificationError, OutOfMemoryError, ProcessError, TextError)
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_WRITTEN = "out", "junit"
_LONGEST_METAVAR = 18  # letters of choices that stand for an option's value in help
_LANGUAGES = "source_language", "target_language"


@dataclass
class Run:
    """One call of a command: what was typed, and what an error leaves."""

    command: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # by the names of the command's arguments; lists as tuples
    parameters: dict[str, Any] = field(default_factory=dict)  # the same as typer's parameters
    output: "OutputFolder | None" = None  # that it writes to
    unfinished: Path = Path()  # where a run over corpora keeps what it measured until all is written
    recovery_hint: Callable[[BaseException], str] = lambda _: ""  # a sentence on what an error leaves
    silent: bool | None = None  # whether another process prints messages; None before that is known

    def begin(self, parameters: Sequence[Any], typed: dict[str, Any]) -> None:
        """Take the values of a command's parameters, and run the plug-ins among them."""
        from attnviz.present.output_folder import folder_named

        for parameter in parameters:
            value = typed[parameter.name]
            is_list = parameter.nargs == -1 or getattr(parameter, "multiple", False)
            self.options[parameter.name] = tuple(value or ()) if is_list else value
            self.parameters[parameter.name] = parameter
        if self.options["out"] is not None:
            try:
                self.options["out"] = str(folder_named(self.options["out"]))  # shells leave ~ alone after =
            except UsageError as error:
                raise UsageError(f"-o: {error}") from error
        for file in self.options.get("plugin", ()):
            run_file(file)
        if "device" in self.options:
            _check_working_folder()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Tell of an error or interruption inside the block, and end with its exit code."""
        try:
            with out_of_memory_named():
                yield
        except (AttnvizError, KeyboardInterrupt, Interrupted) as error:
            silent = _another_speaks() if self.silent is None else self.silent
            kept = self.recovery_hint(error)
            if isinstance(error, AttnvizError):
                message, code = f"{error} {kept}".rstrip(), error.exit_code
                silent = silent and not isinstance(error, _PER_PROCESS_ERRORS)
            else:
                in_place = self.output is not None and self.output.in_place
                how_far = "; all files were written." if in_place else "; nothing was written."
                message, code = f"interrupted{f'. {kept}' if kept else how_far}", INTERRUPTED
            if not silent:
                say(message)
            raise typer.Exit(code) from error

    @property
    def changed(self) -> dict[str, str]:  # options that differ from their defaults, as typed
        return {
            name: (parameter.secondary_opts if self.options[name] is False else parameter.opts)[0]
            for name, parameter in self.parameters.items()
            if self.options[name] not in (parameter.default, ())
        }

    def of_groups(self, *groups: str) -> dict[str, Any]:
        """The options of these groups of :data:`attnviz.options.GROUPS`."""
        return {
            name: self.options[name]
            for name, each in self.parameters.items()
            if each.rich_help_panel.startswith(groups)
        }

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise UsageError where one of these options was typed."""
        for name in names:
            if name in self.changed:
                raise UsageError(f"{self.changed[name]} {why}.")

    @property
    def quiet(self) -> bool:
        return bool(self.options["quiet"])

    @property
    def inputs(self) -> list[Path]:  # files and folders that are there and that the options but those of output name
        given = [value for name, value in self.options.items() if name not in _WRITTEN]
        names = chain.from_iterable(value if isinstance(value, tuple) else [value] for value in given)
        return [Path(name) for name in names if isinstance(name, str | Path) and is_there(name)]

    @property
    def model_names(self) -> list[str]:
        return [name for name in (self.options["model"], self.options["adapter"]) if name is not None] or ["minilm"]

    def find_model(self, *named: str | None) -> "Source":
        """Find a model by name, revision and adapter; default those of the options. It must have the selected heads."""
        from attnviz.models.head_ids import check_ids, ids_and_names, select_heads
        from attnviz.models.reproduced import kinds_in
        from attnviz.models.sources import find_checkpoint, with_tokenizer

        selected = self.options.get("select", ())
        if self.command != "heads" or self.options["each_line"]:  # of one text labels and roles, too
            check_ids(selected, "heads --each-line" if self.command == "heads" else self.command)
        model, revision, adapter = named or [self.options[name] for name in ("model", "revision", "adapter")]
        with progress(self.quiet or _another_speaks()) as tell:
            found = with_tokenizer(find_checkpoint(model, revision, tell, adapter), self.options["tokenizer"])
        ids, _ = ids_and_names(selected)
        if ids:
            select_heads(ids, kinds_in(found.folder))
        return replace(found, languages={name: self.options[name] for name in _LANGUAGES if self.options.get(name)})

    def results_folder(self, models: Sequence[str], texts: Sequence[str], corpora: Sequence[Path] = ()) -> Path:
        """The output folder: ``--out``, else ``attnviz-out/COMMAND-MODEL/TEXT-HASH``; of heads without COMMAND."""
        from attnviz.models.sources import BUILT_IN
        from attnviz.present.output_folder import text_folder

        if self.options["out"] is not None:
            return Path(self.options["out"])
        names = [] if self.command == "heads" else [self.command]
        folders = list[Path]()
        for model in models:
            folder = Path(model).expanduser()
            if model in BUILT_IN or not folder.is_dir():
                names.append(model.replace("/", "--"))
            else:
                folders.append(folder.resolve())
                names.append(folders[-1].name or "model")
        without = "weights" if self.command == "circuits" else "repeats"
        return Path("attnviz-out") / "-".join(names) / text_folder(texts, corpora, folders, without)

    def bound(self, name: str, **given: Any) -> Callable[..., "Result"]:
        """A function of :mod:`attnviz` with the options that it takes by their names; ``given`` go first.

        Its model is found by the options, unless one is given.
        """
        function: Callable[..., Result] = getattr(attnviz, name)
        taken = set(keywords_of(function))
        if "model" in taken and "model" not in given:
            given["model"] = self.find_model()
        if not isinstance(given.get("model"), str | None):
            taken -= {"revision", "adapter", "tokenizer"}  # which are in a found model
        return partial(function, **{name: self.options[name] for name in taken & self.options.keys()} | given)

    def of_text(self, function: str) -> None:
        """The work of a command whose function reads one text."""
        text = read_text(self.options["text"])
        self.work(self.bound(function, text=text), texts=(text, self.options["pair"], self.options.get("target")))

    def work(
        self,
        measure: Callable[..., "Result"],  # takes callbacks ``progress`` and ``warn``, or not
        *,
        texts: Sequence[str | None] = (),  # that the results are of; they name the folder, as corpora do
        corpora: Sequence[Path] = (),
        models: Sequence[str] = (),  # that name the folder too; default the one of ``--model``
        reads: Sequence[Path] = (),  # files that the run reads and no option names
        form: str = "",  # of the command, such as ``compare.corpus``, which has figures and tables of its own
        figures: Sequence[str] | None = None,  # default those of ``--figures``
        # called with result and document once everything is written; returns messages
        finish: Callable[[Any, dict[str, Any]], Iterable[str]] = lambda *_: (),
        more: str = "; more tables: --verbose",  # where the first screen does not print all
    ) -> None:
        """Measure, write and print; UsageError at once for wrong options of figures and output.

        A measurement that takes ``unfinished`` keeps there what it measured until all is written, and may be split over
        processes, of which the first writes.
        """
        from attnviz.measures.statistics import statistic_named
        from attnviz.present.output_folder import OutputFolder

        form, quiet = form or self.command, self.quiet
        choices = self.choices(form)
        figures = self.figure_names(form=form) if figures is None else figures
        path = self.results_folder(models or self.model_names, [text for text in texts if text is not None], corpora)
        output = self.output = OutputFolder(path, form, [*self.inputs, *reads])
        unfinished = self.unfinished = path.with_name(f"{path.name}.unfinished")
        keeps = "unfinished" in inspect.signature(measure).parameters
        process = this_process() if keeps else Process()
        self.silent = not process.first
        if keeps:
            self.recovery_hint = unfinished_note(own_file(unfinished, process))
        if not process.first:
            _called(measure, progress=lambda *_: None, warn=lambda _: None, unfinished=unfinished)
            return
        with output, progress(quiet) as tell:
            tell("loading", 0, 0)
            for name in choices.maps:
                statistic_named(name)  # it raises before anything is measured
            result = _called(measure, progress=tell, warn=partial(say, quiet=quiet), unfinished=unfinished)
            by_default = self.options.get("figures") is None
            document = result.write(
                output, choices, figures=figures, formats=self.format_names, by_default=by_default, progress=tell
            )
            output.put_in_place()
        if keeps:
            remove_kept(unfinished, process)
        messages = list(finish(result, document))
        if fonts := sys.modules.get("attnviz.figures.fonts"):  # something was drawn
            messages.append(fonts.fonts_to_install())
        is_short = not (choices.verbose or self.options["as_json"])
        self.show(document, lambda: result.tables(choices), output, messages, more if is_short else "")
        if code := getattr(result, "exit_code", 0):
            raise typer.Exit(code)

    def show(
        self,
        document: dict[str, Any],
        tables: Callable[[], "RenderableType | str"],
        output: "OutputFolder | None" = None,
        messages: Iterable[str] = (),
        more: str = "",
    ) -> None:
        """Print tables or JSON, messages, and which file of the output folder to open."""
        print_results(document, tables, self.options["as_json"], self.quiet, None if output is None else output.path)
        for message in filter(None, messages):
            say(message, self.quiet)
        if output is not None:
            say_where_to_look(output, self.quiet, more)

    def choices(self, form: str = "") -> "ViewOptions":
        """The options of figures and tables."""
        from attnviz.present.view import ViewOptions

        known = DrawingOptionNames.__annotations__
        drawn: Any = {name: value for name, value in self.of_groups(PICTURES, OUTPUT).items() if name in known}
        if "maps" in drawn:
            drawn["maps"] = split_names(drawn["maps"])
        return spec_of(form or self.command).completed(ViewOptions.from_keywords(None, drawn))

    @property
    def format_names(self) -> list[str]:
        return split_names(self.options.get("formats", ())) or ["png"]

    def figure_names(self, implied: Sequence[str] = (), form: str = "") -> list[str] | None:
        """Checked names of ``--figures``, and those ``implied`` by other options; None for the command's defaults."""
        if "figures" not in self.options:
            return []
        form = form or self.command
        typed = self.options["figures"]
        names = None if typed is None else split_names([typed])
        if names is None and implied:
            names = [view.name for view in views_of(form) if view.default]
        if names and len(names) > 1 and not {"all", "none"}.isdisjoint(names):
            raise UsageError(f"expected --figures all or none alone, or names with commas between, found {typed!r}.")
        if names not in (None, ["all"]):
            names = [name for name in dict.fromkeys([*names, *implied]) if name != "none"]
        checked_views(form, names, self.format_names)
        return names


def unfinished_note(file: Path) -> Callable[[BaseException], str]:
    """Make ``Run.recovery_hint``: empty unless this run wrote ``file``, or where heads did not verify."""

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


def _called(measure: Callable[..., "Result"], **callbacks: Any) -> "Result":
    """The result of a function, which is given those of the callbacks that it takes."""
    taken = callbacks.keys() & inspect.signature(measure).parameters
    return measure(**{name: callbacks[name] for name in taken})


def command(*groups: type, first: str = "") -> Callable[[Callable[Concatenate[Run, ...], None]], Callable[..., None]]:
    """Make a Typer command of a function of a :class:`Run` and options; those of the groups are the command's, too.

    An option that the function declares itself takes the place of a group's. One that the body does not name goes to
    the Python function, by its name: see :meth:`Run.bound`. ``first`` are the options of this command that people use,
    which ``--help`` describes.
    """

    def decorate(function: Callable[Concatenate[Run, ...], None]) -> Callable[..., None]:
        _, *own = inspect.signature(function).parameters.values()

        def run_command(context: typer.Context, **typed: Any) -> None:
            run: Run = context.obj
            run.command = function.__name__
            with results_alone():
                run.begin(context.command.params, typed)
                function(run, **{each.name: run.options[each.name] for each in own})

        run_command.__name__, run_command.__doc__ = function.__name__, function.__doc__
        vars(run_command)["first"] = first.split()
        parameters = {each.name: each.replace(kind=KEYWORD_ONLY, annotation=_declared(each.annotation)) for each in own}
        for group in groups:
            for name, option in get_type_hints(group, include_extras=True).items():
                default = getattr(group, name, inspect.Parameter.empty)
                added = inspect.Parameter(name, KEYWORD_ONLY, default=default, annotation=_declared(option))
                parameters.setdefault(name, added)
        context = inspect.Parameter("context", KEYWORD_ONLY, annotation=typer.Context)
        signature = inspect.Signature([context, *parameters.values()])
        run_command.__signature__ = signature  # type: ignore[attr-defined] # typer reads it
        return run_command

    return decorate


def _declared(annotation: Any) -> Any:
    """The option of an annotation with its metavar; of ``Annotated[OPTION, "text"]`` with this text as its help."""
    declared, *texts = annotation.__metadata__
    option, kind = copy(declared), annotation.__origin__
    choices = "|".join(choices_of(kind))
    option.help = "".join(texts) or option.help
    if option.metavar is None and kind in (int, int | None):
        option.metavar = "N"
    elif option.metavar is None and 0 < len(choices) <= _LONGEST_METAVAR:
        option.metavar = choices
    return Annotated[kind, option]


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
