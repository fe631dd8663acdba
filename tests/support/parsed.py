"""What tests of parses share: a text as a model reads it, and a parser whose trees are written by hand."""

from types import SimpleNamespace
from typing import Any

from attnviz.inputs.prompt import Prompt
from attnviz.inputs.text import tokenize
from tests.support.models import bert_tokenizer, gpt2_tokenizer


def read(text: str, pair: str | None = None, max_positions: int = 40, gpt2: bool = False) -> Prompt:
    tokenizer = gpt2_tokenizer() if gpt2 else bert_tokenizer()
    return tokenize(reading_alone(tokenizer, gpt2, max_positions), text, pair, truncate=True)


def reading_alone(tokenizer: Any, causal: bool = False, max_positions: int = 40, **changes: Any) -> Any:
    """What a checkpoint knows of reading: of a BERT, or a causal model without token types; no weights."""
    architecture = SimpleNamespace(segments=not causal, causal=causal, has_words=True)
    config = SimpleNamespace(**({"vocab_size": len(tokenizer)} | changes))
    return SimpleNamespace(
        tokenizer=tokenizer,
        architecture=architecture,
        config=config,
        positions=max_positions,
        limit="",
        image_token=None,
    )


class FakeParser:
    """Words with offsets, heads and relations as written: ``{text: [(word, head, relation), …]}``."""

    meta = {"lang": "xx", "name": "fake"}  # noqa: RUF012

    def __init__(self, sentences: dict[str, list[tuple[str, int, str]]], labels: tuple[str, ...] = ("det",)) -> None:
        self.sentences, self.labels = sentences, labels

    def get_pipe(self, name: str) -> SimpleNamespace:
        assert name == "parser"
        return SimpleNamespace(labels=self.labels)

    def __call__(self, text: str) -> list[SimpleNamespace]:
        words, start = [], 0
        for i, (word, _, relation) in enumerate(self.sentences[text]):
            start = text.index(word, start)
            words.append(SimpleNamespace(text=word, idx=start, i=i, dep_=relation, pos_="", is_space=word.isspace()))
            start += len(word)
        for word, (_, head, _) in zip(words, self.sentences[text], strict=True):
            word.head = words[head]
        return words
