"""An explained layer with its figures, tables and files; for the command line and for Python."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from attnviz.arguments import check_switch
from attnviz.commands.explain.document import EXPLAIN, STAGES_FILE, explain_document, stages_bytes
from attnviz.commands.explain.measure import Explained, explain_layer
from attnviz.commands.explain.path_drawing import path_figure
from attnviz.commands.explain.path import plan_path
from attnviz.commands.explain.views import plan_positions, positions_figure
from attnviz.commands.explain.report import explain_report
from attnviz.errors import UsageError
from attnviz.figures.look import Look, checked_look
from attnviz.model.head_ids import HeadId
from attnviz.model.opening import Model
from attnviz.model.wording import counted
from attnviz.results.output_folder import OutputFolder, check_folder
from attnviz.results.saving import Picture, check_formats, write_results
from attnviz.results.tables import plain_text
from attnviz.version import __version__

__all__ = ["Explanation", "explain"]


class Explanation(Explained):
    """What :func:`explain` found: every step of a layer, with figures, tables and files.

    See :class:`attnviz.commands.explain.measure.Explained` for the data: ``stages`` (each with ``name``, ``tensor``,
    ``check``), ``tensor("pattern")``, ``positions``, ``layers``.
    """

    def figure(self, what: str = "path", look: Look | None = None) -> Figure:
        """A new figure.

        Args:
            what: ``path`` (the layer from input to output) or ``positions`` (content and position, layer 0 only).
            look: theme and width.

        Raises:
            UsageError: there is no such figure, or the width has no room for it.
        """
        if what == "path":
            return path_figure(plan_path(self, checked_look(look)))
        if what == "positions":
            return positions_figure(plan_positions(self, checked_look(look)))
        raise UsageError(f"unknown figure {what!r}: expected path or positions.")

    def document(self, figures: Sequence[str] = ()) -> dict[str, Any]:
        """The document of explain.json, as plain Python values."""
        return explain_document(self, figures, __version__)

    def report(self, width: int = 100) -> str:
        """What ``attnviz explain`` prints, as plain text.

        Args:
            width: columns, 20 at least.

        Raises:
            UsageError: the width is no whole number, or too small.
        """
        return plain_text(lambda columns: explain_report(self, width=columns), width)

    def save(
        self,
        folder: str | Path,
        *,
        figures: bool = True,
        formats: Sequence[str] = ("png",),
        look: Look | None = None,
        save_stages: bool = False,
    ) -> dict[str, Any]:
        """Write explain.json, explain.csv, captions.md and figures into a folder: all of them, or nothing.

        Args:
            folder: made where it is missing; files of an earlier run in it are replaced.
            figures: whether to draw.
            formats: any of ``png``, ``svg``, ``pdf``.
            look: theme and width.
            save_stages: also write stages.safetensors, a tensor a step.

        Returns:
            the document that explain.json holds.

        Raises:
            OutputError: the folder cannot be written to, or holds foreign files of our names.
            UsageError: no folder, an unknown format, or a width without room.
        """
        check_switch("figures", figures)
        check_folder(folder)
        check_formats(formats)
        with OutputFolder(Path(folder), EXPLAIN) as output:
            return self.write(
                output, formats=formats if figures else (), look=checked_look(look), save_stages=save_stages
            )

    def write(
        self,
        output: OutputFolder,
        *,
        formats: Sequence[str],
        look: Look,
        save_stages: bool = False,
        tell: Callable[[int, int], None] = lambda _, __: None,
    ) -> dict[str, Any]:
        """The same into a folder that is open already.

        Args:
            output: the folder, laid out for an explanation.
            formats: of the figures; none for no figures.
            look: theme and width.
            save_stages: as for :meth:`save`.
            tell: told how many figures are drawn, of how many.
        """
        check_formats(formats)
        pictures = list(self._pictures(look)) if formats else []
        if save_stages:
            output.write(STAGES_FILE, stages_bytes(self))
        count = len(pictures)
        return write_results(output, pictures, formats, look, self.document, lambda done: tell(done, count))

    def __repr__(self) -> str:
        """One line: which layer, and how closely its output was reproduced."""
        output = self.stages["output"].check
        assert output is not None
        return (
            f"<Explanation of layer {self.layer} of {self.checkpoint.short_name} on "
            f"{counted(len(self.tokens), 'token')}: "
            f"{len(self.stages.stages)} steps, output within {output.error:.1e}>"
        )

    def _pictures(self, look: Look) -> Iterator[Picture]:
        path = plan_path(self, look)
        yield Picture("explain", path.caption, lambda _: path_figure(path))
        if self.positions is not None:
            positions = plan_positions(self, look)
            yield Picture("positions", positions.caption, lambda _: positions_figure(positions))


def explain(
    text: str,
    model: Model = "minilm",
    *,
    tokenizer: Any = None,
    pair: str | None = None,
    layer: int | None = None,
    head: str | int | HeadId | None = None,
    token: str | None = None,
    every_layer: bool = False,
    revision: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    truncate: bool = False,
    progress: Callable[[str, int, int], None] = lambda _, __, ___: None,
) -> Explanation:
    """One layer of a model on one text, step by step, verified to its end.

    >>> found = attnviz.explain("The cat that I saw ran away", layer=2)  # doctest: +SKIP
    >>> found.tensor("pattern").shape, found.stages["output"].check.error  # doctest: +SKIP

    Args:
        text: the text.
        model: a built-in name, a checkpoint's folder, a hub id, or a transformers model in memory.
        tokenizer: of a model in memory.
        pair: a second segment (BERT).
        layer: counted from 0; default that of ``head``, or the first.
        head: to follow with numbers, as ``3``, ``L2H3`` or a HeadId; default the layer's first.
        token: to follow, as figures show it or ``#3``; default the last of the text.
        every_layer: verify the steps of all layers.
        revision: of a hub model.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``.
        truncate: cut a text that is longer than the model.
        progress: told what is done, how far, of how much.

    Raises:
        AttnvizError: the model cannot be read or reproduced, or lacks the layer, head or token.
        VerificationError: a step differs from the model's own by more than the tolerance.
    """
    found = explain_layer(
        text,
        model,
        tokenizer=tokenizer,
        pair=pair,
        layer=layer,
        head=head,
        token=token,
        every_layer=every_layer,
        revision=revision,
        device=device,
        dtype=dtype,
        truncate=truncate,
        progress=progress,
    )
    return Explanation(**{field.name: getattr(found, field.name) for field in fields(found)})
