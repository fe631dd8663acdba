"""The command ``attnviz outputs``."""

from typing import Any

from attnviz.cli.runner import Job, Run, command


@command
def outputs(run: Run, text: str, **options: Any) -> Job:
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
    return run.of_text(text, **options)
