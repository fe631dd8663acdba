"""Checkpoints whose heads are built by hand: labels, roles and scores must come out; fresh ones get none but broad."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertModel, GPT2Model

from attnviz import analyze
from attnviz.analysis.result import Analysis
from attnviz.commands.profile.measure import profile_heads
from attnviz.inputs.reading import parse_texts
from attnviz.judge.roles import Role
from attnviz.judge.verdicts import Verdict
from attnviz.language.parsers import load_parser
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from tests.conftest import needs_parser
from tests.support.models import (
    CAUSAL_KNOWN_HEADS,
    CAUSAL_LOOKS_AT,
    KNOWN_HEADS,
    LOOKS_AT,
    bert_config,
    bert_tokenizer,
    gpt2_config,
    gpt2_tokenizer,
    hand_built_bert,
    hand_built_gpt2,
    known_bert,
    known_gpt2,
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
    parse, aim = parse_texts(load_parser(), plain.tokens), dict[int, int]()
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


# --- roles over a corpus

WORDS = "the cat that saw ran away one two three four five dog house tree of and".split()
"""Each is one token of both tokenizers; so few that most tokens of a sentence have a copy in it."""

RELATIONS = ["nsubj", "obj", "det", "amod", "obl:tmod"]
SENTENCES = 104
ALSO = {role: {"local"} for role in ("previous-token", "next-token", "current-token")}
ALSO |= {role: {"long-range"} for role in ("induction", "semantic")}
"""Roles that come with another by definition: one position away is local; copies and like words are chosen far away."""
RETRIEVES = {("gpt2", "induction")}
"""Causal heads that look at the token to be copied next."""

MODELS = {
    "bert": (known_bert, KNOWN_HEADS, BertModel, bert_config, bert_tokenizer),
    "gpt2": (known_gpt2, CAUSAL_KNOWN_HEADS, GPT2Model, gpt2_config, gpt2_tokenizer),
}
PLACES = [
    (name, HeadId(layer, head), role)
    for name, (_, layers, *_) in MODELS.items()
    for layer, heads in enumerate(layers)
    for head, role in enumerate(heads)
]


def tree(words: list[str], rng: random.Random) -> str:
    """A sentence in CoNLL-U with a random tree: no head can follow it better than a fixed offset does."""
    order = rng.sample(range(1, len(words) + 1), len(words))
    heads = dict.fromkeys(order[:1], 0)
    for place, word in enumerate(order[1:], start=1):
        heads[word] = rng.choice(order[:place])
    rows = [
        f"{i}\t{word}\t_\t_\t_\t_\t{heads[i]}\t{rng.choice(RELATIONS) if heads[i] else 'root'}\t_\t_\n"
        for i, word in enumerate(words, start=1)
    ]
    return "".join(rows) + "\n"


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random words in sentences of 8 to 24, with random trees."""
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("corpus") / "random.conllu"
    path.write_text("".join(tree(rng.choices(WORDS, k=rng.randint(8, 24)), rng) for _ in range(SENTENCES)))
    return path


@pytest.fixture(scope="module", params=["bert", pytest.param("gpt2", marks=pytest.mark.thorough)])
def found(treebank: Path, request: pytest.FixtureRequest) -> tuple[str, list[Role]]:
    """Every verdict on every head of a model."""
    model, *_, tokenizer = MODELS[request.param]
    profile = profile_heads(from_loaded(model(), tokenizer()), [treebank], repeats=True)
    assert profile is not None
    return request.param, list(profile.roles)


def test_a_head_gets_exactly_the_roles_that_it_was_built_for_and_their_scores(found: tuple[str, list[Role]]):
    name, roles = found
    for head, role in ((head, role) for model, head, role in PLACES if model == name):
        expected = {role} | ALSO.get(role, set()) | ({"retrieval"} if (name, role) in RETRIEVES else set())
        expected |= {"inactive"} if head.layer == 0 < head.head else set()  # of this layer only the first writes
        assert {each.role for each in roles if each.holds and each.id == head} == expected
        # near 1; less where some queries look at everything, or at several copies; of a group its cosine
        (verdict,) = [each for each in roles if (each.id, each.role) == (head, role)]
        least = {"offset": 0.75, "induction": 0.6, "semantic": 0.3}.get(role.partition(":")[0], 0.97)
        assert least < verdict.score <= (0.6 if role == "semantic" else 1)
        assert verdict.describes or verdict.interval[0] <= verdict.score <= verdict.interval[1]


def test_every_verdict_that_could_be_given_was_given(found: tuple[str, list[Role]]):
    """Nothing passes merely because it was not asked: 8 heads times the roles that the corpus can give."""
    roles = [role.role.partition("+")[0].partition("-")[0] for role in found[1]]
    names = {"previous", "current", "local", "long", "sink", "broad", "induction", "duplicate", "offset:", "semantic"}
    names |= {"inactive", "next" if found[0] == "bert" else "retrieval"}
    names |= {f"syntactic:{relation}" for relation in [*RELATIONS, "obl"]}
    assert {role: roles.count(role) for role in roles} == dict.fromkeys(names, 8)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "seed"), [("bert", 0), ("gpt2", 1)])
def test_a_freshly_initialised_model_gets_no_role_but_broad_even_without_a_control(treebank, name, seed):
    *_, model_class, config, tokenizer = MODELS[name]
    torch.manual_seed(seed)
    model = from_loaded(model_class(config()).eval(), tokenizer())
    profile = profile_heads(model, [treebank], repeats=True, control=False)
    assert len({role.id for role in profile.roles}) == 12
    assert {role.role for role in profile.roles if role.holds} <= {"broad"}
