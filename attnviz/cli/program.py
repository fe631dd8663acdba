"""The typer application and its help.

Data goes to standard output, progress and messages to standard error. Everything heavy is imported
inside the command, so that ``attnviz --help`` answers at once.
"""

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attnviz.cli.options import FIRST, GROUPS, OUTPUT
from attnviz.cli.runner import Run
from attnviz.errors import UsageError
from attnviz.present.report import figures_in_words
from attnviz.printable import one_line
from attnviz.version import __version__

HELP_ALL = "--help-all"

app = typer.Typer(
    name="attnviz",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help", HELP_ALL]},
)

# in the order of ``attnviz --help``
COMMANDS = "heads compare profile explain outputs ablate patch rollout why circuits check card models".split()

_EXIT_CODES = (
    "Exit codes: 0 done; 1 an error that you can fix; 2 wrong usage; 3 the recomputed numbers differ from the model's; "
    "130 interrupted."
)

_TYPE = re.compile(r" <[^ ]+>$")


class _Program(TyperGroup):
    def format_help_text(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 # click's signature
        _write_examples_first(self, formatter)

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with _printable_errors():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        ctx.obj = Run()
        with _printable_errors(), ctx.obj.ending():
            return super().invoke(ctx)


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Escape what was typed where click quotes it."""
    try:
        yield
    except Exception as error:  # click's UsageError, or typer's copy of it
        if isinstance(message := getattr(error, "message", None), str):
            vars(error)["message"] = one_line(message)
        raise


class _Command(TyperCommand):
    """A command whose help has examples first, and groups; its usage errors hint at a text without quotes.

    ``--help`` says in a sentence what the options that people use are, and names the others; ``--help-all`` says all.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for parameter in self.params:
            parameter.metavar = parameter.metavar or parameter.opts[0].strip("-").upper()
            if parameter.default is False:
                parameter.secondary_opts = []  # no --no-… for what is off

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        _write_examples_first(self, formatter, whole=ctx.meta[HELP_ALL])
        if ctx.meta[HELP_ALL]:
            _write(_EXIT_CODES, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        described: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        more: dict[str, list[str]] = {group: [] for group in GROUPS}
        first = {*FIRST, *vars(self.callback)["first"]}
        parameters: list[Any] = self.params
        for parameter in sorted(parameters, key=lambda parameter: parameter.param_type_name):
            group = parameter.rich_help_panel
            if not (parameter.name in first or parameter.param_type_name == "argument" or ctx.meta[HELP_ALL]):
                more[group].append(parameter.opts[0])
                continue
            described[group].append(self.record_of(parameter, ctx))
        described[OUTPUT].append((f"-h, --help, {HELP_ALL}", "Print this help, or all of it, and exit."))
        for group in filter(described.get, GROUPS):
            with formatter.section(group):
                formatter.write_dl(described[group])
        if any(more.values()):
            with formatter.section(f"More options ({HELP_ALL} describes them, and what is written)"):
                formatter.write_dl([(group, ", ".join(names)) for group, names in more.items() if names])

    def record_of(self, parameter: Any, ctx: Any) -> tuple[str, str]:
        """The flags of an option with its metavar, and what it is; without ``--help-all`` in short."""
        flags, text = parameter.get_help_record(ctx)
        text = figures_in_words(text, ctx.command.name)
        return _TYPE.sub("", flags), text if ctx.meta.get(HELP_ALL) else _first_and_default(text)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[HELP_ALL] = HELP_ALL in args
        try:
            self._refuse_twice(ctx, args)
            return super().parse_args(ctx, args)
        except Exception as error:  # click's UsageError, or typer's copy of it
            if "unexpected extra argument" in (message := getattr(error, "message", "")):
                hint = f'A text of several words stands in quotes: {ctx.command_path} "The cat ran away".'
                vars(error)["message"] = f"{message.removesuffix('.')}. {hint}"
            raise

    def _refuse_twice(self, ctx: Any, args: list[str]) -> None:
        """Raise UsageError where an option that takes one value has two, perhaps under several names."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        given: Any = Counter(order)
        for parameter, count in given.items():
            if count > 1 and parameter.param_type_name == "option" and not (parameter.multiple or parameter.is_flag):
                raise UsageError(f"expected {' or '.join(parameter.opts)} once, found it {count} times.")


def _first_and_default(text: str) -> str:
    """The first sentence of an option's help, and that on its default."""
    first, *others = re.split(r"(?<=\.) +(?=[A-Z[])", text)
    return " ".join([first, *(sentence for sentence in others if sentence.lower().lstrip("[").startswith("default"))])


def _write_examples_first(command: Any, formatter: Any, whole: bool = True) -> None:
    """Write the first sentence of a docstring, its examples, then the rest where the whole is asked for."""
    text, _, examples = inspect.cleandoc(command.help).partition("\n\nExamples:\n")
    first, _, rest = text.partition("\n\n")
    _write(first, formatter)
    with formatter.section("Examples"):
        for line in inspect.cleandoc(examples).splitlines():
            if line.startswith("attnviz"):
                formatter.write(f"  {line}\n")  # whole, to be copied
            else:
                with formatter.indentation(), formatter.indentation():
                    formatter.write_text(line.strip())
    if rest and whole:
        _write(rest, formatter)


def _write(paragraph: str, formatter: Any) -> None:
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(paragraph)


for name in COMMANDS:
    command = getattr(import_module(f"attnviz.cli.{name}"), name)
    app.command(cls=_Command, short_help=(command.__doc__ or "").partition("\n")[0])(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnviz {__version__}")
        raise typer.Exit


@app.callback(cls=_Program)
def _attnviz(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Show what every head of a BERT, GPT-2, Llama or translation model does: recomputed, verified, drawn and labelled.

    Examples:
        attnviz heads "The cat that I saw ran away"
            All heads on one sentence: tables, an overview, a picture of each.
        attnviz heads "The cat that I saw ran away" --figures page
            One interactive page, for a browser.
        attnviz compare "The cat ran away" -m minilm -m ./my-bert
            A checkpoint before and after fine-tuning.
        attnviz profile --show L2H8
            What a head of minilm does over a corpus, with examples.
    """
