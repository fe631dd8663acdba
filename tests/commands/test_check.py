"""Claims: each kind against the measurement that it is about, one wrong line fails alone, errors name their lines."""

import csv
import errno
import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from transformers import AutoTokenizer, BertModel, GPT2LMHeadModel
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.commands.check import measure
from attnviz.commands.check.report import junit_file
from attnviz.errors import AttnvizError, CorpusError, OutputError, UsageError
from attnviz.models.checkpoint import from_loaded
from attnviz.present.documents import json_text
from attnviz.profiles.store import store_profile
from tests.conftest import needs_minilm
from tests.support.corpora import sentences, treebank
from tests.support.models import bert_config, bert_tokenizer, save_checkpoint, sharp_bert

TEXT = "the cat that i saw ran away and the dog that i saw was in the house"
TINY = Path(measure.__file__).parents[2] / "data" / "tiny-gpt2"


def written(folder: Path, top: str, *claims: str) -> Path:
    """A file of claims: keys of a claim with semicolons between."""
    path = folder / "claims.toml"
    tables = "\n".join("[[claim]]\n" + each.replace("; ", "\n") for each in claims)
    path.write_text(f"{top}\n{tables}\n", encoding="utf-8")
    return path


def verdicts(check: attnviz.Check) -> list[str]:
    return [each.verdict for each in check.claims]


