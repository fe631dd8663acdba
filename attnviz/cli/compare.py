"""The command ``attnviz compare``."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.compare_corpus import check_form, compare_over
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import decoded, read_text
from attnviz.errors import UsageError
from attnviz.progress import Progress

if TYPE_CHECKING:
    from attnviz.model.sources import Source

__all__ = ["compare"]

_SCALES = ("shared", "per-head")
_FORMS = (
    "attnviz compare TEXT --model M1 --model M2, attnviz compare TEXT1 TEXT2 --model M, or attnviz compare --corpus "
    "FILE --model M1 --model M2"
)


@command(figures="overview, map, differences, page", note="With --corpus: map, distances. Default: all but page.")
def compare(
    run: Run,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="One text for two models, or two texts for one model. Write - to read standard input. None with "
            "--corpus.",
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        options.text_option(
            metavar="FILE", help="Compare two models over many texts: .txt (a text a line) or .conllu (a treebank)."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        options.text_option(
            "--model",
            "-m",
            metavar="MODEL",
            help="A built-in model (minilm, tiny-gpt2, smollm2), a checkpoint folder, or a Hugging Face hub id. "
            "Give it twice for two models. Default: minilm.",
        ),
    ] = None,
    revision: Annotated[
        list[str] | None,
        options.text_option(
            metavar="REVISION",
            help="Branch, tag or commit of a hub model. For two models give it twice, with - for none.",
        ),
    ] = None,
    pair: Annotated[
        str | None,
        options.text_option(metavar="TEXT", help="A second segment, the same on both sides."),
    ] = None,
    target: Annotated[
        str | None,
        options.text_option(
            metavar="TEXT", help="The text that the decoders of encoder-decoders (Marian, BART, T5) read on both sides."
        ),
    ] = None,
    select: options.Select = None,
    words: options.Words = False,
    local_window: options.LocalWindow = 1,
    long_range_from: options.LongRangeFrom = 4,
    syntax: Annotated[
        bool,
        typer.Option("--syntax/--no-syntax", help="Parse the texts if spaCy and a pipeline for them are installed."),
    ] = True,
    parser: options.Parser = None,
    truncate: options.Truncate = False,
    limit: options.Limit = None,
    batch_size: options.BatchSize = 32,
    seed: Annotated[
        int,
        typer.Option(
            metavar="SEED",
            min=0,
            max=options.LARGEST_SEED,
            help="With --corpus: random seed of the bootstrap, of dropout, and of the verified sample.",
        ),
    ] = 0,
    scale: Annotated[
        str,
        options.picture_option(
            metavar="SCALE", help="Colour scale of the heads' pictures: shared by all heads, or per-head."
        ),
    ] = "shared",
    top: Annotated[
        int | None,
        options.top_option(
            "Number of heads in the table and with a picture, the most different first. Default: 12, or all that "
            "--select names."
        ),
    ] = None,
) -> None:
    """Compare every head of two models on one text or a corpus, or of one model on two texts.

    Both sides are verified. It writes compare.png, compare-map.png, one picture per head (differences/L00H00.png),
    captions, compare.json and compare.csv, and prints the heads ranked by Jensen-Shannon distance. With --corpus it
    writes compare-corpus-map.png, compare-corpus-distances.png, compare-corpus.json and compare-corpus.csv: mean
    distances with intervals, beside what dropout does and the largest distance that is possible. After an interruption
    the same command goes on where it stopped; torchrun -m attnviz compare splits the texts over processes.

    Examples:
        attnviz compare "The cat ran away" -m minilm -m ./mine
        attnviz compare --corpus corpus.txt -m minilm -m ./mine
    """
    names, texts = model or ["minilm"], texts or []
    of_texts = {
        "--pair": pair is not None, "--target": target is not None, "--words": words, "--truncate": truncate,
        "--local-window": local_window != 1, "--long-range-from": long_range_from != 4, "--scale": scale != _SCALES[0],
    }  # fmt: skip
    if corpus is not None:
        check_form(texts, names, of_texts)
        compare_over(
            run, corpus, names, _sources(names, revision or []), limit=limit, batch_size=batch_size, seed=seed,
            syntax=syntax, parser=parser, select=select or (), top=top,
        )  # fmt: skip
        return
    for option, given in {"--limit": limit is not None, "--batch-size": batch_size != 32, "--seed": seed != 0}.items():
        if given:
            raise UsageError(f"{option} is about a corpus; expected it with --corpus FILE, found it without.")
    _check_form(texts, names)
    sentences = [read_text(text) for text in texts]
    second = None if pair is None else decoded("--pair", pair)
    read = None if target is None else decoded("--target", target)
    sources = _sources(names, revision or [])

    def measure(progress: Progress, warn: Callable[[str], None]) -> "attnviz.Comparison":
        sides: list[attnviz.Analysis] = []
        for side, (sentence, source) in zip("AB", product(sentences, sources), strict=True):
            loaded = sides[0].checkpoint if sides and len(sources) == 1 else None
            analysis = attnviz.analyze(
                sentence,
                loaded or source,
                pair=second,
                target=read,
                device=None if loaded else run.device,
                dtype=None if loaded else run.dtype,
                words=words,
                local_window=local_window,
                long_range_from=long_range_from,
                syntax=syntax,
                parser=parser,
                truncate=truncate,
                profile=False,
                progress=_of_side(progress, side),
                warn=warn,
            )
            sides.append(analysis)
        return attnviz.compare(*sides)

    run.execute(
        measure,
        texts=[*sentences, second, read],
        models=names,
        scale=scale,
        scales=_SCALES,
        select=select or (),
        top=top,
    )


def _check_form(texts: list[str], models: list[str]) -> None:
    """Refuse what is neither of the two forms."""
    if sorted((len(texts), len(models))) != [1, 2]:
        found = f"{len(texts)} text{'s' * (len(texts) != 1)} and {len(models)} model{'s' * (len(models) != 1)}"
        quotes = " A text of several words stands in quotes." if len(texts) > 2 else ""
        raise UsageError(
            f"expected one text and two models, or two texts and one model: {_FORMS}; found {found}.{quotes}"
        )
    if texts.count("-") > 1:
        raise UsageError("both texts are -, but standard input can be read only once; give one of them as TEXT.")


def _sources(names: list[str], revisions: list[str]) -> "list[Source]":
    """Where the models lie, each with its revision.

    Raises:
        UsageError: revisions are given, but not one for each model.
    """
    from attnviz.model.sources import find_checkpoint

    if revisions and len(revisions) != len(names):
        raise UsageError(
            f"expected a --revision for each of {len(names)} models (- for one that has none), found {len(revisions)}."
        )
    wanted = [None if revision == "-" else revision for revision in revisions] or [None] * len(names)
    return [find_checkpoint(name, revision) for name, revision in zip(names, wanted, strict=True)]


def _of_side(progress: Progress, side: str) -> Progress:
    """Progress of each side under a name of its own."""
    return lambda what, done, total: progress(f"{what} {side}", done, total)
