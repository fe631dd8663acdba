"""What heads write, for people to use: tensors, figures, tables and files; for the command line and for Python."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from attnviz.arguments import check_counts, check_switch
from attnviz.commands.outputs.contributions import HeadContribution
from attnviz.commands.outputs.document import OUTPUTS, check_size, outputs_bytes, outputs_document
from attnviz.commands.outputs.drawing import weighted_figure
from attnviz.commands.outputs.figures import check_scale, weighted_plans
from attnviz.commands.outputs.maps import maps_figure, plan_effects, plan_shares
from attnviz.commands.outputs.measure import WrittenOutputs, find_outputs
from attnviz.commands.outputs.overview import norm_grid_figure, plan_norm_grid
from attnviz.commands.outputs.promoted_tokens import HeadPromotion
from attnviz.commands.outputs.tables import outputs_report
from attnviz.errors import UsageError
from attnviz.figures.look import Look, checked_look
from attnviz.model.head_ids import HeadId, head_named
from attnviz.model.opening import Model
from attnviz.model.wording import quoted
from attnviz.progress import Progress, tell
from attnviz.results.output_folder import OutputFolder, check_folder
from attnviz.results.saving import Picture, check_formats, write_results
from attnviz.results.tables import plain_text
from attnviz.version import __version__

__all__ = ["EACH_OWN", "TOP", "HeadOutputs", "head_outputs"]

TOP = 12
"""Heads that get a picture of their own, and a row in the tables, unless more or other ones are asked for."""

EACH_OWN = Look(scale="per-head")
"""The look of pictures unless another is given: every head's colours end at its own largest norm."""