@pytest.mark.draws
def test_tiny_gpt2_has_its_heads_and_one_false_line_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    claims = [
        'head = "L1H0"; role = "induction"; at_least = 0.5', 'head = "L0H2"; role = "previous-token"',
        'head = "L0H2"; role = "induction"; at_most = 0.1', 'head = "L1H0"; role = "previous-token"; at_least = 0.5',
    ]  # fmt: skip
    profiles, profile_heads = list[Any](), measure.profile_heads
    monkeypatch.setattr(
        measure,
        "profile_heads",
        lambda *given, **more: (profiles.append(profile_heads(*given, **more)), profiles[-1])[1],
    )
    written(tmp_path, 'model = "tiny-gpt2"', *claims)
    done = CliRunner().invoke(app, ["check", "claims.toml", "-o", "out", "--device", "cpu"])
    assert done.exit_code == 1, done.output
    content = json.loads(Path("out/check.json").read_text(encoding="utf-8"))
    assert [each["verdict"] for each in content["claims"]] == ["holds"] * 3 + ["fails"]
    assert content["counts"] == {"holds": 3, "cannot be decided": 0, "fails": 1}
    rows = list(csv.DictReader(Path("out/check.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["line"] for row in rows] == ["2", "6", "9", "13"]
    (profile,) = profiles
    roles = {(str(role.id), role.role): role for role in profile.roles}
    for row, entry in zip(rows, content["claims"], strict=True):
        role = roles[row["head"], row["what"]]
        assert (entry["measured"], entry["interval"], entry["n"]) == (role.score, [*role.interval], role.n)
        assert float(row["low"]) == role.interval[0]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the measurements that were made."""
    names: list[str] = []

    def counting(name: str) -> Any:
        function = getattr(measure, name)
        return lambda *given, **more: (names.append(name), function(*given, **more))[1]

    for name in ("analyze", "compare", "compare_corpus", "profile_heads", "ablate", "open_checkpoint"):
        monkeypatch.setattr(measure, name, counting(name))
    return names


def test_every_kind_is_its_own_measurement_made_once(tmp_path: Path, called: list[str]):
    pytest.importorskip("conllu", reason="needs the extra profile")
    trees = treebank(tmp_path / "trees.conllu")
    model = from_loaded(sharp_bert(), bert_tokenizer())
    other = save_checkpoint(sharp_bert(1), bert_tokenizer(), tmp_path / "other")
    analysis = attnviz.analyze(TEXT, model)
    head = analysis.head("L1H2")
    (previous,) = [each for each in head.verdicts if each.name == "previous-token"]
    by_distance = attnviz.compare(analysis, attnviz.analyze(TEXT, str(other))).heads
    far, nearest = by_distance[0], min(each.distance for each in by_distance)
    effect = attnviz.ablate([str(trees)], model, select=["L0H1"], curve=False).head("L0H1").damage["l2"]
    distances = attnviz.compare_corpus(model, str(other), trees)
    assert distances is not None
    assert effect.low is not None
    assert effect.high is not None
    some = distances.select("L2H0")[0]
    about = f'text = "{TEXT}"; head = "L1H2"'
    claims = {
        f'{about}; label = "{head.label.split("; ")[0]}"': ("holds", head.labelled.shown),
        f'{about}; label = "{"unnamed" if head.label != "unnamed" else "broad"}"': ("fails", head.labelled.shown),
        f'{about}; score = "previous-token"; at_most = {previous.score}': ("holds", previous.score),
        f'{about}; score = "entropy"; at_least = 9': ("fails", head.statistics["entropy"]),
        f'{about}; score = "duplicate-token"; at_least = 0': ("holds", None),
        'text = "the cat ran"; head = "L0H0"; score = "entropy"; at_least = 0': ("holds", None),
        'text = "the cat ran"; head = "L0H0"; score = "duplicate-token"; at_least = 0': ("cannot be decided", None),
        'text = "the cat ran"; head = "L0H0"; label = "sink"': ("cannot be decided", None),
        f'text = "{TEXT}"; distance_to = "other"; at_most = {far.distance}': ("holds", far.distance),
        f'text = "{TEXT}"; distance_to = "other"; at_most = {far.distance * 0.99}': ("fails", far.distance),
        f'text = "{TEXT}"; distance_to = "other"; at_least = {far.distance * 1.01}': ("fails", nearest),
        'distance_to = "other"; head = "L2H0"; at_most = 0.001': ("fails", some.distance),
        f'distance_to = "other"; head = "L2H0"; at_least = {some.distance}': ("cannot be decided", some.distance),
        f'ablate = "l2"; head = "L0H1"; at_least = {effect.low}': ("holds", effect.value),
        f'ablate = "l2"; head = "L0H1"; at_least = {(effect.value + effect.high) / 2}': (
            "cannot be decided",
            effect.value,
        ),
        'role = "syntactic:det"; head = "L0H0"; at_least = 0.99': ("fails", None),
        'role = "coreference"; head = "L0H0"': ("cannot be decided", None),
    }
    called.clear()
    path = written(tmp_path, 'corpus = "trees.conllu"', *claims)
    found = attnviz.check(path, model)
    assert dict(zip(claims, verdicts(found), strict=True)) == {claim: verdict for claim, (verdict, _) in claims.items()}
    for each, (_, measured) in zip(found.claims, claims.values(), strict=True):
        assert measured is None or each.measured == measured
    assert all(each.reason for each in found.claims if each.verdict == "cannot be decided")
    once = ["compare", "compare_corpus", "profile_heads", "ablate"]
    assert sorted(called) == sorted([*["analyze"] * 3, *["open_checkpoint"] * 2, *once])
    assert found.exit_code == 1
    with pytest.raises(UsageError):
        found.figure()


@needs_minilm
def test_a_stored_profile_answers_where_no_corpus_is_here(tmp_path: Path, called: list[str]):
    stored = attnviz.analyze("the cat ran", "minilm", syntax=False, device="cpu").profile
    assert stored is not None
    claims = [
        'head = "L2H8"; role = "syntactic:det"; at_least = 0.75',
        'head = "L2H8"; role = "syntactic:det"; at_least = 0.8',
        'head = "L2H0"; role = "obj"', 'head = "L0H0"; role = "syntactic:obj"',
        'head = "L2H8"; role = "syntactic:det"; direction = "head_to_dependent"',
        'head = "L2H8"; role = "syntactic:det"; corpus = "en_ewt-ud-dev.conllu"; at_most = 0.5',
        'head = "L0H0"; role = "syntactic:obj"; at_most = 0.5', 'head = "L0H0"; role = "dislocated"',
    ]  # fmt: skip
    found = attnviz.check(written(tmp_path, 'model = "minilm"', *claims), device="cpu")
    undecided = "cannot be decided"
    assert verdicts(found) == ["holds", undecided, "holds", undecided, undecided, "fails", undecided, undecided]
    assert "dep→head" in found.claims[4].reason
    assert called == ["open_checkpoint"]
    with pytest.raises(CorpusError, match=r"claims.toml:2: .*gap-development.tsv"):  # it has names, no relations
        attnviz.check(written(tmp_path, "", f'{claims[0]}; corpus = "gap-development.tsv"'), "minilm", device="cpu")
    with pytest.raises(CorpusError):  # the stored profile was not measured on 35 texts
        attnviz.check(written(tmp_path, "", claims[5]), "minilm", device="cpu", limit=35)
    assert "en_ewt-ud-dev.conllu" in found.claims[0].source
    role = next(each for each in stored.roles[2, 8] if each.role == "syntactic:det")
    assert (found.claims[0].measured, found.claims[0].interval) == (role.score, role.interval)


def test_the_stored_profile_of_the_same_texts_is_not_measured_again(tmp_path: Path, called: list[str]):
    pytest.importorskip("conllu", reason="needs the extra profile")
    trees = treebank(tmp_path / "trees.conllu")
    folder = save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path / "model")
    profile = attnviz.profile_heads(str(folder), [trees], repeats=True, examples=0, device="cpu")
    assert profile is not None
    claims = ['head = "L1H2"; role = "det"', 'head = "L0H0"; role = "sink"', 'head = "L0H0"; role = "induction"']
    path = written(tmp_path, 'corpus = "trees.conllu"', *claims)
    measured = attnviz.check(path, str(folder), device="cpu")
    store_profile(json.loads(json_text(profile.document())), "2026-01-01")
    called.clear()
    stored = attnviz.check(path, str(folder), device="cpu")
    assert called == ["open_checkpoint"]
    assert all(each.source.startswith("stored profile: ") for each in stored.claims)
    assert [replace(each, source="") for each in stored.claims] == [
        replace(each, source="") for each in measured.claims
    ]
    for other in ({"seed": 1}, {"limit": 50}, {"dtype": "float64"}):
        assert not attnviz.check(path, str(folder), device="cpu", **other).claims[0].source.startswith("stored")
    treebank(trees, seed=1)
    assert not attnviz.check(path, str(folder), device="cpu").claims[0].source.startswith("stored")


def test_a_papers_heads_are_claims(tmp_path: Path):
    pytest.importorskip("conllu", reason="needs the extra profile")
    trees = treebank(tmp_path / "trees.conllu")
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 48, "intermediate_size": 16}
    bert = from_loaded(BertModel(bert_config(**shape)).eval(), bert_tokenizer())
    profile = attnviz.profile_heads(bert, [trees], examples=0)
    assert profile is not None
    roles = {(str(role.id), role.role): role for role in profile.roles}
    found = attnviz.check(trees, bert, published="clark-2019")
    of_heads = [each for each in found.claims if each.claim.kind == "role"]
    for each in of_heads:
        role = roles.get((each.claim.head, each.claim.what))
        if role is not None and role.direction == each.claim.direction:  # its weights are random: no role passes
            refuted = role.difference[1] < 0.1 or role.interval[1] <= (role.untrained or 0)
            assert (each.verdict, each.measured) == ("fails" if refuted else "cannot be decided", role.score)
    of = {(each.claim.head, each.claim.what): each for each in of_heads}
    assert len(of) == 15
    assert of["L7H10", "syntactic:det"].claim.published == "(0.94 there, baseline 0.52)"
    assert of["L8H5", "syntactic:case"].claim.direction == "dependent_to_head"
    assert of["L5H6", "syntactic:compound:prt"].verdict == "cannot be decided"  # not in the treebank
    for paper, message in (("clark-2091", "Did you mean clark-2019"), ("wang-2022", "leave out")):
        with pytest.raises(UsageError, match=message):
            attnviz.check(trees, bert, published=paper)


GOOD = 'head = "L0H0"; role = "sink"'
EFFECT = 'head = "L0H2"; ablate = "loss"; at_least = 0'
WRONG = [
    ('mdel = "x"', GOOD, 1, "mdel"),
    ('model = "tiny-gpt2', GOOD, None, "TOML"),
    ("text = 'a'\n\n[[claims]]\nhead = 'L0H0'", "", 3, "claims"),
    ("", 'head = "L0H0"; rolle = "sink"', 4, "role?"),
    ("", 'role = "syntactic:objj"; head = "L0H0"', 3, "obj?"),
    ("", 'corpus = "a.txt"; head = "L0H0"; ablate = "damage"; at_least = 1', 5, "damage"),
    ("", f'{GOOD}; label = "sink"', 2, "role and label"),
    ("", f"{GOOD}; at_least = true", 5, "True"),
    ("", 'corpus = ["a.txt", "b.txt"]; distance_to = "x"; at_most = 1', 3, "one corpus"),
    ("", 'text = "a"; corpus = "b.txt"; distance_to = "x"; at_most = 1', 2, "both"),
    ("", f'{GOOD}; direction = "dependent_to_head"', 5, "direction"),
    ("", f"{GOOD}; at_least = 75", 5, "75"),
    ("", 'corpus = "none.conllu"; head = "L0H0"; role = "obj"', 2, "none.conllu"),
    ("", 'head = "L9H0"; role = "sink"', 2, "L9H0"),
    ("", GOOD, 2, "stored profile"),
    ("", f"{GOOD}; at_most = 0.2; at_least = 0.3", 6, "above"),
    ('corpus = "novels"', EFFECT, 2, "novels"),
    ('model = "a\\u0000b"', GOOD, 1, "null"),
    ('text = """\n[[claim]]\n"""', 'head = "L0H0"; label = "sinc"', 6, "label"),
    ('[["claim"]]\nhead = "L0H0"\nlabel = "sinc"\ntext = "a"', "", 3, "label"),
]


@pytest.mark.parametrize(("top", "claim", "line", "word"), WRONG)
def test_a_wrong_claim_is_one_line_with_its_place(tmp_path: Path, top: str, claim: str, line: int | None, word: str):
    path = written(tmp_path, top, *[claim] * bool(claim))
    with pytest.raises(AttnvizError) as error:
        attnviz.check(path, str(TINY), device="cpu")
    message = str(error.value)
    assert f"claims.toml{'' if line is None else f':{line}:'}" in message
    assert word in message
    assert "\n" not in message


def test_a_model_that_is_not_there_has_the_line_that_names_it(tmp_path: Path):
    path = written(
        tmp_path, '# a comment\nmodel = "tiny-gtp2"', 'text = "a b"; head = "L0H0"; score = "sink"; at_least = 0'
    )
    with pytest.raises(AttnvizError, match=r"claims\.toml:2: .*tiny-gtp2"):
        attnviz.check(path)
    with pytest.raises(AttnvizError, match="minilmm"):
        attnviz.check(path, "minilmm")


def test_texts_that_are_too_long_are_cut_if_asked_to(tmp_path: Path):
    path = written(tmp_path, f'text = "{"one two " * 300}"', 'head = "L0H2"; score = "sink"; at_least = 0')
    with pytest.raises(AttnvizError, match=r"claims\.toml:2: .*--truncate"):
        attnviz.check(path, str(TINY), device="cpu")
    assert verdicts(attnviz.check(path, str(TINY), truncate=True, device="cpu")) == ["holds"]
    (tmp_path / "long.txt").write_text(f"{'one two ' * 300}\nthree four five\n", encoding="utf-8")
    path = written(tmp_path, 'corpus = "long.txt"', 'head = "L0H2"; ablate = "loss"; at_least = -9')
    n = [attnviz.check(path, str(TINY), truncate=cut, device="cpu").claims[0].n for cut in (False, True)]
    assert n == [1, 2]


def test_equal_claims_in_one_line_are_each_held_and_heads_have_one_name(tmp_path: Path):
    model = from_loaded(sharp_bert(), bert_tokenizer())
    claim = '{head = "1.1", score = "entropy", at_least = 0}'
    path = tmp_path / "claims.toml"
    path.write_text(f"text = '{TEXT}'\nclaim = [{claim}, {claim}]", encoding="utf-8")
    found = attnviz.check(path, model)
    assert verdicts(found) == ["holds", "holds"]
    assert [(each.claim.head, each.claim.line) for each in found.claims] == [("L1H1", 2)] * 2


def test_one_text_decides_nothing_whatever_the_bound(tmp_path: Path):
    corpus = tmp_path / "one.txt"
    corpus.write_text(f"{TEXT}\n", encoding="utf-8")
    claims = [f'head = "L0H0"; role = "{role}"; at_least = {bound}' for role, bound in (("sink", 0), ("semantic", -1))]
    found = attnviz.check(written(tmp_path, 'corpus = "one.txt"', *claims), from_loaded(sharp_bert(), bert_tokenizer()))
    assert verdicts(found) == ["cannot be decided"] * 2


def check_here(*words: str) -> int:
    return CliRunner().invoke(app, ["check", *words, "--device", "cpu"]).exit_code


def test_a_file_of_what_the_heads_do_now_holds_and_fails_where_heads_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("ci").mkdir()
    sentences(Path("novel.txt"), 150)
    found = attnviz.check("ci/heads.toml", "tiny-gpt2", init=["novel.txt"], device="cpu")
    made = Path("ci/heads.toml").read_text(encoding="utf-8")
    assert verdicts(found) == ["holds"] * 10
    heads = {each.claim.head: each for each in found.claims}
    assert len(heads) == 10
    assert {heads[head].claim.what for head in ("L0H2", "L1H0")} == {"previous-token", "induction"}
    for each in found.claims:
        low = each.interval[0]
        assert low - 0.015 <= each.claim.at_least <= low - 0.005
    model = GPT2LMHeadModel.from_pretrained(TINY)
    weights = model.transformer.h[0].attn.c_attn.weight.data
    d_head = model.config.n_embd // model.config.n_head
    weights[:, 2 * d_head : 3 * d_head] = 0  # the queries of L0H2
    changed = attnviz.check("ci/heads.toml", from_loaded(model.eval(), AutoTokenizer.from_pretrained(TINY)))
    assert {each.claim.head: each.verdict for each in changed.claims}["L0H2"] == "fails"
    assert changed.exit_code == 1
    assert check_here("ci/heads.toml", "--init", "novel.txt", "-m", "tiny-gpt2") == 2  # it is there
    assert Path("ci/heads.toml").read_text(encoding="utf-8") == made


@pytest.mark.draws
def test_a_new_file_names_model_corpus_and_options_so_that_it_runs_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TINY, "model")
    sentences(Path("my “novel”.txt"), 130)
    Path("below").mkdir()
    assert (
        check_here("below/new.toml", "--init", "my “novel”.txt", "-m", "./model", "--seed", "3", "--limit", "120") == 0
    )
    monkeypatch.chdir("below")
    first = Path("new.toml").read_text(encoding="utf-8").partition("\n")[0]
    assert check_here(*first.partition("attnviz check ")[2].split()) == 0


@pytest.mark.parametrize(
    ("files", "more", "word"),
    [
        ("new.toml", {"published": "wang-2022"}, "--published"),
        ("none/new.toml", {}, "none"),
        (["a.toml", "b.toml"], {}, "found 2"),
        ("new.toml", {"limit": 20}, "100 texts"),
    ],
)
def test_what_no_file_can_be_made_of_is_said(
    files: Any, more: Any, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    sentences(Path("novel.txt"), 20)
    bert = from_loaded(sharp_bert(), bert_tokenizer())
    with pytest.raises(UsageError, match=word):
        attnviz.check(files, bert, init=["novel.txt"], **more)
    assert [path.name for path in tmp_path.iterdir()] == ["novel.txt"]


def test_junit_has_a_case_for_each_claim_and_why_it_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    claims = [
        'text = "the cat\\u001b<&> ran"; head = "L0H2"; score = "previous-token"; at_least = 0',
        'text = "one two"; head = "L0H0"; score = "entropy"; at_least = 9',
        'text = "one two"; head = "L0H0"; label = "sink"',
    ]
    path = written(tmp_path, 'model = "tiny-gpt2"', *claims)
    assert check_here("--junit", "found.xml") == 1
    suite = ElementTree.parse("found.xml").getroot().find("testsuite")
    assert suite is not None
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    cases = suite.findall("testcase")
    assert [[each.tag for each in case] for case in cases] == [[], ["failure"], ["error"]]
    assert [case.get("line") for case in cases] == ["2", "7", "12"]
    assert {case.get("file") for case in cases} == {path.name}
    assert "<&>" in str(cases[0].get("name"))
    assert "below 10" in str(cases[2][0].get("message"))
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
def test_no_file_is_lost_that_a_run_reads_or_that_is_not_of_attnviz(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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


def test_verdicts_of_an_earlier_run_are_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
