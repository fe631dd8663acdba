"""The command ``attnviz ablate``."""

from pathlib import Path
from typing import Annotated

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.runner import Run, command, is_file
from attnviz.cli.terminal import decoded, read_text
from attnviz.errors import UsageError


@command(figures="heads, map, curve, gradient")
def ablate(
    run: Run,
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS|TEXT",
            help="Corpora (existing files: .txt with one sentence per line, .conllu, or .tsv with texts and labels) or "
            "texts. Write - to read one text from standard input.",
        ),
    ],
    method: Annotated[
        str,
        typer.Option(
            metavar="METHOD",
            help="What takes the place of a removed head: mean (its mean output over all tokens), zero (nothing), or "
            "uniform (the same attention to every visible token).",
        ),
    ] = "mean",
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HEADS",
            help="Heads to remove: L2H8 or 2.8 (one head), L2 (a layer), L0-3 (layers), L*H8. "
            "May be given more than once. Default: all heads.",
        ),
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="Also remove the selected heads as one set; then no layers and no curve.")
    ] = False,
    label: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="Classifiers: the class of all these texts, by its name or number."),
    ] = None,
    target: Annotated[
        str | None,
        options.text_option(
            metavar="TEXT",
            help="The text that the decoder of an encoder-decoder reads, for one TEXT. Default: what the model itself "
            "generates for each, greedily.",
        ),
    ] = None,
    max_new_tokens: options.MaxNewTokens = None,
    limit: options.Limit = None,
    batch_size: options.BatchSize = 32,
    seed: Annotated[
        int, options.seed_option("Random seed of the bootstrap, of the random order and of the random projections.")
    ] = 0,
    curve: Annotated[
        bool,
        typer.Option(help="Also remove heads together: each layer by two methods, and a growing share of all heads."),
    ] = True,
    gradient: Annotated[bool, typer.Option(help="Also measure importance by gradients (Michel et al. 2019).")] = True,
    top: Annotated[int, options.top_option("Number of heads in the table and in ablate-heads.")] = 12,
) -> None:
    """Remove heads, one at a time or a set, and measure how much the model changes.

    GPT-2, and BERT with its masked-LM head, are measured by loss and KL divergence; BERT without that head by how far
    its final states move. A classifier is measured by the loss of the class of each text (--label, or a .tsv); without
    labels by the KL divergence of its class probabilities. Of an encoder-decoder it is the loss of the target.

    Heads removed together get a verdict only if two methods agree: --method, and mean (with --method mean: uniform).
    Every layer is verified on a sample.

    It writes ablate-heads.png, ablate-map.png, ablate-curve.png, ablate-gradient.png, captions, ablate.json and
    ablate.csv, and prints the heads ranked.

    Examples:
        attnviz ablate corpus.txt --select L2 --together
        attnviz ablate reviews.tsv -m ./my-classifier
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
            label=label,
            target=target,
            max_new_tokens=max_new_tokens,
            device=run.device,
            device_map=run.device_map,
            dtype=run.dtype,
            progress=progress,
            warn=warn,
        ),
        texts=[*(each for each in given if not is_file(each)), target],
        corpora=corpora,
        top=top,
        rate=True,
    )
