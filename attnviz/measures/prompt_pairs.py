"""Pairs of prompts that a model reads token by token alike, and where and by what its predictions are compared."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, get_args

from attnviz.arguments import as_found, as_list, is_whole, values_of
from attnviz.errors import ArchitectureError, CorpusError, TextError, UsageError
from attnviz.inputs.lines import naming_row
from attnviz.inputs.prompt import Prompt, Text, find_queries, merge_subwords, read_prompt
from attnviz.inputs.reading import source_kind, unread_columns
from attnviz.inputs.spans import named_span, spans_by_name
from attnviz.inputs.tables import TABLES, PromptPair, Rows, columns_of, is_table_folder, open_pairs
from attnviz.inputs.text import encode, tokenize
from attnviz.inputs.tokenized import documents_of
from attnviz.measures.direct_effects import named_ids
from attnviz.measures.intervals import TextSamples
from attnviz.measures.predictions import (
    METRICS,
    STATES,
    Metric,
    Scoring,
    input_of_answer,
    metric_of,
    prediction_kind,
)
from attnviz.models.checkpoint import Checkpoint
from attnviz.options import PatchMetric
from attnviz.run.passes import ModelInput
from attnviz.wording import counted, quoted, visible

DIFFERENCE, LOSS, KL = get_args(PatchMetric)
UNITS = {name: f" {METRICS[name].unit.partition('/')[0]}" for name in (DIFFERENCE, LOSS, KL)}
_SIDES = "clean", "corrupt"


class PairedInputs(NamedTuple):
    """What the model reads of the pairs, one input each; the prediction at one position of each is compared."""

    clean: list[ModelInput]
    corrupt: list[ModelInput]
    # by pair, the tokens of clean and corrupt prompt that are patched, in order
    positions: list[tuple[tuple[int, ...], tuple[int, ...]]]


class PairFile(NamedTuple):
    """A table of pairs, and sentences on it."""

    path: Path
    sha256: str
    notes: tuple[str, ...]


def read_pairs(
    clean: Any, corrupt: Any, answer: Any, foil: Any, label: Any, limit: int | None
) -> tuple[list[PromptPair], PairFile | None]:
    """One pair, or the pairs of a table with the columns clean, corrupt, answer and foil, or label.

    In memory a table is as for :func:`attnviz.inputs.tables.columns_of`, or its columns are lists of one length; of
    these answer, foil and label may be one for all pairs.

    UsageError where a prompt, or what is compared, is missing or given twice; TextError for a blank prompt; CorpusError
    where the table, or a row of it, cannot be read.
    """
    rows = columns_of(clean)
    if rows is None and not isinstance(clean, str | Path):
        clean = as_list(clean, "a prompt, a list of them, or a table of pairs")
        given = {"clean": clean, "corrupt": corrupt, "answer": answer, "foil": foil, "label": label}
        corrupt = answer = foil = label = None
        rows = columns_of(
            {
                name: [value] * len(clean) if isinstance(value, str) or is_whole(value) else value
                for name, value in given.items()
                if value is not None
            }
        )
    if rows is None and source_kind(clean) == "text":
        if corrupt is None:
            raise UsageError(
                "expected a second prompt as --corrupt (corrupt=...), or a table of pairs, found one text."
            )
        if answer is not None and label is not None:
            raise UsageError("--answer and --label (answer=..., label=...) were given; expected one of them.")
        for name, prompt in (("clean", clean), ("corrupt", corrupt)):
            if not isinstance(prompt, str):
                raise TextError(f"expected the {name} prompt as a text, found {as_found(prompt)}.")
            if not prompt.strip():
                raise TextError(f"the {name} prompt is empty or blank; expected a text.")
        wanted = label if answer is None else answer
        return [PromptPair(clean, corrupt, wanted, foil, label is not None)], None
    rows = rows or Rows(Path(clean))
    path = rows.path
    if any(value is not None for value in (corrupt, answer, foil, label)):
        raise UsageError(
            f"{path} is a table, whose columns are clean, corrupt, answer and foil (or label); expected no --corrupt, "
            "--answer, --foil or --label beside it."
        )
    if rows.content is None and path.suffix.lower() not in TABLES and not is_table_folder(path):
        raise CorpusError(f"expected a table ({', '.join(TABLES)}) with the columns clean and corrupt, found {path}.")
    table = open_pairs(rows)
    return list(islice(table.pairs(), limit)), PairFile(path, rows.sha256, tuple(unread_columns([table])))


def holds_ids(given: Any) -> bool:
    """Whether prompts in memory are token ids: a list of them, or of lists of them."""
    try:
        items = values_of(given)
        first = values_of(items[0]) if isinstance(items, list | tuple) and items else None
    except RuntimeError:  # of torch: a tensor that is sparse, or on the device meta
        return False
    return is_whole(first) or (isinstance(first, list | tuple) and bool(first) and is_whole(first[0]))


def texts_of_ids(checkpoint: Checkpoint, given: Any, name: str) -> str | list[str]:
    """The text, or texts, that token ids spell; UsageError where the tokenizer divides one into other ids."""
    if not holds_ids(given):
        raise UsageError(f"expected {name} as token ids, as the other prompts are, found {as_found(given)}.")
    rows = [values_of(row) for row in values_of(given)]
    texts = list[str]()
    for number, ids in enumerate([rows] if is_whole(rows[0]) else rows, start=1):
        [document] = documents_of(checkpoint, {"input_ids": ids})
        spelled = read_prompt(document, checkpoint).source
        if spelled.pair is not None or tokenize(checkpoint, spelled.text).ids != document.ids:
            raise UsageError(
                f"{name} {number}: expected the ids that the tokenizer gives for one text, found those of "
                f"{quoted(spelled.text)} with others; give the text."
            )
        texts.append(spelled.text)
    return texts[0] if is_whole(rows[0]) else texts


def metric_named(metric: str | Scoring | None, pair: PromptPair) -> Metric:
    """The metric to use for pairs like this one; UsageError where it needs an answer or a foil that is not given."""
    if pair.foil is not None and pair.answer is None:
        raise UsageError(
            "expected an answer beside the foil: --answer (answer=...), of classifiers --label; of a table a column."
        )
    if metric is None:
        return METRICS[KL if pair.answer is None else LOSS if pair.foil is None else DIFFERENCE]
    if not isinstance(metric, str):
        return metric_of(metric)
    needed = {DIFFERENCE: ("answer", "foil"), LOSS: ("answer",), KL: ()}[metric]
    for name in needed:
        if getattr(pair, name) is None:
            raise UsageError(f"the metric {metric} needs --{name} ({name}=...), or a column {name} of the table.")
    return METRICS[metric]


def paired_inputs(
    checkpoint: Checkpoint,
    pairs: Sequence[PromptPair],
    metric: str,
    at: Sequence[str | int] = (),
    spans: Sequence[str] = (),
    each: bool = False,
) -> PairedInputs:
    """Tokenize the pairs; ``at`` names tokens of the clean prompt, ``spans`` stretches of both prompts of one pair.

    ``each`` of these, or of all tokens, is patched alone: they must be at the same positions in all pairs.
    ArchitectureError or UsageError where the model predicts nothing, or has no such token or class; TextError or
    CorpusError where two prompts do not align, are too long, or lack the mask or a token of ``at``.
    """
    if checkpoint.architecture.language_task == "Model":
        raise ArchitectureError(
            f"patch compares predictions, and models of the architecture {checkpoint.architecture.name!r} make none."
        )
    if prediction_kind(checkpoint, wanted=pairs[0].labelled) == STATES:
        why = checkpoint.why_no_classes if checkpoint.classifier else "this model predicts no tokens"
        raise UsageError(
            f"patch compares predictions, of a decoder, a BERT with its masked-LM head, or a classifier; {why}: name "
            "such a model with --model (model=...)."
        )
    inputs = PairedInputs([], [], [])
    sides = []
    for side in _SIDES:
        texts = [Text(getattr(pair, side), place=pair.place) for pair in pairs]
        sides.append(encode(checkpoint, texts, offer="shorten it", labelled=True))
    for number, (pair, clean, corrupt) in enumerate(zip(pairs, *sides, strict=True)):
        with naming_row(pair.place):
            if clean.ids == corrupt.ids:
                raise TextError("both prompts are the same tokens; expected a clean and a corrupt one that differ.")
            if not spans:
                _check_aligned(clean, corrupt)
            ids: tuple[int | None, int | None] = None, None
            if metric in (DIFFERENCE, LOSS) or pair.labelled:
                ids = named_ids(checkpoint, pair.answer, pair.foil if metric == DIFFERENCE else None)
            row = {"text": pair.clean, "corrupt": pair.corrupt, "answer": pair.answer, "foil": pair.foil}
            both = [input_of_answer(checkpoint, item, number, ids, row) for item in (clean, corrupt)]
            places = [place for model_input in both for place in model_input.positions]
            if not spans and places[0] != places[1]:
                raise TextError(f"expected the mask at one position of both prompts, found {sorted(places)}.")
            inputs.clean.append(both[0])
            inputs.corrupt.append(both[1])
            same = _named(clean, at) if at else tuple(range(len(clean)))
            inputs.positions.append(_spanned((clean, corrupt), spans) if spans else (same, same))
    if each:
        _check_same_positions(inputs, at)
    return inputs


def _named(clean: Prompt, at: Sequence[str | int]) -> tuple[int, ...]:
    """The positions of tokens of the clean prompt."""
    tokens = merge_subwords(clean, words=False)
    return tuple(sorted({place for token in at for place in find_queries(tokens, token, "--at")}))


def _check_same_positions(inputs: PairedInputs, at: Sequence[str | int]) -> None:
    unlike = sorted(set(inputs.positions), key=lambda both: len(both[0]))
    if len(unlike) > 1:
        where = "prompts of as many tokens"
        found = f"{len(unlike[0][0])} and {len(unlike[-1][0])}"
        if at:
            where, found = "the tokens of --at (at=...) at the same positions of all prompts", "others"
        raise UsageError(
            f"--by position (by=...) is a mean over pairs at each position: expected {where}, found {found}; leave it "
            "out, or give one pair."
        )


def _spanned(prompts: tuple[Prompt, Prompt], given: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of spans in the clean and in the corrupt prompt; of a name given twice the second is of the latter."""
    texts: dict[str, list[str]] = {}
    for named_text in given:
        ((name, text),) = spans_by_name([named_text]).items()
        texts.setdefault(name, []).append(text)
    both: tuple[list[int], list[int]] = ([], [])  # of the clean and of the corrupt prompt
    for name, stretches in texts.items():
        if len(stretches) > len(_SIDES):
            raise UsageError(f"--span {visible(name)} was given {len(stretches)} times; expected it once or twice.")
        sizes = []
        for side, stretch, tokens, positions in zip(_SIDES, (stretches[0], stretches[-1]), prompts, both, strict=True):
            try:
                span = named_span(name, stretch, tokens, merge_subwords(tokens, words=False))
            except UsageError as error:
                twice = (
                    " Where the prompts differ, give --span NAME=TEXT twice: of the clean, then of the corrupt prompt."
                )
                raise UsageError(f"the {side} prompt: {error}{twice if len(stretches) == 1 else ''}") from error
            positions.extend(span.tokens)
            sizes.append(len(span.tokens))
        if sizes[0] != sizes[1]:
            raise UsageError(
                f"--span {visible(name)}: expected as many tokens in both prompts, found {sizes[0]} "
                f"({quoted(stretches[0])}) and {sizes[1]} ({quoted(stretches[-1])}); name stretches of as many."
            )
    for side, positions in zip(_SIDES, both, strict=True):
        if len(set(positions)) < len(positions):
            raise UsageError(f"two of --span (spans=...) share a token of the {side} prompt; name stretches apart.")
    return tuple(both[0]), tuple(both[1])


