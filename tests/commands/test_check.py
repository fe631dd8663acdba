"""Claims: each kind against the measurement that it is about, one wrong line fails alone, errors name their lines."""

import csv
import errno
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from transformers import BertModel, GPT2LMHeadModel
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.commands import check as command
from attnviz.commands import held_claims
from attnviz.commands.check import junit_file
from attnviz.commands.papers import table
from attnviz.errors import AttnvizError, CorpusError, OutputError, UsageError
from attnviz.models.checkpoint import from_loaded
from attnviz.present.documents import json_text
from attnviz.profiles.store import store_profile
from tests.conftest import needs_minilm
from tests.support.corpora import sentences, treebank
from tests.support.models import (
    CAUSAL_LOOKS_AT,
    bert_config,
    bert_tokenizer,
    gpt2_tokenizer,
    hand_built_gpt2,
    save_checkpoint,
    sharp_bert,
)

TEXT = "the cat that i saw ran away and the dog that i saw was in the house"
TINY = Path(command.__file__).parents[1] / "data" / "tiny-gpt2"


def written(folder: Path, top: str, *claims: str) -> Path:
    """A file of claims: keys of a claim with semicolons between."""
    path = folder / "claims.toml"
    tables = "\n".join("[[claim]]\n" + each.replace("; ", "\n") for each in claims)
    path.write_text(f"{top}\n{tables}\n", encoding="utf-8")
    return path


def verdicts(check: attnviz.Check) -> list[str]:
    return [each.verdict for each in check.claims]


def check_here(*words: str) -> int:
    return CliRunner().invoke(app, ["check", *words, "--device", "cpu"]).exit_code


@pytest.fixture(scope="module")
def bert():
    return from_loaded(sharp_bert(), bert_tokenizer())


@pytest.fixture
def measured(monkeypatch):
    """The measurements that were made, by name."""
    made: list[tuple[str, Any]] = []

    def kept(owner: Any, name: str) -> Any:
        function = getattr(owner, name)

        def call(*given: Any, **more: Any) -> Any:
            made.append((name, function(*given, **more)))
            return made[-1][1]

        return call

    calls = [(held_claims, name) for name in ("analyze", "compare", "compare_corpus", "ablate", "open_checkpoint")]
    for module, name in (*calls, (command, "open_checkpoint"), (table, "profile_heads")):
        monkeypatch.setattr(module, name, kept(module, name))
    return made


