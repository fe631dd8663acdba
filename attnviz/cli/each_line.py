"""``attnviz heads --each-line``: a folder for every line of a file, and one summary of all."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnviz
from attnviz.cli.runner import Run
from attnviz.cli.terminal import read_text
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


def texts_of_lines(file: str, refused: Mapping[str, object]) -> "Path | list[Text]":
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


def analyze_lines(
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
            and (why := checked_views(run.command, [_SUMMARY])[0].missing(analysis))
        ):
            raise UsageError(f"there is no figure {_SUMMARY!r}: {why}.")
        path = run.folder.path / one.folder
        document = read_document(path / "heads.json")
        if one.folder not in written:
            missing = [view.name for view in checked_views("heads", names or []) if view.missing(analysis)]
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
        from attnviz.commands.heads.map_view import statistic_named

        for statistic in choices.get("maps", ()):
            statistic_named(statistic)
        return attnviz.analyze_each(
            lines, source, visit=write, device=run.device, dtype=run.dtype, progress=progress, warn=warn, **reading
        )

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
