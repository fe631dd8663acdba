"""The command ``attnviz explain``."""

from typing import Annotated

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import decoded, read_text

__all__ = ["explain"]


@command(figures="Any of path, positions (with commas between); all; none. Positions are of layer 0 only.")
def explain(
    run: Run,
    text: options.Text,
    pair: options.Pair = None,
    layer: Annotated[
        int | None, typer.Option("--layer", "-l", help="To explain, counted from 0; default that of --head, or 0.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="To follow with its numbers: 3, or L2H3 (its layer too); default 0.")
    ] = None,
    token: Annotated[str | None, options.token_option("To follow with its numbers", "the last of the text")] = None,
    every_layer: Annotated[
        bool, typer.Option("--every-layer", help="Also verify every step of all other layers.")
    ] = False,
    truncate: options.Truncate = False,
    save_stages: Annotated[
        bool, typer.Option("--save-stages", help="Also write stages.safetensors, a tensor a step.")
    ] = False,
) -> None:
    """Walk through one layer, from its input to its output, with real numbers and shapes.

    Every step is recomputed from the step before, and compared with the running model wherever it shows the step.
    Layer 0 also tells what its scores owe to content and what to positions. Writes explain.png, positions.png (layer
    0), captions.md, explain.json and explain.csv.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 a step does not reproduce the model, 130 interrupted.
    """
    sentence = read_text(text)
    second = None if pair is None else decoded("--pair", pair)
    followed = None if token is None else decoded("--token", token)
    source = run.find_model()
    run.execute(
        lambda progress, _: attnviz.explain(
            sentence,
            source,
            pair=second,
            layer=layer,
            head=head,
            token=followed,
            every_layer=every_layer,
            device=run.device,
            dtype=run.dtype,
            truncate=truncate,
            progress=progress,
        ),
        texts=(sentence, second),
        tensors=save_stages,
    )
