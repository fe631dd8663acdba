"""The command ``attnviz rollout``."""

from typing import Annotated

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import read_text
from attnviz.errors import UsageError


@command(figures="rollout, layers, from")
def rollout(
    run: Run,
    text: options.Text,
    pair: options.Pair = None,
    target: Annotated[str | None, typer.Option(hidden=True)] = None,
    token: Annotated[
        str | None,
        options.token_option("Rank the inputs of this token", "the first token ([CLS]); for GPT-2, the last"),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(metavar="LAYER", min=0, help="Roll out up to this layer, counted from 0. Default: the last."),
    ] = None,
    residual: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="What a token keeps of itself in every layer: the weight of the identity, 0 to 1."
        ),
    ] = 0.5,
    flow: Annotated[
        bool,
        typer.Option(
            help="Also compute the maximum flow from that token to each of the n inputs (needs attnviz[flow])."
        ),
    ] = False,
    all_flows: Annotated[
        bool,
        typer.Option("--all-flows", help="Compute the maximum flow from every token (n² flows, up to 128 tokens)."),
    ] = False,
    words: Annotated[
        bool,
        typer.Option(
            "--words", help="Merge word pieces into words after the rollout: inputs summed, outputs averaged."
        ),
    ] = False,
    truncate: options.Truncate = False,
    memory: options.Memory = None,
    save_rollout: Annotated[bool, options.save_option("rollout", "the matrix of every layer")] = False,
    top: Annotated[int, options.top_option("Number of input tokens in the table.")] = 12,
) -> None:
    """Roll attention out through all layers: how much of each input token reaches each position.

    Every head is verified. It writes rollout.png, rollout-layers.png, rollout-from.png, captions, rollout.json and
    rollout.csv, and prints the inputs of one token, ranked.

    Examples:
        attnviz rollout "The cat that I saw ran away"
        attnviz rollout "The cat ran away" --token cat --flow
    """
    if target is not None:
        raise UsageError(
            "rollout follows attention through the encoder alone; leave out --target, which the decoder reads."
        )
    sentence = read_text(text)
    if flow or all_flows:
        from attnviz.commands.rollout.rollout_and_flow import check_flow_library

        check_flow_library()
    source = run.find_model()
    run.execute(
        lambda progress, _: attnviz.rollout(
            sentence,
            source,
            pair=pair,
            device=run.device,
            device_map=run.device_map,
            dtype=run.dtype,
            words=words,
            layer=layer,
            residual=residual,
            token=token,
            flow=flow,
            all_flows=all_flows,
            truncate=truncate,
            memory=memory,
            progress=progress,
        ),
        texts=(sentence, pair),
        top=top,
        tensors=save_rollout,
    )
