"""Heads that papers name: cited, counted from 0, and shown for the paper's model only."""

from types import SimpleNamespace

import pytest

from attnviz.models.head_ids import HeadId
from attnviz.profiles.published import published_heads


def heads_in(name, shape, revision=None):
    architecture, n_layers, n_heads = shape
    sizes = {"architecture": SimpleNamespace(name=architecture), "n_layers": n_layers, "n_heads": n_heads}
    return published_heads(SimpleNamespace(name=name, revision=revision, **sizes))


BERT, GPT2 = ("bert", 12, 12), ("gpt2", 12, 12)
COMMIT = "0" * 40


@pytest.mark.parametrize("revision", [COMMIT, None])
def test_models_are_known_by_their_hub_ids(revision):
    for name, shape, count, paper in (
        ("google-bert/bert-base-uncased", BERT, 15, "Clark et al. 2019"),
        ("BERT-base-uncased", BERT, 15, "Clark et al. 2019"),
        ("gpt2", GPT2, 26, "Wang et al. 2022"),
    ):
        found = heads_in(name, shape, revision)
        assert len(found) == count
        assert {(head.paper, head.by_name) for head in found} == {(paper, revision is None)}
    for shape, *names in (
        (GPT2, "bert-base-uncased", "someone/gpt2", "gpt2\0", "x" * 5000),
        (("bert", 12, 16), "bert-base-uncased"),
        (BERT, "bert-base-cased", "gpt2", "someone/bert-base-uncased", "bert-base-uncased-finetuned", ""),
    ):
        assert not any(heads_in(name, shape, revision) for name in names)


def test_a_folder_of_the_models_name_is_it_by_name_only(tmp_path, monkeypatch):
    for name in ("gpt2", "gpt2-tuned", "someone/gpt2"):
        (tmp_path / name).mkdir(parents=True)
    found = heads_in(str(tmp_path / "gpt2"), GPT2)
    assert len(found) == 26
    assert all(head.by_name for head in found)
    assert heads_in(str(tmp_path / "gpt2-tuned"), GPT2) == ()
    monkeypatch.chdir(tmp_path)
    assert heads_in("someone/gpt2", GPT2, COMMIT) == ()  # a hub id, whatever folder is there


TABLE_1 = """
prep 7-4 66.7 61.8 -1
pobj 9-6 76.3 34.6 -2
det 8-11 94.3 51.7 1
nn 4-10 70.4 70.2 1
nsubj 8-2 58.5 45.5 1
amod 4-10 75.6 68.3 1
dobj 8-10 86.8 40.0 -2
advmod 7-6 48.8 40.2 1
aux 4-10 81.1 71.5 1
poss 7-6 80.5 47.7 1
auxpass 4-10 82.5 40.5 1
ccomp 8-1 48.8 12.4 -2
mark 8-2 50.7 14.5 2
prt 6-7 99.1 91.4 -1
"""


def test_the_relations_of_bert_are_those_of_the_papers_table_counted_from_0():
    found = {head.role: head for head in heads_in("bert-base-uncased", BERT, COMMIT)}
    for row in TABLE_1.strip().split("\n"):
        relation, place, accuracy, baseline, offset = row.split()
        head = found.pop(f"syntactic:{relation}")
        layer, number = map(int, place.split("-"))
        assert head.id == HeadId(layer - 1, number - 1)
        assert head.score == pytest.approx(float(accuracy) / 100)
        assert head.baseline == pytest.approx(float(baseline) / 100)
        assert head.offset == int(offset)
        assert head.direction == ("head_to_dependent" if relation == "pobj" else "dependent_to_head")
    (coreference,) = found.values()
    assert (coreference.role, str(coreference.id)) == ("coreference", "L4H3")
    assert (coreference.score, coreference.baseline) == (0.65, 0.52)


def test_the_heads_of_gpt2_are_those_of_the_paper_the_weaker_ones_marked():
    found = heads_in("gpt2", GPT2, COMMIT)
    by_role = {}
    for head in found:
        by_role.setdefault(head.role, []).append(str(head.id))
    assert by_role == {
        "previous-token": ["L2H2", "L4H11"],
        "duplicate-token": ["L0H1", "L3H0", "L0H10"],
        "induction": ["L5H5", "L6H9", "L5H8", "L5H9"],
        "S-inhibition": ["L7H3", "L7H9", "L8H6", "L8H10"],
        "name mover": ["L9H9", "L10H0", "L9H6"],
        "backup name mover": ["L9H0", "L9H7", "L10H1", "L10H2", "L10H6", "L10H10", "L11H2", "L11H9"],
        "negative name mover": ["L10H7", "L11H10"],
    }
    assert [str(head.id) for head in found if head.weaker] == ["L0H10", "L5H8", "L5H9"]
    assert {(head.score, head.baseline, head.direction) for head in found} == {(None, None, None)}
