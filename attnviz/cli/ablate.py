"""The command ``attnviz ablate``."""

from pathlib import Path
from typing import Annotated

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.folders import is_file
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import decoded, read_text
from attnviz.errors import UsageError

__all__ = ["ablate"]


@command(figures="Any of heads, map, curve, gradient (with commas between); all; none.")
def ablate(
    run: Run,
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS|TEXT...",
            help="Existing files are corpora (.txt, a sentence a line; .conllu), all else texts; - reads a text from "
            "standard input.",
        ),
    ],
    method: Annotated[
        str,
        typer.Option(
            help="mean (a removed head gives its mean over all tokens), zero (nothing), or uniform (it attends to all "
            "that it may alike)."
        ),
    ] = "mean",
    select: Annotated[
        list[str] | None,
        typer.Option(help="Heads to remove: L2H8, 2.8, L2 (a layer), L0-3, L*H8. Repeatable; default all."),
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="Remove the selected heads as one set too; no layers, no curve.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Sentences of each corpus that are read; default all.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=options.LARGEST_BATCH, help="Inputs that the model reads at once.")
    ] = 32,
    seed: Annotated[
        int, typer.Option(min=0, max=options.LARGEST_SEED, help="Of the bootstrap, the random order and projections.")
    ] = 0,
    curve: Annotated[
        bool,
        typer.Option(
            "--curve/--no-curve",
            help="Also remove heads together: by layer, by two methods (twice the passes), and more and more of all.",
        ),
    ] = True,
    gradient: Annotated[
        bool, typer.Option("--gradient/--no-gradient", help="Also importance by gradients (Michel et al. 2019).")
    ] = True,
    top: Annotated[int, typer.Option(min=0, help="Heads in the table and in ablate-heads; 0 for all.")] = 12,
) -> None:
    """Remove heads one at a time, or a set, and measure what the model does without them.

    GPT-2, and BERT with its masked-LM head: loss and KL divergence; BERT without one: how far its final states move.
    A verdict on heads removed together takes two methods that agree: --method, and mean (beside mean: uniform).
    Every layer is verified on a sample. Writes ablate-heads.png, ablate-map.png, ablate-curve.png,
    ablate-gradient.png, captions.md, ablate.json and ablate.csv, and prints the heads ranked.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 the heads do not reproduce the model, 130 interrupted.
    """
    if texts.count("-") > 1:
        raise UsageError("standard input (-) can be read only once; give the other text as an argument.")
    given = [read_text(text) if text == "-" else decoded("TEXT", text) for text in texts]
    corpora = [Path(each) for each in given if is_file(each)]
    source = run.find_model()
    run.execute(
        lambda progress, warn: attnviz.ablate(
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
            device=run.device,
            dtype=run.dtype,
            progress=progress,
            warn=warn,
        ),
        texts=[each for each in given if not is_file(each)],
        corpora=corpora,
        top=top,
        rate=True,
    )
