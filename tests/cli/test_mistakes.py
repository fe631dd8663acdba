"""Natural mistakes on the command line end in a line that says what was meant."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnviz.cli.program import app
from tests.support.hand_made import hand_made
from tests.support.models import bert_tokenizer, sharp_bert


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    sharp_bert().save_pretrained(folder)
    bert_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--select", "syntatic"], "syntactic"),
        (["--figures", "overvew"], "overview"),
        (["--map", "entrpy"], "entropy"),
    ],
)
def test_the_nearest_name_is_suggested(typed: list[str], meant: str, model: str, tmp_path: Path):
    done = CliRunner().invoke(app, ["heads", "the cat ran", "--model", model, "--out", str(tmp_path), *typed])
    assert done.exit_code == 2
    assert f"Did you mean {meant}?" in done.stderr


@pytest.mark.parametrize("command", ["compare", "ablate", "outputs"])
def test_labels_select_heads_in_one_command_alone_and_the_others_say_so_before_they_read_a_model(command: str):
    done = CliRunner().invoke(app, [command, "the cat ran", "--model", "no-model", "--select", "L2,sink"])
    assert done.exit_code == 2
    assert "--select 'sink': labels and roles select heads in attnviz heads alone" in done.stderr


def test_the_nearest_built_in_model_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = CliRunner().invoke(app, ["heads", "the cat ran", "--model", "minlm", "--out", str(tmp_path / "out")])
    assert (done.exit_code, "Did you mean minilm?" in done.stderr) == (1, True)
    done = CliRunner().invoke(app, ["models", "bert-lage"])
    assert (done.exit_code, "Did you mean bert-large?" in done.stderr) == (1, True)


@pytest.mark.parametrize("command", ["heads", "ablate", "rollout"])
def test_the_name_of_a_folder_is_not_taken_for_a_text(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    done = CliRunner().invoke(app, [command, "texts"])
    assert done.exit_code == 1
    assert "the name of a folder" in done.stderr


@pytest.mark.parametrize(("name", "there"), [("two.txt", False), ("corpus.conllu", False), ("notes", True)])
def test_the_name_of_a_file_is_not_taken_for_a_text(
    name: str, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    if there:
        Path(name).touch()
    done = CliRunner().invoke(app, ["heads", name])
    assert done.exit_code == 1
    assert "--each-line" in done.stderr
    assert "write -" in done.stderr


def test_drawing_knows_its_total(tmp_path: Path):
    seen: list[tuple[str, int, int]] = []
    hand_made().save(
        tmp_path, figures=["overview", "heads", "page"], formats=["png", "svg"], select="L1",
        progress=lambda *told: seen.append(told),
    )  # fmt: skip
    assert seen == [("drawing", done, 7) for done in range(1, 8)]
    seen.clear()
    hand_made().save(tmp_path, figures=["lines"], progress=lambda *told: seen.append(told))
    assert seen == [("drawing", 1, 1)]
