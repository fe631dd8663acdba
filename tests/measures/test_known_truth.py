"""Checkpoints whose heads are built by hand: the labels, and the scores, must come out."""

from typing import Any

import pytest
import torch
from transformers import BertModel, GPT2Model

from attnviz import analyze
from attnviz.commands.heads.analysis import Analysis
from attnviz.judge.verdicts import Verdict
from attnviz.language.parsers import load_parser
from attnviz.language.syntax import parse_texts
from tests.conftest import needs_parser
from tests.support.models import (
    CAUSAL_LOOKS_AT,
    LOOKS_AT,
    bert_config,
    bert_tokenizer,
    gpt2_config,
    gpt2_tokenizer,
    hand_built_bert,
    hand_built_gpt2,
)
from tests.support.tolerances import SHARP_32

TEXT = "the cat that i saw ran away and the dog was in the house of he"
BERT_TOKENS = 18  # 16 words, [CLS] and [SEP]
ALSO_LOCAL = {"previous-token", "next-token", "current-token"}
"""Heads that look at most one position away are local, too."""


def of_bert(layers: list[Any], text: str = TEXT, d_head: int = 32, **options: Any) -> Analysis:
    return analyze(text, hand_built_bert(layers, d_head), tokenizer=bert_tokenizer(), syntax=False, **options)


BUILT = {"bert": LOOKS_AT, "gpt2": CAUSAL_LOOKS_AT}


@pytest.fixture(scope="module")
def analyses() -> dict[str, Analysis]:
    """Two layers with one head of every kind, in opposite order."""
    bert, gpt2 = ([list(heads.values()), list(heads.values())[::-1]] for heads in BUILT.values())
    of_gpt2 = analyze(TEXT, hand_built_gpt2(gpt2), tokenizer=gpt2_tokenizer(), syntax=False)
    return {"bert": of_bert(bert), "gpt2": of_gpt2}


def named(analysis: Analysis, head: str) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in analysis.head(head).verdicts}


@pytest.mark.parametrize(("model", "name"), [(model, name) for model, heads in BUILT.items() for name in heads])
def test_a_head_built_for_a_pattern_gets_its_label_and_no_other(model: str, name: str, analyses: dict[str, Analysis]):
    first = list(BUILT[model]).index(name)
    for head in (f"L0H{first}", f"L1H{len(BUILT[model]) - 1 - first}"):
        assert analyses[model].head(head).label == name
        verdicts = named(analyses[model], head)
        held = {each for each, verdict in verdicts.items() if verdict.holds}
        assert held == ({name, "local"} if name in ALSO_LOCAL else {name})
        assert verdicts[name].score == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("model", "limit"), [("bert", 1e-4), ("gpt2", 0.05)])
def test_a_uniform_head_scores_its_baselines(model: str, limit: float, analyses: dict[str, Analysis]):
    analysis = analyses[model]
    head = analysis.heads[list(BUILT[model]).index("broad")]
    assert head.statistics["entropy"] == pytest.approx(analysis.context.uniform["entropy"], abs=SHARP_32)
    for verdict in head.verdicts:
        expected = 1 if verdict.kind == "broad" else verdict.baseline
        assert verdict.score == (None if expected is None else pytest.approx(expected, abs=limit)), verdict.name


@pytest.mark.parametrize(("position", "is_sink"), [(0, True), (BERT_TOKENS - 1, True), (8, False)])
def test_a_head_that_rests_on_a_special_token_is_a_sink_and_on_a_word_none(position: int, is_sink: bool):
    found = of_bert([[lambda _: [position], LOOKS_AT["broad"]]])
    assert (found.head("L0H0").label == "sink") is is_sink
    assert found.head("L0H0").statistics["sink"] == pytest.approx(float(is_sink), abs=0.01)
    assert found.head("L0H1").label == "broad"


def test_a_previous_token_head_by_words_is_partly_a_head_on_its_own_word():
    """ "the" looks at [CLS]; of the four pieces of the long word one looks at "the", three at itself; "cat" at it."""
    by_token, by_word = (
        of_bert([[LOOKS_AT["previous-token"], LOOKS_AT["broad"]]], "the unbelievableness cat", words=words)
        for words in (False, True)
    )
    assert by_token.head("L0H0").statistics["previous"] == pytest.approx(1, abs=0.01)
    assert by_word.units.labels == ("[CLS]", "the", "unbelievableness", "cat", "[SEP]")
    expected = {"previous": (1 / 4 + 1) / 2, "current": (3 / 4) / 2, "sink": 1 / 3}
    found = by_word.head("L0H0").statistics
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=0.01)


@needs_parser
@pytest.mark.parametrize("direction", ["dependent_to_head", "head_to_dependent"])
def test_a_head_built_to_follow_a_relation_is_labelled_by_it(direction: str):
    text = " ".join(["The old cat saw the dog. A dog saw the old house."] * 3)
    plain = of_bert([[LOOKS_AT["broad"]] * 2], text, d_head=64)
    parse, aim = parse_texts(load_parser(), [text], plain.tokens), dict[int, int]()
    for arc in parse.arcs:
        (dependent,), (head,) = parse.words[arc.dependent].positions, parse.words[arc.head].positions
        if arc.relation == "det":
            aim |= {dependent: head} if direction == "dependent_to_head" else {head: dependent}
    heads = [lambda query: [aim[query]] if query in aim else [], lambda query: [aim.get(query, 0)]]
    found = analyze(text, hand_built_bert([heads], d_head=64), tokenizer=bert_tokenizer())
    assert found.head("L0H0").label == "syntactic:det"
    assert found.head("L0H1").label == "sink; syntactic:det"  # most of its attention, and what the rest does
    assert named(found, "L0H1")["det"].holds
    det = named(found, "L0H0")["det"]
    assert (det.score, det.n, det.direction, det.offset) == (1.0, 12, direction, 1)
    assert det.baseline == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("model_class", "config", "tokenizer"),
    [(BertModel, bert_config, bert_tokenizer), (GPT2Model, gpt2_config, gpt2_tokenizer)],
    ids=["bert", "gpt2"],
)
def test_a_freshly_initialised_model_shows_nothing(model_class: Any, config: Any, tokenizer: Any):
    for seed in range(3):
        torch.manual_seed(seed)
        found = analyze(TEXT, model=model_class(config()), tokenizer=tokenizer(), syntax=False)
        assert len(found.heads) == 12
        assert {head.label for head in found.heads} <= {"broad", "unnamed"}
        assert {verdict.kind for head in found.heads for verdict in head.verdicts if verdict.holds} <= {"broad"}
