"""The command ``attnviz rollout``."""

from typing import Any

from attnviz.cli.runner import Job, Run, command


@command
def rollout(run: Run, text: str, **options: Any) -> Job:
    """Roll attention out through all layers: how much of each input token reaches each position.

    Every head is verified. It writes rollout.png, captions, rollout.json and rollout.csv, and prints the
    inputs of one token, ranked.

    Examples:
        attnviz rollout "The cat that I saw ran away"
            How much of each token reaches each position.
        attnviz rollout "The cat ran away" --token cat
            What reaches one token.
    """
    return run.of_text(text, **options)
