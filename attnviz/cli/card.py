"""The command ``attnviz card``."""

import re
from pathlib import Path
from typing import Any

from attnviz.cli.runner import Job, Run, command
from attnviz.cli.terminal import read_text
from attnviz.errors import UsageError


@command
def card(run: Run, head: str | None, source: str | None, all_heads: bool, **options: Any) -> Job:
    """Show one head on one page: what attnviz knows of it, each fact with its evidence.

    Roles over a corpus come from the stored profile of the model, or from a CORPUS that is profiled now. What has not
    been measured is named.

    It writes card.png, its caption, card.json and card.csv, and prints the card. With --all it writes
    cards/L00H00.png and so on, and prints an index.

    Examples:
        attnviz card L2H8
            A head of minilm, from its stored profile.
        attnviz card L1H0 "one two three one two" -m tiny-gpt2
            Its pattern on a text; --repeats profiles it, too.
        attnviz card L2H0 corpus.conllu --ablate
            Profiled now, and whether its objects need it.
        attnviz card --all
            A card of every head with a role but broad, and an index.
    """
    from attnviz.inputs.reading import source_kind

    if all_heads and (source is not None or re.fullmatch(r"[A-Za-z]?\d+[Hh.]\d+", head or "")):
        found = " and ".join(filter(None, [head, source]))
        raise UsageError(f"--all takes no head, and at most one TEXT or CORPUS; found {found}.")
    if all_heads:
        head, source = None, head
    elif head is None:
        raise UsageError("expected a head such as L2H8, or --all.")
    corpora = [] if source in (None, "-") or source_kind(source or "") == "text" else [Path(source or "")]
    text = None if source is None or corpora else read_text(source)
    options |= {"source": corpora[0] if corpora else text, "model": run.find_model()}
    measure = run.measuring("cards", **options) if head is None else run.measuring("card", head, **options)
    return run.job(measure, texts=[head or "all", text, options["target"]], corpora=corpora, rate=True)
