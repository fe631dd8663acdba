"""The command ``attnviz compare``."""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import attnviz
from attnviz.cli import options
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import read_text
from attnviz.corpora.long_runs import own_file, remove_kept, this_process
from attnviz.errors import UsageError
from attnviz.progress import Progress

if TYPE_CHECKING:
    from attnviz.model.sources import Source


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
        typer.Option(help="Parse the texts if spaCy and a pipeline for them are installed."),
    ] = True,
    parser: options.Parser = None,
    truncate: options.Truncate = False,
    memory: options.Memory = None,
    limit: options.Limit = None,
    batch_size: options.BatchSize = 32,
    seed: Annotated[
        int, options.seed_option("With --corpus: random seed of the bootstrap, of dropout, and of the verified sample.")
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
        "--memory": memory is not None,
        "--local-window": local_window != 1, "--long-range-from": long_range_from != 4, "--scale": scale != _SCALES[0],
    }  # fmt: skip
    of_corpus = {"--limit": limit is not None, "--batch-size": batch_size != 32, "--seed": seed != 0}
    if corpus is not None:
        _check_corpus_form(texts, names, of_texts)
        a, b = _sources(run, names, revision or [])

        def measure_corpus(
            unfinished: Path, progress: Progress, warn: Callable[[str], None]
        ) -> "attnviz.CorpusComparison | None":
            return attnviz.compare_corpus(
                a, b, corpus, limit=limit, batch_size=batch_size, seed=seed, syntax=syntax, parser=parser,
                device=run.device, device_map=run.device_map, dtype=run.dtype, unfinished=unfinished, progress=progress,
                warn=warn,
            )  # fmt: skip

        _run_over(run, corpus, names, measure_corpus, select=select or (), top=top)
        return
    for option in (name for name, given in of_corpus.items() if given):
        raise UsageError(f"{option} is about a corpus; expected it with --corpus FILE, found it without.")
    _check_form(texts, names)
    sentences = [read_text(text) for text in texts]
    sources = _sources(run, names, revision or [])

    def measure(progress: Progress, warn: Callable[[str], None]) -> "attnviz.Comparison":
        sides: list[attnviz.Analysis] = []
        for side, (sentence, source) in zip("AB", product(sentences, sources), strict=True):
            loaded = sides[0].checkpoint if sides and len(sources) == 1 else None
            analysis = attnviz.analyze(
                sentence,
                loaded or source,
                pair=pair,
                target=target,
                device=None if loaded else run.device,
                device_map=None if loaded else run.device_map,
                dtype=None if loaded else run.dtype,
                words=words,
                local_window=local_window,
                long_range_from=long_range_from,
                syntax=syntax,
                parser=parser,
                truncate=truncate,
                profile=False,
                memory=memory,
                progress=_of_side(progress, side),
                warn=warn,
            )
            sides.append(analysis)
        return attnviz.compare(*sides)

    run.execute(
        measure,
        texts=[*sentences, pair, target],
        models=names,
        scale=scale,
        scales=_SCALES,
        select=select or (),
        top=top,
    )


def _run_over(run: Run, corpus: Path, models: list[str], measure: Callable[..., Any], **choices: Any) -> None:
    """Compare over a corpus, from where an earlier run stopped, together with the processes that share the work."""
    run.command, process = "compare.corpus", this_process()
    run.silent = not process.first
    unfinished = run.results_folder(models, (), [corpus]) / "compare-corpus.unfinished"
    run.keeps(own_file(unfinished, process))

    def finish(_: dict[str, Any]) -> tuple[str, ...]:
        remove_kept(unfinished, process)
        return ()

    run.execute(partial(measure, unfinished), corpora=[corpus], models=models, rate=True, finish=finish, **choices)


def _check_corpus_form(texts: list[str], models: list[str], of_texts: dict[str, bool]) -> None:
    """Refuse what is not two models on a corpus alone; ``of_texts`` are options about single texts, if given."""
    form = "attnviz compare --corpus FILE --model M1 --model M2"
    if texts:
        raise UsageError(f"expected texts or --corpus, found both; write {form}.")
    if len(models) != 2:
        raise UsageError(f"expected two models to compare over a corpus, found {len(models)}: {form}.")
    for option in (name for name, given in of_texts.items() if given):
        raise UsageError(f"{option} is about one text; expected --corpus without it, found both.")


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


def _sources(run: Run, names: list[str], revisions: list[str]) -> "list[Source]":
    """Where the models lie, each with its revision.

    Raises:
        UsageError: revisions are given, but not one for each model.
    """
    if revisions and len(revisions) != len(names):
        raise UsageError(
            f"expected a --revision for each of {len(names)} models (- for one that has none), found {len(revisions)}."
        )
    wanted = [None if revision == "-" else revision for revision in revisions] or [None] * len(names)
    return [run.find_model(name, revision) for name, revision in zip(names, wanted, strict=True)]


def _of_side(progress: Progress, side: str) -> Progress:
    """Progress of each side under a name of its own."""
    return lambda what, done, total: progress(f"{what} {side}", done, total)
