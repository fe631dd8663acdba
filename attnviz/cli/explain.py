"""The command ``attnviz explain``."""

from typing import Annotated

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import read_text


@command(
    figures="path, positions", note="Default: all; positions exist for layer 0 of models with position embeddings."
)
def explain(
    run: Run,
    text: options.Text,
    pair: options.Pair = None,
    layer: Annotated[
        int | None,
        typer.Option(
            "--layer",
            "-l",
            metavar="LAYER",
            help="The layer to explain, counted from 0. Default: that of --head, or 0.",
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HEAD", help="The head whose numbers are shown: 3, or L2H3 (names the layer). Default: 0."
        ),
    ] = None,
    token: Annotated[
        str | None, options.token_option("The token whose numbers are shown", "the last of the text")
    ] = None,
    every_layer: Annotated[
        bool, typer.Option("--every-layer", help="Also verify every step of the other layers.")
    ] = False,
    truncate: options.Truncate = False,
    save_stages: Annotated[bool, options.save_option("stages", "one tensor per step")] = False,
) -> None:
    """Walk through one layer step by step, from its input to its output, with real numbers and shapes.

    Every step is recomputed from the one before, and compared with the running model where the model exposes it.
    For layer 0 the scores are also split into what comes from content and what from positions. It writes explain.png,
    positions.png (layer 0), captions, explain.json and explain.csv.

    Examples:
        attnviz explain "The cat ran away" --head L2H3
        attnviz explain "The cat ran" -m tiny-gpt2 --token cat
    """
    sentence = read_text(text)
    source = run.find_model()
    run.execute(
        lambda progress, _: attnviz.explain(
            sentence,
            source,
            pair=pair,
            layer=layer,
            head=head,
            token=token,
            every_layer=every_layer,
            device=run.device,
            device_map=run.device_map,
            dtype=run.dtype,
            truncate=truncate,
            progress=progress,
        ),
        texts=(sentence, pair),
        tensors=save_stages,
    )
