"""The command ``attnviz why``."""

from typing import Annotated

from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command


@command(opt.TextGroup, *opt.COMMON, first="head query key answer foil depth")
def why(
    run: Run,
    head: Annotated[str | None, opt.measuring("The head, such as L2H8. It must be named.")] = None,
    query: Annotated[str | None, opt.token_option("The token that attends", "the last of the text")] = None,
    key: Annotated[str | None, opt.token_option("The token that it attends to", "the keys with most attention")] = None,
    answer: opt.Answer = None,
    foil: opt.Foil = None,
    depth: Annotated[
        int,
        opt.measuring("Follow the largest part of the score into the head that wrote it, through N heads."),
    ] = 1,
    memory: opt.Memory = None,
    top: Annotated[opt.Top, "Number of pairs of sources in the table; 0 for all. Default: 12."] = None,
) -> None:
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
    run.of_text("why")
