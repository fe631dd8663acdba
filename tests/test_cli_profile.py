"""``attnviz profile`` as its users meet it: options, files, messages, exit codes."""

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from attnviz.cli import profile as cli_profile
from attnviz.cli.program import app
from attnviz.commands.profile.measuring import Measuring
from attnviz.corpora import sampling
from attnviz.corpora.processes import Process
from tests import corpora

pytest.importorskip("conllu", reason="needs the extra profile")


@pytest.fixture
def run(tmp_path: Path, bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``attnviz profile`` on corpora in an empty folder, without figures unless asked for."""
    monkeypatch.chdir(tmp_path)
    corpora.treebank(tmp_path / "trees.conllu", 40)
    corpora.sentences(tmp_path / "lines.txt", 40)
    corpora.examples(tmp_path / "gap.tsv", 40)

    def invoke(*arguments: str, figures: bool = False, model: Path = bert_folder) -> Result:
        options = ["-m", str(model), "-o", "out", *([] if figures else ["--no-figures"])]
        return CliRunner().invoke(app, ["profile", *arguments, *options])

    return invoke


def document() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path("out/profile.json").read_text(encoding="utf-8"))
    return content


def test_files_and_tables(run: Any):
    result = run("trees.conllu", "gap.tsv", "--repeats")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in Path("out").iterdir()) == ["profile.csv", "profile.json"]
    for title in ("Verified 12 heads of", "Relations (", "Heads (", "Layers (means over their heads)", "Trees: gold."):
        assert title in result.stdout
    assert "Wrote 2 files to out" in result.stderr


def test_the_document_is_laid_out_as_the_contract_says(run: Any):
    assert run("trees.conllu", "gap.tsv", "--repeats", "--seed", "7").exit_code == 0
    content = document()
    assert list(content)[:9] == [
        "attnviz", "model", "corpora", "seed", "verification", "statistics", "syntax", "coreference", "repeats",
    ]  # fmt: skip
    assert len(content["model"]["weights_sha256"]) == 64
    assert [corpus["path"] for corpus in content["corpora"]] == ["trees.conllu", "gap.tsv"]
    assert content["seed"] == 7
    assert content["verification"]["heads_compared"] == 12
    assert content["verification"]["sentences_verified"] > 0
    assert len(content["verification"]["layers"]) == 3
    names = ["entropy", "distance", "confidence", "sink", "previous", "current", "next", "local", "long_range"]
    assert list(content["statistics"]) == [*names, "baseline"]
    assert all(len(content["statistics"][name]) == 3 and len(content["statistics"][name][0]) == 4 for name in names)
    relation = content["syntax"]["relations"][0]
    assert set(relation) == {"relation", "n", "offset", "offset_accuracy", "best", "accuracy"}
    assert set(relation["best"]) == {"id", "direction", "accuracy"}
    best = relation["accuracy"][relation["best"]["direction"]]
    layer, head = (int(part) for part in relation["best"]["id"][1:].split("H"))
    assert best[layer][head] == relation["best"]["accuracy"] == max(max(row) for row in best)
    assert set(content["coreference"]) == {"n", "nearer_name", "accuracy"}
    assert set(content["coreference"]["accuracy"]) == {"pronoun_to_name", "name_to_pronoun"}
    assert set(content["repeats"]) == {"previous", "duplicate", "induction"}
    for role in content["roles"]:
        low, high = role["interval"]
        assert low <= role["score"] <= high
        assert role["threshold"]
    assert {role["role"] for role in content["roles"]} >= {"sink", "broad", "local", "semantic", "coreference"}


def test_the_table_has_a_row_a_head_and_role(run: Any):
    assert run("trees.conllu").exit_code == 0
    rows = list(csv.DictReader(Path("out/profile.csv").read_text(encoding="utf-8").splitlines()))
    roles = document()["roles"]
    assert [(row["id"], row["role"], float(row["score"])) for row in rows] == [
        (role["id"], role["role"], role["score"]) for role in roles
    ]
    assert rows[0]["low"] == str(roles[0]["interval"][0])


def test_json_prints_the_document_and_nothing_else(run: Any):
    result = run("trees.conllu", "--json")
    assert json.loads(result.stdout) == document()


def test_quiet_prints_nothing(run: Any):
    result = run("trees.conllu", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_figures_are_written_and_listed(run: Any):
    result = run("trees.conllu", "--repeats", "--format", "png", "--format", "svg", figures=True)
    assert result.exit_code == 0, result.output
    listed = document()["figures"]
    assert {"roles.png", "roles.svg", "relations.png", "layers.png", "likeness.png"} <= set(listed)
    for name in listed:
        content = (Path("out") / name).read_bytes()
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


def test_a_rerun_on_another_corpus_replaces_its_own_files_only(run: Any):
    run("trees.conllu", figures=True)
    Path("out/mine.png").write_bytes(b"mine")
    assert Path("out/relations.png").exists()
    assert "removed" in run("gap.tsv").stderr
    assert sorted(path.name for path in Path("out").iterdir()) == ["mine.png", "profile.csv", "profile.json"]


def test_a_file_that_attnviz_did_not_write_is_not_replaced(run: Any):
    Path("out").mkdir()
    Path("out/profile.json").write_text("{}")
    result = run("trees.conllu")
    assert result.exit_code == 1
    assert "out holds profile.json, which attnviz did not write" in result.stderr
    assert Path("out/profile.json").read_text() == "{}"


def test_heads_shows_a_profile_that_was_stored(run: Any, bert_folder: Path):
    stored = run("trees.conllu")
    assert stored.exit_code == 0
    shown = CliRunner().invoke(
        app, ["heads", "the cat ran", "-m", str(bert_folder), "-o", "heads", "--figures", "none"]
    )
    assert "measured on trees.conllu, 40 texts" in " ".join(shown.stdout.split())


def test_a_profile_need_not_be_stored(run: Any, bert_folder: Path):
    run("trees.conllu", "--no-store")
    shown = CliRunner().invoke(
        app, ["heads", "the cat ran", "-m", str(bert_folder), "-o", "heads", "--figures", "none"]
    )
    assert "trees.conllu" not in shown.stdout


def test_a_profile_that_cannot_be_stored_is_still_written(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    result = run("trees.conllu")
    assert result.exit_code == 0
    assert "the profile was not stored" in result.stderr
    assert document()["corpora"]


def test_without_scikit_learn_one_figure_is_left_out(run: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "attnviz.commands.profile.likeness.likeness_unavailable", lambda: "likeness.png needs scikit-learn"
    )
    monkeypatch.setattr(
        "attnviz.commands.profile.drawing.likeness_unavailable", lambda: "likeness.png needs scikit-learn"
    )
    result = run("trees.conllu", figures=True)
    assert "attnviz: likeness.png needs scikit-learn" in result.stderr
    assert "likeness.png" not in document()["figures"]


# --- what goes wrong


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("trees.conllu", b"\t_\t_\n", b"\n", "trees.conllu:1: expected 10 columns with tabs between, found 8"),
        ("trees.conllu", b"\tnsubj\t", b"\t_\t", "expected a relation such as nsubj in column 8"),
        ("gap.tsv", b"\tcat\t4\t", b"\tcat\t5\t", "gap.tsv:2: expected A 'cat' at character 5, found 'at '"),
        ("lines.txt", b" ", b" \xff", "lines.txt:1: expected text encoded as UTF-8, found byte 0xff"),
    ],
    ids=["columns", "relation", "offset", "encoding"],
)
def test_what_is_malformed_is_told_with_file_and_line(run: Any, name: str, old: bytes, new: bytes, message: str):
    path = Path(name)
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    result = run(name)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert message in line
    assert not Path("out/profile.json").exists()


@pytest.mark.parametrize(("name", "content"), [("e.conllu", ""), ("e.txt", "\n \n"), ("e.tsv", "")])
def test_an_empty_corpus_is_told(run: Any, name: str, content: str):
    Path(name).write_text(content)
    result = run(name)
    assert result.exit_code == 1
    assert f"{name} is empty: expected at least" in result.stderr
    assert not Path("out").exists()


def test_what_was_measured_before_a_malformed_line_is_kept(run: Any):
    good = Path("lines.txt").read_bytes()
    Path("lines.txt").write_bytes(good + b"the \xff cat\n")
    broken = run("lines.txt", "--no-syntax")
    assert broken.exit_code == 1
    assert "lines.txt:41: expected text encoded as UTF-8" in broken.stderr
    kept = Path("out/profile.unfinished")
    assert f"What was measured is kept in {kept}: the same command goes on from there." in broken.stderr
    Path("lines.txt").write_bytes(good + b"the cat ran\n")
    mended = run("lines.txt", "--no-syntax")
    assert mended.exit_code == 0
    assert "going on after 40 texts that an earlier run has measured" in mended.stderr
    assert document()["corpora"][0]["sentences"] == 41
    assert not kept.exists()


def test_sentences_longer_than_the_model_are_named_and_left_out(run: Any):
    with Path("lines.txt").open("a") as file:
        file.write("cat " * 100)
    result = run("lines.txt", "--no-syntax")
    assert result.exit_code == 0
    assert "lines.txt:41: left out: it has 102 tokens, but the model has 40 positions." in result.stderr
    assert document()["corpora"][0]["left_out"] == 1


def test_an_interrupted_run_says_what_it_keeps(run: Any, monkeypatch: pytest.MonkeyPatch):
    done = Measuring._done

    def stopping(measuring: Measuring, corpus: int, batch: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        done(measuring, corpus, batch)

    monkeypatch.setattr(Measuring, "_done", stopping)
    result = run("trees.conllu", "--batch-size", "8")
    assert result.exit_code == 130
    assert "interrupted. What was measured is kept in out/profile.unfinished" in result.stderr
    monkeypatch.setattr(Measuring, "_done", done)
    assert "going on after 8 texts" in run("trees.conllu", "--batch-size", "8").stderr


def test_interrupted_before_anything_was_measured_there_is_nothing_to_keep(run: Any, monkeypatch: pytest.MonkeyPatch):
    def stopping(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnviz.commands.profile.profiling.load_checkpoint", stopping)
    result = run("trees.conllu")
    assert result.exit_code == 130
    assert result.stderr.strip() == "attnviz: interrupted; nothing was written."
    assert not Path("out").exists()


def test_what_was_measured_is_kept_until_it_is_written(run: Any, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C while the figures are drawn."""

    def stopping(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("attnviz.commands.profile.saving.profile_files", stopping)
        assert run("trees.conllu", figures=True).exit_code == 130
    assert Path("out/profile.unfinished").exists()
    assert "going on after 40 texts" in run("trees.conllu").stderr
    assert sorted(path.name for path in Path("out").iterdir()) == ["profile.csv", "profile.json"]


def test_a_file_of_the_users_own_is_not_taken_for_an_unfinished_run(run: Any):
    Path("out").mkdir()
    Path("out/profile.unfinished").write_text("my notes")
    result = run("trees.conllu")
    assert result.exit_code == 1
    assert (
        "expected what an interrupted run has measured in out/profile.unfinished, found something else" in result.stderr
    )
    assert Path("out/profile.unfinished").read_text() == "my notes"


def test_a_trial_does_not_hide_a_profile_of_more_texts(run: Any, bert_folder: Path):
    assert "kept for attnviz heads: " in run("trees.conllu").stderr
    trial = run("lines.txt", "--limit", "5")
    assert "not kept for attnviz heads, which has a profile of more texts (trees.conllu, 40 texts)" in trial.stderr
    shown = CliRunner().invoke(
        app, ["heads", "the cat ran", "-m", str(bert_folder), "-o", "heads", "--figures", "none"]
    )
    assert "trees.conllu, 40 texts" in " ".join(shown.stdout.split())
    told = run("lines.txt", "--limit", "5", "--store").stderr
    assert "kept for attnviz heads, instead of that of trees.conllu, 40 texts: " in told


def test_no_color_is_plain_text_even_on_a_terminal(run: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in run("trees.conllu").stdout
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" in run("trees.conllu").stdout


def test_a_head_that_does_not_reproduce_the_model_stops_everything(run: Any, monkeypatch: pytest.MonkeyPatch):
    verify = sampling.verify_record

    def wrong(checkpoint: Any, record: Any, *rest: Any) -> Any:
        record.output[0, 1] += 1
        return verify(checkpoint, record, *rest)

    monkeypatch.setattr(sampling, "verify_record", wrong)
    result = run("trees.conllu")
    assert result.exit_code == 3
    assert "the recomputed heads do not reproduce the model" in result.stderr
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "nothing to measure: expected a corpus (.conllu, .txt or GAP .tsv), or --repeats."),
        (["missing.conllu"], 1, "expected a corpus at missing.conllu, found nothing"),
        (["trees.conllu", "--format", "bmp"], 2, "unknown format 'bmp'"),
        (["trees.conllu", "--limit", "0"], 2, "Input should be greater than or equal to 1"),
        (["trees.conllu", "--batch-size", "0"], 2, "Input should be greater than or equal to 1"),
        (["trees.conllu", "--device", "gpu"], 2, "unknown device 'gpu'"),
        (["lines.txt", "--parser", "xx_none"], 1, "xx_none"),
    ],
)
def test_wrong_usage_is_told(run: Any, arguments: list[str], code: int, message: str):
    result = run(*arguments)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert not Path("out").exists()


def test_an_empty_name_of_the_folder_is_refused():
    result = CliRunner().invoke(app, ["profile", "--repeats", "-o", " "])
    assert (result.exit_code, result.stderr) == (2, "attnviz: -o is empty; expected a folder (. for this one).\n")


def test_a_process_that_is_not_the_first_says_nothing(run: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli_profile, "this_process", lambda: Process(1, 2, 1))
    monkeypatch.setattr("attnviz.commands.profile.profiling.profile_heads", lambda *_, **__: None)
    result = run("trees.conllu")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert run("missing.conllu").stderr == ""
    assert not Path("out").exists()
