"""The tables of a profile say what was measured: rows, order, what is left out."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from attnviz.commands.profile.profiling import Profile, profile_heads
from attnviz.commands.profile.roles import Role
from attnviz.commands.profile.tables import profile_report
from attnviz.model.checkpoint import from_loaded
from attnviz.model.head_ids import HeadId
from tests import corpora
from tests.models import bert_config, bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

pytest.importorskip("conllu", reason="needs the extra profile")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    path = corpora.treebank(tmp_path_factory.mktemp("corpora") / "trees.conllu", 40)
    found = profile_heads(from_loaded(sharp_bert(), bert_tokenizer()), [path])
    assert found is not None
    return found


def printed(profile: Profile, top: int = 15, width: int = 80) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(profile_report(profile, top=top))
    return [line.rstrip() for line in capture.get().splitlines()]


def on_one_line(lines: list[str]) -> str:
    """Captions are wrapped at the width of their table."""
    return " ".join(" ".join(lines).split())


def with_roles(profile: Profile, *roles: Role) -> Profile:
    return replace(profile, roles=roles)


def role(
    head: str, name: str, score: float, baseline: float = 0.1, passed: bool = True, direction: str | None = None
) -> Role:
    layer, column = head[1:].split("H")
    interval = (score - 0.01, score + 0.01)
    return Role(HeadId(int(layer), int(column)), name, score, baseline, 50, interval, "a rule", passed, direction)


def test_the_relations_are_those_of_the_profile(profile: Profile):
    lines = printed(profile)
    assert profile.relations is not None
    start = next(i for i, line in enumerate(lines) if line.startswith("Relations (5, the most frequent first)"))
    rows = [line.split() for line in lines[start + 3 : start + 8]]
    assert [row[0] for row in rows] == [relation.relation for relation in profile.relations]
    for row, relation in zip(rows, profile.relations, strict=True):
        hits = max(int(hits.max()) for hits in relation.hits.values())
        layer, head = (int(part) for part in row[1][1:].split("H"))
        direction = {"dep→head": "dependent_to_head", "head→dep": "head_to_dependent"}[row[2]]
        assert int(relation.hits[direction][layer, head]) == hits
        numbers = [f"{hits / relation.n:.2f}", f"{relation.offset:+d}", f"{relation.offset_hits / relation.n:.2f}"]
        passing = sum(role.passed for role in profile.roles if role.role == f"syntactic:{relation.relation}")
        assert row[3:] == [*numbers, str(relation.n), f"{passing}/12"]


def test_what_is_left_out_is_said(profile: Profile):
    lines = printed(profile, top=1)
    assert "Relations (1 of 5, the most frequent first)" in lines
    assert "4 relations are left out: --top 0 lists all; profile.json has them." in on_one_line(lines)
    assert len(profile.relations or ()) == 5
    assert not [line for line in printed(profile, top=0) if "left out" in line]
    assert "1 relation is left out: --top 0 lists all" in on_one_line(printed(profile, top=4))


def test_heads_are_listed_with_their_roles_the_clearest_first(profile: Profile):
    shown = with_roles(
        profile,
        role("L0H1", "local", 0.6),
        role("L2H3", "syntactic:obj", 0.7, 0.3, direction="dependent_to_head"),
        role("L0H1", "previous-token", 0.9),
        role("L1H1", "sink", 0.99, passed=False),
    )
    lines = printed(shown)
    start = lines.index("Heads (2 of 12; 10 show no role)")
    assert [line.split() for line in lines[start + 3 : start + 6]] == [
        ["L0H1", "previous-token", "0.90", "0.10", "0.89–0.91", "50"],
        ["local", "0.60", "0.10", "0.59–0.61", "50"],
        ["L2H3", "syntactic:obj", "dep→head", "0.70", "0.30", "0.69–0.71", "50"],
    ]
    assert "1 head is left out: --top 0 lists all; profile.csv has" in on_one_line(printed(shown, top=1))


def test_of_many_roles_the_weakest_are_counted(profile: Profile):
    shown = with_roles(profile, *(role("L0H0", f"role-{i}", 0.9 - i / 10) for i in range(6)))
    lines = printed(shown)
    start = lines.index("Heads (1 of 12; 11 show no role)")
    assert [line.strip() for line in lines[start + 6 : start + 7]] == ["… 3 more"]
    assert not [line for line in lines if "role-3" in line]


def test_the_layers_are_means_over_their_heads(profile: Profile):
    assert profile.statistics is not None
    found, _ = profile.statistics.results()
    lines = printed(profile)
    start = lines.index("Layers (means over their heads)")
    row = lines[start + 4].split()
    assert row[0] == "0"
    names = ["entropy", "distance", "confidence", "sink", "previous", "current", "next", "local", "long_range"]
    assert row[1:] == [f"{float(found[name][0].mean()):.2f}" for name in names]
    uniform = next(line.split() for line in lines if line.startswith("uniform"))
    assert uniform[1] == f"{profile.statistics.baselines()['entropy']:.2f}"


def test_what_a_causal_model_cannot_do_is_a_dash(tmp_path: Path):
    path = corpora.treebank(tmp_path / "trees.conllu", 5)
    found = profile_heads(from_loaded(sharp_gpt2(), gpt2_tokenizer()), [path])
    assert found is not None
    lines = printed(found)
    assert lines[lines.index("Layers (means over their heads)") + 4].split()[7] == "–"


def test_the_first_line_says_what_was_verified_and_on_what(profile: Profile):
    text = " ".join(printed(profile))
    assert f"on a sample, {profile.texts_verified} of 40 texts: weights within" in text
    assert "Trees: gold." in text
    assert "Trees: a parser's, not gold." in " ".join(printed(replace(profile, gold=False)))


def test_what_was_left_out_of_a_corpus_is_said(profile: Profile):
    count = replace(profile.corpora[0], left_out=1234)
    text = " ".join(" ".join(printed(replace(profile, corpora=(count,)))).split())
    assert "trees.conllu: 1,234 of 1,274 texts left out: not of 3 to 60 words, or longer than the model." in text
    gap = replace(count, corpus=replace(count.corpus, kind="gap"))
    assert "a name after the pronoun, where a causal model cannot look" in " ".join(
        " ".join(printed(replace(profile, corpora=(gap,)))).split()
    )
    assert "left out" not in " ".join(printed(profile))


def test_a_relation_that_is_too_rare_has_no_verdict(profile: Profile):
    lines = printed(with_roles(profile))
    start = next(i for i, line in enumerate(lines) if line.startswith("Relations ("))
    assert lines[start + 3].split()[-1] == "–"


def test_published_heads_stand_apart(profile: Profile):
    """A model of the published one's shape and name; its own weights are random."""
    shape = {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 48}
    checkpoint = from_loaded(sharp_bert(**shape), bert_tokenizer())
    assert bert_config(**shape).num_hidden_layers == 12
    named = replace(checkpoint, name="bert-base-uncased")
    lines = printed(replace(profile, checkpoint=named, roles=(), relations=None, statistics=None))
    start = next(
        i for i, line in enumerate(lines) if line.startswith("Published (Clark et al. 2019; not measured here)")
    )
    assert any("L7H9" in line for line in lines[start:])
    assert not [line for line in printed(profile) if line.startswith("Published")]
