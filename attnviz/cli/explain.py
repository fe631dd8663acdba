"""The command ``attnviz explain``: parse, call, hand over."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnviz.cli import options
from attnviz.errors import UsageError
from attnviz.terminal import (
    decoded,
    default_folder,
    errors_to_exit_codes,
    print_tables,
    printable,
    printing,
    progress,
    read_text,
    removed_files,
    split_names,
)

if TYPE_CHECKING:
    from attnviz.explanation.saving import Explanation

__all__ = ["explain"]


def explain(
    text: options.Text,
    model: options.Model = "minilm",
    revision: options.Revision = None,
    pair: options.Pair = None,
    layer: Annotated[
        int | None,
        typer.Option("--layer", "-l", help="To explain, counted from 0; default that of --head, or 0.",
                     show_default=False),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="To follow with its numbers: 3, or L2H3 (its layer too); default 0.", show_default=False),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="To follow with its numbers, as shown, or #3 for position 3; default the last of the text.",
            show_default=False,
        ),
    ] = None,
    every_layer: Annotated[
        bool, typer.Option("--every-layer", help="Also verify every step of all other layers.")
    ] = False,
    figures: options.Figures = True,
    formats: options.Formats = None,
    theme: options.Theme = "light",
    width: options.Width = None,
    save_stages: Annotated[
        bool, typer.Option("--save-stages", help="Also write stages.safetensors, a tensor a step.")
    ] = False,
    truncate: options.Truncate = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    out: options.Out = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:  # fmt: skip
    """Walk through one layer, from its input to its output, with real numbers and shapes.

    Every step is recomputed from the step before, and compared with the running model wherever it shows the step.
    Layer 0 also tells what its scores owe to content and what to positions. Writes explain.png, positions.png (layer
    0), captions.md, explain.json and explain.csv.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 a step does not reproduce the model, 130 interrupted.
    """
    with errors_to_exit_codes() as outcome:
        sentence = read_text(text)
        pair = None if pair is None else decoded("--pair", pair)
        followed = None if token is None else decoded("--token", token)
        if out is not None and not out.strip():
            raise UsageError("-o is empty; expected a folder (. for this one).")
        from attnviz.explanation.document import EXPLAIN
        from attnviz.figures.look import Look, parse_width
        from attnviz.output_folder import OutputFolder
        from attnviz.sources import find_checkpoint

        look = Look(theme, width=None if width is None else parse_width(width))
        asked = split_names(formats) or ["png"]
        source = find_checkpoint(model, revision)
        folder = Path(out) if out is not None else Path("attnviz-out") / f"explain-{default_folder(model).name}"
        with OutputFolder(folder, EXPLAIN) as output, progress(quiet) as tell:
            outcome.folder = output
            tell("loading", 0, 0)
            from attnviz.explanation.saving import explain as explain_text
            from attnviz.saving import check_formats

            check_formats(asked)
            found = explain_text(
                sentence,
                source,
                pair=pair,
                layer=layer,
                head=head,
                token=followed,
                every_layer=every_layer,
                device=device,
                dtype=dtype,
                truncate=truncate,
                progress=tell,
            )
            document = found.write(
                output,
                formats=asked if figures else [],
                look=look,
                save_stages=save_stages,
                tell=lambda done, total: tell("drawing", done, total),
            )
        with printing(folder):
            _print_results(found, document, as_json, quiet)
        if not quiet:
            removed = removed_files(output.removed)
            typer.echo(f"Wrote {output.count} files to {printable(str(folder))}{removed}", err=True)


def _print_results(found: "Explanation", document: dict[str, Any], as_json: bool, quiet: bool) -> None:
    if as_json:
        from attnviz.export import json_text

        sys.stdout.write(json_text(document))
    elif not quiet:
        from attnviz.explanation.tables import explain_report

        print_tables(lambda width: explain_report(found, width=width))
    sys.stdout.flush()
