"""The sets of figures that can be asked for by name, and their files with captions."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from attnviz.commands.heads.findings import Findings, HeadFindings, without_sinks
from attnviz.errors import UsageError
from attnviz.figures.captions import heatmap_caption, overview_caption
from attnviz.figures.heatmaps import HeatmapPlan, heatmap_plans
from attnviz.figures.line_drawing import lines_figures
from attnviz.figures.look import PLAIN, Look
from attnviz.figures.means import mean_figures
from attnviz.figures.overviews import model_overview_plan
from attnviz.figures.pairs import pair_figures
from attnviz.figures.rendering import FORMATS, figure_bytes, heatmap_files, overview_file
from attnviz.figures.statistic_map import map_figures, statistic_named

__all__ = ["DEFAULT_FIGURES", "FIGURES", "Drawing", "check_figures", "figure_count", "figure_files"]

DEFAULT_FIGURES = ("overview", "heads")
"""The sets that are drawn unless others are asked for."""

_Files = Iterator[tuple[str, bytes, str]]
"""File name, content and caption."""


@dataclass(frozen=True)
class Drawing:
    """What is to be drawn, and how.

    Attributes:
        figures: names of sets, any of :data:`FIGURES`.
        formats: any of ``png``, ``svg``, ``pdf``.
        look: theme, scale and width.
        drop_special: leave sinks out of the patterns, for drawing only.
        from_token: the token whose attention the lines show; None for all.
        maps: the statistics that maps are drawn of.
    """

    figures: tuple[str, ...] = DEFAULT_FIGURES
    formats: tuple[str, ...] = ("png",)
    look: Look = PLAIN
    drop_special: bool = False
    from_token: str | None = None
    maps: tuple[str, ...] = ("entropy",)

    def shown(self, findings: Findings) -> Findings:
        """The findings as patterns are drawn of them.

        Raises:
            UsageError: nothing is left of the text without its sinks.
        """
        return without_sinks(findings) if self.drop_special else findings


def figure_files(findings: Findings, heads: Sequence[HeadFindings], drawing: Drawing) -> _Files:
    """Every file of the sets that were asked for, one after another.

    Raises:
        UsageError: what was asked for does not fit the text.
    """
    for name in FIGURES:
        if name in drawing.figures:
            yield from _SETS[name](findings, heads, drawing)


def figure_count(heads: Sequence[HeadFindings], drawing: Drawing) -> int:
    """How many files there will be; 0 where that is not known beforehand."""
    known = {"overview": 1, "heads": len(heads), "map": len(set(drawing.maps)), "mean": 2}
    counts = [known.get(name) for name in drawing.figures]
    return 0 if None in counts else len(drawing.formats) * sum(count or 0 for count in counts)


def check_figures(
    figures: Sequence[str], formats: Sequence[str], maps: Sequence[str] = (), *, paired: bool = True
) -> None:
    """Refuse unknown names of figure sets, file formats and statistics.

    Args:
        figures: to check.
        formats: to check.
        maps: statistics to check.
        paired: whether there is a second text.

    Raises:
        UsageError: with the valid names.
    """
    for kind, given, known in (("figure", figures, FIGURES), ("format", formats, FORMATS)):
        if isinstance(given, str):
            raise UsageError(f"expected a list of {kind}s, found the string {given!r}: write [{given!r}].")
        unknown = [name for name in given if name not in known]
        if unknown:
            alone = " (on the command line also all, or none)" if kind == "figure" else ""
            raise UsageError(f"unknown {kind} {unknown[0]!r}: expected any of {', '.join(known)}{alone}.")
    if isinstance(maps, str):
        raise UsageError(f"expected a list of statistics, found the string {maps!r}: write [{maps!r}].")
    for statistic in maps:
        statistic_named(statistic)
    if "pair" in figures and not paired:
        raise UsageError("the figure pair shows two texts: give the second one with --pair (pair=...).")


def _overview(findings: Findings, heads: Sequence[HeadFindings], drawing: Drawing) -> _Files:
    shown = drawing.shown(findings)
    plan = model_overview_plan(shown, heads, drawing.look)
    caption = overview_caption(shown, heads, plan)
    for file_format in drawing.formats:
        yield f"overview.{file_format}", overview_file(plan, file_format), caption


def _heads(findings: Findings, heads: Sequence[HeadFindings], drawing: Drawing) -> _Files:
    shown = drawing.shown(findings)
    for file_format in drawing.formats:
        captions: list[str] = []

        def plans(captions: list[str] = captions) -> Iterator[HeatmapPlan]:
            for head, plan in zip(heads, heatmap_plans(shown, heads, drawing.look), strict=True):
                captions.append(heatmap_caption(shown, head, plan))
                yield plan

        for place, content in enumerate(heatmap_files(plans(), file_format)):
            yield f"heads/{heads[place].id.file_stem}.{file_format}", content, captions[place]


def _lines(findings: Findings, heads: Sequence[HeadFindings], drawing: Drawing) -> _Files:
    figures = lines_figures(findings, heads, drawing.look, drawing.from_token, drawing.drop_special)
    yield from _in_formats(figures, drawing)


def _map(findings: Findings, heads: Sequence[HeadFindings], drawing: Drawing) -> _Files:
    del heads  # a map is of the whole model
    for statistic in dict.fromkeys(map(statistic_named, drawing.maps)):
        yield from _in_formats(map_figures(findings, drawing.look, statistic), drawing)


def _mean(findings: Findings, heads: Sequence[HeadFindings], drawing: Drawing) -> _Files:
    del heads  # the mean is over all
    yield from _in_formats(mean_figures(findings, drawing.look, drawing.drop_special), drawing)


def _pair(findings: Findings, heads: Sequence[HeadFindings], drawing: Drawing) -> _Files:
    yield from _in_formats(pair_figures(findings, heads, drawing.look), drawing)


def _in_formats(figures: Iterable[tuple[str, Figure, str]], drawing: Drawing) -> _Files:
    for stem, figure, caption in figures:
        for file_format in drawing.formats:
            yield f"{stem}.{file_format}", figure_bytes(figure, file_format, indexed=False, look=drawing.look), caption


_SETS: dict[str, Callable[[Findings, Sequence[HeadFindings], Drawing], _Files]] = {
    "overview": _overview,
    "heads": _heads,
    "lines": _lines,
    "map": _map,
    "mean": _mean,
    "pair": _pair,
}

FIGURES = tuple(_SETS)
"""Sets of figures that can be asked for by name."""
