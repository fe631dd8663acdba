"""The command ``attnviz profile``: parse, call, hand over."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnviz.cli import options
from attnviz.cli.runner import (
    check_out,
    errors_to_exit_codes,
    print_results,
    progress,
    results_folder,
    say,
    say_what_was_written,
    split_names,
)
from attnviz.corpora.processes import own_file, this_process
from attnviz.errors import OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnviz.model.sources import Source

__all__ = ["profile"]


def profile(
    corpora: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CORPUS...", help=".conllu treebanks, .txt files (a sentence a line), GAP .tsv files (coreference)."
        ),
    ] = None,
    model: options.Model = "minilm",
    revision: options.Revision = None,
    repeats: Annotated[
        bool, typer.Option("--repeats", help="Also measure random tokens, repeated: induction, duplicate-token.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Sentences (or rows) of each corpus that are read; default all.", show_default=False),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts that the model reads at once.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of the verified sample, the bootstrap and the repeats.")] = 0,
    syntax: Annotated[
        bool, typer.Option("--syntax/--no-syntax", help="Parse .txt files, where spaCy and a pipeline are installed.")
    ] = True,
    parser: Annotated[
        str | None,
        typer.Option(
            help="spaCy pipeline that parses .txt files; default an installed English one.", show_default=False
        ),
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw what was measured.")] = True,
    formats: options.Formats = None,
    store: Annotated[
        bool | None,
        typer.Option(
            "--store/--no-store",
            help="Keep the profile for attnviz heads to show; default unless one of more texts is kept already.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Folder for the results; default attnviz-out/MODEL.", show_default=False),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Rows of the tables; 0 for all.")] = 15,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure what every head of a model does on corpora, beside honest baselines.

    Writes profile.json, profile.csv and figures, and prints tables. Interrupted, it goes on where it was when the
    same command is given again; torchrun -m attnviz profile … splits the work over processes.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 the heads do not reproduce the model,
    130 interrupted.
    """
    process = this_process()
    quiet = quiet or not process.first
    with errors_to_exit_codes() as outcome:
        outcome.silent = not process.first
        check_out(out)
        if not corpora and not repeats:
            raise UsageError("nothing to measure: expected a corpus (.conllu, .txt or GAP .tsv), or --repeats.")
        from attnviz.model.sources import find_checkpoint

        source = find_checkpoint(model, revision)
        wanted_formats = split_names(formats) or ["png"]
        from attnviz.results.output_folder import OutputFolder

        folder = results_folder(out, [model])
        outcome.kept = own_file(folder / "profile.unfinished", process)
        with ExitStack() as stack:
            from attnviz.commands.profile.document import PROFILE

            output = stack.enter_context(OutputFolder(folder, PROFILE)) if process.first else None
            outcome.folder = output
            tell = stack.enter_context(progress(quiet, rate=True))
            tell("loading", 0, 0)
            from attnviz.commands.profile.profiling import profile_heads
            from attnviz.commands.profile.saving import write_profile
            from attnviz.results.saving import check_formats

            check_formats(wanted_formats)
            found = profile_heads(
                source,
                corpora or [],
                repeats=repeats,
                limit=limit,
                batch_size=batch_size,
                seed=seed,
                syntax=syntax,
                parser=parser,
                device=device,
                dtype=dtype,
                unfinished=folder / "profile.unfinished",
                progress=tell,
                warn=lambda message: say(message, quiet),
            )
            if found is None or output is None:
                return
            wanted = wanted_formats if figures else []
            document = write_profile(output, found, wanted, lambda count: tell("figures", count, 0))
        for kept in folder.glob("profile.unfinished*"):
            kept.unlink(missing_ok=True)
        from attnviz.commands.profile.tables import profile_report

        print_results(folder, document, lambda _: profile_report(found, top=top), as_json, quiet)
        for message in _afterwards(document, source, store, figures):
            say(message, quiet)
        say_what_was_written(output, quiet)


def _afterwards(document: dict[str, Any], source: "Source", store: bool | None, figures: bool) -> "Iterator[str]":
    """Keep the profile for ``attnviz heads``, and say what was done and what could not be."""
    from attnviz.commands.profile.likeness import likeness_unavailable
    from attnviz.patterns.profile_store import find_profile, model_shape, store_profile

    if figures and document["statistics"] is not None and (missing := likeness_unavailable()) is not None:
        yield missing
    if store is False:
        return
    model = document["model"]
    shape = model_shape(model["architecture"], model["n_layers"], model["n_heads"], model["d_model"])
    messages: list[str] = []
    before = find_profile(source, shape, messages.append)
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
