"""``attnviz compare --corpus``: two models over many texts."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnviz
from attnviz.cli.folders import results_folder
from attnviz.cli.runner import Run
from attnviz.corpora.long_runs import own_file, remove_kept, this_process
from attnviz.errors import UsageError
from attnviz.progress import Progress

if TYPE_CHECKING:
    from attnviz.model.sources import Source

__all__ = ["check_form", "compare_over"]


def check_form(texts: Sequence[str], models: Sequence[str], of_texts: Mapping[str, bool]) -> None:
    """Refuse what is not two models on a corpus alone.

    Args:
        texts: that were given.
        models: likewise.
        of_texts: by option that is about single texts, whether it was given.

    Raises:
        UsageError: with what was found.
    """
    form = "attnviz compare --corpus FILE --model M1 --model M2"
    if texts:
        raise UsageError(f"expected texts or --corpus, found both; write {form}.")
    if len(models) != 2:
        raise UsageError(f"expected two models to compare over a corpus, found {len(models)}: {form}.")
    for option, given in of_texts.items():
        if given:
            raise UsageError(f"{option} is about one text; expected --corpus without it, found both.")


def compare_over(
    run: Run, corpus: Path, models: Sequence[str], sources: "Sequence[Source]", *, limit: int | None, batch_size: int,
    seed: int, syntax: bool, parser: str | None, select: Sequence[str], top: int | None,
) -> None:  # fmt: skip
    """Compare, write and print; arguments as for :func:`attnviz.compare_corpus` and :meth:`Run.execute`."""
    run.command, process = "compare.corpus", this_process()
    run.silent = not process.first
    unfinished = results_folder(run.out, run.command, models, (), [corpus]) / "compare-corpus.unfinished"
    run.keeps(own_file(unfinished, process))

    def measure(progress: Progress, warn: Callable[[str], None]) -> "attnviz.CorpusComparison | None":
        first, second = sources
        return attnviz.compare_corpus(
            first, second, corpus, limit=limit, batch_size=batch_size, seed=seed, syntax=syntax, parser=parser,
            device=run.device, dtype=run.dtype, unfinished=unfinished, progress=progress, warn=warn,
        )  # fmt: skip

    def finish(_: dict[str, Any]) -> tuple[str, ...]:
        remove_kept(unfinished, process)
        return ()

    run.execute(measure, corpora=[corpus], models=models, rate=True, finish=finish, select=select, top=top)
