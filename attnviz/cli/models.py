"""The command ``attnviz models``: parse, call, hand over."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from attnviz.cli.options import AsJson
from attnviz.cli.runner import check_out, decoded, errors_to_exit_codes, print_tables, printable, printing, progress
from attnviz.version import __version__

__all__ = ["models"]


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Built-in name, folder, hub id, or paper's model such as bert-large, gpt2-xl, gpt3-175b; "
            "default all that are known here.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Folder for models.json and models.csv; default none.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List layers, heads, widths, positions and parameters of models, and which of them attnviz reproduces.

    From configs and papers; no weights are loaded. Without names: the built-in models, those in the hub's cache, and
    those of the BERT, GPT-2 and GPT-3 papers.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 130 interrupted.
    """
    with errors_to_exit_codes() as outcome:
        check_out(out)
        wanted = [decoded("NAME", name) for name in names or []]
        from attnviz.commands.models.document import MODELS, models_document
        from attnviz.commands.models.listing import model_configurations

        with progress(quiet=False) as tell:
            found = model_configurations(wanted, lambda done, total: tell("reading", done, total))
        document = models_document(found, __version__)
        if out is not None:
            from attnviz.results.output_folder import OutputFolder

            with OutputFolder(Path(out), MODELS) as output:
                outcome.folder = output
                document = output.commit(document)
        with printing(Path(out or ".")):
            if as_json:
                from attnviz.results.output_folder import json_text

                sys.stdout.write(json_text(document))
            else:
                from attnviz.commands.models.tables import models_report

                print_tables(lambda width: models_report(found, width=width))
            sys.stdout.flush()
        if out is not None:
            typer.echo(f"Wrote {output.count} files to {printable(out)}", err=True)
