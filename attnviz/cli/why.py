"""The command ``attnviz why``."""

from typing import Annotated

from attnviz.cli.runner import Run, command
from attnviz.options import COMMON, Answer, Depth, Foil, Memory, TextGroup, Top, measuring, token_option

Head = Annotated[str | None, measuring("The head, such as L2H8. It must be named.")]
Query = Annotated[str | None, token_option("The token that attends", "the last of the text")]
Key = Annotated[str | None, token_option("The token that it attends to", "the keys with most attention")]


@command(TextGroup, *COMMON, first="head query key answer foil depth")
def why(
    run: Run,
    head: Head = None,
    query: Query = None,
    key: Key = None,
    answer: Answer = None,
    foil: Foil = None,
    depth: Depth = 1,
    memory: Memory = None,
    top: Top = None,
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
