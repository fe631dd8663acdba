"""The command ``attnviz card``."""

from pathlib import Path
from typing import Any

import attnviz
from attnviz.cli.runner import Job, Run, command
from attnviz.cli.terminal import is_file, read_text


@command
def card(run: Run, head: str, source: str | None, **options: Any) -> Job:
    """Show one head on one page: what attnviz knows of it, each fact with its evidence.

    Roles over a corpus come from the stored profile of the model, or from a CORPUS that is profiled now. What has not
    been measured is named, with the command that measures it.

    It writes card.png, its caption, card.md, card.json and card.csv, and prints the card.

    Examples:
        attnviz card L2H8
            A head of minilm, from its stored profile.
        attnviz card L1H0 "one two three one two" -m tiny-gpt2
            Its pattern on a text; --repeats profiles it, too.
    """
    corpus = source is not None and is_file(source)
    if source is not None and not corpus:
        source = read_text(source)
    model = run.find_model()
    return run.job(
        lambda _, progress, warn: attnviz.card(
            head, Path(source) if source is not None and corpus else source, model, **options, progress=progress,
            warn=warn,
        ),
        texts=[head, None if corpus else source, options["target"]],
        corpora=[Path(source)] if source is not None and corpus else [],
        rate=True,
    )  # fmt: skip
