"""The typer application and its help.

Data goes to standard output, progress and messages to standard error. Everything heavy is imported
inside the command, so that ``attnviz --help`` answers at once.
"""

import inspect
import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from attnviz.cli.ablate import ablate
from attnviz.cli.compare import compare
from attnviz.cli.explain import explain
from attnviz.cli.heads import heads
from attnviz.cli.models import models
from attnviz.cli.outputs import outputs
from attnviz.cli.profile import profile
from attnviz.cli.rollout import rollout
from attnviz.options import GROUPS, OUTPUT
from attnviz.version import __version__

app = typer.Typer(
    name="attnviz",
    help="What the attention heads of a pretrained BERT, GPT-2, Llama or translation model do: recomputed, verified, "
    "drawn and labelled.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_EXIT_CODES = (
    "Exit codes: 0 done; 1 an error that you can fix; 2 wrong usage; 3 the recomputed numbers differ from the model's; "
    "130 interrupted."
)

_TYPE = re.compile(r" <[^ ]+>$")
_RANGE = re.compile(r"(; )?[\d<=]*x[<>]=\d+")


class _Command(TyperCommand):
    """A command whose help has groups and examples, and whose usage errors hint at a text without quotes."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write parameters by the groups of :data:`attnviz.options.GROUPS`."""
        parameters = sorted(self.get_params(ctx), key=lambda each: each.param_type_name)
        for group in GROUPS:
            records = filter(None, (each.get_help_record(ctx) for each in parameters if _group(each) == group))
            rows = [(_TYPE.sub("", name), _RANGE.sub("", text).removesuffix("  []")) for name, text in records]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 # click's signature
        """Write the examples, one a line."""
        with formatter.section("Examples"):
            for example in (self.epilog or "").splitlines():
                formatter.write(f"  {example}\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # click's UsageError, or typer's copy of it
            if "unexpected extra argument" in (message := getattr(error, "message", "")):
                hint = f'A text of several words stands in quotes: {ctx.command_path} "The cat ran away".'
                vars(error)["message"] = f"{message} {hint}"
            raise


def _group(parameter: Any) -> str:
    """The help's group of a parameter."""
    return OUTPUT if parameter.name == "help" else parameter.rich_help_panel


for command in (heads, compare, profile, explain, outputs, ablate, rollout, models):
    text, _, examples = inspect.cleandoc(command.__doc__ or "").partition("\n\nExamples:\n")
    whole, first = f"{text}\n\n{_EXIT_CODES}", text.partition("\n")[0]
    app.command(cls=_Command, help=whole, short_help=first, epilog=inspect.cleandoc(examples))(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnviz {__version__}")
        raise typer.Exit


@app.callback()
def _attnviz(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass
