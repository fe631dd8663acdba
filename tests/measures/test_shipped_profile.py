"""The profile of minilm that ships with attnviz: numbers and examples, of those weights, small, made again the same."""

import json
import re
import runpy
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from attnviz.commands.profile.show import chosen_examples
from attnviz.models.sources import MINILM_SHA256, Source
from attnviz.profiles.store import StoredCorpus, find_profile, profile_file_name, read_profile
from attnviz.texts.reading import open_corpus, read_texts
from tests.conftest import SHARED, needs_minilm
from tests.support.independent import MINILM_RELATIONS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "attnviz" / "data" / "profiles"
(FILE,) = FOLDER.glob("*.json")
DOCUMENT = json.loads(FILE.read_text(encoding="utf-8"))
TREEBANK = SHARED / "ud" / "en_ewt-ud-dev.conllu"


def texts_in(value):
    """Every string of a document."""
    if isinstance(value, dict):
        return [text for below in value.values() for text in texts_in(below)]
    if isinstance(value, list):
        return [text for below in value for text in texts_in(below)]
    return [value] if isinstance(value, str) else []


def test_it_is_of_minilms_weights_and_is_found():
    assert FILE.name == f"bert-6x12x384-{MINILM_SHA256}.json" == profile_file_name(DOCUMENT)
    source = Source("minilm", Path("/nowhere"), None, MINILM_SHA256)
    found = find_profile(source, "bert-6x12x384", pytest.fail)
    assert found is not None
    assert found.shipped
    assert found.corpora[0] == StoredCorpus("en_ewt-ud-dev.conllu", DOCUMENT["corpora"][0]["sentences"])
    assert found.corpora[0].sentences > 1500
    assert sum(len(roles) for roles in found.roles.values()) == len(DOCUMENT["roles"]) > 50
    assert all(role["holds"] for role in DOCUMENT["roles"])
    for role in DOCUMENT["roles"]:
        if role["role"] in ("sink", "broad", "local", "long-range"):
            evidence = ("passed", "interval", "difference", "p", "q", "untrained")
            assert [role[name] for name in evidence] == [None] * len(evidence)
        else:
            assert role["passed"] is True
            assert 0 <= role["interval"][0] <= role["score"] <= role["interval"][1] <= 1


def test_a_local_head_is_not_long_range_whatever_it_chooses_far_away():
    """L2H9 chooses near keys more readily than far ones, L3H11 does not."""
    scores, baselines = (DOCUMENT["statistics"][name] for name in ("long_range", "long_range_baseline"))
    assert (scores[2][9], baselines[2][9]) == pytest.approx((0.176, 0.274), abs=0.001)
    assert (scores[3][11], baselines[3][11]) == pytest.approx((0.173, 0.148), abs=0.001)
    held = {role["id"] for role in DOCUMENT["roles"] if role["role"] == "long-range"}
    assert held == {"L2H4", "L3H11", "L4H4", "L5H4"}


def test_it_has_every_part_of_the_contract():
    parts = ["attnviz", "model", "corpora", "seed", "verification", "statistics", "syntax", "coreference", "repeats"]
    assert [name for name in parts if DOCUMENT[name] is None] == []
    assert DOCUMENT["verification"]["passed"] is True
    layer = DOCUMENT["verification"]["layers"][0]
    assert layer["pattern_error"] < 1e-5
    assert layer["output_scale"] != round(layer["output_scale"], 4)  # errors beside it would be rounded away
    assert DOCUMENT["syntax"]["gold"] is True


def test_it_holds_no_text_but_that_of_examples_whose_licence_it_names_and_no_folder():
    texts = texts_in({name: part for name, part in DOCUMENT.items() if name != "examples"})
    assert max(map(len, texts)) < 450  # the words of a threshold
    assert not [text for text in texts if re.search(r"(^|\s)[/~\\]|[A-Z]:\\", text)]
    assert [Path(corpus["path"]).name for corpus in DOCUMENT["corpora"]] == [c["path"] for c in DOCUMENT["corpora"]]
    assert "CC BY-SA 4.0" in DOCUMENT["note"]
    quoted = {text["corpus"] for text in DOCUMENT["examples"]["texts"]}
    licences = DOCUMENT["examples"]["licences"]
    assert quoted == set(licences) == {"en_ewt-ud-dev.conllu"}
    assert "under CC BY-SA 4.0" in licences["en_ewt-ud-dev.conllu"]
    assert len(zlib.compress(FILE.read_bytes())) < 250_000


