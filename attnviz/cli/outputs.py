"""The command ``attnviz outputs``."""

from typing import Annotated

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import read_text
from attnviz.progress import Progress


@command(figures="overview, shares, effects, heads")
def outputs(
    run: Run,
    text: options.Text,
    pair: options.Pair = None,
    target: options.Target = None,
    max_new_tokens: options.MaxNewTokens = None,
    select: options.Select = None,
    token: Annotated[
        str | None, options.token_option("GPT-2: show the tokens that heads promote at this position", "the last token")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS", help="Classifiers: the class to explain. Default: the one the model decides for."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="The class to hold it against. Default: the most probable other one."),
    ] = None,
    truncate: options.Truncate = False,
    memory: options.Memory = None,
    scale: Annotated[
        str,
        options.picture_option(
            metavar="SCALE",
            help="Colour scale of norms: per-head (0 to the largest of the head) or shared (0 to the largest of all).",
        ),
    ] = "per-head",
    save_outputs: Annotated[bool, options.save_option("outputs", "one tensor [n_heads, n, d_model] per layer")] = False,
    top: Annotated[
        int | None,
        options.top_option(
            "Number of heads in the tables and with a picture, the largest share first. Default: 12, or all that "
            "--select names."
        ),
    ] = None,
) -> None:
    """Show what each head adds to the residual stream: its output, norm-weighted attention and promoted tokens.

    Every head is verified. The outputs of the heads and the bias must sum to the attention output of the model.

    Norm-weighted attention is ‖A[q, k] f(x_k)‖ with f(x) = (x W_V + b_V) W_O (Kobayashi et al. 2020).

    For GPT-2, promoted tokens are those whose logits the head raises most. Its output goes through the final layer
    norm, with the scale of the whole residual stream held fixed, and through the unembedding; then the mean over the
    vocabulary is subtracted. The parts of all heads, embeddings, biases and feed-forward networks sum to the logits.

    For a classifier it shows what each head adds to the difference of the logits of two classes. Where the classifier
    is not linear (BERT), that is a linearisation.

    It writes outputs.png, outputs-shares.png, outputs-effects.png (GPT-2, classifiers), one picture per head
    (outputs/L00H00.png), captions, outputs.json and outputs.csv.

    Examples:
        attnviz outputs "The cat that I saw ran away"
        attnviz outputs "one two one two" -m tiny-gpt2 --token two
    """
    sentence = read_text(text)
    source = run.find_model()

    def measure(progress: Progress, _: object) -> "attnviz.HeadOutputs":
        from attnviz.commands.outputs.report import check_scale

        check_scale(scale)
        return attnviz.head_outputs(
            sentence,
            source,
            pair=pair,
            target=target,
            max_new_tokens=max_new_tokens,
            device=run.device,
            device_map=run.device_map,
            dtype=run.dtype,
            truncate=truncate,
            token=token,
            label=label,
            against=against,
            memory=memory,
            progress=progress,
        )

    scales, texts = ("shared", "per-head"), (sentence, pair, target)
    run.execute(measure, texts=texts, scale=scale, scales=scales, select=select or (), top=top, tensors=save_outputs)
