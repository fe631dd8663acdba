"""What one text gave, for people to use: patterns, figures, documents, files, tables."""

import base64
import html
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from attnviz.arguments import check_counts
from attnviz.commands.heads.export import HEADS, attention_bytes, document
from attnviz.commands.heads.findings import Findings
from attnviz.commands.heads.tables import report
from attnviz.errors import UsageError
from attnviz.figures.figure_sets import DEFAULT_FIGURES, Drawing, check_figures, figure_count, figure_files
from attnviz.figures.heatmap_drawing import heatmap_figure
from attnviz.figures.heatmaps import heatmap_plans
from attnviz.figures.line_drawing import lines_figures
from attnviz.figures.look import Look
from attnviz.figures.means import mean_figures
from attnviz.figures.overview_drawing import overview_figure
from attnviz.figures.overviews import model_overview_plan
from attnviz.figures.pairs import pair_figures
from attnviz.figures.rendering import overview_file
from attnviz.figures.statistic_map import map_figures
from attnviz.model.head_ids import HeadId
from attnviz.model.tokens import visible
from attnviz.model.wording import quoted
from attnviz.progress import Progress, tell
from attnviz.results.output_folder import OutputFolder, check_folder
from attnviz.results.saving import write_captions
from attnviz.results.tables import plain_text
from attnviz.version import __version__

__all__ = ["Analysis"]


