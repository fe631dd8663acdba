"""Of every command a result of a small model, measured once."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from transformers import GPT2LMHeadModel

import attnviz
from attnviz.commands.heads.measure import analyze
from attnviz.models.checkpoint import from_loaded
from attnviz.present.result import Result
from tests.support.corpora import sentences, treebank
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.stored import profile_of, role

TEXT = "the cat that i saw ran away"
TEXTS = (TEXT, "the dog that i saw ran away")


def _claims() -> Path:
    file = Path(mkdtemp()) / "claims.toml"
    file.write_text(
        f'text = "{TEXT}"\n[[claim]]\nhead = "L0H1"\nscore = "entropy"\nat_least = 0\n[[claim]]\nlevel = 4\n'
    )
    return file


def card_with_roles() -> Any:
    card = attnviz.card("L2H1", TEXT, sharp_bert(), tokenizer=bert_tokenizer(), syntax=False, ablate=True)
    roles = [role("previous-token", 0.9, 0.1), role("syntactic:nsubj", 0.7, 0.4, direction="dependent_to_head")]
    return replace(card, profile=profile_of({"L2H1": roles}))


MEASURES: dict[str, Callable[[], Any]] = {
    "outputs": lambda: attnviz.head_outputs(TEXT, sharp_gpt2(model_class=GPT2LMHeadModel), tokenizer=gpt2_tokenizer()),
    "heads": lambda: attnviz.analyze(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), syntax=False),
    "compare": lambda: attnviz.compare(*(analyze(text, sharp_bert(), tokenizer=bert_tokenizer()) for text in TEXTS)),
    "heads.texts": lambda: attnviz.analyze_each(
        [TEXT, f"{TEXT} {TEXT}"], sharp_bert(), tokenizer=bert_tokenizer(), syntax=False
    ),
    "compare.corpus": lambda: attnviz.compare_corpus(
        *(from_loaded(sharp_bert(seed), bert_tokenizer()) for seed in (0, 1)),
        sentences(Path(mkdtemp()) / "texts.txt", 40),
        syntax=False,
    ),
    "explain": lambda: attnviz.explain(TEXT, sharp_bert(), tokenizer=bert_tokenizer()),
    "why": lambda: attnviz.why(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), head="L2H1", depth=2),
    "rollout": lambda: attnviz.rollout(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), token="cat"),
    "circuits": lambda: attnviz.circuits("tiny-gpt2", device="cpu"),
    "profile": lambda: attnviz.profile_heads(
        "tiny-gpt2", [treebank(Path(mkdtemp()) / "trees.conllu", 30)], repeats=True, device="cpu"
    ),
    "check": lambda: attnviz.check(_claims(), from_loaded(sharp_bert(), bert_tokenizer())),
    "card": card_with_roles,
    "ablate": lambda: attnviz.ablate(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), select="L0-1"),
}
"""Of each command a result of a small model, on which every default figure can be drawn."""


@cache
def result_of(command: str) -> Any:
    result = MEASURES[command]()
    assert isinstance(result, Result)
    return result
