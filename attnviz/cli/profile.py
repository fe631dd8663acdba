"""The command ``attnviz profile``."""

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnviz
from attnviz.cli.runner import Job, Run, command, unfinished_file, unfinished_note
from attnviz.cli.terminal import print_results, say, split_names
from attnviz.errors import OutputError, UsageError
from attnviz.progress import Progress
from attnviz.texts.long_runs import own_file, remove_kept, this_process

if TYPE_CHECKING:
    from rich.console import RenderableType

_OF_SHOW = {"model", "revision", "adapter", "corpora", "show", "top", "table", "as_json", "quiet"}
"""What ``--show`` reads."""


@command
def profile(run: Run, corpora: Sequence[Path], show: Sequence[str], **options: Any) -> Job:
    """Measure what every head of a model does on many texts, compared with baselines.

    It writes figures, captions, profile.json and profile.csv, and prints tables. After an interruption the same command
    goes on where it stopped. To split the work over processes, start it with torchrun -m attnviz profile.

    Examples:
        attnviz profile en_ewt-ud-dev.conllu -m ./my-bert
            The roles of all heads, over a treebank.
        attnviz profile --repeats -m tiny-gpt2
            Induction and duplicate-token heads; needs no corpus.
        attnviz profile --show L2H8
            What a stored profile says of a head, with examples.
        attnviz profile --show roles --table tex
            The roles of all heads by a stored profile, as a table for a paper.
    """
    if show:
        return Job(partial(_show, run, split_names(show), corpora))
    if not corpora and not options["repeats"]:
        raise UsageError("nothing to measure: expected a corpus (.conllu, .txt, GAP .tsv), --repeats, or --show roles.")
    source, process = run.find_model(), this_process()
    unfinished = unfinished_file(run.results_folder(run.model_names, (), corpora))

    def measure(_: object, progress: Progress, warn: Callable[[str], None]) -> "attnviz.Profile | None":
        return attnviz.profile_heads(source, corpora, **options, unfinished=unfinished, progress=progress, warn=warn)

    def finish(document: dict[str, Any]) -> Iterator[str]:
        from attnviz.commands.profile.measure import PARTS, part_file

        for part in PARTS:
            remove_kept(part_file(unfinished, part), process)
        yield from _keep(document, run.options["store"])

    kept = unfinished_note(own_file(unfinished, process))
    return run.job(measure, corpora=corpora, rate=True, finish=finish, recovery_hint=kept, silent=not process.first)


def _show(run: Run, wanted: list[str], named: Sequence[Path]) -> None:
    from attnviz.commands.profile import show
    from attnviz.present.tables import spaced
    from attnviz.profiles.store import read_profile, stored_profile

    unused = [typed for name, typed in run.changed.items() if name not in _OF_SHOW]
    if unused:
        raise UsageError(f"--show prints, and writes no files: leave out {', '.join(unused)}.")
    corpora = [path for path in named if path.suffix.lower() != ".json" and not path.is_dir()]
    if corpora or len(named) > 1:
        raise UsageError(
            f"--show reads no corpus: expected one profile.json or its folder, or nothing, found "
            f"{', '.join(map(str, named))}."
        )
    if named:
        profile = read_profile(named[0])
    elif (stored := stored_profile(run.find_model(), lambda message: say(message, run.quiet))) is not None:
        profile = stored
    else:
        raise UsageError(
            f"no profile of {' + '.join(run.model_names)} is stored: make one with attnviz profile CORPUS, or name a "
            "profile.json."
        )
    choices, as_json, top = run.choices(), run.options["as_json"], run.options["top"]
    if wanted == [show.ROLES]:
        listed = choices.top or 0
        printed = show.passed_roles(profile)

        def tables() -> "RenderableType | str":
            if choices.table:
                return show.paper_table_of(profile, choices.table)
            return spaced(show.role_tables(profile, listed))
    else:
        run.refuse(("table",), f"is a table of roles: expected --show {show.ROLES} with it")
        listed = show.EXAMPLES if top is None else top
        chosen = show.chosen_examples(profile, wanted)
        printed = show.examples_document(profile, chosen)

        def tables() -> "RenderableType | str":
            return spaced(show.example_tables(profile, chosen, listed))

    print_results(printed, tables, as_json, run.quiet)


def _keep(document: dict[str, Any], store: bool | None) -> Iterator[str]:
    """Store the profile for ``attnviz heads``; yields messages on what was stored of it."""
    from attnviz.profiles.parts import measured_on
    from attnviz.profiles.store import store_profile

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

    if not merged.new and not merged.replaced:
        larger = "; ".join(f"{name} ({measured_on(merged.before[name])})" for name in merged.larger)
        yield f"not kept for attnviz heads, which has {larger} of more texts; --store replaces"
        return
    names = {"new": merged.new, "replaced": merged.replaced, "kept": merged.kept, "left (of more texts)": merged.larger}
    parts = "; ".join(f"{verb} {', '.join(some)}" for verb, some in names.items() if some)
    yield f"kept for attnviz heads: {parts}: {path}"
