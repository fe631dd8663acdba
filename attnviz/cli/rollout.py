"""The command ``attnviz rollout``."""

from typing import Annotated

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import decoded, read_text

__all__ = ["rollout"]


@command(figures="Any of rollout, layers, from (with commas between); all; none.")
def rollout(
    run: Run,
    text: options.Text,
    pair: options.Pair = None,
    token: Annotated[
        str | None, options.token_option("Whose inputs to rank", "the first token ([CLS]), in GPT-2 the last")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(min=0, help="Roll out up to this layer, counted from 0; default the last.")
    ] = None,
    residual: Annotated[
        float, typer.Option(help="Share of the identity (what a token keeps of itself) in every layer, 0 to 1.")
    ] = 0.5,
    flow: Annotated[
        bool,
        typer.Option("--flow/--no-flow", help="Also the maximum flow from that token: n problems (attnviz[flow])."),
    ] = False,
    all_flows: Annotated[
        bool, typer.Option("--all-flows", help="The maximum flow from every token: n² problems, up to 128 tokens.")
    ] = False,
    words: Annotated[
        bool, typer.Option("--words", help="Merge word pieces after rolling out: sum over inputs, mean over outputs.")
    ] = False,
    truncate: options.Truncate = False,
    save_rollout: Annotated[
        bool, typer.Option("--save-rollout", help="Also write rollout.safetensors, the matrices of every layer.")
    ] = False,
    top: Annotated[int, typer.Option(min=0, help="Input tokens in the table; 0 for all.")] = 12,
) -> None:
    """Roll attention out through all layers: how much of each input token comes to each position.

    Every head is verified. Writes rollout.png, rollout-layers.png, rollout-from.png, captions.md, rollout.json and
    rollout.csv, and prints the inputs of one token, ranked.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 the heads do not reproduce the model, 130 interrupted.
    """
    sentence = read_text(text)
    second = None if pair is None else decoded("--pair", pair)
    start = None if token is None else decoded("--token", token)
    if flow or all_flows:
        from attnviz.commands.rollout.max_flow import check_flow_library

        check_flow_library()
    source = run.find_model()
    run.execute(
        lambda progress, _: attnviz.rollout(
            sentence,
            source,
            pair=second,
            device=run.device,
            dtype=run.dtype,
            words=words,
            layer=layer,
            residual=residual,
            token=start,
            flow=flow,
            all_flows=all_flows,
            truncate=truncate,
            progress=progress,
        ),
        texts=(sentence, second),
        top=top,
        tensors=save_rollout,
    )
