"""The command ``attnviz explain``."""

from typing import Any

from attnviz.cli.runner import Job, Run, command


@command
def explain(run: Run, text: str, **options: Any) -> Job:
    """Walk through one layer step by step, from its input to its output, with real numbers and shapes.

    Every step is recomputed from the one before, and compared with the running model where the model exposes it.
    The row of one token in one head is printed key by key, to redo it by hand; with --verbose all steps. It writes
    explain.html, a page on which a click on a token or a head changes the numbers, a picture of the row,
    captions, explain.json and explain.csv.

    Examples:
        attnviz explain "The cat that I saw ran away"
            The first layer, from its input to its output.
        attnviz explain "The cat ran away" --head L2H3 --token cat
            Another head, followed for one token.
    """
    return run.of_text(text, **options)
