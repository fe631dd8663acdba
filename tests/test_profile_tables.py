"""The tables of a profile say what was measured: rows, order, what is left out."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnviz.commands.profile.measure import Profile, profile_heads
from attnviz.commands.profile.roles import Role
from attnviz.model.checkpoint import Checkpoint, from_loaded
from attnviz.model.head_ids import HeadId
from tests import corpora
from tests.models import bert_tokenizer, sharp_bert

pytest.importorskip("conllu", reason="needs the extra profile")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    path = corpora.treebank(tmp_path_factory.mktemp("corpora") / "trees.conllu", 40)
    found = profile_heads(from_loaded(sharp_bert(), bert_tokenizer()), [path])
    assert found is not None
    return found


def printed(profile: Profile, top: int = 15) -> list[str]:
    return [line.rstrip() for line in profile.report(90, top=top).splitlines()]


def on_one_line(profile: Profile, top: int = 15) -> str:
    """Captions are wrapped at the width of their table."""
    return " ".join(" ".join(printed(profile, top)).split())


def role(
    head: str, name: str, score: float, baseline: float = 0.1, passed: bool = True, direction: str | None = None
) -> Role:
    interval = (score - 0.01, score + 0.01)
    return Role(HeadId.parse(head), name, score, baseline, 50, interval, "a rule", passed, direction)


def rows_below(lines: list[str], title: str, count: int) -> list[list[str]]:
    """The cells of the first rows of the table with this title."""
    start = next(i for i, line in enumerate(lines) if line.startswith(title))
    head = next(i for i in range(start, len(lines)) if set(lines[i].strip()) == {"─"})
    return [line.split() for line in lines[head + 1 : head + 1 + count]]


def test_the_relations_are_those_of_the_profile(profile: Profile):
    assert profile.relations is not None
    rows = rows_below(printed(profile), "Relations (5, the most frequent first)", 5)
    for row, relation in zip(rows, profile.relations, strict=True):
        hits = max(int(hits.max()) for hits in relation.hits.values())
        direction = {"dep→head": "dependent_to_head", "head→dep": "head_to_dependent"}[row[2]]
        assert int(relation.hits[direction][HeadId.parse(row[1])]) == hits
        numbers = [f"{hits / relation.n:.2f}", f"{relation.offset:+d}", f"{relation.offset_hits / relation.n:.2f}"]
        passing = sum(role.passed for role in profile.roles if role.role == f"syntactic:{relation.relation}")
        assert [row[0], *row[3:]] == [relation.relation, *numbers, str(relation.n), f"{passing}/12"]


def test_what_is_left_out_is_said(profile: Profile):
    assert "Relations (1 of 5, the most frequent first)" in printed(profile, top=1)
    assert "4 more relations left out: --top 0 lists all; profile.json has them." in on_one_line(profile, top=1)
    assert "left out" not in on_one_line(profile, top=0)


def test_heads_are_listed_with_their_roles_the_clearest_first(profile: Profile):
    roles = (
        role("L0H1", "local", 0.6),
        role("L2H3", "syntactic:obj", 0.7, 0.3, direction="dependent_to_head"),
        role("L0H1", "previous-token", 0.9),
        role("L1H1", "sink", 0.99, passed=False),
    )
    lines = printed(replace(profile, roles=roles))
    assert rows_below(lines, "Heads (2 of 12; 10 show no role)", 3) == [
        ["L0H1", "previous-token", "0.90", "0.10", "0.89–0.91", "50"],
        ["local", "0.60", "0.10", "0.59–0.61", "50"],
        ["L2H3", "syntactic:obj", "dep→head", "0.70", "0.30", "0.69–0.71", "50"],
    ]
    assert "1 more head left out: --top 0 lists all; profile.csv has" in on_one_line(replace(profile, roles=roles), 1)
    assert rows_below(lines, "Relations (", 1)[0][-1] == "–"  # no verdict on a relation without roles


def test_of_many_roles_the_weakest_are_counted(profile: Profile):
    lines = printed(replace(profile, roles=tuple(role("L0H0", f"role-{i}", 0.9 - i / 10) for i in range(6))))
    assert rows_below(lines, "Heads (1 of 12; 11 show no role)", 4)[-1] == ["…", "3", "more"]
    assert not [line for line in lines if "role-3" in line]


def test_the_layers_are_means_over_their_heads(tmp_path: Path, checkpoint: Checkpoint):
    found = profile_heads(checkpoint, [corpora.treebank(tmp_path / "trees.conllu", 5)])
    assert found is not None
    assert found.statistics is not None
    values, _ = found.statistics.results()
    (row,) = rows_below(printed(found), "Layers (means over their heads)", 1)
    names = ["entropy", "distance", "confidence", "sink", "previous", "current", "next", "local", "long_range"]
    means = [float(values[name][0].mean()) for name in names]
    assert row == ["0", *(f"{mean:.2f}" if mean == mean else "–" for mean in means)]
    uniform = next(line.split() for line in printed(found) if line.startswith("uniform"))
    assert uniform[1] == f"{found.statistics.baselines()['entropy']:.2f}"


def test_what_was_verified_whose_trees_and_what_was_left_out_is_said(profile: Profile):
    assert f"on a sample, {profile.texts_verified} of 40 texts: weights within" in on_one_line(profile)
    assert "Trees: gold." in on_one_line(profile)
    count = replace(profile.corpora[0], left_out=1234)
    text = on_one_line(replace(profile, corpora=(count,), gold=False))
    assert "Trees: a parser's, not gold." in text
    assert "trees.conllu: 1,234 of 1,274 texts left out: not of 3 to 60 words, or longer than the model." in text
    gap = replace(count, corpus=replace(count.corpus, kind="gap"))
    assert "a name after the pronoun, where a causal model cannot" in on_one_line(replace(profile, corpora=(gap,)))


def test_published_heads_stand_apart(profile: Profile):
    """A model of the published one's shape and name; its own weights are random."""
    shape = {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 48}
    named = replace(from_loaded(sharp_bert(**shape), bert_tokenizer()), name="bert-base-uncased")
    lines = printed(replace(profile, checkpoint=named, roles=(), relations=None, statistics=None))
    start = next(i for i, line in enumerate(lines) if line.startswith("Published (Clark et al. 2019; not measured"))
    assert any("L7H9" in line for line in lines[start:])
    assert not [line for line in printed(profile) if line.startswith("Published")]