def test_it_has_examples_of_all_roles_and_a_relation_of_every_head():
    examples = read_profile(FILE).examples
    named = {(str(each.id), each.role) for each in examples}
    assert {(role["id"], role["role"]) for role in DOCUMENT["roles"]} - named == set()
    assert len({head for head, role in named if role.startswith("syntactic:")}) == 72
    determiners, objects = (
        [example for each in examples if (str(each.id), each.role) == of for example in each.best]
        for of in (("L2H8", "syntactic:det"), ("L2H0", "syntactic:obj"))
    )
    assert len(determiners) == len(objects) == 8
    assert {example.query.text.lower() for example in determiners} <= {"a", "an", "the", "any", "every", "some", "this"}


def test_the_guide_shows_its_relations():
    """And these are the numbers of an independent computation on the whole treebank; see test_profile.py."""
    guide = (ROOT / "examples" / "guide" / "profile.md").read_text(encoding="utf-8")
    title, _, _, *rows = guide.split("Among other things it prints:\n\n```text\n")[1].split("\n```")[0].splitlines()
    relations = {each["relation"]: each for each in DOCUMENT["syntax"]["relations"]}
    assert title.startswith(f"Relations (5 of {len(relations)}, ")
    for row in rows:
        name, direction, head, accuracy, offset, of_offset, untrained, n, passed = row.split()
        found, roles = relations[name], [role for role in DOCUMENT["roles"] if role["role"] == f"syntactic:{name}"]
        assert direction == "dep→head"
        assert found["best"] == {"id": head, "direction": "dependent_to_head", "accuracy": found["best"]["accuracy"]}
        (best,) = [role for role in roles if (role["id"], role["direction"]) == (head, "dependent_to_head")]
        shares = (found["best"]["accuracy"], found["offset_accuracy"], best["untrained"])
        assert tuple(f"{share:.2f}" for share in shares) == (accuracy, of_offset, untrained)
        assert (f"{found['offset']:+d}:", str(found["n"]), f"{len(roles)}/72") == (offset, n, passed)
        _, independent, numbers = MINILM_RELATIONS[name]
        assert (independent, numbers[None]) == (head, pytest.approx((*shares[:2], found["n"]), abs=0.0006))
    assert len(rows) == 3


@pytest.mark.skipif(not TREEBANK.exists(), reason="needs the treebank")
def test_of_a_head_the_clearest_role_is_shown_first():
    chosen = chosen_examples(read_profile(FILE), ["L2H8"])
    assert [each.role for each in chosen[:2]] == ["syntactic:det", "syntactic:case"]


@pytest.mark.skipif(not TREEBANK.exists(), reason="needs the treebank")
def test_its_gold_pairs_stand_in_the_treebank():
    trees = {text.number: text for text in read_texts(open_corpus(TREEBANK))}
    for each in read_profile(FILE).examples:
        for example in (*each.best, *each.failures):
            tree = trees[example.number]
            assert tree.text == example.text
            if each.role.startswith("syntactic:"):
                ends = example.gold if each.direction == "dependent_to_head" else example.gold[::-1]
                arcs = {(tree.spans[arc.dependent], tree.spans[arc.head], arc.relation) for arc in tree.arcs}
                name = each.role.removeprefix("syntactic:")
                assert any(
                    (one[0], one[1]) == tuple((unit.start, unit.end) for unit in ends)
                    and (one[2] == name or one[2].startswith(f"{name}:"))
                    for one in arcs
                )


def test_the_numbers_of_roles_are_not_rounded_before_they_are_shown():
    script = runpy.run_path(str(ROOT / "examples" / "make_shipped_profile.py"))
    role = {"holds": True, "score": 0.73949}
    document = {"corpora": [], "examples": None, "roles": [role, {**role, "holds": False}], "statistics": 0.73949}
    made = script["shipped"](document, [])
    assert (made["roles"], made["statistics"]) == ([role], 0.7395)


@needs_minilm
@pytest.mark.thorough
@pytest.mark.skipif(not TREEBANK.exists(), reason="needs the treebank")
def test_the_example_makes_the_same_file_twice(tmp_path):
    script = ROOT / "examples" / "make_shipped_profile.py"
    for name in ("one", "two"):
        arguments = [str(TREEBANK), "--limit", "6", "--out", str(tmp_path / name)]
        done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    one, two = (tmp_path / name / FILE.name for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert json.loads(one.read_text())["corpora"][0]["path"] == TREEBANK.name
