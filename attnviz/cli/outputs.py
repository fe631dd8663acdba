"""The command ``attnviz outputs``."""

from typing import Any

import attnviz
from attnviz.cli.runner import Job, Run, command
from attnviz.cli.terminal import read_text
from attnviz.progress import Progress


@command
def outputs(run: Run, text: str, pair: str | None, target: str | None, **options: Any) -> Job:
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
            What every head adds, and what it promotes.
        attnviz outputs "one two one" -m tiny-gpt2 --token one#2
            The same for one token of a GPT-2.
    """
    text, source = read_text(text), run.find_model()

    def measure(_: object, progress: Progress, __: object) -> "attnviz.HeadOutputs":
        return attnviz.head_outputs(text, source, pair=pair, target=target, **options, progress=progress)

    return run.job(measure, texts=(text, pair, target))
