"""The command ``attnviz explain``: what it prints, what it writes, and how it fails."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from attnviz.cli.program import app
from attnviz.commands.explain import reference
from tests.conftest import SENTENCE

runner = CliRunner()


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str | Path, **options: Any) -> Any:
    return runner.invoke(app, ["explain", *map(str, arguments)], **options)


def test_it_prints_the_walk_through_and_writes_to_the_usual_folder(bert_folder: Path, tmp_path: Path) -> None:
    done = run(SENTENCE, "-m", bert_folder)
    assert done.exit_code == 0, done.stderr
    assert "Layer 0 of 3" in done.stdout
    assert "Verified 14 of 18 steps" in done.stdout
    folder = tmp_path / "attnviz-out" / "explain-tiny-bert"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["captions.md", "explain.csv", "explain.json", "explain.png", "positions.png"]
    assert "Wrote 5 files to attnviz-out/explain-tiny-bert" in done.stderr


def test_json_is_the_document_and_nothing_else(gpt2_folder: Path) -> None:
    done = run(SENTENCE, "-m", gpt2_folder, "--layer", "2", "--every-layer", "--json", "-o", "out", "--no-figures")
    content = json.loads(done.stdout)
    assert content == json.loads(Path("out/explain.json").read_text(encoding="utf-8"))
    assert content["options"] == {"layer": 2, "head": "L2H0", "token": 8, "tokens_cut_off": 0}
    assert content["figures"] == []
    assert len(content["verification"]["layers"]) == 3
    assert content["stages"][-1]["name"] == "final_norm"


def test_options_are_heeded(bert_folder: Path) -> None:
    done = run(
        "the cat", "-m", bert_folder, "--pair", "a dog", "--head", "L1H3", "--token", "dog", "--dtype", "float64",
        "--format", "svg,pdf", "--theme", "dark", "--width", "84mm", "--save-stages", "-o", "out", "-d", "cpu",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "head L1H3" in done.stdout
    assert "#5 ‘dog’" in done.stdout
    assert "float64" in done.stdout
    content = json.loads(Path("out/explain.json").read_text(encoding="utf-8"))
    assert content["figures"] == ["explain.svg", "explain.pdf"]
    with safe_open("out/stages.safetensors", "pt") as stored:
        assert stored.get_tensor("pattern").dtype == torch.float64
        assert stored.metadata()["layer"] == "1"


def test_figures_are_chosen_and_a_rerun_removes_what_belongs_to_another_layer(bert_folder: Path) -> None:
    done = run(SENTENCE, "-m", bert_folder, "-q", "-o", "out", "--figures", "positions")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert {path.name for path in Path("out").iterdir()} == {
        "captions.md", "explain.csv", "explain.json", "positions.png",
    }  # fmt: skip
    done = run(SENTENCE, "-m", bert_folder, "-o", "out", "--layer", "1", "--figures", "none")
    assert "removed 2 files of an earlier run there" in done.stderr


def test_standard_input_is_read(bert_folder: Path) -> None:
    done = run("-", "-m", bert_folder, "--no-figures", "-o", "out", input="the cat ran")
    assert done.exit_code == 0
    assert "“the cat ran”" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--layer", "3"], 2, "has no layer 3: expected one from 0 to 2"),
        (["--head", "L0H7"], 2, "has no head 7: expected one from 0 to 3"),
        (["--token", "zebra"], 2, "no token “zebra”"),
        (["--format", "gif"], 2, "unknown format 'gif'"),
        (["--theme", "red"], 2, "unknown theme 'red'"),
        (["--width", "2in"], 2, "does not fit in 2 inches"),
        (["--width", "wide"], 2, "expected a width"),
        (["--figures", "map"], 2, "unknown figure 'map': expected any of path, positions"),
        (["--figures", "positions", "--layer", "1"], 2, "in layer 0 only, not in layer 1"),
        (["--figures", "path", "--no-figures"], 2, "--no-figures"),
        (["--no-figures", "--format", "jpg"], 2, "unknown format 'jpg'"),
        (["-o", " "], 2, "-o is empty"),
        (["--dtype", "int8"], 2, "int8"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_written(
    arguments: list[str], code: int, message: str, bert_folder: Path
) -> None:
    done = run(SENTENCE, "-m", bert_folder, *arguments)
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stdout == ""
    assert not Path("attnviz-out").exists()


def test_a_text_that_is_too_long_is_refused_or_cut(bert_folder: Path) -> None:
    refused = run("the cat " * 40, "-m", bert_folder, "-o", "out")
    assert refused.exit_code == 1
    assert "--truncate" in refused.stderr
    assert run("the cat " * 40, "-m", bert_folder, "-o", "out", "--truncate").exit_code == 0


def test_a_layer_that_is_not_reproduced_ends_with_3_and_writes_nothing(
    bert_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relu = reference.ACTIVATIONS["relu"]
    monkeypatch.setitem(reference.ACTIVATIONS, "gelu", relu)
    done = run(SENTENCE, "-m", bert_folder)
    assert done.exit_code == 3
    assert "does not reproduce the model, first at activated of layer 0" in done.stderr
    assert done.stdout == ""
    assert not Path("attnviz-out").exists()


def test_an_activation_that_is_unknown_is_refused_by_name(gpt2_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in gpt2_folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps({**config, "activation_function": "mish"}), encoding="utf-8")
    done = run(SENTENCE, "-m", copy)
    assert done.exit_code == 1
    assert "has the activation 'mish', which the reference does not reproduce" in done.stderr


def test_interrupting_leaves_nothing(bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnviz.explain", interrupted)
    done = run(SENTENCE, "-m", bert_folder)
    assert done.exit_code == 130
    assert "interrupted; nothing was written" in done.stderr
    assert not Path("attnviz-out").exists()


def test_a_folder_of_another_command_is_called_so(bert_folder: Path) -> None:
    run(SENTENCE, "-m", bert_folder, "-o", "out")
    before = sorted(path.name for path in Path("out").iterdir())
    done = runner.invoke(app, ["heads", SENTENCE, "-m", str(bert_folder), "-o", "out"])
    assert done.exit_code == 1
    assert "out holds results of another attnviz command (explain.json)" in done.stderr
    assert "choose another folder with -o" in done.stderr
    assert "did not write" not in done.stderr
    assert sorted(path.name for path in Path("out").iterdir()) == before