def _check_aligned(clean: Prompt, corrupt: Prompt) -> None:
    """Raise TextError for prompts of other numbers of tokens; it names the first word of more or fewer."""
    if len(clean) == len(corrupt):
        return
    words = []
    for tokens in (clean, corrupt):
        pieces = Counter(tokens.words)
        words.append([(label, pieces[word]) for word, label in enumerate(tokens.word_labels)])
    first = next(both for both in zip_longest(*words, fillvalue=("its end", 0)) if both[0][1] != both[1][1])
    one, other = (f"{quoted(word)} ({counted(n, 'token')})" if n else word for word, n in first)
    or_spans = ""
    if clean.source.place is None:
        or_spans = ", or patch stretches of as many alone: --span NAME=TEXT (spans=...)"
    raise TextError(
        f"expected two prompts of as many tokens, which are patched token by token, found {len(clean)} and "
        f"{len(corrupt)}: where the clean one has {one}, the corrupt one has {other}; choose words of as many tokens"
        f"{or_spans}."
    )


def partners(donors: Sequence[ModelInput]) -> list[int]:
    """For each pair another one, whose prompt is a different one of as many tokens; itself where there is none."""
    by_length: dict[int, list[int]] = {}
    for number, donor in enumerate(donors):
        by_length.setdefault(len(donor.item), []).append(number)
    others = []
    for number, donor in enumerate(donors):
        same = by_length[len(donor.item)]
        after = same.index(number) + 1
        different = (other for other in same[after:] + same[:after] if donors[other].item.ids != donor.item.ids)
        others.append(next(different, number))
    return others


def pair_samples(inputs: PairedInputs, seed: int) -> TextSamples:
    """Bootstrap samples of pairs. Copies of a pair say nothing new: they are drawn together, and count once."""
    first: dict[object, int] = {}  # the number of the first pair of each kind
    numbers = [
        first.setdefault((clean.item.ids, corrupt.item.ids, clean.labels, clean.foils), number)
        for number, (clean, corrupt) in enumerate(zip(inputs.clean, inputs.corrupt, strict=True))
    ]
    return TextSamples(seed, numbers)
