"""Texts to an ablation with figures, tables and files; for the command line and for Python."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from attnviz.arguments import check_counts, check_switch
from attnviz.commands.ablate.compensation import amount
from attnviz.commands.ablate.drawing import curve_figure, gradient_figure, heads_figure, importance_figure
from attnviz.commands.ablate.effects import measure_ablation
from attnviz.commands.ablate.inputs import read_sources
from attnviz.commands.ablate.report import ABLATE, ablation_document
from attnviz.commands.ablate.results import Ablated, Options
from attnviz.commands.ablate.tables import ablation_report
from attnviz.commands.ablate.views import plan_curve, plan_gradient, plan_heads, plan_importance
from attnviz.errors import UsageError
from attnviz.figures.look import Look, checked_look
from attnviz.model.head_ids import HeadId, selection_texts
from attnviz.model.opening import Model, open_checkpoint
from attnviz.progress import Progress
from attnviz.results.output_folder import OutputFolder, check_folder
from attnviz.results.saving import Picture, check_formats, write_results
from attnviz.results.tables import plain_text
from attnviz.version import __version__

__all__ = ["TOP", "Ablation", "ablate"]

TOP = 12
"""Heads in the table and in the figure of intervals, unless more or fewer are asked for."""


class Ablation(Ablated):
    """What :func:`ablate` found: heads ranked by what removing them does, with figures, tables and files.

    See :class:`attnviz.commands.ablate.results.Ablated` for the data: ``heads`` (the one that matters most first), ``layers``,
    ``together``, ``curve``, ``rank_correlations``, ``head("L2H8")``.
    """

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures that this ablation has."""
        several = len(self.heads) > 1
        return (
            "heads",
            *(["map"] if several else []),
            *(["curve"] if self.curve is not None else []),
            *(["gradient"] if several and self.options.gradient else []),
        )

    def figure(self, what: str = "map", look: Look | None = None, *, top: int = TOP) -> Figure:
        """A new figure.

        Args:
            what: ``heads`` (with intervals), ``map`` (layers x heads), ``curve`` (more and more heads removed), or
                ``gradient`` (beside the importance by gradients).
            look: theme and width.
            top: heads in ``heads``; 0 for all.

        Raises:
            UsageError: no such figure.
        """
        if what not in self.figures:
            raise UsageError(f"unknown figure {what!r}: expected one of {', '.join(self.figures)}.")
        return next(iter(self._pictures(checked_look(look), top, (what,)))).draw(False)

    def document(self, figures: Sequence[str] = ()) -> dict[str, Any]:
        """The document of ablate.json, as plain Python values."""
        return ablation_document(self, figures, __version__)

    def report(self, width: int = 100, *, top: int = TOP) -> str:
        """The tables that ``attnviz ablate`` prints, as plain text of a given width.

        Raises:
            UsageError: no number of heads, or a width of less than 20 columns.
        """
        check_counts(top=top)
        return plain_text(lambda columns: ablation_report(self, top=top, width=columns), width)

    def save(
        self,
        folder: str | Path,
        *,
        figures: bool = True,
        formats: Sequence[str] = ("png",),
        look: Look | None = None,
        top: int = TOP,
    ) -> dict[str, Any]:
        """Write ablate.json, ablate.csv, captions.md and figures into a folder: all of them, or nothing.

        Args:
            folder: made where it is missing; files of an earlier run in it are replaced.
            figures: whether to draw.
            formats: any of ``png``, ``svg``, ``pdf``.
            look: theme and width.
            top: heads in the figure of intervals; 0 for all.

        Returns:
            the document that ablate.json holds.

        Raises:
            OutputError: the folder cannot be written to, or holds foreign files of our names.
            UsageError: no folder, number or list of formats, or an unknown format.
        """
        check_switch("figures", figures)
        check_folder(folder)
        check_formats(formats)
        check_counts(top=top)
        with OutputFolder(Path(folder), ABLATE) as output:
            return self.write(output, formats=formats if figures else (), look=checked_look(look), top=top)

    def write(
        self,
        output: OutputFolder,
        *,
        formats: Sequence[str],
        look: Look,
        top: int = TOP,
        tell: Callable[[int, int], None] = lambda _, __: None,
    ) -> dict[str, Any]:
        """The same into a folder that is open already.

        Args:
            output: the folder, laid out for an ablation.
            formats: of the figures; none for no figures.
            look: theme and width.
            top: as for :meth:`save`.
            tell: told how many figures are drawn, of how many.
        """
        names = self.figures
        pictures = self._pictures(look, top, names)
        return write_results(output, pictures, formats, look, self.document, lambda done: tell(done, len(names)))

    def __repr__(self) -> str:
        """One line: model, method, and the head that matters most."""
        most = self.heads[0]
        damage = amount(most.damage[self.measure.name].value)
        return (
            f"<Ablation ({self.options.method}) of {self.checkpoint.short_name}: {len(self.heads)} heads on "
            f"{self.n_texts} texts, {most.id} first ({self.measure.title} {damage})>"
        )

    def _pictures(self, look: Look, top: int, which: Sequence[str]) -> Iterator[Picture]:
        if "heads" in which:
            ranked = plan_heads(self, top)
            yield Picture("ablate-heads", ranked.caption, lambda _: heads_figure(ranked, look))
        if "map" in which:
            every = plan_importance(self)
            yield Picture("ablate-map", every.caption, lambda _: importance_figure(every, look))
        if "curve" in which:
            curve = plan_curve(self)
            yield Picture("ablate-curve", curve.caption, lambda _: curve_figure(curve, look))
        if "gradient" in which:
            beside = plan_gradient(self)
            yield Picture("ablate-gradient", beside.caption, lambda _: gradient_figure(beside, look))


