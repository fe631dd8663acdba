"""The command ``attnviz profile``."""

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.folders import results_folder
from attnviz.cli.runner import Run, command
from attnviz.corpora.long_runs import own_file, remove_kept, this_process
from attnviz.errors import OutputError, UsageError
from attnviz.progress import Progress

__all__ = ["profile"]


@command(figures="roles, scores, relations, layers, likeness, page")
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
        typer.Option("--repeats", help="Also measure induction, duplicate-token and retrieval heads on random tokens."),
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
    examples: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=options.MOST_EXAMPLES,
            help="Keep N sentences in which a head shows a role best, and N in which it fails most clearly; 0 for "
            "none.",
        ),
    ] = 8,
    store: Annotated[
        bool | None,
        options.output_option(
            "--store/--no-store",
            help="Keep what was measured, so that attnviz heads shows it. Default: keep the parts of no fewer texts "
            "than before.",
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
            examples=examples,
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
        yield from _keep(document, store)

    run.execute(measure, corpora=corpora or (), top=top, rate=True, finish=finish)


def _keep(document: dict[str, Any], store: bool | None) -> Iterator[str]:
    """Keep the profile for ``attnviz heads``, and say what became of each part and what could not be kept."""
    from attnviz.patterns.profile_parts import measured_on
    from attnviz.patterns.profile_store import store_profile

    if store is False:
        return
    if document["model"].get("stacks"):
        yield "not kept for attnviz heads, which shows no roles of encoder-decoders"
        return
    try:
        path, merged = store_profile(document, date.today().isoformat(), smaller=bool(store))
    except OutputError as error:
        yield str(error)
        return

    def earlier(names: Sequence[str]) -> str:
        same = groupby(names, lambda name: measured_on(merged.before[name]))
        return "; ".join(f"{', '.join(parts)} ({corpora})" for corpora, parts in same)

    larger = f"{earlier(merged.larger)} of more texts; --store replaces" if merged.larger else ""
    if not merged.new and not merged.replaced:
        yield f"not kept for attnviz heads, which has {larger}"
        return
    told = {"new": ", ".join(merged.new), "replaced": earlier(merged.replaced), "kept": earlier(merged.kept)}
    clauses = [f"{verb} {parts}" for verb, parts in told.items() if parts]
    yield f"kept for attnviz heads: {'; '.join([*clauses, *([f'left {larger}'] if larger else [])])}: {path}"
