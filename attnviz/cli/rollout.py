"""The command ``attnviz rollout``."""

from typing import Annotated

from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command


@command(opt.TextGroup, *opt.COMMON, first="token layer")
def rollout(
    run: Run,
    token: Annotated[
        str | None, opt.token_option("Rank the inputs of this token", "the first token ([CLS]); for GPT-2, the last")
    ] = None,
    layer: Annotated[int | None, opt.measuring("Roll out up to this layer, counted from 0. Default: the last.")] = None,
    residual: Annotated[
        float,
        opt.measuring(
            "What a token keeps of itself in every layer: the weight of the identity, 0 to 1.", metavar="SHARE"
        ),
    ] = 0.5,
    words: opt.Words = False,
    memory: opt.Memory = None,
    top: opt.Top = None,
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
