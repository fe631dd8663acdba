"""What heads are removed on: texts and corpora, and the rows that a model reads of them, in batches of like length.

A row is one input of the model: a text; or, where a masked token is to be predicted, a copy of the text with one
token masked, so that there are as many rows of a text as it has tokens to mask.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnviz.corpora.batches import Batch, Item, Text, collate, encode
from attnviz.corpora.reading import Corpus, open_corpus
from attnviz.corpora.texts import numbered_texts
from attnviz.errors import CorpusError, TextError, UsageError
from attnviz.model.checkpoint import Checkpoint

__all__ = [
    "MASKED",
    "NEXT",
    "STATES",
    "Row",
    "RowBatch",
    "Sources",
    "kind_of",
    "read_sources",
    "row_batches",
    "rows_of",
]

NEXT, MASKED, STATES = "next-token", "masked-token", "states"
"""What is measured: how well the next token is predicted, or a masked one, or how far the final states move."""

_TOKENS = 4096
"""Of a batch, with padding, so that long texts do not make large batches."""

_FULL, _SLACK = 0.97, 1
"""Of the longest row of a batch, what the shortest one has at least, and by how many tokens it may fall short of that.

Padding would cost more than large batches gain: what a small one lacks, copies without other heads make up for.
"""

_LOGITS = 2**26
"""Predictions times vocabulary of a batch: 256 MiB of probabilities in float32."""

_SUFFIXES = (".txt", ".conllu", ".tsv")


@dataclass(frozen=True)
class Sources:
    """The texts, and where they are from.

    Attributes:
        texts: in order.
        corpora: files that some are from.
        given: texts that were given as such.
        read: for each corpus, how many of its texts were read.
    """

    texts: tuple[Text, ...]
    corpora: tuple[Corpus, ...]
    given: tuple[str, ...]
    read: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One input of the model, and where it is looked at.

    Attributes:
        item: its tokens.
        text: the place of its text among those that are measured.
        places: positions whose final state is looked at.
        labels: for each place the token that should be predicted there; empty where none is.
    """

    item: Item
    text: int
    places: tuple[int, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True)
class RowBatch:
    """Rows of about one length, padded on the right."""

    rows: tuple[Row, ...]
    batch: Batch


def read_sources(given: Sequence[str | Path], limit: int | None) -> Sources:
    """Texts, and sentences of corpora: what is an existing file is a corpus, anything else a text.

    Args:
        given: ``.txt`` files (a sentence a line), ``.conllu`` treebanks, or texts.
        limit: sentences of each corpus that are read; None for all.

    Raises:
        UsageError: nothing is given, or one corpus twice.
        TextError: a text is blank.
        CorpusError: a corpus cannot be read, or what looks like one is not there.
    """
    if not given:
        raise UsageError("nothing to measure on: expected a text or a corpus (.txt, .conllu).")
    texts: list[Text] = []
    corpora: list[Corpus] = []
    plain: list[str] = []
    read: list[int] = []
    for each in given:
        if _is_folder(each):
            raise CorpusError(f"{each} is a folder; expected a corpus in it (.txt, .conllu), or a text.")
        if not _is_corpus(each):
            if not str(each).strip():
                raise TextError("a text is empty or blank; expected a sentence, or a corpus (.txt, .conllu).")
            plain.append(str(each))
            texts.append(Text(str(each), number=len(texts)))
            continue
        corpus = open_corpus(Path(each))
        if any(other.sha256 == corpus.sha256 for other in corpora):
            raise UsageError(f"expected different corpora, found {corpus.path} with the same content as another one.")
        if corpus.kind == "gap":
            raise CorpusError(f"expected sentences in {corpus.path}, found a GAP table; give a .conllu or .txt file.")
        corpora.append(corpus)
        before = len(texts)
        texts += [replace(text, number=before + text.number) for text in numbered_texts(corpus, limit)]
        read.append(len(texts) - before)
    return Sources(tuple(texts), tuple(corpora), tuple(plain), tuple(read))


def _is_corpus(given: str | Path) -> bool:
    """A file that is there, or a name that only a corpus would have."""
    name = str(given)
    named_so = name.lower().endswith(_SUFFIXES) and not any(map(str.isspace, name))
    return isinstance(given, Path) or _is_file(name) or named_so


