"""The command ``attnviz circuits``."""

from typing import Any

from attnviz.cli.runner import Job, Run, command


@command
def circuits(run: Run, **options: Any) -> Job:
    """Show which heads read what earlier heads write, and which copy tokens, from the weights alone.

    No text is read. It writes composition-query.png, composition-key.png, composition-value.png, captions,
    circuits.json and circuits.csv, and prints the strongest pairs of heads.

    Examples:
        attnviz circuits --model tiny-gpt2
            All pairs of heads, and what each head copies.
        attnviz circuits --model tiny-gpt2 --select L1H0
            The pairs of one head.
    """
    return run.job(run.measuring("circuits", run.find_model(), **options))
