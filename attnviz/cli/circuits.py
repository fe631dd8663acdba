"""The command ``attnviz circuits``."""

from attnviz.cli.runner import Run, command
from attnviz.options import COMMON, Select, Top


@command(*COMMON)
def circuits(
    run: Run,
    select: Select = None,
    top: Top = None,
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
