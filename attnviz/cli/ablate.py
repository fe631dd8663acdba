"""The command ``attnviz ablate``: parse, call, hand over."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.cli import options
from attnviz.cli.runner import Show, check_out, errors_to_exit_codes
from attnviz.cli.terminal import decoded, read_text
from attnviz.errors import UsageError

if TYPE_CHECKING:
    from attnviz.progress import Progress
    from attnviz.results.result import Result

__all__ = ["ablate"]


def ablate(
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS|TEXT...",
            help="Existing files are corpora (.txt, a sentence a line; .conllu), all else texts; - reads a text from "
            "standard input.",
            show_default=False,
        ),
    ],
    model: options.Model = "minilm",
    revision: options.Revision = None,
    method: Annotated[
        str,
        typer.Option(
            help="zero (a removed head gives nothing), mean (its mean over all tokens), or uniform (it attends to "
            "all that it may alike)."
        ),
    ] = "zero",
    select: Annotated[
        list[str] | None,
        typer.Option(
            help="Heads to remove: L2H8, 2.8, L2 (a layer), L0-3, L*H8. Repeatable; default all.", show_default=False
        ),
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="Remove the selected heads as one set too; no layers, no curve.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Sentences of each corpus that are read; default all.", show_default=False)
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs that the model reads at once.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap, the random order and projections.")] = 0,
    curve: Annotated[
        bool, typer.Option("--curve/--no-curve", help="Also remove heads together: by layer, and more and more of all.")
    ] = True,
    gradient: Annotated[
        bool, typer.Option("--gradient/--no-gradient", help="Also importance by gradients (Michel et al. 2019).")
    ] = True,
    figures: Annotated[
        str | None,
        typer.Option(help="Any of heads, map, curve, gradient (with commas between); all; none.", show_default=False),
    ] = None,
    no_figures: options.NoFigures = False,
    formats: options.Formats = None,
    theme: options.Theme = "light",
    width: options.Width = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    out: options.Out = None,
    top: Annotated[int, typer.Option(min=0, help="Heads in the table and in ablate-heads; 0 for all.")] = 12,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Remove heads one at a time, or a set, and measure what the model does without them.

    GPT-2, and BERT with its masked-LM head: loss and KL divergence; BERT without one: how far its final states move.
    Every layer is verified on a sample. Writes ablate-heads.png, ablate-map.png, ablate-curve.png,
    ablate-gradient.png, captions.md, ablate.json and ablate.csv, and prints the heads ranked.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 the heads do not reproduce the model,
    130 interrupted.
    """
    with errors_to_exit_codes() as run:
        if texts.count("-") > 1:
            raise UsageError("standard input (-) can be read only once; give the other text as an argument.")
        given = [read_text(text) if text == "-" else decoded("TEXT", text) for text in texts]
        check_out(out)
        from attnviz.model.sources import find_checkpoint

        source = find_checkpoint(model, revision)

        def measure(progress: "Progress", warn: Callable[[str], None]) -> "Result":
            from attnviz.commands.ablate.measure import ablate as remove_heads

            return remove_heads(
                given,
                source,
                method=method,
                select=select or (),
                together=together,
                limit=limit,
                batch_size=batch_size,
                seed=seed,
                curve=curve,
                gradient=gradient,
                device=device,
                dtype=dtype,
                progress=progress,
                warn=warn,
            )

        show = Show(figures, no_figures, formats, theme, width=width, top=top)
        run.execute("ablate", measure, show, models=[model], out=out, as_json=as_json, quiet=quiet, rate=True)
