"""The command ``attnviz explain``."""

from typing import Annotated

from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command


@command(opt.TextGroup, *opt.COMMON, first="layer head token")
def explain(
    run: Run,
    layer: Annotated[
        int | None,
        opt.measuring("The layer to explain, counted from 0. Default: that of --head, or 0.", "--layer", "-l"),
    ] = None,
    head: Annotated[
        str | None, opt.measuring("The head whose numbers are shown: 3, or L2H3 (names the layer). Default: 0.")
    ] = None,
    token: Annotated[str | None, opt.token_option("The token whose numbers are shown", "the last of the text")] = None,
) -> None:
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
    run.of_text("explain")
