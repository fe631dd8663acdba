"""The profile of minilm that ships with attnviz: numbers and examples, of those weights, small, made again the same."""

import json
import re
import runpy
import zlib
from pathlib import Path

import pytest

from attnviz.inputs.reading import open_corpus, read_texts
from attnviz.models.sources import MINILM_SHA256, Source
from attnviz.profiles.store import find_profile, profile_file_name, read_profile
from tests.conftest import SHARED
from tests.support.independent import MINILM_RELATIONS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "attnviz" / "data" / "profiles"
(FILE,) = FOLDER.glob("*.json")
GUIDE = (ROOT / "examples" / "guide" / "profile.md").read_text(encoding="utf-8")
DOCUMENT = json.loads(FILE.read_text(encoding="utf-8"))
TREEBANK = SHARED / "ud" / "en_ewt-ud-dev.conllu"


def test_it_is_of_minilms_weights_and_is_found():
    assert FILE.name == f"bert-6x12x384-{MINILM_SHA256}.json" == profile_file_name(DOCUMENT)
    source = Source("minilm", Path("/nowhere"), None, MINILM_SHA256)
    found = find_profile(source, "bert-6x12x384", pytest.fail)
    assert found is not None
    assert found.shipped
    sentences = DOCUMENT["corpora"][0]["sentences"]
    assert found.origin["corpora"][0] == {"name": "en_ewt-ud-dev.conllu", "sentences": sentences}
    assert sentences > 1500
    assert sum(len(roles) for roles in found.roles.values()) == len(DOCUMENT["roles"]) > 50
    assert DOCUMENT["verification"]["passed"] is True
    for role in DOCUMENT["roles"]:
        assert role["holds"]
        if role["role"] in ("sink", "broad", "local", "long-range"):
            assert not any(role[name] for name in ("passed", "interval", "difference", "p", "q", "untrained"))
        else:
            assert role["passed"] is True
            assert 0 <= role["interval"][0] <= role["score"] <= role["interval"][1] <= 1


def test_it_is_small_and_names_no_folder_and_the_licence_of_its_examples():
    assert len(zlib.compress(FILE.read_bytes())) < 250_000
    of_numbers = json.dumps({name: part for name, part in DOCUMENT.items() if name != "examples"})
    assert not re.search(r'["\s]([/~]|\\\\|[A-Z]:)', of_numbers)
    quoted = {text["corpus"] for text in DOCUMENT["examples"]["texts"]}
    assert quoted == set(DOCUMENT["examples"]["licences"]) == {"en_ewt-ud-dev.conllu"}
    named = {(str(each.id), each.role) for each in read_profile(FILE).examples}
    assert {(role["id"], role["role"]) for role in DOCUMENT["roles"]} <= named


@pytest.mark.parametrize(("name", "independent"), MINILM_RELATIONS.items())
def test_its_relations_are_those_of_an_independent_computation_on_the_whole_treebank(name, independent):
    (relation,) = [each for each in DOCUMENT["syntax"]["relations"] if each["relation"] == name]
    offset, head, numbers = independent
    best = relation["best"]
    assert (best["id"], best["direction"], relation["offset"]) == (head, "dependent_to_head", offset)
    found = best["accuracy"], relation["offset_accuracy"], relation["n"]
    assert found == pytest.approx(numbers[None], abs=0.0006)
    shown = re.search(rf"^{name} dep→head +(\S+) +(\S+) +(\S+): (\S+) +\S+ +(\d+)", GUIDE, re.MULTILINE)
    if name != "obj":
        accuracy, of_offset, n = found
        assert shown.groups() == (head, f"{accuracy:.2f}", f"{offset:+d}", f"{of_offset:.2f}", str(n))


@pytest.mark.thorough
@pytest.mark.skipif(not TREEBANK.exists(), reason="needs the treebank")
def test_its_gold_pairs_stand_in_the_treebank():
    trees = {text.number: text for text in read_texts(open_corpus(TREEBANK))}
    for each in read_profile(FILE).examples:
        for example in (*each.best, *each.failures):
            tree = trees[example.number]
            assert tree.text == example.text
            if each.role.startswith("syntactic:"):
                ends = example.gold if each.direction == "dependent_to_head" else example.gold[::-1]
                wanted = tuple((unit.start, unit.end) for unit in ends)
                arcs = [arc for arc in tree.arcs if (tree.spans[arc.dependent], tree.spans[arc.head]) == wanted]
                name = each.role.removeprefix("syntactic:")
                assert any(arc.relation == name or arc.relation.startswith(f"{name}:") for arc in arcs)


def test_the_numbers_of_roles_are_not_rounded_before_they_are_shown():
    script = runpy.run_path(str(ROOT / "examples" / "make_shipped_profile.py"))
    role = {"holds": True, "score": 0.73949}
    document = {"corpora": [], "examples": None, "roles": [role, {**role, "holds": False}], "statistics": 0.73949}
    made = script["shipped"](document, [])
    assert (made["roles"], made["statistics"]) == ([role], 0.7395)
