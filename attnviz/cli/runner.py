"""How every command runs: its options, folder, measurement, files, tables or JSON, exit codes."""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
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
from attnviz.options import DrawingOptionNames, check_value, keywords_of
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
_SPLIT = "compare", "profile"  # commands whose texts several processes may share
_LONGEST_METAVAR = 18  # letters of choices that stand for an option's value in help
_LANGUAGES = "source_language", "target_language"


@dataclass
class Run:
    """One call of a command: what was typed, and what an error leaves."""

    command: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # by the names of the command's arguments; lists as tuples
    changed: dict[str, str] = field(default_factory=dict)  # of these that are not the default the flags, as typed
    form: str = ""  # of the command, such as ``compare.corpus``: it has figures and tables of its own
    process: Process = field(default_factory=Process)  # of those that share the texts; the first one prints and writes
    output: "OutputFolder | None" = None  # that it writes to
    unfinished: Path = Path()  # where a run over corpora keeps what it measured until all is written
    recovery_hint: Callable[[BaseException], str] = lambda _: ""  # a sentence on what an error leaves

    def begin(self, command: str, parameters: Sequence[Any], typed: dict[str, Any]) -> None:
        """Take the values of a command's parameters, and run the plug-ins among them."""
        self.command = self.form = command
        if command in _SPLIT:
            self.process = this_process()
        for parameter in parameters:
            name, value = parameter.name, typed[parameter.name]
            is_list = parameter.nargs == -1 or getattr(parameter, "multiple", False)
            self.options[name] = tuple(value or ()) if is_list else value
            check_value(name, value)
            if parameter.nargs == -1 and self.options[name].count("-") > 1:
                raise UsageError("standard input (-) can be read only once; give the other text as an argument.")
            if self.options[name] not in (parameter.default, ()):
                self.changed[name] = (parameter.secondary_opts if value is False else parameter.opts)[0]
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
            kept = self.recovery_hint(error)
            if isinstance(error, AttnvizError):
                message, code = f"{error} {kept}".rstrip(), error.exit_code
            else:
                in_place = self.output is not None and self.output.in_place
                how_far = "; all files were written." if in_place else "; nothing was written."
                message, code = f"interrupted{f'. {kept}' if kept else how_far}", INTERRUPTED
            if self.process.first or isinstance(error, _PER_PROCESS_ERRORS):
                say(message)
            raise typer.Exit(code) from error

    @property
    def quiet(self) -> bool:
        return bool(self.options["quiet"]) or not self.process.first

    @property
    def model_names(self) -> list[str]:
        model = self.options["model"]
        named = [*(model if isinstance(model, tuple) else [model]), self.options["adapter"]]
        return [name for name in named if name is not None] or ["minilm"]

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise UsageError where one of these options was typed."""
        for name in names:
            if name in self.changed:
                raise UsageError(f"{self.changed[name]} {why}.")

    def find_model(self, *named: str | None) -> "Source":
        """Find a model by name, revision and adapter; default those of the options. It must have the selected heads."""
        from attnviz.models.head_ids import check_ids, ids_and_names, select_heads
        from attnviz.models.reproduced import kinds_in
        from attnviz.models.sources import find_checkpoint, with_tokenizer

        selected = self.options.get("select", ())
        if self.command != "heads" or self.options["each_line"]:  # of one text labels and roles, too
            check_ids(selected, "heads --each-line" if self.command == "heads" else self.command)
        model, revision, adapter = named or [self.options[name] for name in ("model", "revision", "adapter")]
        with progress(self.quiet) as tell:
            found = with_tokenizer(find_checkpoint(model, revision, tell, adapter), self.options["tokenizer"])
        ids, _ = ids_and_names(selected)
        if ids:
            select_heads(ids, kinds_in(found.folder))
        return replace(found, languages={name: self.options[name] for name in _LANGUAGES if self.options.get(name)})

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
        self.work(self.bound(function, text=text), of=(text, self.options["pair"], self.options.get("target")))

    def results_folder(self, models: Sequence[str], of: Sequence[str | Path | None]) -> Path:
        """The output folder: ``--out``, else ``attnviz-out/COMMAND-MODEL/TEXT-HASH``; of heads without COMMAND.

        It is of texts and of the paths of corpora.
        """
        from attnviz.models.sources import BUILT_IN
        from attnviz.present.output_folder import folder_named, text_folder

        if self.options["out"] is not None:
            try:
                return folder_named(self.options["out"])  # shells leave ~ alone after =
            except UsageError as error:
                raise UsageError(f"-o: {error}") from error
        names = [] if self.command == "heads" else [self.command]
        folders = list[Path]()
        for model in models:
            folder = Path(model).expanduser()
            if model in BUILT_IN or not folder.is_dir():
                names.append(model.replace("/", "--"))
            else:
                folders.append(folder.resolve())
                names.append(folders[-1].name or "model")
        texts = [source for source in of if isinstance(source, str)]
        corpora = [source for source in of if isinstance(source, Path)]
        without = "weights" if self.command == "circuits" else "repeats"
        return Path("attnviz-out") / "-".join(names) / text_folder(texts, corpora, folders, without)

    @property
    def inputs(self) -> list[Path]:
        """Files and folders that are there, and that options but those of output name."""
        of_input = [value for name, value in self.options.items() if name not in ("out", "junit")]
        names = [name for value in of_input for name in (value if isinstance(value, tuple) else [value])]
        return [Path(name) for name in names if isinstance(name, str | Path) and is_there(name)]

    def choices(self) -> "ViewOptions":
        """The options of figures and tables."""
        from attnviz.present.view import ViewOptions

        known = DrawingOptionNames.__annotations__
        drawn: Any = {name: value for name, value in self.options.items() if name in known}
        if "maps" in drawn:
            drawn["maps"] = split_names(drawn["maps"])
        return spec_of(self.form).completed(ViewOptions.from_keywords(None, drawn))

    @property
    def format_names(self) -> list[str]:
        return split_names(self.options.get("formats", ())) or ["png"]

    def figure_names(self, implied: Sequence[str] = ()) -> list[str] | None:
        """Checked names of ``--figures``, and those ``implied`` by other options; None for the command's defaults."""
        typed = self.options.get("figures", "none")
        names = None if typed is None else split_names([typed])
        if names is None and implied:
            names = [view.name for view in views_of(self.form) if view.default]
        if names == ["none"]:
            names = []
        if names not in (None, ["all"]):
            names = list(dict.fromkeys([*names, *implied]))
        checked_views(self.form, names, self.format_names)
        return names

    def work(
        self,
        measure: Callable[..., "Result"],  # takes callbacks ``progress`` and ``warn``, or not
        *,
        of: Sequence[str | Path | None] = (),  # texts and corpora that the results are of; they name the folder
        models: Sequence[str] = (),  # that name the folder too; default those of the options
        reads: Sequence[Path] = (),  # files that the run reads and no option names
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

        choices = self.choices()
        for name in choices.maps:
            statistic_named(name)  # it raises before anything is measured
        figures = self.figure_names() if figures is None else figures
        path = self.results_folder(models or self.model_names, of)
        output = self.output = OutputFolder(path, self.form, [*self.inputs, *reads])
        self.unfinished = path.with_name(f"{path.name}.unfinished")
        takes = inspect.signature(measure).parameters
        if "unfinished" in takes:
            self.recovery_hint = unfinished_note(own_file(self.unfinished, self.process))
        with output if self.process.first else nullcontext(), progress(self.quiet) as tell:
            tell("loading", 0, 0)
            given = {"progress": tell, "warn": partial(say, quiet=self.quiet), "unfinished": self.unfinished}
            result = measure(**{name: given[name] for name in given.keys() & takes})
            if not self.process.first:
                return
            by_default = self.options.get("figures") is None
            document = result.write(
                output, choices, figures=figures, formats=self.format_names, by_default=by_default, progress=tell
            )
            output.put_in_place()
        if "unfinished" in takes:
            remove_kept(self.unfinished, self.process)
        messages = list(finish(result, document))
        if fonts := sys.modules.get("attnviz.figures.fonts"):  # something was drawn
            messages.append(fonts.fonts_to_install())
        is_short = not (choices.verbose or self.options["as_json"])
        self.show(document, lambda: result.tables(choices), messages, more if is_short else "")
        if code := getattr(result, "exit_code", 0):
            raise typer.Exit(code)

    def show(
        self,
        document: dict[str, Any],
        tables: Callable[[], "RenderableType | str"],
        messages: Iterable[str] = (),
        more: str = "",
    ) -> None:
        """Print tables or JSON, messages, and which file of the output folder to open."""
        folder = None if self.output is None else self.output.path
        print_results(document, tables, self.options["as_json"], self.quiet, folder)
        for message in filter(None, messages):
            say(message, self.quiet)
        if self.output is not None:
            say_where_to_look(self.output, self.quiet, more)


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
            with results_alone():
                run.begin(function.__name__, context.command.params, typed)
                function(run, **{each.name: run.options[each.name] for each in own})

        run_command.__name__, run_command.__doc__ = function.__name__, function.__doc__
        vars(run_command)["first"] = first.split()
        parameters = {each.name: each for each in own}
        for group in groups:
            for name, option in get_type_hints(group, include_extras=True).items():
                default = getattr(group, name, inspect.Parameter.empty)
                added = inspect.Parameter(name, KEYWORD_ONLY, default=default, annotation=option)
                parameters.setdefault(name, added)
        declared = [
            each.replace(kind=KEYWORD_ONLY, annotation=_declared(each.annotation)) for each in parameters.values()
        ]
        context = inspect.Parameter("context", KEYWORD_ONLY, annotation=typer.Context)
        run_command.__signature__ = inspect.Signature([context, *declared])  # type: ignore[attr-defined] # typer reads it
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


def _check_working_folder() -> None:
    """Raise OutputError in a removed working folder, where torch's libraries abort."""
    try:
        Path.cwd()
    except OSError as error:
        raise OutputError(f"the working folder was removed ({error.strerror}); change to one that exists.") from error