class Analysis(Findings):
    """What :func:`attnviz.commands.heads.analysis.analyze` found: tokens, verified patterns, statistics, verdicts and figures.

    In a notebook it shows its overview and its tables. See :class:`attnviz.commands.heads.findings.Findings` for
    the data: ``tokens``, ``verification``, ``heads``, ``head("L2H8")``, ``select(["L0-3"])``.
    """

    def pattern(self, head: str | HeadId) -> Tensor:
        """The verified pattern of one head, [n, n]: row = query, column = key, over ``units``.

        Raises:
            UsageError: the model has no such head.
        """
        found = self.head(head)
        return self.layer_patterns(found.id.layer)[found.id.head]

    def heatmap(
        self,
        head: str | HeadId,
        *,
        scale: str = "shared",
        theme: str = "light",
        width: float | str | None = None,
        drop_special: bool = False,
    ) -> Figure:
        """A new figure with the heatmap of one head.

        Args:
            head: by ``"L2H8"``, ``"2.8"`` or ``HeadId(2, 8)``.
            scale: of the colours: ``shared`` by all heads, ``per-head`` or ``log``.
            theme: ``light`` or ``dark``.
            width: in inches, or as ``3.3in``, ``84mm``, ``240pt``; default as wide as the text asks for.
            drop_special: leave sinks out and renormalise the rows, for drawing only.

        Raises:
            UsageError: the model has no such head; an unknown scale or theme; nothing is left of the text.
        """
        found = self.head(head)
        drawing = Drawing(look=Look(theme, scale, width), drop_special=drop_special)
        return heatmap_figure(next(heatmap_plans(drawing.shown(self), [found], drawing.look)))

    def overview(
        self,
        select: Sequence[str] = (),
        *,
        scale: str = "shared",
        theme: str = "light",
        width: float | str | None = None,
        drop_special: bool = False,
    ) -> Figure:
        """A new figure with every selected head, a row a layer (default: all heads).

        Args:
            select: heads, as for ``attnviz heads --select``.
            scale: as for :meth:`heatmap`, like ``theme``, ``width`` and ``drop_special``.
            theme: see there.
            width: see there.
            drop_special: see there.

        Raises:
            UsageError: a selection cannot be read or names what the model lacks; or as for :meth:`heatmap`.
        """
        drawing = Drawing(look=Look(theme, scale, width), drop_special=drop_special)
        return overview_figure(model_overview_plan(drawing.shown(self), self.select(select), drawing.look))

    def lines(
        self,
        select: Sequence[str] = (),
        *,
        from_token: str | None = None,
        scale: str = "shared",
        theme: str = "light",
        width: float | str | None = None,
        drop_special: bool = False,
    ) -> Figure:
        """A new figure with tokens left and right and a line for each weight between; up to eight heads by colour.

        Of more heads than fit one picture, the first picture; :meth:`save` writes them all.

        Args:
            select: heads, as for ``attnviz heads --select``.
            from_token: show only what this token attends to.
            scale: as for :meth:`heatmap`, like ``theme``, ``width`` and ``drop_special``.
            theme: see there.
            width: see there.
            drop_special: see there.

        Raises:
            UsageError: no such token or head; or as for :meth:`heatmap`.
        """
        look = Look(theme, scale, width)
        return next(lines_figures(self, self.select(select), look, from_token, drop_special))[1]

    def map(
        self,
        statistic: str = "entropy",
        *,
        scale: str = "shared",
        theme: str = "light",
        width: float | str | None = None,
    ) -> Figure:
        """A new figure with one statistic of every head, layers × heads.

        Args:
            statistic: any one of :data:`attnviz.patterns.statistics.SCALARS`.
            scale: as for :meth:`heatmap`, like ``theme`` and ``width``.
            theme: see there.
            width: see there.

        Raises:
            UsageError: an unknown statistic, scale or theme.
        """
        if not isinstance(statistic, str):
            raise UsageError(f"expected the name of one statistic, such as 'sink', found {statistic!r}.")
        return next(map_figures(self, Look(theme, scale, width), statistic))[1]

    def mean(
        self,
        *,
        scale: str = "shared",
        theme: str = "light",
        width: float | str | None = None,
        drop_special: bool = False,
    ) -> Figure:
        """A new figure with the mean pattern of every layer's heads and of all; options as for :meth:`heatmap`."""
        return next(mean_figures(self, Look(theme, scale, width), drop_special))[1]

    def pair_figure(self, *, scale: str = "shared", theme: str = "light", width: float | str | None = None) -> Figure:
        """A new figure with how much of each head's attention stays in a text or crosses to the other.

        The second text itself is :attr:`pair`.

        Raises:
            UsageError: there is one text only; or as for :meth:`heatmap`, whose options these are.
        """
        return next(pair_figures(self, self.heads, Look(theme, scale, width)))[1]

    def document(self, select: Sequence[str] = (), figures: Sequence[str] = ()) -> dict[str, Any]:
        """The document of heads.json for the selected heads, as plain Python values."""
        return document(self, self.select(select), figures, __version__)

    def save(
        self,
        folder: str | Path,
        *,
        select: Sequence[str] = (),
        figures: Sequence[str] = DEFAULT_FIGURES,
        formats: Sequence[str] = ("png",),
        scale: str = "shared",
        theme: str = "light",
        width: float | str | None = None,
        drop_special: bool = False,
        from_token: str | None = None,
        maps: Sequence[str] = ("entropy",),
        save_attention: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Write figures with captions.md, heads.json and heads.csv into a folder: all of them, or nothing.

        Args:
            folder: made where it is missing. Pictures of an earlier run there stay where it was of the same model, text
                and options (but for those of the same name); all other files that attnviz wrote there are removed.
            select: heads to draw and list; default all.
            figures: any of :data:`attnviz.commands.heads.analysis.FIGURES`; none for no pictures.
            formats: any of ``png``, ``svg``, ``pdf``.
            scale: as for :meth:`heatmap`, like ``theme``, ``width`` and ``drop_special``.
            theme: see there.
            width: see there.
            drop_special: see there.
            from_token: the token whose attention the figures ``lines`` show; default all.
            maps: the statistics that the figures ``map`` are drawn of.
            save_attention: also write every pattern to attention.safetensors.
            progress: told of every figure drawn.

        Returns:
            the document that heads.json holds.

        Raises:
            OutputError: the folder cannot be written to, or holds foreign files of our names.
            UsageError: an unknown figure, format or head.
        """
        check_folder(folder)
        for name, given in (("figures", figures), ("formats", formats), ("maps", maps)):
            if not isinstance(given, Collection):
                raise UsageError(f"expected {name} as a list of names, found {given!r}.")
        check_figures(figures, formats, maps, paired=self.pair is not None)
        look = Look(theme, scale, width)
        drawing = Drawing(tuple(figures), tuple(formats), look, drop_special, from_token, tuple(maps))
        with OutputFolder(Path(folder), HEADS) as output:
            return self.write(output, drawing, select=select, save_attention=save_attention, progress=progress)

    def write(
        self,
        output: OutputFolder,
        drawing: Drawing,
        *,
        select: Sequence[str],
        save_attention: bool,
        progress: Progress | None,
    ) -> dict[str, Any]:
        """The same into a folder that is open already; see :meth:`save`."""
        heads = self.select(select)
        captions: dict[str, str] = {}
        for name, content, caption in figure_files(self, heads, drawing):
            output.write(name, content)
            captions[name] = caption
            tell(progress, "drawing", len(captions), figure_count(heads, drawing))
        written = document(self, heads, list(captions), __version__)
        write_captions(output, written, captions)
        if save_attention:
            output.write("attention.safetensors", attention_bytes(self))
        return output.commit(written)

    def report(self, select: Sequence[str] = (), *, top: int = 12, width: int = 100) -> str:
        """The tables that ``attnviz heads`` prints, as plain text of a given width.

        Args:
            select: heads to list, as for ``attnviz heads --select``; default all.
            top: rows at most, the clearest first; 0 for all.
            width: columns of the text.

        Raises:
            UsageError: a selection cannot be read, or a number is none.
        """
        check_counts(top=top)
        return plain_text(lambda columns: report(self, self.select(select), top=top, width=columns), width)

    def __repr__(self) -> str:
        """One line: what was analysed, and what was verified."""
        return (
            f"<Analysis of {quoted(self.text)} with {visible(self.checkpoint.name)}: "
            f"{len(self.units)} {self.units.name}s, {self.verification.heads_compared} heads verified>"
        )

    def _repr_html_(self) -> str:
        picture = base64.b64encode(overview_file(model_overview_plan(self, self.heads), "png")).decode("ascii")
        return (
            f'<img alt="{html.escape(repr(self))}" style="max-width: 100%" src="data:image/png;base64,{picture}">'
            f"<pre>{html.escape(self.report())}</pre>"
        )
