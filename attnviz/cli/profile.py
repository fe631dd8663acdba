"""The command ``attnviz profile``."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.folders import results_folder
from attnviz.cli.runner import Run, command
from attnviz.corpora.long_runs import own_file, remove_kept, this_process
from attnviz.errors import OutputError, UsageError
from attnviz.progress import Progress

if TYPE_CHECKING:
    from attnviz.model.sources import Source

__all__ = ["profile"]


@command(figures="roles, scores, relations, layers, likeness")
def profile(
    run: Run,
    corpora: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CORPUS",
            help="Text files (.txt, one sentence per line), treebanks (.conllu), or GAP files for coreference (.tsv).",
        ),
    ] = None,
    repeats: Annotated[
        bool,
        typer.Option("--repeats", help="Also measure induction and duplicate-token heads on repeated random tokens."),
    ] = False,
    limit: options.Limit = None,
    batch_size: options.BatchSize = 32,
    seed: Annotated[
        int,
        typer.Option(
            metavar="SEED",
            min=0,
            max=options.LARGEST_SEED,
            help="Random seed of the verified sample, the bootstrap and the random tokens.",
        ),
    ] = 0,
    syntax: Annotated[
        bool,
        typer.Option("--syntax/--no-syntax", help="Parse .txt files if spaCy and a pipeline for them are installed."),
    ] = True,
    parser: Annotated[
        str | None,
        typer.Option(
            metavar="PIPELINE",
            help="The spaCy pipeline that parses .txt files. Default: an English one, whatever their language.",
        ),
    ] = None,
    control: Annotated[
        bool,
        typer.Option(
            "--control/--no-control",
            help="Also measure an untrained copy of the model, on up to 500 texts of each corpus. A role passes only "
            "if its score is above that of the copy.",
        ),
    ] = True,
    confirm: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="CORPUS", help="Measure the roles that pass on another corpus too. May be given more than once."
        ),
    ] = None,
    store: Annotated[
        bool | None,
        options.output_option(
            "--store/--no-store",
            help="Keep the profile, so that attnviz heads shows it. Default: keep it unless a profile of more texts "
            "is there.",
        ),
    ] = None,
    top: Annotated[int, options.top_option("Number of rows in each table.")] = 15,
) -> None:
    """Measure what every head of a model does on many texts, compared with baselines.

    It writes figures, captions, profile.json and profile.csv, and prints tables. After an interruption the same command
    goes on where it stopped. To split the work over processes, start it with torchrun -m attnviz profile.

    Examples:
        attnviz profile corpus.txt --repeats
        attnviz profile train.conllu --confirm dev.conllu
    """
    process = this_process()
    run.silent = not process.first
    if not corpora and not repeats:
        raise UsageError("nothing to measure: expected a corpus (.conllu, .txt or GAP .tsv), or --repeats.")
    source = run.find_model()
    folder = results_folder(run.out, "profile", [run.model], (), corpora or ())
    unfinished = folder / "profile.unfinished"
    run.keeps(own_file(unfinished, process))

    def measure(progress: Progress, warn: Callable[[str], None]) -> "attnviz.Profile | None":
        return attnviz.profile_heads(
            source,
            corpora or [],
            repeats=repeats,
            limit=limit,
            batch_size=batch_size,
            seed=seed,
            syntax=syntax,
            parser=parser,
            control=control,
            confirm=confirm or [],
            device=run.device,
            dtype=run.dtype,
            unfinished=unfinished,
            progress=progress,
            warn=warn,
        )

    def finish(document: dict[str, Any]) -> Iterator[str]:
        from attnviz.commands.profile.measure import PARTS, part_file

        for part in PARTS:
            remove_kept(part_file(unfinished, part), process)
        if run.figures in (None, "all") and not run.no_figures and document["statistics"] is not None:
            from attnviz.commands.profile.likeness import scikit_learn_missing

            yield from filter(None, [scikit_learn_missing()])
        yield from _keep(document, source, store)

    run.execute(measure, corpora=corpora or (), top=top, rate=True, finish=finish)


def _keep(document: dict[str, Any], source: "Source", store: bool | None) -> Iterator[str]:
    """Keep the profile for ``attnviz heads``, and say what was done and what could not be."""
    from attnviz.patterns.profile_store import find_profile, model_shape, store_profile

    if store is False:
        return
    model = document["model"]
    shape = model_shape(model["architecture"], model["n_layers"], model["n_heads"], model["d_model"])
    before = find_profile(source, shape, lambda _: None)
    texts = sum(corpus["sentences"] for corpus in document["corpora"])
    if before is not None and before.sentences > texts and store is None:
        yield f"not kept for attnviz heads: one of more texts is there ({before.measured_on}); --store replaces it"
        return
    try:
        path = store_profile(document)
        instead = "" if before is None else f" in place of the profile of {before.measured_on}"
        yield f"kept for attnviz heads{instead}: {path}"
    except OutputError as error:
        yield str(error)
