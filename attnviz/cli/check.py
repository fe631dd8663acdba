"""The command ``attnviz check``."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attnviz
from attnviz.cli.runner import Job, Run, command
from attnviz.wording import counted


@command
def check(run: Run, files: Sequence[Path], published: str | None, init: Sequence[Path], **options: Any) -> Job:
    """Check claims on heads, from a file or a paper: measured, with intervals, and whether they hold.

    A claim is about a role over a corpus, a label or a score on a text, the distance to another model, or what happens
    without a head. Exit code 0: all claims hold; 1: one fails; 3: none fails, but some cannot be decided. As
    everywhere, 1 is also an error, and 3 heads that do not reproduce the model. It writes check.json and check.csv.

    Examples:
        attnviz check claims.toml
            The claims of a file, on the model that it names.
        attnviz check --published wang-2022 -m gpt2 novel.txt
            Whether the heads of a paper do over a corpus what it says.
        attnviz check --published gould-2023 -m gpt2
            Whether a head writes the successor of numbers and days, as the paper measures it.
        attnviz check --init novel.txt -m tiny-gpt2
            Write claims.toml: what the clearest heads do now, for a CI to check.
    """
    from attnviz.commands.check import junit, junit_file
    from attnviz.commands.claims import CLAIMS_FILE, read_claims

    model = run.options["model"]
    if published is None:
        files = files or (Path(CLAIMS_FILE),)
    of_file = None
    reads = list[Path]()
    if published is None and len(files) == 1 and not init:
        claims, of_file, _ = read_claims(files[0])
        reads = [corpus for claim in claims for corpus in claim.corpus]
    verdicts = None if run.options["junit"] is None else junit_file(run.options["junit"])
    if verdicts is not None:
        verdicts.refuse([*files, *run.inputs, *reads])
    options |= {name: run.options[name] for name in ("revision", "adapter", "tokenizer")}
    measure = run.measuring("check", files, model, **options, published=published, init=init)

    def finish(checked: attnviz.Check, _: object) -> Iterator[str]:
        if init:
            yield f"wrote {counted(len(checked.claims), 'claim')} to {files[0]}"
        if verdicts is not None:
            verdicts.write(junit(checked))

    named = model or of_file or "minilm"
    return run.job(measure, texts=[published], corpora=files, models=[named], reads=reads, rate=True, finish=finish)
