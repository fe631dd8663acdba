"""The command ``attnviz profile``: parse, call, hand over."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnviz.cli import options
from attnviz.cli.runner import Show, check_out, errors_to_exit_codes, results_folder
from attnviz.corpora.long_runs import own_file, this_process
from attnviz.errors import OutputError, UsageError

if TYPE_CHECKING:
    from attnviz.commands.profile.measure import Profile
    from attnviz.model.sources import Source
    from attnviz.progress import Progress

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
    figures: Annotated[
        str | None,
        typer.Option(
            help="Any of roles, scores, relations, layers, likeness (with commas between); all; none.",
            show_default=False,
        ),
    ] = None,
    no_figures: options.NoFigures = False,
    formats: options.Formats = None,
    theme: options.Theme = "light",
    width: options.Width = None,
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
    with errors_to_exit_codes() as run:
        run.silent = not process.first
        check_out(out)
        if not corpora and not repeats:
            raise UsageError("nothing to measure: expected a corpus (.conllu, .txt or GAP .tsv), or --repeats.")
        from attnviz.model.sources import find_checkpoint

        source = find_checkpoint(model, revision)
        unfinished = results_folder(out, [model]) / "profile.unfinished"
        run.kept = own_file(unfinished, process)

        def measure(tell: "Progress", warn: Callable[[str], None]) -> "Profile | None":
            from attnviz.commands.profile.measure import profile_heads

            return profile_heads(
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
                unfinished=unfinished,
                progress=tell,
                warn=warn,
            )

        def finish(document: dict[str, Any]) -> Iterator[str]:
            for kept in unfinished.parent.glob(f"{unfinished.name}*"):
                kept.unlink(missing_ok=True)
            if figures in (None, "all") and not no_figures and document["statistics"] is not None:
                from attnviz.commands.profile.likeness import scikit_learn_missing

                yield from filter(None, [scikit_learn_missing()])
            yield from _keep(document, source, store)

        show = Show(figures, no_figures, formats, theme, width=width, top=top)
        run.execute("profile", measure, show, models=[model], out=out, as_json=as_json, quiet=quiet, folder_name="",
                    rate=True, finish=finish)  # fmt: skip


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
