"""``attnviz profile`` as its users meet it: options, files, messages, exit codes."""

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from attnviz.cli.program import app
from attnviz.cli.runner import Run
from attnviz.commands.profile.corpus_run import CorpusRun
from attnviz.commands.profile.measure import Profile
from attnviz.texts import batches
from tests.support import corpora
from tests.support.long_runs import interrupting
from tests.support.models import gpt2_tokenizer, save_checkpoint, sharp_gpt2

pytest.importorskip("conllu", reason="needs the extra profile")


@pytest.fixture
def run(tmp_path: Path, bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``attnviz profile`` on corpora in an empty folder, without figures unless asked for."""
    monkeypatch.chdir(tmp_path)
    corpora.treebank(tmp_path / "trees.conllu", 40)
    corpora.sentences(tmp_path / "lines.txt", 40)
    corpora.examples(tmp_path / "gap.tsv", 40)

    def invoke(*arguments: str, figures: bool = False, model: Path = bert_folder) -> Result:
        options = ["-m", str(model), "-o", "out", *([] if figures else ["--figures", "none"])]
        return CliRunner().invoke(app, ["profile", *arguments, *options])

    return invoke


def names_in(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def document() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path("out/profile.json").read_text(encoding="utf-8"))
    return content


@pytest.mark.draws
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
    judged = {role["role"].removeprefix("syntactic:") for role in content["roles"]}
    assert judged >= {relation["relation"] for relation in content["syntax"]["relations"]}  # the rare ones, too


def test_a_profile_that_cannot_be_stored_is_still_written(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    result = run("trees.conllu")
    assert result.exit_code == 0
    assert "the profile was not stored" in result.stderr
    assert document()["corpora"]


# --- what goes wrong


@pytest.mark.draws
def test_an_interrupted_run_says_what_it_keeps_until_all_is_written(run, monkeypatch, saved_at_once):
    def stopping(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)

    result = interrupted_run(run, monkeypatch)
    assert "interrupted. What was measured is kept in out.unfinished: the same command goes on" in result.stderr
    with monkeypatch.context() as patched:  # Ctrl-C while the figures are drawn
        patched.setattr(Profile, "write", stopping)
        assert run("trees.conllu").exit_code == 130
    assert run("trees.conllu").stderr.count("continuing after 40 texts") == 2  # the model, and its untrained copy
    assert names_in("out") == [".attnviz.json", "profile.csv", "profile.json"]


def interrupted_run(run: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The result of a run that is interrupted in its second batch."""
    count, stop = CorpusRun.count, interrupting(2, signal.SIGTERM)
    with monkeypatch.context() as patched:
        patched.setattr(CorpusRun, "count", lambda *of: (stop(), count(*of)))
        result = run("trees.conllu", "--batch-size", "8")
    assert result.exit_code == 130
    return result


@pytest.mark.draws
def test_a_finished_run_deletes_what_it_has_kept_itself_only(run: Any):
    others = ["out.unfinished-1-of-2", "out.unfinished-notes.txt", "out.unfinished.old"]
    for name in others:
        Path(name).write_text("mine")
    assert run("trees.conllu").exit_code == 0
    assert sorted(path.name for path in Path.cwd().glob("out*")) == ["out", *others]


@pytest.mark.draws
def test_an_interrupted_control_goes_on(run: Any, monkeypatch: pytest.MonkeyPatch, saved_at_once: None):
    count, done = CorpusRun.count, []

    def stopping(*arguments: Any) -> None:
        done.append(1)
        if len(done) == 9:  # five batches of the model, and the fourth of its copy
            os.kill(os.getpid(), signal.SIGINT)
        count(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(CorpusRun, "count", stopping)
        assert run("trees.conllu", "--batch-size", "8").exit_code == 130
    assert sorted(path.name for path in Path.cwd().glob("out*")) == ["out.unfinished", "out.unfinished-untrained"]
    stderr = " ".join(run("trees.conllu", "--batch-size", "8").stderr.split())
    assert "continuing after 40 texts" in stderr
    assert "continuing after 24 texts" in stderr
    assert names_in("out") == [".attnviz.json", "profile.csv", "profile.json"]
    assert document()["control_texts"] == 40


@pytest.mark.draws
def test_a_trial_does_not_hide_a_profile_of_more_texts(run: Any, bert_folder: Path):
    def over_corpus(*options: str) -> str:
        arguments = ["heads", "the cat ran", "-m", str(bert_folder), "-o", "heads", "--figures", "none", *options]
        return " ".join(CliRunner().invoke(app, arguments).stdout.split()).partition("Over a corpus:")[2]

    few = run("lines.txt", "--limit", "99", "--store").stderr
    assert "too few texts for a verdict: statistics" in few
    assert "kept for attnviz heads: " not in few
    assert over_corpus().startswith(" not known")
    assert "kept for attnviz heads: repeats: " in run("--repeats").stderr
    assert "0 long-range" not in over_corpus()
    assert "not measured" in over_corpus()
    corpora.treebank(Path("trees.conllu"), 110)
    assert "kept for attnviz heads: statistics, syntax: " in run("trees.conllu").stderr
    assert "not measured" not in over_corpus()
    corpora.sentences(Path("lines.txt"), 105)
    trial = run("lines.txt", "--no-syntax")
    assert "attnviz heads still shows the stored statistics, of more texts" in trial.stderr
    assert "Corpus: trees.conllu" in over_corpus("--top", "0")
    told = run("lines.txt", "--store", "--no-syntax").stderr
    assert "kept for attnviz heads: statistics: " in told


@pytest.mark.draws
def test_a_table_of_a_paper_has_the_best_heads_where_no_role_passes(run: Any):
    assert run("lines.txt", "--no-syntax", "--table", "md").exit_code == 0
    table = Path("out/profile.md").read_text(encoding="utf-8")
    assert "40 texts, 100 needed" in table
    assert table.count("| sink |") == 1


def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    end = batches.Verifier.end

    def wrong(self: Any, record: Any) -> None:
        record.output[0, 1] += 1
        end(self, record)

    monkeypatch.setattr(batches.Verifier, "end", wrong)


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
        (unverified, 3, "do not reproduce the model"),
        (overflowing, 3, "not finite"),
        (broken_treebank, 1, "10 columns"),
        (lambda monkeypatch: monkeypatch.setenv("RANK", "2"), 1, "WORLD_SIZE"),
    ],
    ids=["unverified", "overflow", "treebank", "rank"],
)
def test_what_stops_a_profile_is_one_line_and_leaves_nothing(
    run: Any, bert_folder: Path, monkeypatch: pytest.MonkeyPatch, prepare: Any, code: int, word: str
):
    prepare(monkeypatch)
    model = Path("model") if Path("model").exists() else bert_folder
    result = run("trees.conllu", "--no-control", model=model)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    assert word in result.stderr
    assert not list(Path().glob("out*"))


def test_a_process_that_is_not_the_first_says_nothing(run: Any, monkeypatch: pytest.MonkeyPatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("attnviz.profile_heads", lambda *_, **__: None)
    result = run("trees.conllu")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert run("missing.conllu").stderr == ""
    wrong = run()  # the first one says what is wrong
    assert (wrong.exit_code, wrong.stdout, wrong.stderr) == (2, "", "")
    assert not Path("out").exists()


def test_texts_in_a_file_and_a_profile_of_it_have_folders_of_their_own():
    folders = {
        Run(name, dict.fromkeys(("out", "model", "adapter"))).results_folder(["gpt2"], (), [Path("lines.csv")])
        for name in ("heads", "profile", "ablate")
    }
    assert len(folders) == 3
