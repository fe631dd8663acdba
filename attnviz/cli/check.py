"""The command ``attnviz check``."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import attnviz
from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command
from attnviz.wording import counted


@command(opt.LoadingGroup, opt.LabelledGroup, opt.SampleGroup, opt.OutputGroup, first="init published junit")
def check(
    run: Run,
    files: Annotated[
        list[Path] | None,
        opt.argument(
            "A TOML file of claims, or a list of heads for DuoAttention (its folder); with --published corpora, as for "
            "attnviz profile. Default: claims.toml.",
            metavar="FILE",
        ),
    ] = None,
    model: Annotated[
        opt.Model, f"{opt.MODEL} Default: the one that the file names, minilm, or what the adapter was trained on."
    ] = None,
    revision: opt.Revision = None,
    truncate: opt.Truncate = False,
    init: Annotated[
        list[Path] | None,
        opt.measuring(
            "First write FILE: as claims, what the ten clearest heads do over this corpus now. May be given more than "
            "once.",
            metavar="CORPUS",
        ),
    ] = None,
    published: Annotated[
        str | None,
        opt.measuring(
            "Check the heads, or measure the table, of a paper instead, over corpora: clark-2019, gu-2024 and others "
            "(see the guide).",
            metavar="PAPER",
        ),
    ] = None,
    frequencies: opt.Frequencies = None,
    junit: Annotated[
        Path | None, opt.writing("Also write the verdicts as JUnit XML, which CI services read.", metavar="FILE")
    ] = None,
    table: opt.Table = None,
) -> None:
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
    from attnviz.commands.check import junit_file, junit_text
    from attnviz.commands.claims import CLAIMS_FILE, read_claims

    paths: Sequence[Path] = run.options["files"]
    if published is None:
        paths = paths or (Path(CLAIMS_FILE),)
    of_file = None
    reads = list[Path]()
    if published is None and len(paths) == 1 and not init:
        claims, of_file, _ = read_claims(paths[0])
        reads = [corpus for claim in claims for corpus in claim.corpus]
    verdicts = None if junit is None else junit_file(junit)
    if verdicts is not None:
        verdicts.refuse([*paths, *run.inputs, *reads])
    measure = run.bound("check", files=paths, model=model)

    def finish(checked: attnviz.Check, _: object) -> Iterator[str]:
        if init:
            yield f"wrote {counted(len(checked.claims), 'claim')} to {paths[0]}"
        if verdicts is not None:
            verdicts.write(junit_text(checked))

    named = model or of_file or "minilm"
    run.work(measure, of=[published, *paths], models=[named], reads=reads, finish=finish)
