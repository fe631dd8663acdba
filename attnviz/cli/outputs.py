"""The command ``attnviz outputs``."""

from typing import Annotated

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import decoded, read_text
from attnviz.progress import Progress

__all__ = ["outputs"]


@command(figures="Any of overview, shares, effects, heads (with commas between); all; none.")
def outputs(
    run: Run,
    text: options.Text,
    pair: options.Pair = None,
    select: options.Select = None,
    token: Annotated[
        str | None, options.token_option("Where promoted tokens are read (GPT-2)", "the last token")
    ] = None,
    truncate: options.Truncate = False,
    scale: Annotated[
        str,
        typer.Option(help="Of norms: per-head (0 to the head's largest) or shared (0 to the largest of all heads)."),
    ] = "per-head",
    save_outputs: Annotated[
        bool, typer.Option("--save-outputs", help="Also write outputs.safetensors, [n_heads, n, d_model] a layer.")
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Heads in the tables and with a picture each, the largest share first; 0 for all. "
            "Default 12, with --select all selected.",
        ),
    ] = None,
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
    sentence = read_text(text)
    second = None if pair is None else decoded("--pair", pair)
    position = None if token is None else decoded("--token", token)
    source = run.find_model()

    def measure(progress: Progress, _: object) -> "attnviz.HeadOutputs":
        from attnviz.commands.outputs.views import check_scale

        check_scale(scale)
        return attnviz.head_outputs(
            sentence,
            source,
            pair=second,
            device=run.device,
            dtype=run.dtype,
            truncate=truncate,
            token=position,
            progress=progress,
        )

    scales, texts = ("shared", "per-head"), (sentence, second)
    run.execute(measure, texts=texts, scale=scale, scales=scales, select=select or (), top=top, tensors=save_outputs)
