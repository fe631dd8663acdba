"""The command ``attnviz profile``."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

import attnviz
from attnviz.arguments import MOST_EXAMPLES
from attnviz.cli import options
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import print_results, say, split_names
from attnviz.corpora.long_runs import own_file, remove_kept, this_process
from attnviz.errors import OutputError, UsageError
from attnviz.progress import Progress

_OF_SHOW = {"model", "revision", "corpora", "show", "as_json", "quiet"}
"""What ``--show`` reads."""


@command(
    figures="roles, scores, relations, layers, likeness, examples, page", note="Default: all but examples and page."
)
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
        int, options.seed_option("Random seed of the verified sample, the bootstrap and the random tokens.")
    ] = 0,
    syntax: Annotated[
        bool,
        typer.Option(help="Parse .txt files if spaCy and a pipeline for them are installed."),
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
            help="Also measure an untrained copy of the model, on up to 500 texts of each corpus. A role passes only "
            "if its score is above that of the copy."
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
            max=MOST_EXAMPLES,
            help="Keep N sentences in which a head shows a role best, and N in which it fails most clearly; 0 for "
            "none.",
        ),
    ] = 8,
    show: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HEADS|ROLE",
            help="Print examples of heads (L2H8, L2) or a role (obj, sink) of a stored profile, and measure nothing. "
            "Instead of a corpus, a profile.json may be named. May be given more than once.",
        ),
    ] = None,
    store: Annotated[
        bool | None,
        options.output_option(
            "--store/--no-store",
            help="Keep what was measured, so that attnviz heads shows it. Default: keep the parts of no fewer texts "
            "than before.",
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        options.picture_option(
            metavar="HEADS",
            help="Heads whose examples are drawn (adds the figure examples), as for attnviz heads. Default: those that "
            "pass a role.",
        ),
    ] = None,
    top: Annotated[int, options.top_option("Number of rows in each table.")] = 15,
) -> None:
    """Measure what every head of a model does on many texts, compared with baselines.

    It writes figures, captions, profile.json and profile.csv, and prints tables. After an interruption the same command
    goes on where it stopped. To split the work over processes, start it with torchrun -m attnviz profile.

    Examples:
        attnviz profile corpus.txt --repeats
        attnviz profile --show L2H8
    """
    if show is not None:
        _show(run, split_names(show), corpora or [], _unused(run, locals()))
        return
    process = this_process()
    run.silent = not process.first
    if not corpora and not repeats:
        raise UsageError("nothing to measure: expected a corpus (.conllu, .txt or GAP .tsv), or --repeats.")
    adds = ["examples"] if select else []
    if "examples" in (run.figure_names(adds) or []) and not (examples and corpora):
        raise UsageError(
            "the figure examples needs a corpus and --examples above 0: leave out the figure and --select."
        )
    source = run.find_model()
    folder = run.results_folder([run.model], (), corpora or ())
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
            device_map=run.device_map,
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

    run.execute(measure, corpora=corpora or (), select=select or (), adds=adds, top=top, rate=True, finish=finish)


def _unused(run: Run, own: Mapping[str, Any]) -> list[str]:
    """The options, of those shared and the command's own, that were given and mean nothing to ``--show``."""
    values, spelled = {**vars(run), **own}, {"formats": "format", "as_json": "json"}
    return [
        f"--{'no-' * (values[name] is False)}{spelled.get(name, name.replace('_', '-'))}"
        for name, option in inspect.signature(profile).parameters.items()
        if name not in _OF_SHOW and values[name] != option.default
    ]


def _show(run: Run, wanted: list[str], named: list[Path], unused: Sequence[str]) -> None:
    """Print examples of a stored profile, or of a profile.json that is named."""
    from attnviz.commands.profile.show import chosen_examples, example_tables, examples_document
    from attnviz.patterns.profile_store import read_profile, stored_profile
    from attnviz.results.tables import spaced

    if unused:
        raise UsageError(f"--show prints examples and writes no files: leave out {', '.join(unused)}.")
    corpora = [path for path in named if path.suffix.lower() != ".json" and not path.is_dir()]
    if corpora or len(named) > 1:
        raise UsageError(
            f"--show reads no corpus: expected one profile.json or its folder, or nothing, found "
            f"{', '.join(map(str, named))}."
        )
    if named:
        profile = read_profile(named[0])
    elif (found := stored_profile(run.find_model(), lambda message: say(message, run.quiet))) is not None:
        profile = found
    else:
        raise UsageError(
            f"no profile of {run.model} is stored: make one with attnviz profile CORPUS -m {run.model}, or name a "
            "profile.json."
        )
    chosen = chosen_examples(profile, wanted)
    printed = examples_document(profile, chosen)
    print_results(printed, lambda w: spaced(example_tables(profile, chosen, w)), run.as_json, run.quiet)


def _keep(document: dict[str, Any], store: bool | None) -> Iterator[str]:
    """Keep the profile for ``attnviz heads``, and say what became of each part and what could not be kept."""
    from attnviz.patterns.profile_parts import measured_on
    from attnviz.patterns.profile_store import store_profile

    if store is False:
        return
    if document["model"].get("stacks"):
        yield "not kept for attnviz heads, which shows no roles of encoder-decoders"
        return
    damaged = list[str]()
    try:
        path, merged = store_profile(document, date.today().isoformat(), smaller=bool(store), warn=damaged.append)
    except OutputError as error:
        yield str(error)
        return
    yield from damaged

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