class HeadOutputs(WrittenOutputs):
    """What :func:`head_outputs` found: the heads by share, their outputs and norms, figures, tables and files.

    See :class:`attnviz.commands.outputs.measure.WrittenOutputs` for the data: ``heads`` (the largest share first), ``layers``,
    ``head("L2H8")``, ``output("L2H8")``, ``norms("L2H8")``, ``attribution``.
    """

    def promoted(self, head: str | HeadId, at: str | int | None = None) -> HeadPromotion:
        """The tokens that a head's output promotes and suppresses (GPT-2).

        Args:
            head: by ``"L2H8"``, ``"2.8"`` or ``HeadId(2, 8)``.
            at: another position than that of :attr:`attribution`: as for :meth:`attribute`.

        Raises:
            UsageError: no such head or position, or the model's logits are no sum over heads.
        """
        id = self.head(head).id
        if at is None and self.attribution is not None:
            return self.attribution.of(id)
        return self.attribute(at).of(id)

    def figure(self, what: str | HeadId = "overview", look: Look | None = None, select: Sequence[str] = ()) -> Figure:
        """A new figure.

        Args:
            what: ``overview`` (norm-weighted attention of all heads), ``shares`` (maps of the shares of the output),
                ``effects`` (map of the direct effects on the predicted token, GPT-2), or a head.
            look: theme, width, and scale of norms: ``per-head`` (default :data:`EACH_OWN`) or ``shared``.
            select: heads in the overview; default all.

        Raises:
            UsageError: the model has no such head, or the width has no room for what is to be drawn.
        """
        look = checked_look(look, EACH_OWN)
        if what == "overview":
            return norm_grid_figure(plan_norm_grid(self, self.select(select), look), look)
        if what == "shares":
            return maps_figure(plan_shares(self), look)
        if what == "effects":
            if self.attribution is None:
                raise UsageError(self.no_attribution)
            return maps_figure(plan_effects(self, self.attribution), look)
        n_layers, n_heads = self.checkpoint.n_layers, self.checkpoint.n_heads
        head = self.head(head_named(what, n_layers, n_heads, "overview, shares, effects, or"))
        return weighted_figure(next(weighted_plans(self, [head], look)), look)

    def document(self, select: Sequence[str] = (), figures: Sequence[str] = ()) -> dict[str, Any]:
        """The document of outputs.json for the selected heads, as plain Python values."""
        return outputs_document(self, self.select(select), figures, __version__)

    def report(self, width: int = 100, *, select: Sequence[str] = (), top: int = TOP) -> str:
        """The tables that ``attnviz outputs`` prints, as plain text of a given width.

        Raises:
            UsageError: an unknown head, or no number of heads.
        """
        check_counts(top=top)
        return plain_text(lambda columns: outputs_report(self, self.select(select), top=top, width=columns), width)

    def save(
        self,
        folder: str | Path,
        *,
        select: Sequence[str] = (),
        top: int | None = None,
        figures: bool = True,
        formats: Sequence[str] = ("png",),
        look: Look | None = None,
        save_outputs: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Write outputs.json, outputs.csv, captions.md and figures into a folder: all of them, or nothing.

        Args:
            folder: made where it is missing; files of an earlier run in it are replaced.
            select: heads to draw, list and save; default all are listed.
            top: how many of these get a picture of their own, the largest share first; 0 for all. Default
                :data:`TOP`, and all where heads were selected.
            figures: whether to draw.
            formats: any of ``png``, ``svg``, ``pdf``.
            look: theme, width and scale, as for :meth:`figure`.
            save_outputs: also write every head's output to outputs.safetensors.
            progress: told of every figure drawn.

        Returns:
            the document that outputs.json holds.

        Raises:
            OutputError: the folder cannot be written to, or holds foreign files of our names.
            UsageError: no folder, number or list of formats, an unknown format or head, a width without room, or more
                outputs than can be saved.
        """
        check_switch("figures", figures)
        check_folder(folder)
        check_formats(formats)
        if top is not None:
            check_counts(top=top)
        with OutputFolder(Path(folder), OUTPUTS) as output:
            return self.write(
                output,
                select=select,
                top=top,
                formats=formats if figures else (),
                look=checked_look(look, EACH_OWN),
                save_outputs=save_outputs,
                progress=progress,
            )

    def write(
        self,
        output: OutputFolder,
        *,
        select: Sequence[str],
        top: int | None,
        formats: Sequence[str],
        look: Look,
        save_outputs: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """The same into a folder that is open already; no formats for no figures; see :meth:`save`."""
        heads = self.select(select)
        check_formats(formats)
        check_scale(look)
        if save_outputs:
            check_size(self, heads)
        number = (0 if select else TOP) if top is None else top
        drawn = sorted(heads[: number or None], key=lambda head: head.id)
        count = len(drawn) + 2 + (self.attribution is not None)
        pictures = self._pictures(heads, drawn, look)
        if save_outputs:
            output.write("outputs.safetensors", outputs_bytes(self, heads))
        return write_results(
            output,
            pictures,
            formats,
            look,
            lambda files: self.document(select, files),
            lambda done: tell(progress, "drawing", done, count),
        )

    def __repr__(self) -> str:
        """One line: what was read, and which head makes up most."""
        most = self.heads[0]
        share = "no share" if most.projection_share is None else f"{most.projection_share:.2f} of its layer's output"
        return (
            f"<HeadOutputs of {quoted(self.text)} with {self.title}: {len(self.heads)} heads verified, "
            f"{most.id} first ({share})>"
        )

    def _pictures(
        self, heads: Sequence[HeadContribution], drawn: Sequence[HeadContribution], look: Look
    ) -> Iterator[Picture]:
        grid = plan_norm_grid(self, heads, look)
        yield Picture("outputs", grid.caption, lambda _: norm_grid_figure(grid, look))
        maps = [("outputs-shares", plan_shares(self))]
        if self.attribution is not None:
            maps.append(("outputs-effects", plan_effects(self, self.attribution)))
        for stem, plan in maps:
            yield Picture(stem, plan.caption, lambda _, plan=plan: maps_figure(plan, look))  # type: ignore[misc]
        for head, of_head in zip(drawn, weighted_plans(self, drawn, look), strict=True):
            yield Picture(
                f"outputs/{head.id.file_stem}",
                of_head.caption,
                lambda _, plan=of_head: weighted_figure(plan, look),  # type: ignore[misc]
            )


def head_outputs(
    text: str,
    model: Model = "minilm",
    *,
    tokenizer: Any = None,
    pair: str | None = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    truncate: bool = False,
    at: str | int | None = None,
    progress: Progress | None = None,
) -> HeadOutputs:
    """What every head of a model adds to the residual stream on a text, verified and measured.

    >>> found = attnviz.head_outputs("The cat that I saw ran away")  # doctest: +SKIP
    >>> found.heads[0].id, found.heads[0].projection_share  # doctest: +SKIP
    >>> found.output("L2H8").shape, found.norms("L2H8").shape  # doctest: +SKIP

    Args:
        text: one text.
        model: a built-in name, a checkpoint's folder, a hub id, or a transformers model in memory.
        tokenizer: of a model in memory; a fast one.
        pair: a second segment (BERT).
        revision: branch, tag or commit of a hub id.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``.
        truncate: cut a text that is longer than the model instead of raising.
        at: where the tokens that heads promote are read (GPT-2): a token that stands in the text once, ``#3`` or a
            position counted from 0; default the last.
        progress: told of every layer verified and measured.

    Returns:
        the heads ranked by share, with outputs, norms, figures and tables.

    Raises:
        AttnvizError: see :mod:`attnviz.errors` for the kinds; VerificationError where the heads do not reproduce the
            model, do not sum to its attention outputs, or the parts of its logits do not sum to these.
    """
    found = find_outputs(
        text,
        model,
        tokenizer=tokenizer,
        pair=pair,
        revision=revision,
        device=device,
        dtype=dtype,
        truncate=truncate,
        at=at,
        progress=progress,
    )
    return HeadOutputs(**{field.name: getattr(found, field.name) for field in fields(WrittenOutputs)})
