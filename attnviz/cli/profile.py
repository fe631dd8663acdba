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


@command(
    figures="Any of roles, scores, relations, layers, likeness, page (with commas between); all; none.",
    out="Folder for the results; default attnviz-out/MODEL/CORPUS.",
)
def profile(
    run: Run,
    corpora: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CORPUS...", help=".conllu treebanks, .txt files (a sentence a line), GAP .tsv files (coreference)."
        ),
    ] = None,
    repeats: Annotated[
        bool, typer.Option("--repeats", help="Also measure random tokens, repeated: induction, duplicate-token.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Sentences (or rows) of each corpus that are read; default all.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=options.LARGEST_BATCH, help="Texts that the model reads at once.")
    ] = 32,
    seed: Annotated[
        int,
        typer.Option(min=0, max=options.LARGEST_SEED, help="Of the verified sample, the bootstrap and the repeats."),
    ] = 0,
    syntax: Annotated[
        bool, typer.Option("--syntax/--no-syntax", help="Parse .txt files, where spaCy and a pipeline are installed.")
    ] = True,
    parser: Annotated[
        str | None,
        typer.Option(help="spaCy pipeline that parses .txt files; default an English one, whatever their language."),
    ] = None,
    control: Annotated[
        bool,
        typer.Option(
            "--control/--no-control",
            help="Measure a freshly initialised copy of the model, too, on up to 500 texts of each corpus; a role "
            "passes only above it.",
        ),
    ] = True,
    confirm: Annotated[
        list[Path] | None,
        typer.Option(metavar="CORPUS", help="Measure the roles that pass on this other corpus, too; may be repeated."),
    ] = None,
    store: Annotated[
        bool | None,
        typer.Option(
            "--store/--no-store",
            help="Keep the profile for attnviz heads to show; default unless one of more texts is kept already.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Rows of the tables; 0 for all.")] = 15,
) -> None:
    """Measure what every head of a model does on corpora, beside honest baselines.

    Writes profile.json, profile.csv and figures, and prints tables. Interrupted, it goes on where it was when the
    same command is given again; torchrun -m attnviz profile … splits the work over processes.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 the heads do not reproduce the model, 130 interrupted.
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
        yield f"not kept for attnviz heads, which has a profile of more texts ({before.measured_on}); --store keeps it"
        return
    try:
        path = store_profile(document)
        instead = "" if before is None else f", instead of that of {before.measured_on}"
        yield f"kept for attnviz heads{instead}: {path}"
    except OutputError as error:
        yield str(error)
