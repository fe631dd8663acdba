"""The command ``attnviz compare``."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attnviz
from attnviz.cli import options as opt
from attnviz.cli.runner import Run, command
from attnviz.cli.terminal import read_text
from attnviz.errors import UsageError
from attnviz.progress import Progress, with_suffix
from attnviz.wording import counted

if TYPE_CHECKING:
    from attnviz.models.sources import Source

_FORMS = (
    "attnviz compare TEXT --model M1 --model M2, attnviz compare TEXT1 TEXT2 --model M, or attnviz compare --corpus "
    "FILE --model M1 --model M2"
)
# options that are about one text, and about a corpus
_OF_ONE = "pair target words truncate memory".split()
_OF_MANY = "text_column pair_column label_column limit batch_size seed".split()


@command(*opt.COMMON, opt.TargetGroup, opt.LabelledGroup, opt.SyntaxGroup, opt.SampleGroup, first="corpus adapter")
def compare(
    run: Run,
    texts: Annotated[
        list[str] | None,
        opt.argument(
            "One text for two models, or two texts for one model. Write - to read standard input. None with --corpus.",
            metavar="TEXT",
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        opt.reading("Compare two models over many texts: a file of texts, as for attnviz profile.", metavar="FILE"),
    ] = None,
    model: Annotated[
        list[str] | None,
        opt.reading(
            f"{opt.MODEL} Default: minilm, or what the adapter was trained on. Give it twice for two models.",
            "--model",
            "-m",
        ),
    ] = None,
    revision: Annotated[
        list[str] | None,
        opt.reading("Branch, tag or commit of a hub model. For two models give it twice, with - for none."),
    ] = None,
    adapter: Annotated[opt.Adapter, f"{opt.ADAPTER} With one text, the model is compared with and without it."] = None,
    tokenizer: Annotated[opt.Tokenizer, f"{opt.TOKENIZER} Default: that of the other model."] = None,
    pair: opt.Pair = None,
    truncate: opt.Truncate = False,
    words: opt.Words = False,
    memory: opt.Memory = None,
    select: opt.Select = None,
    top: Annotated[
        opt.Top,
        "Number of heads in the table and with a picture, the most different first; 0 for all. Default: 12, or all "
        "that --select names.",
    ] = None,
    table: opt.Table = None,
) -> None:
    """Compare every head of two models on one text or a corpus, or of one model on two texts.

    Both sides are verified. It writes compare.png, one picture per head (differences/L00H00.png), captions,
    compare.json and compare.csv, and prints the heads ranked by Jensen-Shannon distance. With --corpus it
    writes compare-corpus-distances.png, compare-corpus.json and compare-corpus.csv: mean distances with intervals.
    Models of different shapes are compared role by role (compare-roles.png, .json, .csv), by the best head of each.
    After an interruption the same command goes on where it stopped; torchrun -m attnviz compare splits the texts
    over processes.

    Examples:
        attnviz compare "The cat ran away" -m minilm -m ./my-bert
            A checkpoint before and after fine-tuning.
        attnviz compare "The cat ran away" "The dog ran away"
            One model on two texts.
        attnviz compare "The cat ran" --adapter ./my-lora
            The adapter's base without and with it.
        attnviz compare --corpus novel.txt -m minilm -m ./my-bert
            Two models on all lines of a file.
    """
    named = run.options["model"]
    both = adapter is not None and len(run.options["texts"]) < 2
    n_models = (len(named) or 1) + both
    if len(named) > 1 and adapter is not None:
        raise UsageError("expected --adapter with one --model, which is compared without and with it; found two.")
    if corpus is not None:
        _over_corpus(run, corpus, n_models, both)
    else:
        _over_texts(run, n_models, both)


def _over_texts(run: Run, n_models: int, both: bool) -> None:
    given = run.options["texts"]
    run.refuse(_OF_MANY, "is about a corpus; expected it with --corpus FILE, found it without")
    if sorted((len(given), n_models)) != [1, 2]:
        found = f"{counted(len(given), 'text')} and {counted(n_models, 'model')}"
        quotes = " A text of several words stands in quotes." if len(given) > 2 else ""
        raise UsageError(
            f"expected one text and two models, or two texts and one model: {_FORMS}; found {found}.{quotes}"
        )
    sentences = [read_text(text, "compare --corpus {}") for text in given]
    sources = _sources(run, both)

    def measure(progress: Progress, warn: Callable[[str], None]) -> "attnviz.Comparison":
        from attnviz.models.compared import check_shapes

        check_shapes(sources[0], sources[-1])
        sides: list[attnviz.Analysis] = []
        for side, (sentence, source) in zip("AB", product(sentences, sources), strict=True):
            opened: dict[str, Any] = {"model": source}
            if sides and len(sources) == 1:  # it is loaded, and runs as it is
                opened = dict.fromkeys(("device", "device_map", "dtype", "attention"))
                opened["model"] = sides[0].checkpoint
            analyze: Any = run.bound("analyze", text=sentence, **opened)
            sides.append(analyze(progress=with_suffix(side, progress), warn=warn))
        return attnviz.compare(*sides)

    run.work(measure, of=[*sentences, run.options["pair"], run.options["target"]])


def _over_corpus(run: Run, corpus: Path, n_models: int, both: bool) -> None:
    from attnviz.models.compared import shape_of

    usage = "attnviz compare --corpus FILE --model M1 --model M2"
    if run.options["texts"]:
        raise UsageError(f"expected texts or --corpus, found both; write {usage}.")
    if n_models != 2:
        raise UsageError(f"expected two models to compare over a corpus, found {n_models}: {usage}.")
    run.refuse(_OF_ONE, "is about one text; expected --corpus without it, found both")
    a, b = _sources(run, both)
    measure = run.bound("compare_corpus", first=a, second=b, corpus=corpus)
    run.form = "compare.corpus"
    if shape_of(a) != shape_of(b):
        run.form = "compare.roles"
        run.refuse(["select"], "names heads that both models have, but these differ in shape; expected no --select")
    run.work(measure, of=[corpus])


def _sources(run: Run, without_adapter: bool) -> "list[Source]":
    """Find the models, each with its revision; ``without_adapter`` first that without its adapter."""
    from attnviz.models.sources import with_tokenizer

    names = run.options["model"] or (None,)
    revisions = run.options["revision"]
    if revisions and len(revisions) != len(names):
        raise UsageError(
            f"expected a --revision for each of {len(names)} models (- for one that has none), found {len(revisions)}."
        )
    wanted = [None if revision == "-" else revision for revision in revisions] or [None] * len(names)
    found = [
        run.find_model(name, revision, run.options["adapter"]) for name, revision in zip(names, wanted, strict=True)
    ]
    sources = [*([replace(found[0], adapter=None)] if without_adapter else []), *found]
    whole = next((source for source in sources if source.has_tokenizer), None)
    return [
        source if whole is None or source.has_tokenizer else with_tokenizer(source, whole.name) for source in sources
    ]
