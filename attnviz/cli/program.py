"""The command line: parse, call, hand over.

Data goes to standard output, progress and messages to standard error. Everything heavy is imported
inside the command, so that ``attnviz --help`` answers at once.
"""

from typing import Annotated

import typer

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

for command in (heads, compare, profile, explain, outputs, ablate, rollout, models):
    app.command()(command)


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
