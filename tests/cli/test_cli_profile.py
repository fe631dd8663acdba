"""``attnviz profile`` as its users meet it: options, files, messages, exit codes."""

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.bert.modeling_bert import BertSelfAttention
from typer.testing import CliRunner, Result

from attnviz.cli.program import app
from attnviz.cli.runner import Run
from attnviz.commands.profile.corpus_run import CorpusRun
from attnviz.commands.profile.measure import Profile
from attnviz.measures.tallies import OFFSETS
from tests.support import corpora
from tests.support.models import gpt2_tokenizer, save_checkpoint, sharp_gpt2

pytest.importorskip("conllu", reason="needs the extra profile")
pytestmark = pytest.mark.draws


@pytest.fixture
def run(tmp_path: Path, bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``attnviz profile`` on corpora in an empty folder, without figures."""
    monkeypatch.chdir(tmp_path)
    corpora.treebank(tmp_path / "trees.conllu", 40)
    corpora.sentences(tmp_path / "lines.txt", 40)
    corpora.examples(tmp_path / "gap.tsv", 40)

    def invoke(*arguments: str, model: Path = bert_folder) -> Result:
        return CliRunner().invoke(app, ["profile", *arguments, "-m", str(model), "-o", "out", "--figures", "none"])

    return invoke


def folders() -> list[str]:
    return sorted(path.name for path in Path.cwd().glob("out*"))


def document() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path("out/profile.json").read_text(encoding="utf-8"))
    return content


def test_the_numbers_of_the_document_agree_with_each_other_and_with_the_table(run: Any):
    assert run("trees.conllu", "gap.tsv", "--repeats", "--seed", "7").exit_code == 0
    content = document()
    assert content["control_texts"] == 40 + 32  # of GAP's 40 rows, 8 are neither
    assert [corpus["path"] for corpus in content["corpora"]] == ["trees.conllu", "gap.tsv"]
    assert (content["seed"], content["verification"]["heads_compared"]) == (7, 12)
    relation = content["syntax"]["relations"][0]
    assert relation["baselines"]["fixed offset"]["dependent_to_head"][2][3] == relation["offset_accuracy"]
    best = relation["accuracy"][relation["best"]["direction"]]
    layer, head = (int(part) for part in relation["best"]["id"][1:].split("H"))
    assert best[layer][head] == relation["best"]["accuracy"] == max(max(row) for row in best)
    assert content["coreference"]["guesses"]["nearer name"] == content["coreference"]["nearer_name"]
    for role in content["roles"]:
        low, high = role["interval"] or (role["score"],) * 2
        assert low <= role["score"] <= high
        assert role["baseline"] == max(role["baselines"].values())
        assert {role[name] is None for name in ("p", "q", "interval", "difference")} == {bool(role["too_few"])}
    assert {role["role"] for role in content["roles"]} >= {"sink", "broad", "local", "semantic", "coreference"}
    rows = list(csv.DictReader(Path("out/profile.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["id"], row["role"], float(row["score"]), row["low"]) for row in rows] == [
        (role["id"], role["role"], role["score"], str((role["interval"] or [""])[0])) for role in content["roles"]
    ]
    for row, role in zip(rows, content["roles"], strict=True):
        assert role["baselines"][row["baseline_name"]] == role["baseline"]
        assert [row["difference_low"], row["difference_high"]] == list(map(str, role["difference"] or ["", ""]))
        over = {"syntactic": 24, "coreference": 24, "offset": 12 * len(OFFSETS)}.get(role["role"].partition(":")[0], 12)
        assert row["simultaneous_over"] == str(over if role["interval"] else "")
    assert max(len(value) for row in rows for value in row.values()) < 50  # no sentence on every row
    judged = {role["role"].removeprefix("syntactic:") for role in content["roles"]}
    assert judged >= {relation["relation"] for relation in content["syntax"]["relations"]}  # the rare ones, too


def test_a_profile_that_cannot_be_stored_is_still_written(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    result = run("lines.txt", "--no-control", "--no-syntax")
    assert (result.exit_code, "not stored" in result.stderr) == (0, True)
    assert document()["corpora"]


# --- what is interrupted goes on


def interrupted(run: Any, monkeypatch: pytest.MonkeyPatch, batch: int) -> Result:
    """A run that is interrupted in this batch."""
    count, done = CorpusRun.count, []

    def stopping(*arguments: Any) -> None:
        done.append(1)
        if len(done) == batch:
            os.kill(os.getpid(), signal.SIGINT)
        count(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(CorpusRun, "count", stopping)
        result = run("trees.conllu", "--batch-size", "8")
    assert result.exit_code == 130
    return result


def test_an_interrupted_run_goes_on_until_all_is_written(run: Any, monkeypatch, saved_at_once: None):
    others = ["out.unfinished-1-of-2", "out.unfinished-notes.txt"]  # which stay
    for name in others:
        Path(name).write_text("mine")
    assert "out.unfinished" in interrupted(run, monkeypatch, 2).stderr
    interrupted(run, monkeypatch, 8)  # after the rest of five batches of the model, the fourth of its untrained copy
    assert folders() == sorted(["out.unfinished", "out.unfinished-untrained", *others])
    with monkeypatch.context() as patched:  # Ctrl-C while files are written
        patched.setattr(Profile, "write", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
        stopped = run("trees.conllu", "--batch-size", "8")
    assert stopped.exit_code == 130
    assert [f"after {n} texts" in " ".join(stopped.stderr.split()) for n in (40, 24)] == [True, True]
    assert run("trees.conllu", "--batch-size", "8").stderr.count("after 40 texts") == 2
    assert folders() == ["out", *others]
    assert document()["control_texts"] == 40


def test_a_table_of_a_paper_has_the_best_heads_where_no_role_passes(run: Any):
    assert run("lines.txt", "--no-syntax", "--no-control", "--table", "md").exit_code == 0
    assert Path("out/profile.md").read_text(encoding="utf-8").count("| sink |") == 1


# --- what goes wrong


def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = property(lambda self: 0.1, lambda self, value: None)
    monkeypatch.setattr(BertSelfAttention, "scaling", wrong, raising=False)


def overflowing(_: object) -> None:
    model = sharp_gpt2()
    with torch.no_grad():
        for parameter in model.h[2].mlp.c_proj.parameters():
            parameter.fill_(torch.finfo(torch.float32).max)
    save_checkpoint(model, gpt2_tokenizer(), Path("model"))


def broken_treebank(_: object) -> None:
    with Path("trees.conllu").open("a", encoding="utf-8") as file:
        file.write("1\tcat\n\n")


@pytest.mark.parametrize(
    ("prepare", "code", "word"),
    [
        (unverified, 3, "layers differ"),
        (overflowing, 3, "not finite"),
        (broken_treebank, 1, "trees.conllu"),
        (lambda monkeypatch: monkeypatch.setenv("RANK", "2"), 1, "WORLD_SIZE"),
    ],
    ids=["unverified", "overflow", "treebank", "rank"],
)
def test_what_stops_a_profile_is_one_line_and_leaves_nothing(run: Any, bert_folder, monkeypatch, prepare, code, word):
    prepare(monkeypatch)
    model = Path("model") if Path("model").exists() else bert_folder
    result = run("trees.conllu", "--no-control", model=model)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    assert word in result.stderr
    assert folders() == []


def test_a_process_that_is_not_the_first_says_nothing(run: Any, monkeypatch: pytest.MonkeyPatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("attnviz.profile_heads", lambda texts, unfinished: None)
    result = run("trees.conllu")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert run("missing.conllu").stderr == ""
    wrong = run("trees.conllu", "--top", "-1")  # the first one says what is wrong
    assert (wrong.exit_code, wrong.stdout, wrong.stderr) == (2, "", "")
    assert not Path("out").exists()


def test_texts_in_a_file_and_a_profile_of_it_have_folders_of_their_own():
    given = dict.fromkeys(("out", "model", "adapter"))
    runs = [Run(name, given).results_folder(["gpt2"], [Path("lines.csv")]) for name in ("heads", "profile")]
    assert len(set(runs)) == 2
