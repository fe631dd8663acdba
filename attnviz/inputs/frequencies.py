"""How often the tokens of a vocabulary are in corpora, or by a list of words and their counts."""

import hashlib
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from attnviz.arguments import as_found
from attnviz.errors import CorpusError
from attnviz.inputs.lines import broken, filled_lines
from attnviz.inputs.reading import Corpus, read_texts
from attnviz.inputs.text import encode
from attnviz.models.checkpoint import Checkpoint

_STRETCH = 1000  # texts whose tokens are counted together
_COUNT = re.compile(r"[0-9]{1,18}(\.[0-9]*)?([eE][-+]?[0-9]{1,2})?")


class Frequencies(NamedTuple):
    """Counts of words by a list."""

    name: str  # that of its file, with the beginning of its hash
    counts: dict[str, float]


def read_frequencies(path: str | Path | None) -> Frequencies | None:
    """Read a list, in each line a word and its count; the first may be a header. CorpusError for another file."""
    if path is None:
        return None
    path = Path(path)
    counts = dict[str, float]()
    for number, (place, line) in enumerate(filled_lines(path)):
        word, *count = line.rsplit(maxsplit=1)
        if count and _COUNT.fullmatch(count[0]):
            counts[word.strip()] = counts.get(word.strip(), 0) + float(count[0])
        elif number > 0 or not count or any(map(str.isdigit, count[0])):  # no header
            raise broken(place, "a word and its count, from 0 on (house 1234)", as_found(line))
    if not counts:
        raise CorpusError(f"{path}: expected words with their counts (house 1234), found none.")
    return Frequencies(f"{path.name} ({hashlib.sha256(path.read_bytes()).hexdigest()[:12]})", counts)


def token_counts(
    checkpoint: Checkpoint, corpora: Sequence[Corpus], limit: int | None, frequencies: Frequencies | None = None
) -> Tensor:
    """How often each vocabulary entry is in the content of corpora but GAP, or by a list, [vocabulary]."""
    size = max(int(checkpoint.config.vocab_size), len(checkpoint.tokenizer))
    if frequencies is not None:  # the sum of all words that a token is a piece of, also with a capital
        tokenizer = checkpoint.tokenizer
        listed = torch.zeros(size, dtype=torch.float64)
        for word, count in frequencies.counts.items():
            capital = word[:1].upper() + word[1:]
            pieces = tokenizer([word, capital, f" {word}", f" {capital}"], add_special_tokens=False)["input_ids"]
            listed[list(set[int]().union(*pieces))] += count
        for id in (listed[: len(tokenizer)] == 0).nonzero().flatten().tolist():
            if not any(char.isalnum() or char == "\N{REPLACEMENT CHARACTER}" for char in tokenizer.decode([id])):
                listed[id] = torch.inf  # unlisted punctuation is not rare
        return listed
    counts = torch.zeros(size, dtype=torch.long)
    for corpus in corpora:
        if corpus.kind == "gap":
            continue
        texts = read_texts(corpus, limit)
        while stretch := list(islice(texts, _STRETCH)):
            for item in encode(checkpoint, stretch, lambda *_: None):
                ids = torch.tensor([id for id, sink in zip(item.ids, item.sink, strict=True) if not sink])
                counts += ids.long().bincount(minlength=size)
    return counts
