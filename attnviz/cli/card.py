"""The command ``attnviz card``."""

import re
from pathlib import Path
from typing import Annotated

from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import read_source
from attnviz.errors import UsageError


@command(*opt.COMMON, opt.TargetGroup, first="all_heads repeats ablate patch")
def card(
    run: Run,
    head: Annotated[str | None, opt.argument("The head, such as L2H8. None with --all.")] = None,
    source: Annotated[
        str | None,
        opt.argument(
            "A text; or a corpus (as for attnviz profile) to profile all heads on, which takes as long as attnviz "
            "profile does. Write - to read a text from standard input. Default: the stored profile and an example of "
            "it.",
            metavar="TEXT|CORPUS",
        ),
    ] = None,
    all_heads: Annotated[
        bool, opt.reading("Every head that passes a role other than broad, and an index.", "--all")
    ] = False,
    truncate: opt.Truncate = False,
    repeats: Annotated[
        bool, opt.measuring("Also profile all heads on random tokens, repeated (induction, duplicate tokens).")
    ] = False,
    limit: opt.Limit = None,
    circuits: Annotated[
        bool,
        opt.measuring(
            "Also read from the weights which heads it composes with, and what it copies.", "--circuits/--no-circuits"
        ),
    ] = True,
    ablate: Annotated[
        bool, opt.measuring("Also remove the head, on the corpus or the text, and with --repeats on these.")
    ] = False,
    patch: Annotated[
        Path | None,
        opt.measuring("Also show the effect of the head in a run of attnviz patch: its patch.json.", metavar="FILE"),
    ] = None,
    syntax: opt.Syntax = True,
    top: Annotated[opt.Top, "Number of rows in each table, with --all of heads; 0 for all. Default: 12."] = None,
) -> None:
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
    if all_heads and (source is not None or re.fullmatch(r"[A-Za-z]?\d+[Hh.]\d+", head or "")):
        found = " and ".join(filter(None, [head, source]))
        raise UsageError(f"--all takes no head, and at most one TEXT or CORPUS; found {found}.")
    if all_heads:
        head, source = None, head
    elif head is None:
        raise UsageError("expected a head such as L2H8, or --all.")
    given = None if source is None else read_source(source)
    measure = run.bound("cards", source=given) if head is None else run.bound("card", source=given, head=head)
    run.work(measure, of=[head or "all", given, run.options["target"]])
