"""Checkpoints whose heads are known by construction get exactly their roles; fresh ones get none but broad."""

import random
from pathlib import Path

import pytest
import torch
from transformers import BertModel, GPT2Model

from attnviz.commands.profile.measure import profile_heads
from attnviz.judge.roles import Role
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from tests.support.models import (
    CAUSAL_KNOWN_HEADS,
    KNOWN_HEADS,
    bert_config,
    bert_tokenizer,
    gpt2_config,
    gpt2_tokenizer,
    known_bert,
    known_gpt2,
)

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


@pytest.mark.parametrize(("name", "seed"), [("bert", 0), pytest.param("gpt2", 1, marks=pytest.mark.thorough)])
def test_a_freshly_initialised_model_gets_no_role_but_broad_even_without_a_control(treebank, name, seed):
    *_, model_class, config, tokenizer = MODELS[name]
    torch.manual_seed(seed)
    model = from_loaded(model_class(config()).eval(), tokenizer())
    profile = profile_heads(model, [treebank], repeats=True, control=False)
    assert len({role.id for role in profile.roles}) == 12
    assert {role.role for role in profile.roles if role.holds} <= {"broad"}
