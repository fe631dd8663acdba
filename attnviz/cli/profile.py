"""The command ``attnviz profile``."""

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import say, split_names
from attnviz.errors import UsageError
from attnviz.options import ExportFormat
from attnviz.run.processes import remove_kept

# what ``--show`` reads
_OF_SHOW = {"model", "revision", "adapter", "corpora", "show", "top", "table", "as_json", "quiet"}


@command(*opt.COMMON, opt.ColumnGroup, opt.SyntaxGroup, opt.SampleGroup, first="repeats show")
def profile(
    run: Run,
    corpora: Annotated[
        list[Path] | None,
        opt.argument(
            "Files of texts (.txt, a text a line; .csv, .tsv, .jsonl, .json, .parquet; a datasets folder), treebanks "
            "(.conllu), GAP files for coreference (.tsv), or chats (.jsonl).",
            metavar="CORPUS",
        ),
    ] = None,
    repeats: Annotated[
        bool, opt.measuring("Also measure induction, duplicate-token and retrieval heads on random tokens.")
    ] = False,
    frequencies: opt.Frequencies = None,
    parser: Annotated[
        opt.Parser, "The spaCy pipeline that parses texts. Default: an English one, whatever their language."
    ] = None,
    control: Annotated[
        bool,
        opt.measuring(
            "Also measure an untrained copy of the model, on up to 500 texts of each corpus. A role passes only if its "
            "score is above that of the copy.",
            "--control/--no-control",
        ),
    ] = True,
    examples: Annotated[
        int,
        opt.measuring(
            "Keep N sentences in which a head shows a role best, and N in which it fails most clearly; 0 for none."
        ),
    ] = 8,
    show: Annotated[
        list[str] | None,
        opt.measuring(
            "Print examples of heads (L2H8, L2) or a role (obj, sink) of a stored profile, or with roles the roles of "
            "all heads, and measure nothing. With --table roles are a table for a paper; with --figures, --format or "
            "--width pictures are drawn. Instead of a corpus, a profile.json may be named. May be given more than "
            "once.",
            metavar="HEADS|ROLE|roles",
        ),
    ] = None,
    export: Annotated[
        ExportFormat | None,
        opt.measuring(
            "Also write a folder that another tool reads: duo-attention (retrieval scores of KV heads, with --repeats; "
            "attnviz check holds them against a model) or headvis (its data, with a corpus)."
        ),
    ] = None,
    store: Annotated[
        bool | None,
        opt.writing(
            "Keep what was measured, so that attnviz heads shows it. Default: keep the parts of no fewer texts than "
            "before.",
            "--store/--no-store",
        ),
    ] = None,
    top: Annotated[
        opt.Top,
        "Number of rows in each table; with --show of hits and failures of each head; 0 for all. Default: 5 on the "
        "first screen (of heads 10 without a treebank), 15 with --verbose; with --show 2.",
    ] = None,
    by: opt.By = None,
    table: opt.Table = None,
) -> None:
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
        attnviz profile --show roles --table tex --width column
            Its roles as a table for a paper, with figures for a column.
    """
    if show:
        _show(run, split_names(show), run.options["corpora"])
        return
    paths: Sequence[Path] = run.options["corpora"]
    no_trees = not run.options["syntax"] and all(path.suffix.lower() != ".conllu" for path in paths)
    if no_trees and "relations" in (run.figure_names() or []):
        raise UsageError("the figure relations needs trees: expected a treebank (.conllu), or no --no-syntax.")
    if not paths:
        if not run.options["repeats"]:  # said before a model is looked for
            raise UsageError(
                "nothing to measure: expected a corpus (.txt, .csv, .conllu or another), --repeats, or --show roles."
            )
        run.refuse(
            ("limit", "examples", "frequencies"), "is about the texts of a corpus; expected one with it, found none"
        )

    def finish(_: object, document: dict[str, Any]) -> Iterator[str]:
        from attnviz.commands.profile.measure import PARTS, part_file
        from attnviz.profiles.store import keep_profile

        remove_kept(part_file(run.unfinished, PARTS[1]), run.process)
        return iter(()) if store is False else keep_profile(document, date.today().isoformat(), smaller=bool(store))

    run.work(run.bound("profile_heads", texts=paths), of=paths, finish=finish)


def _show(run: Run, wanted: list[str], named: Sequence[Path]) -> None:
    from attnviz.commands.profile.show import shown_profile
    from attnviz.profiles.store import find_profile, read_profile

    draws = {"out", *opt.FigureGroup.__annotations__}
    unused = [typed for name, typed in run.changed.items() if name not in _OF_SHOW | draws]
    if unused:
        raise UsageError(f"--show measures nothing: leave out {', '.join(unused)}.")
    if len(named) > 1 or any(path.suffix.lower() != ".json" and not path.is_dir() for path in named):
        raise UsageError(
            f"--show reads no corpus: expected one profile.json or its folder, or nothing, found "
            f"{', '.join(map(str, named))}."
        )
    profile = (
        read_profile(named[0])
        if named
        else find_profile(run.find_model(), "*", lambda message: say(message, run.quiet))
    )
    if profile is None:
        raise UsageError(
            f"no profile of {' + '.join(run.model_names)} is stored: make one with attnviz profile CORPUS, or name a "
            "profile.json."
        )
    shown = shown_profile(profile, wanted, run.options["top"], run.options["table"])
    if draws.isdisjoint(run.changed) or run.figure_names() == []:
        run.show(shown.content, lambda: shown.printed)
        return
    model = str(profile.model.get("name"))
    run.work(lambda: shown, of=[*wanted, *named], models=[model], reads=[profile.path], more="")
