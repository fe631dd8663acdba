"""The command ``attnviz outputs``."""

from typing import Annotated

from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command


@command(opt.TextGroup, *opt.COMMON, opt.GeneratedGroup, first="token answer foil")
def outputs(
    run: Run,
    token: Annotated[
        str | None,
        opt.token_option(
            "Divide the logits at this position: of a language model, or of the class of a token",
            "the last token; of BERT its mask, else the last word",
            "--token",
            "--at",
        ),
    ] = None,
    answer: Annotated[str | None, opt.free_text(opt.ANSWER, "--answer", "--label", metavar="TOKEN|CLASS")] = None,
    foil: opt.Foil = None,
    answer_span: Annotated[
        str | None,
        opt.free_text(
            "Question answering (TEXT is the question, --pair the context): divide the logits of start and end of this "
            "stretch of the context: its text, TEXT#2 or #10-#12. Default: the model's own answer.",
            metavar="TEXT",
        ),
    ] = None,
    memory: opt.Memory = None,
    select: opt.Select = None,
    scale: Annotated[
        str,
        opt.drawing(
            "Colour scale of norms: per-head (0 to the largest of the head), shared (0 to the largest of all), log, or "
            "auto (per-head up to 40 tokens, log beyond)."
        ),
    ] = "auto",
    top: Annotated[
        opt.Top,
        "Number of heads in the tables and with a picture, the largest share first; 0 for all. Default: 12, or all "
        "that --select names.",
    ] = None,
) -> None:
    """Show what each head adds to the residual stream: its output, norm-weighted attention and promoted tokens.

    Every head is verified. The outputs of the heads and the bias must sum to the attention output of the model.

    Norm-weighted attention is ‖A[q, k] f(x_k)‖ with f(x) = (x W_V + b_V) W_O (Kobayashi et al. 2020).

    With a language head or a classifier it shows the direct effect of each head on the logit of an answer minus that of
    a foil (--answer, --foil): two tokens, or two classes, of the text or of a token (--at, --label). The scales of
    norms are held fixed. The parts of all heads, embeddings, biases and feed-forward networks sum to the difference of
    the model's logits. Where the head on top is not linear (BERT), they are a linearisation. Promoted tokens are those
    whose logits a head raises most.

    It writes outputs.png, outputs-effects.png (with a head on top), one picture per head (outputs/L00H00.png),
    captions, outputs.json and outputs.csv.

    Examples:
        attnviz outputs "The cat that I saw ran away"
            What every head adds, and what it promotes.
        attnviz outputs "one two" -m tiny-gpt2 --answer " two"
            Which heads speak for “two” as the next token.
    """
    run.of_text("head_outputs")
