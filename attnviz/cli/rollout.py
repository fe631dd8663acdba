"""The command ``attnviz rollout``."""

from typing import Annotated

from attnviz.cli.runner import Run, command
from attnviz.options import COMMON, Layer, Memory, Residual, TextGroup, Top, Words, token_option

Token = Annotated[
    str | None, token_option("Rank the inputs of this token", "the first token ([CLS]); for GPT-2, the last")
]


@command(TextGroup, *COMMON, first="token layer")
def rollout(
    run: Run,
    token: Token = None,
    layer: Layer = None,
    residual: Residual = 0.5,
    words: Words = False,
    memory: Memory = None,
    top: Top = None,
) -> None:
    """Roll attention out through all layers: how much of each input token reaches each position.

    Every head is verified. It writes rollout.png, captions, rollout.json and rollout.csv, and prints the
    inputs of one token, ranked.

    Examples:
        attnviz rollout "The cat that I saw ran away"
            How much of each token reaches each position.
        attnviz rollout "The cat ran away" --token cat
            What reaches one token.
    """
    run.of_text("rollout")
