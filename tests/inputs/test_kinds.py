"""A kind of input of one's own: a list of words, already split, in one file and through the registry."""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pytest
import torch

import attnviz
from attnviz.errors import TextError, UsageError
from attnviz.inputs.prompt import Prompt, Text, read_prompt
from attnviz.models.checkpoint import Checkpoint
from tests.support.models import bert_tokenizer, sharp_bert

WORDS = ("The", "unbelievable", "cat.", "ran", "re-ran")


@dataclass(frozen=True)
class SplitWords:
    """Words as somebody divided them."""

    words: tuple[str, ...]


@read_prompt.register
def _(given: SplitWords, checkpoint: Checkpoint, truncate: bool = False) -> Prompt:
    ends = list(accumulate(len(word) + 1 for word in given.words))
    spans = [(end - 1 - len(word), end - 1) for word, end in zip(given.words, ends, strict=True)]
    prompt = read_prompt(Text(" ".join(given.words), spans=tuple(spans)), checkpoint, truncate)
    word_of = {token: word for word, tokens in enumerate(prompt.members) for token in tokens}
    return replace(prompt, words=tuple(map(word_of.get, range(len(prompt)))), word_labels=given.words)


def test_words_that_are_split_already_are_those_of_the_analysis() -> None:
    given: dict[str, Any] = {"model": sharp_bert(), "tokenizer": bert_tokenizer(), "syntax": False}
    of_text = attnviz.analyze(" ".join(WORDS), **given)
    assert len(of_text.tokens.word_labels) > len(WORDS)  # the full stop is a word of its own there
    tokens, words = (attnviz.analyze(SplitWords(WORDS), words=merged, **given) for merged in (False, True))
    assert (tokens.tokens.ids, tokens.units.labels) == (of_text.tokens.ids, of_text.units.labels)
    assert torch.equal(tokens.pattern("L1H1"), of_text.pattern("L1H1"))
    assert words.units.labels == ("[CLS]", *WORDS, "[SEP]")
    merged = torch.stack([tokens.pattern("L1H1")[:, list(members)].sum(1) for members in words.units.members], 1)
    rows = torch.stack([merged[list(members)].mean(0) for members in words.units.members])
    torch.testing.assert_close(words.pattern("L1H1"), rows)
    assert words.verification.heads_compared == len(words.heads)
    for name in ("entropy", "sink"):
        assert [head.statistics[name] for head in tokens.heads] == [head.statistics[name] for head in of_text.heads]


def test_an_option_of_one_text_and_a_kind_that_nobody_registered_are_refused() -> None:
    given: dict[str, Any] = {"model": sharp_bert(), "tokenizer": bert_tokenizer()}
    with pytest.raises(UsageError, match="--pair"):
        attnviz.analyze(SplitWords(WORDS), pair="the dog", **given)
    with pytest.raises(TextError, match="int"):
        attnviz.analyze(5, **given)
