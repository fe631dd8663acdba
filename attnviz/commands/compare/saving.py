"""Two analyses to a comparison with its figures, tables and files; for the command line and for Python."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from attnviz.arguments import check_counts, check_switch
from attnviz.commands.compare.differences import Differences, find_differences
from attnviz.commands.compare.document import COMPARE, compare_document
from attnviz.commands.compare.drawing import difference_figure, difference_grid_figure, difference_map_figure
from attnviz.commands.compare.figures import difference_plans, plan_difference_grid, plan_difference_map
from attnviz.commands.compare.tables import compare_report
from attnviz.commands.compare.words import side_names
from attnviz.commands.heads.findings import Findings
from attnviz.figures.look import Look, checked_look
from attnviz.model.head_ids import HeadId, head_named
from attnviz.results.output_folder import OutputFolder, check_folder
from attnviz.results.saving import Picture, check_formats, write_results
from attnviz.results.tables import plain_text
from attnviz.version import __version__

__all__ = ["TOP", "Comparison", "compare"]

TOP = 12
"""Heads that get a picture of their own, and a row in the tables, unless more or other ones are asked for."""


class Comparison(Differences):
    """What :func:`compare` found: the heads ranked, with figures, tables and files.

    See :class:`attnviz.commands.compare.differences.Differences` for the data: ``heads`` (the most different first),
    ``layers``, ``head("L2H8")``, ``select(["L0-3"])``, ``floor``.
    """

    def figure(self, what: str | HeadId = "overview", look: Look | None = None, select: Sequence[str] = ()) -> Figure:
        """A new figure.

        Args:
            what: ``overview`` (the differences of all heads), ``map`` (layers x heads by distance), or a head.
            look: theme, width, and for a head also scale (``shared``, as all the others, or ``per-head``).
            select: heads in the overview; default all.

        Raises:
            UsageError: the models have no such head, or the width has no room for what is to be drawn.
        """
        look = checked_look(look)
        if what == "overview":
            return difference_grid_figure(plan_difference_grid(self, self.select(select), look), look)
        if what == "map":
            return difference_map_figure(plan_difference_map(self, look), look)
        model = self.first.checkpoint
        head = self.head(head_named(what, model.n_layers, model.n_heads, "overview, map, or"))
        return difference_figure(next(difference_plans(self, [head], look)), look)

    def document(self, select: Sequence[str] = (), figures: Sequence[str] = ()) -> dict[str, Any]:
        """The document of compare.json for the selected heads, as plain Python values."""
        return compare_document(self, self.select(select), figures, __version__)

    def report(self, width: int = 100, *, select: Sequence[str] = (), top: int = TOP) -> str:
        """The tables that ``attnviz compare`` prints, as plain text of a given width.

        Args:
            width: columns of the text.
            select: heads to list, as for ``attnviz compare --select``; default all.
            top: rows at most, the most different first; 0 for all.

        Raises:
            UsageError: a selection cannot be read, or a number is none.
        """
        check_counts(top=top)
        return plain_text(lambda columns: compare_report(self, self.select(select), top=top, width=columns), width)

    def save(
        self,
        folder: str | Path,
        *,
        select: Sequence[str] = (),
        top: int | None = None,
        figures: bool = True,
        formats: Sequence[str] = ("png",),
        look: Look | None = None,
    ) -> dict[str, Any]:
        """Write compare.json, compare.csv, captions.md and figures into a folder: all of them, or nothing.

        Args:
            folder: made where it is missing. Pictures of an earlier run there stay where it was of the same comparison
                (but for those of the same name); all other files that attnviz wrote there are removed.
            select: heads to draw and list; default all are listed.
            top: how many of these get a picture of their own, the most different first; 0 for all. Default
                :data:`TOP`, and all where heads were selected.
            figures: whether to draw.
            formats: any of ``png``, ``svg``, ``pdf``.
            look: theme, width and scale.

        Returns:
            the document that compare.json holds.

        Raises:
            OutputError: the folder cannot be written to, or holds foreign files of our names.
            UsageError: an unknown format or head, or a width without room.
        """
        check_switch("figures", figures)
        check_folder(folder)
        check_formats(formats)
        drawn = formats if figures else ()
        with OutputFolder(Path(folder), COMPARE) as output:
            return self.write(output, select=select, top=top, formats=drawn, look=checked_look(look))

    def write(
        self,
        output: OutputFolder,
        *,
        select: Sequence[str],
        top: int | None,
        formats: Sequence[str],
        look: Look,
        tell: Callable[[int, int], None] = lambda _, __: None,
    ) -> dict[str, Any]:
        """The same into a folder that is open already.

        Args:
            output: the folder, laid out for a comparison.
            select: as for :meth:`save`.
            top: as there.
            formats: of the figures; none for no figures.
            look: theme, width and scale.
            tell: told how many figures are drawn, of how many.
        """
        check_counts(**({} if top is None else {"top": top}))
        count = len(self._drawn(select, top)) + 2
        return write_results(
            output,
            self._pictures(select, top, look),
            formats,
            look,
            lambda files: self.document(select, files),
            lambda done: tell(done, count),
        )

    def __repr__(self) -> str:
        """One line: what was compared, and which head differs most."""
        first, second = side_names(self)
        most = self.heads[0]
        return f"<Comparison of {first} with {second}: {len(self.heads)} heads, {most.id} first ({most.distance:.3f})>"

    def _drawn(self, select: Sequence[str], top: int | None) -> list[Any]:
        number = (0 if select else TOP) if top is None else top
        return self.select(select)[: number or None]

    def _pictures(self, select: Sequence[str], top: int | None, look: Look) -> Iterator[Picture]:
        grid = plan_difference_grid(self, self.select(select), look)
        yield Picture("compare", grid.caption, lambda _: difference_grid_figure(grid, look))
        of_all = plan_difference_map(self, look)
        yield Picture("compare-map", of_all.caption, lambda _: difference_map_figure(of_all, look))
        heads = sorted(self._drawn(select, top), key=lambda head: head.id)
        for head, plan in zip(heads, difference_plans(self, heads, look), strict=True):
            yield Picture(
                f"differences/{head.id.file_stem}",
                plan.caption,
                lambda vector, plan=plan: difference_figure(plan, look, vector=vector),  # type: ignore[misc]
            )


def compare(first: Findings, second: Findings) -> Comparison:
    """Compare two analyses head by head: two models on one text, or one model on two texts.

    >>> before = attnviz.analyze(text, "bert-base-uncased")  # doctest: +SKIP
    >>> after = attnviz.analyze(text, "./fine-tuned")  # doctest: +SKIP
    >>> attnviz.compare(before, after).heads[0].id  # doctest: +SKIP

    Args:
        first: A, the side before.
        second: B; what B has more of is positive.

    Returns:
        the heads ranked by Jensen-Shannon distance, with figures and tables.

    Raises:
        TextError: the texts have different lengths, or the models read the text as different tokens.
        UsageError: the two cannot be compared: other architectures, numbers of layers or heads, or options; or text
            and model both differ.
        VerificationError: a model was changed since it was analysed.
    """
    found = find_differences(first, second)
    return Comparison(found.first, found.second, found.heads, found.floor)