@pytest.mark.draws
@pytest.mark.thorough
def test_tiny_gpt2_has_its_heads_and_one_false_line_fails_alone(tmp_path, monkeypatch, measured):
    monkeypatch.chdir(tmp_path)
    written(
        tmp_path,
        'model = "tiny-gpt2"',
        'head = "L1H0"; role = "induction"; at_least = 0.5',
        'head = "L0H2"; role = "previous-token"',
        'head = "L0H2"; role = "induction"; at_most = 0.1',
        'head = "L1H0"; role = "previous-token"; at_least = 0.5',
    )
    assert check_here("claims.toml", "-o", "out") == 1
    content = json.loads(Path("out/check.json").read_text(encoding="utf-8"))
    assert [each["verdict"] for each in content["claims"]] == ["holds"] * 3 + ["fails"]
    assert content["counts"] == {"holds": 3, "cannot be decided": 0, "fails": 1}
    rows = list(csv.DictReader(Path("out/check.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["line"] for row in rows] == ["2", "6", "9", "13"]
    (profile,) = [found for name, found in measured if name == "profile_heads"]
    roles = {(str(role.id), role.role): role for role in profile.roles}
    for row, entry in zip(rows, content["claims"], strict=True):
        role = roles[row["head"], row["what"]]
        assert (entry["measured"], entry["interval"], entry["n"]) == (role.score, [*role.interval], role.n)
        assert float(row["low"]) == role.interval[0]


def test_every_kind_is_its_own_measurement_made_once(tmp_path, bert, measured):
    pytest.importorskip("conllu", reason="needs the extra profile")
    trees = treebank(tmp_path / "trees.conllu")
    other = save_checkpoint(sharp_bert(1), bert_tokenizer(), tmp_path / "other")
    analysis = attnviz.analyze(TEXT, bert)
    head = analysis.head("L1H2")
    label, shown, entropy = head.label.split("; ")[0], head.labelled.shown, head.statistics["entropy"]
    (previous,) = [each.score for each in head.verdicts if each.name == "previous-token"]
    by_distance = attnviz.compare(analysis, attnviz.analyze(TEXT, str(other))).heads
    far, near = by_distance[0].distance, min(each.distance for each in by_distance)
    effect = attnviz.ablate([str(trees)], bert, select=["L0H1"], curve=False).head("L0H1").damage["l2"]
    some = attnviz.compare_corpus(bert, str(other), trees).head("L2H0").distance
    holds, undecided, fails = "holds", "cannot be decided", "fails"
    text, short = f'text = "{TEXT}"; head = "L1H2"', 'text = "the cat ran"; head = "L0H0"'
    distance, over_corpus = f'text = "{TEXT}"; distance_to = "other"', 'distance_to = "other"; head = "L2H0"'
    ablated = 'ablate = "l2"; head = "L0H1"'
    expected = {
        f'{text}; label = "{label}"': (holds, shown),
        f'{text}; label = "{"unnamed" if label != "unnamed" else "broad"}"': (fails, shown),
        f'{text}; score = "previous-token"; at_most = {previous}': (holds, previous),
        f'{text}; score = "entropy"; at_least = 9': (fails, entropy),
        f'{text}; score = "duplicate-token"; at_least = 0': (holds, None),
        f'{short}; score = "entropy"; at_least = 0': (holds, None),
        f'{short}; score = "duplicate-token"; at_least = 0': (undecided, None),
        f'{short}; label = "sink"': (undecided, None),
        f"{distance}; at_most = {far}": (holds, far),
        f"{distance}; at_most = {far * 0.99}": (fails, far),
        f"{distance}; at_least = {far * 1.01}": (fails, near),
        f"{over_corpus}; at_most = 0.001": (fails, some),
        f"{over_corpus}; at_least = {some}": (undecided, some),
        f"{ablated}; at_least = {effect.low}": (holds, effect.value),
        f"{ablated}; at_least = {(effect.value + effect.high) / 2}": (undecided, effect.value),
        'role = "syntactic:det"; head = "L0H0"; at_least = 0.99': (fails, None),
        'role = "coreference"; head = "L0H0"': (undecided, None),
    }
    measured.clear()
    found = attnviz.check(written(tmp_path, 'corpus = "trees.conllu"', *expected), bert)
    for each, (claim, (verdict, value)) in zip(found.claims, expected.items(), strict=True):
        assert each.verdict == verdict, claim
        assert value is None or each.measured == value, claim
        assert each.reason or verdict != undecided
    once = ["compare", "compare_corpus", "profile_heads", "ablate"]
    assert sorted(name for name, _ in measured) == sorted([*["analyze"] * 3, *["open_checkpoint"] * 2, *once])
    assert found.exit_code == 1
    with pytest.raises(UsageError):
        found.figure()


@needs_minilm
def test_a_stored_profile_answers_where_no_corpus_is_here(tmp_path, measured):
    stored = attnviz.analyze("the cat ran", "minilm", syntax=False, device="cpu").profile
    claims = {
        'head = "L2H8"; role = "syntactic:det"; at_least = 0.75': "holds",
        'head = "L2H8"; role = "syntactic:det"; at_least = 0.8': "cannot be decided",
        'head = "L2H0"; role = "obj"': "holds",
        'head = "L0H0"; role = "syntactic:obj"': "cannot be decided",
        'head = "L2H8"; role = "syntactic:det"; direction = "head_to_dependent"': "cannot be decided",
        'head = "L2H8"; role = "syntactic:det"; corpus = "en_ewt-ud-dev.conllu"; at_most = 0.5': "fails",
        'head = "L0H0"; role = "syntactic:obj"; at_most = 0.5': "cannot be decided",
        'head = "L0H0"; role = "dislocated"': "cannot be decided",
    }
    found = attnviz.check(written(tmp_path, 'model = "minilm"', *claims), device="cpu")
    assert verdicts(found) == list(claims.values())
    assert [name for name, _ in measured] == ["open_checkpoint"]
    role = next(each for each in stored.roles[2, 8] if each.role == "syntactic:det")
    assert (found.claims[0].measured, found.claims[0].interval) == (role.score, role.interval)
    assert "English Web Treebank" in found.claims[0].source
    first, *_, on_ewt, _, _ = claims
    with pytest.raises(CorpusError, match="gap-development"):  # it has names, no relations
        attnviz.check(written(tmp_path, "", f'{first}; corpus = "gap-development.tsv"'), "minilm", device="cpu")
    with pytest.raises(CorpusError):  # the stored profile was not measured on 35 texts
        attnviz.check(written(tmp_path, "", on_ewt), "minilm", device="cpu", limit=35)


@pytest.mark.usefixtures("few_repeats")
def test_the_stored_profile_of_the_same_texts_is_not_measured_again(tmp_path, measured):
    pytest.importorskip("conllu", reason="needs the extra profile")
    trees = treebank(tmp_path / "trees.conllu", 12)
    folder = save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path / "model")
    profile = attnviz.profile_heads(str(folder), [trees], repeats=True, examples=0, device="cpu")
    claims = ['head = "L1H2"; role = "det"', 'head = "L0H0"; role = "sink"', 'head = "L0H0"; role = "induction"']
    path = written(tmp_path, 'corpus = "trees.conllu"', *claims)

    def checked(**options: Any) -> list[Any]:
        return list(attnviz.check(path, str(folder), device="cpu", **options).claims)

    anew = checked()
    store_profile(json.loads(json_text(profile.document())), "2026-01-01")
    measured.clear()
    stored = checked()
    assert [name for name, _ in measured] == ["open_checkpoint"]
    assert all(each.source.startswith("stored profile: ") for each in stored)
    assert [replace(each, source="") for each in stored] == [replace(each, source="") for each in anew]
    for other in ({"seed": 1}, {"limit": 10}, {"dtype": "float64"}):
        assert not checked(**other)[0].source.startswith("stored")
    treebank(trees, 12, seed=1)
    assert not checked()[0].source.startswith("stored")


@pytest.mark.thorough
def test_a_papers_heads_are_claims(tmp_path):
    pytest.importorskip("conllu", reason="needs the extra profile")
    trees = treebank(tmp_path / "trees.conllu")
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 48, "intermediate_size": 16}
    model = from_loaded(BertModel(bert_config(**shape)).eval(), bert_tokenizer())
    profile = attnviz.profile_heads(model, [trees], examples=0)
    roles = {(str(role.id), role.role): role for role in profile.roles}
    found = attnviz.check(trees, model, published="clark-2019")
    of_heads = {(each.claim.head, each.claim.what): each for each in found.claims if each.claim.kind == "role"}
    assert len(of_heads) == 15
    for of, each in of_heads.items():
        role = roles.get(of)
        if role is not None and role.direction == each.claim.direction:  # its weights are random: no role passes
            refuted = role.difference[1] < 0.1 or role.interval[1] <= (role.untrained or 0)
            assert (each.verdict, each.measured) == ("fails" if refuted else "cannot be decided", role.score)
    assert "0.94" in of_heads["L7H10", "syntactic:det"].claim.published
    assert of_heads["L8H5", "syntactic:case"].claim.direction == "dependent_to_head"
    assert of_heads["L5H6", "syntactic:compound:prt"].verdict == "cannot be decided"  # not in the treebank


GOOD = 'head = "L0H0"; role = "sink"'
EFFECT = 'head = "L0H2"; ablate = "loss"; at_least = 0'
WRONG = [
    ('mdel = "x"', GOOD, ":1:", "mdel"),
    ('model = "tiny-gpt2', GOOD, "", "TOML"),
    ('# a comment\nmodel = "tiny-gtp2"', GOOD, ":2:", "tiny-gtp2"),
    ("text = 'a'\n\n[[claims]]\nhead = 'L0H0'", "", ":3:", "claims"),
    ("", 'head = "L0H0"; rolle = "sink"', ":4:", "rolle"),
    ("", 'role = "syntactic:objj"; head = "L0H0"', ":3:", "objj"),
    ("", 'corpus = "a.txt"; head = "L0H0"; ablate = "damage"; at_least = 1', ":5:", "damage"),
    ("", f'{GOOD}; label = "sink"', ":2:", "label"),
    ("", f"{GOOD}; at_least = true", ":5:", "True"),
    ("", 'corpus = ["a.txt", "b.txt"]; distance_to = "x"; at_most = 1', ":3:", "corpus"),
    ("", 'text = "a"; corpus = "b.txt"; distance_to = "x"; at_most = 1', ":2:", "both"),
    ("", f'{GOOD}; direction = "dependent_to_head"', ":5:", "direction"),
    ("", f"{GOOD}; at_least = 75", ":5:", "75"),
    ("", 'corpus = "none.conllu"; head = "L0H0"; role = "obj"', ":2:", "none.conllu"),
    ("", 'head = "L9H0"; role = "sink"', ":2:", "L9H0"),
    ("", GOOD, ":2:", "profile"),
    ("", f"{GOOD}; at_most = 0.2; at_least = 0.3", ":6:", "at_most"),
    ('corpus = "novels"', EFFECT, ":2:", "novels"),
    ('model = "a\\u0000b"', GOOD, ":1:", "null"),
    ('text = """\n[[claim]]\n"""', 'head = "L0H0"; label = "sinc"', ":6:", "label"),
    ('[["claim"]]\nhead = "L0H0"\nlabel = "sinc"\ntext = "a"', "", ":3:", "label"),
]


@pytest.mark.parametrize(("top", "claim", "line", "word"), WRONG)
def test_a_wrong_claim_is_one_line_with_its_place(tmp_path, top, claim, line, word):
    path = written(tmp_path, top, *filter(None, [claim]))
    with pytest.raises(AttnvizError, match=word) as error:
        attnviz.check(path, None if "model" in top else str(TINY), device="cpu")
    message = str(error.value)
    assert f"claims.toml{line}" in message
    assert "\n" not in message


def test_texts_that_are_too_long_are_cut_if_asked_to(tmp_path):
    path = written(tmp_path, f'text = "{"one two " * 300}"', 'head = "L0H2"; score = "sink"; at_least = 0')
    with pytest.raises(AttnvizError, match=r"claims\.toml:2: .*--truncate"):
        attnviz.check(path, str(TINY), device="cpu")
    assert verdicts(attnviz.check(path, str(TINY), truncate=True, device="cpu")) == ["holds"]
    (tmp_path / "long.txt").write_text(f"{'one two ' * 300}\nthree four five\n", encoding="utf-8")
    path = written(tmp_path, 'corpus = "long.txt"', 'head = "L0H2"; ablate = "loss"; at_least = -9')
    n = [attnviz.check(path, str(TINY), truncate=cut, device="cpu").claims[0].n for cut in (False, True)]
    assert n == [1, 2]


def test_equal_claims_in_one_line_are_each_held_and_one_text_decides_nothing(tmp_path, bert):
    claim = '{head = "1.1", score = "entropy", at_least = 0}'
    path = tmp_path / "claims.toml"
    path.write_text(f"text = '{TEXT}'\nclaim = [{claim}, {claim}]", encoding="utf-8")
    found = attnviz.check(path, bert)
    assert [(each.verdict, each.claim.head, each.claim.line) for each in found.claims] == [("holds", "L1H1", 2)] * 2
    (tmp_path / "one.txt").write_text(f"{TEXT}\n", encoding="utf-8")
    claims = [f'head = "L0H0"; role = "{role}"; at_least = {bound}' for role, bound in (("sink", 0), ("semantic", -1))]
    path = written(tmp_path, 'corpus = "one.txt"', *claims)
    assert verdicts(attnviz.check(path, bert)) == ["cannot be decided"] * 2


@pytest.mark.draws
@pytest.mark.usefixtures("few_repeats")
def test_a_new_file_claims_what_the_heads_do_now_and_runs_from_its_folder(tmp_path, monkeypatch):
    pytest.importorskip("conllu", reason="needs the extra profile")
    monkeypatch.chdir(tmp_path)
    previous, current = CAUSAL_LOOKS_AT["previous-token"], CAUSAL_LOOKS_AT["current-token"]
    base = hand_built_gpt2([[previous, current]], 64)
    model = GPT2LMHeadModel(base.config).eval()
    model.transformer = base
    save_checkpoint(model, gpt2_tokenizer(), Path("model"))
    treebank(Path("my “trees”.conllu"), 130)
    Path("below").mkdir()
    init = shlex.split("below/new.toml --init 'my “trees”.conllu' -m ./model --seed 3 --limit 120")
    assert check_here(*init) == 0
    made = Path("below/new.toml").read_text(encoding="utf-8")
    assert check_here(*init) == 2  # it is there
    assert Path("below/new.toml").read_text(encoding="utf-8") == made
    monkeypatch.chdir("below")
    assert check_here(*made.partition("\n")[0].partition("attnviz check ")[2].split()) == 0
    query = model.transformer.h[0].attn.c_attn
    query.weight.data[:, :64] = query.bias.data[:64] = 0  # of L0H0
    changed = attnviz.check("new.toml", from_loaded(model, gpt2_tokenizer()), seed=3, limit=120)
    found = {(str(each.claim.head), each.claim.what): each for each in changed.claims}
    assert found["L0H0", "previous-token"].verdict == "fails"
    same = found["L0H1", "current-token"]
    assert same.verdict == "holds"
    assert same.interval[0] - 0.015 <= same.claim.at_least <= same.interval[0] - 0.005


@pytest.mark.parametrize(
    ("files", "more", "word"),
    [
        ("new.toml", {"init": ["novel.txt"], "published": "wang-2022"}, "--published"),
        ("none/new.toml", {"init": ["novel.txt"]}, "none"),
        (["a.toml", "b.toml"], {"init": ["novel.txt"]}, "2"),
        ("new.toml", {"init": ["novel.txt"], "limit": 20}, "100"),
        ("novel.txt", {"published": "clark-2091"}, "clark-2019"),
        ("novel.txt", {"published": "wang-2022"}, "novel.txt"),
    ],
)
def test_what_cannot_be_checked_or_claimed_is_refused_and_nothing_is_written(
    files, more, word, tmp_path, monkeypatch, bert
):
    monkeypatch.chdir(tmp_path)
    sentences(Path("novel.txt"), 20)
    with pytest.raises(UsageError, match=word):
        attnviz.check(files, bert, **more)
    assert [path.name for path in tmp_path.iterdir()] == ["novel.txt"]


def test_junit_has_a_case_for_each_claim(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    claims = [
        'text = "the cat\\u001b<&> ran"; head = "L0H2"; score = "previous-token"; at_least = 0',
        'text = "one two"; head = "L0H0"; score = "entropy"; at_least = 9',
        'text = "one two"; head = "L0H0"; label = "sink"',
    ]
    path = written(tmp_path, 'model = "tiny-gpt2"', *claims)
    assert check_here("--junit", "found.xml") == 1
    suite = ElementTree.parse("found.xml").getroot().find("testsuite")
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    cases = suite.findall("testcase")
    assert [[each.tag for each in case] for case in cases] == [[], ["failure"], ["error"]]
    assert [(case.get("file"), case.get("line")) for case in cases] == [(path.name, line) for line in ("2", "7", "12")]
    assert "<&>" in str(cases[0].get("name"))
    assert check_here("--junit", "none/found.xml") == 2


@pytest.mark.parametrize(
    "command",
    [
        "claims.toml --junit claims.toml",
        "claims.toml --junit ./link.toml",
        "claims.toml --junit novel.txt",
        "claims.toml --junit pytest.xml",
        "claims.toml --junit folder",
        "--init novel.txt --junit novel.txt",
        "novel.txt --init novel.txt",
        "new.toml --init novel.txt --junit new.toml",
        "--published wang-2022 novel.txt --junit novel.txt",
        "corpus.toml --junit verdicts.xml",
        "corpus.toml --junit ''",
    ],
)
def test_no_file_is_lost_that_a_run_reads_or_that_is_not_of_attnviz(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, 'model = "tiny-gpt2"\ntext = "one two"', 'head = "L0H0"; score = "entropy"; at_least = 0')
    Path("link.toml").symlink_to(path)
    Path("folder").mkdir()
    Path("pytest.xml").write_text('<?xml version="1.0"?><testsuites><testsuite name="pytest" /></testsuites>')
    sentences(Path("novel.txt"), 20)
    Path("verdicts.xml").write_text('<testsuites><testsuite name="attnviz check" /></testsuites>')
    Path("corpus.toml").write_text('[[claim]]\nhead = "L0H0"\nrole = "sink"\ncorpus = "verdicts.xml"')
    before = {each: each.is_file() and each.read_bytes() for each in tmp_path.iterdir()}
    assert check_here(*shlex.split(command)) == 2
    assert {each: each.is_file() and each.read_bytes() for each in tmp_path.iterdir()} == before


def test_verdicts_of_an_earlier_run_are_replaced_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    claim = 'head = "L0H0"; score = "entropy"; at_least = '
    for bound, n_failed in (("0", 0), ("9", 1)):
        path = written(tmp_path, 'model = "tiny-gpt2"\ntext = "one two"', claim + bound)
        assert check_here(path.name, "--junit", "found.xml") == n_failed
        assert len(ElementTree.parse("found.xml").findall("testsuite/testcase/failure")) == n_failed

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    before = Path("found.xml").read_bytes()
    with pytest.raises(OutputError):
        junit_file(Path("found.xml")).write(b"half")
    assert Path("found.xml").read_bytes() == before
    assert not [*tmp_path.glob(".attnviz-*")]
