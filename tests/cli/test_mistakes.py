"""Natural mistakes on the command line end in a line that says what was meant."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnviz.cli.program import app


@pytest.mark.parametrize(
    ("typed", "code", "meant"),
    [
        (["heads", "cat", "-m", "tiny-gpt2", "--select", "syntatic"], 2, "syntactic"),
        (["heads", "cat", "-m", "tiny-gpt2", "--figures", "overvew"], 2, "overview"),
        (["heads", "cat", "-m", "tiny-gpt2", "--map", "entrpy"], 2, "entropy"),
        (["heads", "cat", "-m", "minlm"], 1, "minilm"),
        (["models", "bert-lage"], 1, "bert-large"),
    ],
)
def test_the_nearest_name_is_suggested(typed: list[str], code: int, meant: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, typed)
    assert (done.exit_code, f"Did you mean {meant}?" in done.stderr) == (code, True)


@pytest.mark.parametrize(
    "twice",
    ["--at cat --token sat", "--answer a --label b", "-m tiny-gpt2 --model minilm", "--top 3 --top 4", "-o a -o a"],
)
def test_no_value_of_an_option_takes_the_place_of_another(twice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["outputs", "the cat sat", *twice.split()]).exit_code == 2
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("typed", "told", "untold"),
    [
        (["heads", "cat", "--map", "zz"], ["entropy", "diagonality"], "heads.json"),
        (["heads", "--chat", "a.json", "--chat", "b.json"], ["'a.json' and 'b.json'"], "Path"),
    ],
)
def test_what_was_expected_can_be_typed(typed: list[str], told: list[str], untold: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*typed, "-m", "tiny-gpt2"])
    said = " ".join(done.stderr.split())
    assert done.exit_code == 2
    assert all(each in said for each in told)
    assert untold not in said


@pytest.mark.parametrize("command", ["compare", "ablate", "outputs"])
def test_labels_select_heads_in_one_command_alone_and_the_others_say_so_before_they_read_a_model(command: str):
    done = CliRunner().invoke(app, [command, "the cat ran", "--model", "no-model", "--select", "L2,sink"])
    assert done.exit_code == 2
    assert "--select 'sink' is what a head does" in done.stderr


@pytest.mark.parametrize(
    ("command", "name", "word"),
    [
        *((command, "texts", "name of a folder") for command in ("heads", "ablate", "rollout")),
        *(("heads", name, "--each-line") for name in ("two.txt", "corpus.conllu", "notes")),
    ],
)
def test_the_name_of_a_folder_or_file_is_not_taken_for_a_text(command, name, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    Path("notes").touch()
    done = CliRunner().invoke(app, [command, name])
    assert (done.exit_code, word in done.stderr) == (1, True)
