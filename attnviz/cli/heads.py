"""The command ``attnviz heads``; with ``--each-line`` a folder for every line of a file, and one summary of all."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import read_text, split_names
from attnviz.errors import UsageError
from attnviz.model.wording import counted
from attnviz.progress import Progress

if TYPE_CHECKING:
    from attnviz.commands.heads.texts.measure import OneText
    from attnviz.corpora.reading import Text
    from attnviz.model.sources import Source
    from attnviz.results.view import ChoiceNames


_SUMMARY = "texts"
"""The figure of all texts; all others are of one."""


@command(
    figures="overview, heads, lines, map, mean, pair, panel, relations, text, page",
    note="Default: overview,heads. With --each-line also texts.",
)
def heads(
    run: Run,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="The sentence. Write - to read standard input. With --each-line: a file (.txt) with a text on each "
            "line, or -.",
        ),
    ],
    each_line: Annotated[
        bool,
        options.text_option(
            "--each-line", help="Analyse every line of a file by itself, and how much the heads vary between them."
        ),
    ] = False,
    pair: options.Pair = None,
    target: options.Target = None,
    max_new_tokens: options.MaxNewTokens = None,
    generate: Annotated[
        int | None,
        options.text_option(
            metavar="COUNT",
            min=1,
            help="Let a decoder (GPT-2, the Llama kind) write so many tokens after the text, greedily, and show the "
            "attention of all.",
        ),
    ] = None,
    any_family: Annotated[
        bool,
        options.text_option(
            "--any-family",
            help="Also take a family of transformers that attnviz does not reproduce. Its patterns are recomputed from "
            "the model's own queries and keys, which is level 1 of 4: not verified.",
        ),
    ] = False,
    queries: Annotated[
        str | None,
        options.text_option(
            metavar="QUERIES",
            help="Measure and draw the rows of these tokens alone: last, a stretch such as -64: or 100:200, or a token "
            "as for --token. For long texts.",
        ),
    ] = None,
    select: options.SelectByRole = None,
    words: options.Words = False,
    local_window: options.LocalWindow = 1,
    long_range_from: options.LongRangeFrom = 4,
    syntax: Annotated[
        bool,
        typer.Option(help="Parse the text if spaCy and a pipeline for it are installed."),
    ] = True,
    parser: options.Parser = None,
    profile: Annotated[
        bool,
        typer.Option(help="Also show the roles that a stored profile gives the heads."),
    ] = True,
    truncate: options.Truncate = False,
    memory: options.Memory = None,
    scale: Annotated[
        str,
        options.picture_option(
            metavar="SCALE",
            help="Colour scale: shared (0 to 1 for all heads), per-head (0 to the largest weight of the head), log, or "
            "auto (shared up to 40 tokens, log beyond).",
        ),
    ] = "auto",
    drop_special: Annotated[
        bool,
        options.picture_option(
            "--drop-special",
            help="Draw patterns without special tokens (GPT-2: without the first token), each row scaled to sum to 1.",
        ),
    ] = False,
    token: Annotated[
        str | None,
        options.token_option(
            "Draw what this token attends to, in lines and text (adds the figure lines unless text is asked for)",
            "all",
            options.PICTURES,
        ),
    ] = None,
    relations: Annotated[
        bool,
        options.picture_option(
            "--relations",
            help="Outline in heatmaps the pairs of the relation that is a head's label or role, and draw them as arcs "
            "(adds the figure relations). Needs a parse.",
        ),
    ] = False,
    relation: Annotated[
        str | None,
        options.picture_option(
            metavar="RELATION", help="The same for this relation, such as obj, and all selected heads."
        ),
    ] = None,
    maps: Annotated[
        list[str] | None,
        options.picture_option(
            "--map",
            metavar="STATISTIC",
            help="Draw a map of this statistic, such as entropy, distance, sink or local (adds the figure map). "
            "May be given more than once. Default: entropy.",
        ),
    ] = None,
    save_attention: Annotated[bool, options.save_option("attention", "one tensor per layer")] = False,
    top: Annotated[int, options.top_option("Number of heads in the table, the clearest first.")] = 12,
) -> None:
    """Verify, measure, draw and label every attention head on one text.

    It writes overview.png, one picture per head (heads/L00H00.png), captions, heads.json and heads.csv, and prints
    tables. With --each-line every text has a folder of its own; texts.png, heads-texts.json and heads-texts.csv tell
    of all of them, and heads.jsonl has every heads.json as a line.

    Examples:
        attnviz heads "The cat that I saw ran away"
        attnviz heads sentences.txt --each-line --select L1
    """
    of_one: dict[str, object] = {"--pair": pair, "--target": target, "--token": token, "--generate": generate}
    of_one |= {"--relation": relation, "--any-family": any_family or None, "--queries": queries}
    lines = _texts_of_lines(text, of_one) if each_line else None
    sentence = read_text(text) if lines is None else ""
    statistics = split_names(maps)
    source = run.find_model()
    reading: dict[str, Any] = {
        "max_new_tokens": max_new_tokens, "words": words, "local_window": local_window,
        "long_range_from": long_range_from, "syntax": syntax, "parser": parser, "truncate": truncate,
        "profile": profile, "memory": memory, "device": run.device, "device_map": run.device_map, "dtype": run.dtype,
    }  # fmt: skip

    def measure(progress: Progress, warn: Callable[[str], None]) -> "attnviz.Analysis":
        _check_statistics(statistics)
        return attnviz.analyze(
            sentence, source, pair=pair, target=target, progress=progress, warn=warn, generate=generate,
            any_family=any_family, queries=queries, **reading,
        )  # fmt: skip

    drawn: ChoiceNames = {
        "select": select or (), "top": top, "drop_special": drop_special, "token": token, "maps": statistics,
        "tensors": save_attention, "relations": relations, "relation": relation,
    }  # fmt: skip
    adds = ["lines"] * (token is not None and "text" not in split_names([run.figures or "all"]))
    adds += ["map"] * bool(statistics) + ["relations"] * (relations or relation is not None)
    if lines is not None:
        _analyze_lines(run, lines, source, reading, scale=scale, adds=adds, choices=drawn)
        return
    asked = None if generate is None else f"--generate {generate}"
    run.execute(measure, texts=(sentence, pair, target, asked), scale=scale, adds=adds, **drawn)


def _texts_of_lines(file: str, refused: Mapping[str, object]) -> "Path | list[Text]":
    """The file, or the lines of standard input that are not blank.

    Raises:
        UsageError: an option was given that is about one text.
    """
    from attnviz.corpora.reading import Place, Text

    for option, given in refused.items():
        if given is not None:
            raise UsageError(f"{option} is about one text; expected --each-line without it, found both.")
    if file != "-":
        return Path(file)
    lines = enumerate(read_text("-").split("\n"), start=1)
    filled = ((number, line.strip()) for number, line in lines if line.strip())
    return [Text(line, place=Place(Path("standard input"), number)) for number, line in filled]


def _analyze_lines(
    run: Run,
    lines: "Path | list[Text]",
    source: "Source",
    reading: Mapping[str, Any],
    *,
    scale: str,
    adds: Sequence[str],
    choices: "ChoiceNames",
) -> None:
    """Analyse every line; each text is written whole before the next is read, the summary at the end.

    ``reading`` are further arguments of :func:`attnviz.analyze_each`; the others are as for :meth:`Run.execute`.
    """
    from attnviz.commands.heads.findings import ids_and_names
    from attnviz.commands.heads.relations import without_relations
    from attnviz.results.documents import json_text, read_document
    from attnviz.results.output_folder import OutputFolder
    from attnviz.results.report import checked_views, layout_of

    _, labels = ids_and_names(choices.get("select", ()))
    if labels:
        raise UsageError(
            f"--select {labels[0]!r} is what heads are on one text; expected ids such as L2H8 with --each-line."
        )
    names = _figures_of_each(run, adds)
    wanted, formats = run.choices(scale, choices), run.format_names
    written, without = set[str](), Counter[str]()

    def write(one: "OneText", analysis: "attnviz.Analysis") -> None:
        assert run.folder is not None
        if (
            not written
            and run.figures == _SUMMARY
            and (why := checked_views(run.command, [_SUMMARY])[0].drawing.missing(analysis))
        ):
            raise UsageError(f"there is no figure {_SUMMARY!r}: {why}.")
        path = run.folder.path / one.folder
        document = read_document(path / "heads.json")
        if one.folder not in written:
            missing = [view.name for view in checked_views("heads", names or []) if view.drawing.missing(analysis)]
            without.update([] if names == ["all"] else missing)
            drawn = names and [name for name in names if name == "all" or name not in missing]
            try:
                with OutputFolder(path, layout_of("heads"), run.overwrite) as output:
                    shown = replace(wanted, relations=wanted.relations and not without_relations(analysis))
                    document = analysis.write(output, shown, figures=drawn, formats=formats)
            except UsageError as error:
                raise UsageError(f"{one.place}: {error}") from error
        written.add(one.folder)
        run.folder.write("heads.jsonl", json_text(document, None), more=True)
        texts = f"{counted(len(written), 'text')} {'was' if len(written) == 1 else 'were'}"
        run.partly = f"{texts} written to {run.folder.path}, each whole in its own folder; the summary was not."

    def measure(progress: Progress, warn: Callable[[str], None]) -> "attnviz.TextsAnalysis":
        _check_statistics(choices.get("maps", ()))
        return attnviz.analyze_each(lines, source, visit=write, progress=progress, warn=warn, **reading)

    def finish(_: dict[str, Any]) -> Iterator[str]:
        run.partly = ""
        for name, count in without.items():
            yield f"{counted(count, 'text')} had nothing to draw for the figure {name}"
        yield f"each text has a folder of its own there, {len(written)} in all"

    run.command = "heads.texts"
    given = [] if isinstance(lines, Path) else [line.text for line in lines]
    corpora = [lines] if isinstance(lines, Path) else []
    run.execute(measure, texts=given, corpora=corpora, scale=scale, rate=True, finish=finish, **choices)


def _figures_of_each(run: Run, adds: Sequence[str]) -> list[str] | None:
    """The figures of each text; ``--figures`` is left with that of all texts."""
    asked = (run.figures or "").replace(" ", "").split(",")
    own = [name for name in asked if name == _SUMMARY]
    if own and not run.no_figures:
        run.figures = ",".join(name for name in asked if name != _SUMMARY) or "none"
    names = run.figure_names(adds)
    if run.figures is not None and run.figures.strip() != "all":
        run.figures = _SUMMARY if own else "none"
    return names


def _check_statistics(names: Sequence[str]) -> None:
    if names:
        from attnviz.commands.heads.map_view import statistic_named

        for name in names:
            statistic_named(name)
