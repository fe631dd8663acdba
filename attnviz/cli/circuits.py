"""The command ``attnviz circuits``."""

from typing import Annotated

from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command


@command(*opt.COMMON)
def circuits(
    run: Run,
    select: Annotated[opt.Select, f"Heads whose pairs are listed: {opt.HEADS}"] = None,
    top: Annotated[opt.Top, "Number of pairs, and of heads, in each table; 0 for all. Default: 8."] = None,
) -> None:
    """Show which heads read what earlier heads write, and which copy tokens, from the weights alone.

    No text is read. It writes composition-query.png, composition-key.png, composition-value.png, captions,
    circuits.json and circuits.csv, and prints the strongest pairs of heads.

    Examples:
        attnviz circuits --model tiny-gpt2
            All pairs of heads, and what each head copies.
        attnviz circuits --model tiny-gpt2 --select L1H0
            The pairs of one head.
    """
    run.work(run.bound("circuits"))
