"""The command ``attnviz explain``: parse, call, hand over."""

from typing import Annotated

import typer

from attnviz.cli import options
from attnviz.cli.runner import (
    check_out,
    decoded,
    errors_to_exit_codes,
    print_results,
    progress,
    read_text,
    results_folder,
    say_what_was_written,
    split_names,
)

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
        check_out(out)
        from attnviz.commands.explain.document import EXPLAIN
        from attnviz.figures.look import Look, parse_width
        from attnviz.model.sources import find_checkpoint
        from attnviz.results.output_folder import OutputFolder

        look = Look(theme, width=None if width is None else parse_width(width))
        asked = split_names(formats) or ["png"]
        source = find_checkpoint(model, revision)
        folder = results_folder(out, [model], "explain")
        with OutputFolder(folder, EXPLAIN) as output, progress(quiet) as tell:
            outcome.folder = output
            tell("loading", 0, 0)
            from attnviz.commands.explain.saving import explain as explain_text
            from attnviz.results.saving import check_formats

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
        from attnviz.commands.explain.report import explain_report

        print_results(folder, document, lambda width: explain_report(found, width=width), as_json, quiet)
        say_what_was_written(output, quiet)
