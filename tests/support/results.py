"""Of every command a result of a small model, measured once."""

import random
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
from attnviz.models.head_ids import HeadId
from attnviz.present.result import Result
from attnviz.profiles.examples import Example, RoleExamples, Unit
from tests.support.ablations import next_token_model
from tests.support.corpora import sentences, treebank
from tests.support.models import WORDS, bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.stored import profile_of, role

TEXT = "the cat that i saw ran away"
TEXTS = (TEXT, "the dog that i saw ran away")


def _claims() -> Path:
    file = Path(mkdtemp()) / "claims.toml"
    claims = [f'[[claim]]\nhead = "L0H{head}"\nscore = "entropy"\nat_least = 0' for head in (1, 2, 3)]
    file.write_text("\n".join([f'text = "{TEXT}"', *claims, ""]))
    return file


@cache
def cards_with_roles() -> Any:
    """Two cards with every part, of several runs."""
    model: dict[str, Any] = {"model": sharp_bert(), "tokenizer": bert_tokenizer()}
    nsubj, heads = ("syntactic:nsubj", "dependent_to_head"), ["L2H1", "L1H0"]
    roles = [role("previous-token", 0.9, 0.1), role("induction", 0.8, 0.1)]
    roles.append(role(nsubj[0], 0.7, 0.4, direction=nsubj[1]))
    cat, ran, it, away = Unit("cat", 4, 7), Unit("ran", 8, 11), Unit("it", 0, 2), Unit("away", 7, 11)
    hit = Example("a.conllu", 0, "the cat ran", cat, ran, 0.8, True, (cat, ran), 0.8)
    miss = Example("a.conllu", 1, "it ran away", it, away, 0.6, False, (it, Unit("ran", 3, 6)), 0.1)
    examples = [RoleExamples(HeadId.parse(head), *nsubj, (hit,), (miss,)) for head in heads]
    alone: dict[str, Any] = {"select": heads, "curve": False, "gradient": False}
    causal = {"model": sharp_gpt2(model_class=GPT2LMHeadModel), "tokenizer": gpt2_tokenizer()}
    shared: dict[str, Any] = {
        "profile": replace(profile_of(dict.fromkeys(heads, roles)), examples=tuple(examples)),
        "nearest": ((HeadId(0, 0), 0.1),),
        "ablation": attnviz.ablate(treebank(Path(mkdtemp()) / "trees.conllu", 90), role="nsubj", **model, **alone),
        "on_repeats": attnviz.ablate(repeats=True, **causal, **alone),
    }
    found = attnviz.cards(TEXT, **model, select=heads, syntax=False)
    return replace(found, cards=tuple(replace(card, **shared) for card in found.cards))


def _pairs() -> Path:
    """Forty pairs of prompts, with answers and foils."""
    path, draw = Path(mkdtemp()) / "pairs.csv", random.Random(0)
    rows = [[draw.choice(WORDS[:20]) for _ in range(3)] for _ in range(40)]
    lines = [f"the {a} {b},the {a} {c}, {b}, {c}" for a, b, c in rows if b != c]
    path.write_text("\n".join(["clean,corrupt,answer,foil", *lines]))
    return path


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
    "compare.roles": lambda: attnviz.compare_corpus(
        from_loaded(sharp_bert(), bert_tokenizer()),
        from_loaded(sharp_gpt2(n_positions=200), gpt2_tokenizer()),
        treebank(Path(mkdtemp()) / "trees.conllu", 60),
    ),
    "explain": lambda: attnviz.explain(TEXT, sharp_bert(), tokenizer=bert_tokenizer()),
    "why": lambda: attnviz.why(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), head="L2H1", depth=2),
    "rollout": lambda: attnviz.rollout(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), token="cat"),
    "circuits": lambda: attnviz.circuits("tiny-gpt2", device="cpu"),
    "profile": lambda: attnviz.profile_heads(
        "tiny-gpt2", [treebank(Path(mkdtemp()) / "trees.conllu", 30)], repeats=True, device="cpu"
    ),
    "check": lambda: attnviz.check(_claims(), from_loaded(sharp_bert(), bert_tokenizer())),
    "card": lambda: cards_with_roles().cards[0],
    "patch": lambda: attnviz.patch(
        _pairs(), next_token_model()[0], tokenizer=gpt2_tokenizer(), select="L0-1", self_repair=True
    ),
    "ablate": lambda: attnviz.ablate(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), select="L0-1"),
}
"""Of each command a result of a small model, on which every default figure can be drawn."""


@cache
def result_of(command: str) -> Any:
    result = MEASURES[command]()
    assert isinstance(result, Result)
    return result


def layer_differences(result: Any, layer: int) -> Any:
    """B - A for every weight of a layer, [n_heads, n, n], row = query, column = key."""
    a, b = (side.layer_patterns(layer).double() for side in (result.first, result.second))
    return (b - a).float().numpy()
