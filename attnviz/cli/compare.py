"""The command ``attnviz compare``."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnviz
from attnviz.cli.runner import Job, Run, command, unfinished_file
from attnviz.cli.terminal import read_text
from attnviz.errors import UsageError
from attnviz.progress import Progress
from attnviz.wording import counted

if TYPE_CHECKING:
    from attnviz.models.sources import Source


_FORMS = (
    "attnviz compare TEXT --model M1 --model M2, attnviz compare TEXT1 TEXT2 --model M, or attnviz compare --corpus "
    "FILE --model M1 --model M2"
)


@command
def compare(run: Run, texts: Sequence[str], corpus: Path | None, **options: Any) -> Job:
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
    adapter = [] if run.options["adapter"] is None else [run.options["adapter"]]
    names = [*run.options["model"], *adapter] or ["minilm"]
    both = bool(adapter) and len(texts) < 2
    n_models = (len(run.options["model"]) or 1) + both
    if len(run.options["model"]) > 1 and adapter:
        raise UsageError("expected --adapter with one --model, which is compared without and with it; found two.")
    if corpus is not None:
        return _over_corpus(run, corpus, texts, names, n_models, options)
    run.refuse(run.spec.of_many, "is about a corpus; expected it with --corpus FILE, found it without")
    if sorted((len(texts), n_models)) != [1, 2]:
        found = f"{counted(len(texts), 'text')} and {counted(n_models, 'model')}"
        quotes = " A text of several words stands in quotes." if len(texts) > 2 else ""
        raise UsageError(
            f"expected one text and two models, or two texts and one model: {_FORMS}; found {found}.{quotes}"
        )
    if texts.count("-") > 1:
        raise UsageError("both texts are -, but standard input can be read only once; give one of them as TEXT.")
    sentences = [read_text(text, "compare --corpus {}") for text in texts]
    sources = _sources(run, both)
    reading = {name: options[name] for name in options if name not in run.spec.of_many}

    def measure(progress: Progress, warn: Callable[[str], None]) -> "attnviz.Comparison":
        from attnviz.models.compared import check_shapes

        check_shapes(sources[0], sources[-1])
        sides: list[attnviz.Analysis] = []
        for side, (sentence, source) in zip("AB", product(sentences, sources), strict=True):
            arguments: dict[str, Any] = {**reading, "model": source}
            if sides and len(sources) == 1:  # it is loaded, and runs as it is
                arguments |= dict.fromkeys(("device", "device_map", "dtype", "attention"))
                arguments["model"] = sides[0].checkpoint

            def tell(what: str, done: int, total: int, side: str = side) -> None:
                progress(f"{what} {side}", done, total)

            sides.append(attnviz.analyze(sentence, **arguments, progress=tell, warn=warn))
        return attnviz.compare(*sides)

    return run.job(measure, texts=[*sentences, options["pair"], options["target"]], models=names)


def _over_corpus(
    run: Run, corpus: Path, texts: Sequence[str], names: Sequence[str], n_models: int, options: dict[str, Any]
) -> Job:
    from attnviz.models.compared import shape_of

    usage = "attnviz compare --corpus FILE --model M1 --model M2"
    if texts:
        raise UsageError(f"expected texts or --corpus, found both; write {usage}.")
    if n_models != 2:
        raise UsageError(f"expected two models to compare over a corpus, found {n_models}: {usage}.")
    run.refuse(run.spec.of_one, "is about one text; expected --corpus without it, found both")
    options = {name: value for name, value in options.items() if name not in run.spec.of_one}
    a, b = _sources(run, run.options["adapter"] is not None)
    unfinished = unfinished_file(run.results_folder(names, (), [corpus]))

    measure = run.measuring("compare_corpus", a, b, corpus, **options, unfinished=unfinished)
    form = "compare.corpus"
    if shape_of(a) != shape_of(b):
        form = "compare.roles"
        run.refuse(["select"], "names heads that both models have, but these differ in shape; expected no --select")
    compared = replace(run, command=form)
    return compared.job(measure, corpora=[corpus], models=names, rate=True, unfinished=unfinished)


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
