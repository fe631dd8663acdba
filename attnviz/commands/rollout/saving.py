"""A text to its attention rollout with figures, tables and files; for the command line and for Python."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from attnviz.arguments import check_counts, check_switch, check_texts
from attnviz.commands.rollout.document import ROLLOUT, rollout_bytes, rollout_document
from attnviz.commands.rollout.drawing import bars_figure, tiles_figure
from attnviz.commands.rollout.figures import plan_bars, plan_layers, plan_rollout
from attnviz.commands.rollout.results import RolledOut, RolloutOptions
from attnviz.commands.rollout.rolling import check_options, roll
from attnviz.commands.rollout.tables import rollout_report
from attnviz.commands.rollout.words import chosen, counted, layers_in_words, model_name
from attnviz.errors import UsageError
from attnviz.figures.look import Look, checked_look
from attnviz.model.opening import Model, open_checkpoint
from attnviz.progress import Progress, tell
from attnviz.results.output_folder import OutputFolder, check_folder
from attnviz.results.saving import Picture, check_formats, write_results
from attnviz.results.tables import plain_text
from attnviz.version import __version__

__all__ = ["FIGURES", "TOP", "Rollout", "rollout"]

TOP = 12
"""Input tokens in the table unless more or fewer are asked for."""

FIGURES = ("rollout", "layers", "from")
"""The matrices of the layer shown, those of every layer, and the inputs of one token."""


class Rollout(RolledOut):
    """What :func:`rollout` found: matrices of every layer, with figures, tables and files.

    See :class:`attnviz.commands.rollout.results.RolledOut` for the data: ``weights`` and ``norms`` [n_layers, n, n],
    ``flow`` [n], ``inputs``, ``layers``.
    """

    def figure(self, what: str = "rollout", look: Look | None = None) -> Figure:
        """A new figure.

        Args:
            what: ``rollout`` (the last matrix by each method), ``layers`` (all of them), or ``from`` (the inputs of
                the chosen token).
            look: theme and width.

        Raises:
            UsageError: no such figure.
        """
        if what not in FIGURES:
            raise UsageError(f"unknown figure {what!r}: expected one of {', '.join(FIGURES)}.")
        look = checked_look(look)
        return next(picture for picture in self._pictures(look, (what,))).draw(False)

    def document(self, figures: Sequence[str] = ()) -> dict[str, Any]:
        """The document of rollout.json, as plain Python values."""
        return rollout_document(self, figures, __version__)

    def report(self, width: int = 100, *, top: int = TOP) -> str:
        """The tables that ``attnviz rollout`` prints, as plain text of a given width.

        Raises:
            UsageError: no number of tokens.
        """
        check_counts(top=top)
        return plain_text(lambda columns: rollout_report(self, top=top, width=columns), width)

    def save(
        self,
        folder: str | Path,
        *,
        figures: bool = True,
        formats: Sequence[str] = ("png",),
        look: Look | None = None,
        save_rollout: bool = False,
    ) -> dict[str, Any]:
        """Write rollout.json, rollout.csv, captions.md and figures into a folder: all of them, or nothing.

        Args:
            folder: made where it is missing; files of an earlier run in it are replaced.
            figures: whether to draw.
            formats: any of ``png``, ``svg``, ``pdf``.
            look: theme and width.
            save_rollout: also write rollout.safetensors, the matrices of every layer.

        Returns:
            the document that rollout.json holds.

        Raises:
            OutputError: the folder cannot be written to, or holds foreign files of our names.
            UsageError: no folder or list of formats, or an unknown format.
        """
        check_switch("figures", figures)
        check_folder(folder)
        check_formats(formats)
        with OutputFolder(Path(folder), ROLLOUT) as output:
            return self.write(
                output, formats=formats if figures else (), look=checked_look(look), save_rollout=save_rollout
            )

    def write(
        self,
        output: OutputFolder,
        *,
        formats: Sequence[str],
        look: Look,
        save_rollout: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """The same into a folder that is open already.

        Args:
            output: the folder, laid out for a rollout.
            formats: of the figures; none for no figures.
            look: theme and width.
            save_rollout: as for :meth:`save`.
            progress: told how many figures are drawn, of how many.
        """
        if save_rollout:
            output.write("rollout.safetensors", rollout_bytes(self))
        return write_results(
            output,
            self._pictures(look),
            formats,
            look,
            self.document,
            lambda done: tell(progress, "drawing", done, len(FIGURES)),
        )

    def __repr__(self) -> str:
        """One line: the model, the text's length, and the token looked from."""
        through = f"{layers_in_words(self)}, {counted(self, len(self.units))}"
        return f"<Rollout of {model_name(self)} through {through}, from {chosen(self)}>"

    def _pictures(self, look: Look, which: Sequence[str] = FIGURES) -> Iterator[Picture]:
        if "rollout" in which:
            last = plan_rollout(self, look)
            yield Picture("rollout", last.caption, lambda vector: tiles_figure(last, look, vector=vector))
        if "layers" in which:
            every = plan_layers(self, look)
            yield Picture("rollout-layers", every.caption, lambda vector: tiles_figure(every, look, vector=vector))
        if "from" in which:
            bars = plan_bars(self)
            yield Picture("rollout-from", bars.caption, lambda _: bars_figure(bars, look))


def rollout(
    text: str,
    model: Model = "minilm",
    *,
    tokenizer: Any = None,
    pair: str | None = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    words: bool = False,
    layer: int | None = None,
    residual: float = 0.5,
    from_token: str | None = None,
    flow: bool = False,
    all_flows: bool = False,
    truncate: bool = False,
    progress: Progress | None = None,
) -> Rollout:
    """Roll the attention of a model out: how much of each input token has come to each position, through all layers.

    >>> found = attnviz.rollout("The cat that I saw ran away", "minilm")  # doctest: +SKIP
    >>> found.weights[-1][0]  # of [CLS] at the last layer's output, over the input tokens  # doctest: +SKIP

    Args:
        text: one text.
        model: see :data:`attnviz.model.opening.Model`.
        tokenizer: of a model in memory; a fast one.
        pair: a second segment (BERT).
        revision: branch, tag or commit of a hub id.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``.
        words: merge word pieces, in what was rolled out over tokens: sum over inputs, mean over outputs.
        layer: up to which to roll out, counted from 0; default the last.
        residual: share of the identity in every layer, 0-1.
        from_token: whose inputs to rank: a token, or ``#3``; default the first ([CLS]), in a causal model the last.
        flow: also find the maximum flow from that token to every input.
        all_flows: find it from every token: n² problems.
        truncate: cut a text that is longer than the model instead of raising.
        progress: told of every layer verified and rolled out, and of every flow.

    Returns:
        matrices, numbers and figures.

    Raises:
        AttnvizError: see :mod:`attnviz.errors` for the kinds; VerificationError where the heads, or what they add
            from each token, do not reproduce the model.
    """
    check_texts(text, pair, "roll out one text at a time")
    options = RolloutOptions(words, layer, residual, from_token, flow or all_flows, all_flows)
    check_options(options)
    checkpoint, _ = open_checkpoint(model, tokenizer, revision, device, dtype)
    rolled = roll(text, checkpoint, options, pair=pair, truncate=truncate, progress=progress)
    return Rollout(**{field.name: getattr(rolled, field.name) for field in fields(rolled)})
