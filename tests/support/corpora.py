"""Small corpora for tests, from the words of the tiny tokenizers, and their texts through a model into a tally."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attnviz.inputs.batches import Batch, batches
from attnviz.inputs.lines import Place
from attnviz.inputs.prompt import Text
from attnviz.language.syntax import Arc
from attnviz.measures.bootstrap import text_weights
from attnviz.measures.tallies import counting
from attnviz.models.checkpoint import Checkpoint
from tests.support.recorded import own_patterns

WORDS = "the a cat dog house that i saw ran away and was he in of".split()
RELATIONS = ["nsubj", "det", "obj", "acl:relcl", "punct"]


def treebank(path: Path, n_sentences: int = 80, seed: int = 0) -> Path:
    """Random words with random trees, in CoNLL-U."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n_sentences):
        n = int(rng.integers(3, 18))
        for i in range(1, n + 1):
            head = int(rng.choice([k for k in range(n + 1) if k != i])) if i > 1 else 0
            relation = str(rng.choice(RELATIONS)) if head else "root"
            lines.append(f"{i}\t{rng.choice(WORDS)}\t_\t_\t_\t_\t{head}\t{relation}\t_\t_")
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def sentences(path: Path, n_sentences: int = 20, seed: int = 0) -> Path:
    """Random words, a sentence a line."""
    rng = np.random.default_rng(seed)
    lines = [" ".join(rng.choice(WORDS, size=int(rng.integers(2, 15)))) for _ in range(n_sentences)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def examples(path: Path, n_rows: int = 30, seed: int = 0) -> Path:
    """A table in the form of GAP: a cat, a dog, and he; in every fifth row neither is right."""
    rng = np.random.default_rng(seed)
    columns = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL".split()
    rows = ["\t".join(columns)]
    for number in range(n_rows):
        filler = " ".join(rng.choice([*WORDS[:3], "house", "in"], size=int(rng.integers(1, 6))))
        text = f"the cat saw a dog {filler} and he ran away"
        right = "neither" if number % 5 == 4 else str(rng.choice(["A", "B"]))
        cells = [f"r{number}", text, "he", str(text.index(" he ") + 1), "cat", "4", str(right == "A").upper()]
        rows.append("\t".join([*cells, "dog", "14", str(right == "B").upper(), "http://x"]))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def sentence(words: Sequence[str], line: int = 1, arcs: Sequence[Arc] = ()) -> Text:
    """Words with a space between, and their relations."""
    spans, at = [], 0
    for word in words:
        spans.append((at, at + len(word)))
        at += len(word) + 1
    return Text(" ".join(words), tuple(spans), tuple(arcs), Place(Path("corpus.txt"), line))


def count(
    tally: Any, checkpoint: Checkpoint, texts: Sequence[Text], batch_size: int = 1, replicates: int = 3, seed: int = 0
) -> Any:
    """The tally with these texts counted, each numbered by its place unless it has a number."""
    numbered = [replace(text, number=text.number or place) for place, text in enumerate(texts)]
    for batch in batches(checkpoint, numbered, batch_size):
        numbers = [item.source.number for item in batch.items]
        count_batch(tally, checkpoint, batch, text_weights(seed, numbers, replicates))
    return tally


def count_batch(tally: Any, checkpoint: Checkpoint, batch: Batch, weights: Any) -> None:
    """One batch through the model, its patterns in double precision."""
    with counting([tally], batch, weights) as add:
        for layer, pattern in own_patterns(checkpoint, batch.inputs).items():
            add(layer, pattern.double())
