"""The command line: parse, call, hand over.

Data goes to standard output, progress and messages to standard error. Everything heavy is imported
inside the command, so that ``attnviz --help`` answers at once.
"""

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
from attnviz.version import __version__

__all__ = ["app"]

app = typer.Typer(
    name="attnviz",
    help="What the attention heads of a pretrained BERT or GPT-2 do: recomputed, verified, drawn and labelled.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Command(TyperCommand):
    """A command that knows what a text without quotes looks like to it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # click's UsageError, or typer's copy of it
            if "unexpected extra argument" in (message := getattr(error, "message", "")):
                hint = f'A text of several words stands in quotes: {ctx.command_path} "The cat ran away".'
                vars(error)["message"] = f"{message} {hint}"
            raise


for command in (heads, compare, profile, explain, outputs, ablate, rollout, models):
    app.command(cls=_Command)(command)


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
