"""The command ``attnviz explain``: parse, call, hand over."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.cli import options
from attnviz.cli.runner import Show, errors_to_exit_codes
from attnviz.cli.terminal import decoded, read_text

if TYPE_CHECKING:
    from attnviz.commands.explain.measure import Explanation
    from attnviz.progress import Progress

__all__ = ["explain"]


def explain(
    text: options.Text,
    model: options.Model = "minilm",
    revision: options.Revision = None,
    pair: options.Pair = None,
    layer: Annotated[
        int | None,
        typer.Option("--layer", "-l", help="To explain, counted from 0; default that of --head, or 0.",
                     show_default=False),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="To follow with its numbers: 3, or L2H3 (its layer too); default 0.", show_default=False),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="To follow with its numbers, as shown, or #3 for position 3; default the last of the text.",
            show_default=False,
        ),
    ] = None,
    every_layer: Annotated[
        bool, typer.Option("--every-layer", help="Also verify every step of all other layers.")
    ] = False,
    figures: Annotated[
        str | None,
        typer.Option(help="Any of path, positions (with commas between); all; none. Positions are of layer 0 only.",
                     show_default=False),
    ] = None,
    no_figures: options.NoFigures = False,
    formats: options.Formats = None,
    theme: options.Theme = "light",
    width: options.Width = None,
    save_stages: Annotated[
        bool, typer.Option("--save-stages", help="Also write stages.safetensors, a tensor a step.")
    ] = False,
    truncate: options.Truncate = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    out: options.Out = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:  # fmt: skip
    """Walk through one layer, from its input to its output, with real numbers and shapes.

    Every step is recomputed from the step before, and compared with the running model wherever it shows the step.
    Layer 0 also tells what its scores owe to content and what to positions. Writes explain.png, positions.png (layer
    0), captions.md, explain.json and explain.csv.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 a step does not reproduce the model, 130 interrupted.
    """
    with errors_to_exit_codes() as run:
        sentence = read_text(text)
        pair = None if pair is None else decoded("--pair", pair)
        followed = None if token is None else decoded("--token", token)
        from attnviz.model.sources import find_checkpoint

        source = find_checkpoint(model, revision)

        def measure(tell: "Progress", _: Callable[[str], None]) -> "Explanation":
            from attnviz.commands.explain import measure

            return measure.explain(
                sentence,
                source,
                pair=pair,
                layer=layer,
                head=head,
                token=followed,
                every_layer=every_layer,
                device=device,
                dtype=dtype,
                truncate=truncate,
                progress=tell,
            )

        show = Show(
            figures=figures, no_figures=no_figures, formats=formats, theme=theme, width=width, tensors=save_stages
        )
        run.execute("explain", measure, show, models=[model], out=out, as_json=as_json, quiet=quiet)
