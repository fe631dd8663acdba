"""The command ``attnviz outputs``: parse, call, hand over."""

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

__all__ = ["outputs"]


def outputs(
    text: options.Text,
    model: options.Model = "minilm",
    revision: options.Revision = None,
    pair: options.Pair = None,
    select: options.Select = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="Where promoted tokens are read (GPT-2): cat, or #3 (counted from 0); default the last token.",
            show_default=False,
        ),
    ] = None,
    figures: options.Figures = True,
    formats: options.Formats = None,
    scale: Annotated[
        str,
        typer.Option(help="Of norms: per-head (0 to the head's largest) or shared (0 to the largest of all heads)."),
    ] = "per-head",
    theme: options.Theme = "light",
    width: options.Width = None,
    save_outputs: Annotated[
        bool, typer.Option("--save-outputs", help="Also write outputs.safetensors, [n_heads, n, d_model] a layer.")
    ] = False,
    truncate: options.Truncate = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    out: options.Out = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Heads in the tables and with a picture each, the largest share first; 0 for all. "
            "Default 12, with --select all selected.",
            show_default=False,
        ),
    ] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Show what each head adds to the residual stream: its output, norm-weighted attention, and tokens promoted.

    Every head is verified, and so is that heads and bias sum to the model's attention output. Norm-weighted attention
    is ‖A[q, k] f(x_k)‖ with f(x) = (x W_V + b_V) W_O (Kobayashi et al. 2020). In GPT-2 the tokens that a head promotes
    are read through the final layer norm and the unembedding: the head's output less its own mean, divided by the
    standard deviation that the last residual stream has at that position (held fixed), times gamma, times W_U, mean
    over the vocabulary removed; embeddings, heads, biases and feed-forward networks then sum to the model's logits.
    Writes outputs.png, outputs-shares.png, outputs-effects.png (GPT-2), outputs/L00H00.png …, captions.md, outputs.json
    and outputs.csv.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 the heads do not reproduce the model, 130 interrupted.
    """
    with errors_to_exit_codes() as outcome:
        sentence = read_text(text)
        pair = None if pair is None else decoded("--pair", pair)
        at = None if at is None else decoded("--at", at)
        check_out(out)
        from attnviz.figures.look import Look, parse_width
        from attnviz.model.sources import find_checkpoint

        look = Look(theme, scale, None if width is None else parse_width(width))
        wanted = (split_names(formats) or ["png"]) if figures else []
        source = find_checkpoint(model, revision)
        from attnviz.commands.outputs.document import OUTPUTS
        from attnviz.results.output_folder import OutputFolder

        folder = results_folder(out, [model], "outputs")
        with OutputFolder(folder, OUTPUTS) as output, progress(quiet) as tell:
            outcome.folder = output
            tell("loading", 0, 0)
            from attnviz.commands.outputs.figures import check_scale
            from attnviz.commands.outputs.saving import TOP, head_outputs
            from attnviz.results.saving import check_formats

            check_formats(wanted)
            check_scale(look)
            found = head_outputs(
                sentence,
                source,
                pair=pair,
                device=device,
                dtype=dtype,
                truncate=truncate,
                at=at,
                progress=tell,
            )
            document = found.write(
                output,
                select=select or (),
                top=top,
                formats=wanted,
                look=look,
                save_outputs=save_outputs,
                progress=tell,
            )
        from attnviz.commands.outputs.tables import outputs_report

        rows = (0 if select else TOP) if top is None else top
        chosen = found.select(select or ())
        print_results(
            folder, document, lambda width: outputs_report(found, chosen, top=rows, width=width), as_json, quiet
        )
        say_what_was_written(output, quiet)
