"""The command ``attnviz why``."""

from typing import Any

from attnviz.cli.runner import Job, Run, command


@command
def why(run: Run, text: str, **options: Any) -> Job:
    """Say why a head's query attends to a key: its score as a sum over what made query and key.

    Sources are embeddings, every earlier head, every feed-forward network and biases; they sum to the model's own
    score, which is checked on every run. With a head for tokens or classes it also shows what the attention head adds
    to the logit of an answer minus that of a foil, key by key.

    It writes why.png, captions, why.json and why.csv.

    Examples:
        attnviz why "The cat ran away" --head L2H8 --query cat
            What makes “cat” attend to its strongest keys.
        attnviz why "The cat ran away" --head L2H8 --depth 2
            Also the head that most of a score came from.
    """
    return run.of_text(text, **options)