def _is_folder(given: str | Path) -> bool:
    """Whether it is a folder, and written as a path; a word may also be the name of one."""
    path = isinstance(given, Path) or given in {".", ".."} or ("/" in given and not any(map(str.isspace, given)))
    try:
        return path and Path(given).is_dir()
    except (OSError, ValueError):
        return False


def _is_file(name: str) -> bool:
    """Whether there is a file of this name; a text may be no name that any file could have."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # too long, or with a null character
        return False


def kind_of(checkpoint: Checkpoint) -> str:
    """What can be measured: with its language-modelling head how well the model predicts, else what its states do."""
    if checkpoint.language_head is None:
        return STATES
    if checkpoint.architecture.causal:
        return NEXT
    return STATES if checkpoint.tokenizer.mask_token_id is None else MASKED


def rows_of(
    checkpoint: Checkpoint, sources: Sources, kind: str, warn: Callable[[str], None]
) -> tuple[list[Row], list[Text]]:
    """What the model reads of the texts.

    Args:
        checkpoint: the model.
        sources: the texts.
        kind: of the measure.
        warn: told of each sentence of a corpus that is left out and why; a text given as such is an error.

    Returns:
        the rows, and the texts that they are of: a row's ``text`` is a place in these.

    Raises:
        TextError: a text that was given cannot be measured, or none can.
    """

    def leave_out(text: Text, why: str) -> None:
        if text.place is None:
            raise TextError(f"cannot measure on {text.text[:60]!r}: {why}.")
        warn(f"left out {text.place}: {why}")

    rows: list[Row] = []
    kept: list[Text] = []
    for item in encode(checkpoint, sources.texts, leave_out):
        made = _rows(checkpoint, item, kind, len(kept))
        if not made:
            leave_out(item.source, "it has a single token, so there is no next one to predict"
                      if kind == NEXT else "it has no token to mask")  # fmt: skip
            continue
        rows += made
        kept.append(item.source)
    if not kept:
        raise TextError("no text is left to measure on: all are too long, too short or empty for this model.")
    return rows, kept


def _rows(checkpoint: Checkpoint, item: Item, kind: str, text: int) -> list[Row]:
    if kind == STATES:
        return [Row(item, text, tuple(range(len(item))), ())]
    if kind == NEXT:
        return [Row(item, text, tuple(range(len(item) - 1)), item.ids[1:])] if len(item) > 1 else []
    mask = checkpoint.tokenizer.mask_token_id
    rows = []
    for place, (token, sink) in enumerate(zip(item.ids, item.sink, strict=True)):
        if sink or token == mask:  # what stood under a mask of the text nobody knows
            continue
        ids = (*item.ids[:place], mask, *item.ids[place + 1 :])
        rows.append(Row(replace(item, ids=ids), text, (place,), (token,)))
    return rows


def row_batches(checkpoint: Checkpoint, rows: Sequence[Row], batch_size: int) -> Iterator[RowBatch]:
    """Rows of about one length together; each is in exactly one batch.

    The shortest do not come first: the order is drawn, so that a sample of the batches has rows of all lengths and
    the time that is left can be told from that which has passed.

    Args:
        checkpoint: the model.
        rows: all of them.
        batch_size: rows in a batch at most; of long rows fewer.
    """
    groups: list[list[Row]] = []
    room = tokens = logits = 0
    for row in sorted(rows, key=lambda row: -len(row.item)):
        logits += len(row.labels) * int(checkpoint.config.vocab_size)
        tokens += room
        short = len(row.item) + _SLACK < _FULL * room
        if not groups or short or len(groups[-1]) == batch_size or tokens > _TOKENS or logits > _LOGITS:
            groups.append([])
            room = tokens = len(row.item)
            logits = len(row.labels) * int(checkpoint.config.vocab_size)
        groups[-1].append(row)
    random.Random(len(groups)).shuffle(groups)  # noqa: S311 - an order, not a secret
    for group in groups:
        yield RowBatch(tuple(group), collate(checkpoint, [row.item for row in group]))
