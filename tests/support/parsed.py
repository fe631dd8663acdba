"""What tests of parses share: a text as a model reads it, and a parser whose trees are written by hand."""

from types import SimpleNamespace

from attnviz.inputs.encoding import TextReader
from attnviz.inputs.tokens import Tokens
from tests.support.models import bert_tokenizer, gpt2_tokenizer


def read(text: str, pair: str | None = None, max_positions: int = 40, gpt2: bool = False) -> Tokens:
    tokenizer = gpt2_tokenizer() if gpt2 else bert_tokenizer()
    limits = {"vocabulary_size": len(tokenizer), "segments": not gpt2, "sink_first": gpt2}
    return TextReader(tokenizer, max_positions=max_positions, **limits).tokenize(text, pair, truncate=True)


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
