"""The command ``attnviz check``."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

import attnviz
from attnviz.cli.runner import Job, Run, command


@command
def check(run: Run, files: Sequence[Path], published: str | None, **options: Any) -> Job:
    """Check claims on heads, from a file or a paper: measured, with intervals, and whether they hold.

    A claim is about a role over a corpus, a label or a score on a text, the distance to another model, or what happens
    without a head. Exit code 0: all claims hold; 1: one fails; 3: none fails, but some cannot be decided. As
    everywhere, 1 is also an error, and 3 heads that do not reproduce the model. It writes check.json and check.csv.

    Examples:
        attnviz check claims.toml
            The claims of a file, on the model that it names.
        attnviz check --published wang-2022 -m gpt2 novel.txt
            Whether the heads of a paper do over a corpus what it says.
    """
    from attnviz.commands.check.claims import read_claims

    model, found = run.options["model"], list[attnviz.Check]()
    named = model or (published is None and len(files) == 1 and read_claims(files[0])[1]) or "minilm"
    own = {name: run.options[name] for name in ("revision", "adapter")}

    def measure(_: object, progress: Any, warn: Any) -> attnviz.Check:
        found.append(attnviz.check(files, model, published=published, **own, **options, progress=progress, warn=warn))
        return found[-1]

    job = run.job(measure, texts=[published], corpora=files, models=[named], rate=True)

    def work() -> None:
        job.work()
        if code := found[-1].exit_code:
            raise typer.Exit(code)

    return replace(job, work=work)