def ablate(
    texts: str | Path | Sequence[str | Path],
    model: Model = "minilm",
    *,
    tokenizer: Any = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    method: str = "zero",
    select: str | HeadId | Sequence[str | HeadId] = (),
    together: bool = False,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    curve: bool = True,
    gradient: bool = True,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Ablation:
    """Remove every head of a model, one at a time, and measure what it predicts, or where its states go, without.

    >>> found = attnviz.ablate("corpus.txt", "tiny-gpt2")  # doctest: +SKIP
    >>> found.heads[0].id, found.heads[0].damage["loss"]  # doctest: +SKIP

    Args:
        texts: texts, and corpora (``.txt``, a sentence a line; ``.conllu``): what is an existing file is a corpus.
        model: see :data:`attnviz.model.opening.Model`.
        tokenizer: of a model in memory; a fast one.
        revision: branch, tag or commit of a hub id.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``.
        method: ``zero``, ``mean`` or ``uniform``; see :class:`attnviz.commands.ablate.hooks.Replacement`.
        select: heads to remove (``L2H8``, ``L0-3``, …); default all.
        together: remove the selected heads as one set as well; layers and the curve are then left out.
        limit: sentences of each corpus that are read; default all.
        batch_size: rows that the model reads at once; it changes no result but by rounding.
        seed: of the bootstrap, the random order and the random projections.
        curve: also remove heads together: those of each layer, and more and more of all, the least important first.
        gradient: also measure the importance by gradients (Michel et al. 2019).
        progress: told of each stage, how much of it is done, and of how much.
        warn: told of each sentence that is left out because the model cannot read it.

    Returns:
        numbers, figures, tables and files.

    Raises:
        AttnvizError: see :mod:`attnviz.errors` for the kinds; VerificationError where the heads, or passes resumed at
            a layer, do not reproduce the model.
    """
    options = Options(method, tuple(selection_texts(select)), together, limit, batch_size, seed, curve, gradient)
    given = [texts] if isinstance(texts, str | Path) else texts
    if not isinstance(given, list | tuple) or not all(isinstance(each, str | Path) for each in given):
        raise UsageError(f"expected a text, a corpus's path, or a list of these, found {texts!r}.")
    sources = read_sources(given, limit)
    checkpoint, _ = open_checkpoint(model, tokenizer, revision, device, dtype, language_head=True)
    tell, say = progress or (lambda *_: None), warn or (lambda _: None)
    with torch.inference_mode(mode=False):  # where the caller is in it: gradients are wanted
        return Ablation(**measure_ablation(checkpoint, sources, options, tell, say))
