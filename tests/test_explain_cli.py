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


@pytest.fixture
def run(bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``attnviz explain`` of the small BERT, or another model, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, text: str = SENTENCE, model: Path = bert_folder, **options: Any) -> Any:
        return CliRunner().invoke(app, ["explain", text, "-m", str(model), *arguments], **options)

    return run


def names(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


@pytest.mark.usefixtures("undrawn")
def test_it_prints_the_walk_through_and_writes_to_the_usual_folder(run: Any) -> None:
    done = run()
    assert done.exit_code == 0, done.stderr
    assert "Layer 0 of 3" in done.stdout
    assert "Verified 14 of 18 steps" in done.stdout
    written = {"captions.md", "captions.tex", "explain.csv", "explain.json", "explain.png", "positions.png"}
    (folder,) = map(str, Path("attnviz-out/explain-tiny-bert").iterdir())
    assert names(folder) == written
    assert f"Wrote 6 files to {folder}" in done.stderr
    other = CliRunner().invoke(app, ["heads", SENTENCE, "-o", folder])
    assert other.exit_code == 1
    assert "holds results of another attnviz command (explain.json)" in other.stderr
    assert names(folder) == written


def test_json_is_the_document_and_nothing_else(run: Any) -> None:
    done = run("--every-layer", "--json", "-o", "out", "--no-figures", "--truncate", text="the cat " * 40)
    content = json.loads(done.stdout)
    assert content == json.loads(Path("out/explain.json").read_text(encoding="utf-8"))
    assert content["options"] == {"layer": 0, "head": "L0H0", "token": 38, "tokens_cut_off": 42}
    assert len(content["verification"]["layers"]) == 3


def test_options_are_heeded(run: Any) -> None:
    done = run(
        "--pair", "a dog", "--head", "L1H3", "--token", "dog", "--dtype", "float64", "--format", "svg,pdf", "--theme",
        "dark", "--width", "84mm", "--save-stages", "-o", "out", "-d", "cpu", text="the cat",
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


@pytest.mark.usefixtures("undrawn")
def test_figures_are_chosen_and_a_rerun_removes_what_belongs_to_another_layer(run: Any) -> None:
    done = run("-q", "-o", "out", "--figures", "positions")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert names("out") == {"captions.md", "captions.tex", "explain.csv", "explain.json", "positions.png"}
    done = run("-o", "out", "--layer", "1", "--figures", "none")
    assert "removed 3 files of an earlier run there" in done.stderr


def test_standard_input_is_read(run: Any) -> None:
    done = run("--no-figures", "-o", "out", text="-", input="the cat ran")
    assert done.exit_code == 0
    assert "“the cat ran”" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "3"], "has no layer 3: expected one from 0 to 2"),
        (["--head", "L0H7"], "has no head L0H7; it has L0H0 to L2H3"),
        (["--token", "zebra"], "no token “zebra”"),
        (["--theme", "red"], "unknown theme 'red'"),
        (["--width", "2in"], "does not fit in 2 inches"),
        (["--width", "wide"], "expected a width"),
        (["--figures", "map"], "unknown figure 'map': expected any of path, positions"),
        (["--figures", "positions", "--layer", "1"], "in layer 0 only, not in layer 1"),
        (["--figures", "path", "--no-figures"], "--no-figures"),
        (["--no-figures", "--format", "jpg"], "unknown format 'jpg'"),
        (["-o", " "], "-o is empty"),
        (["--dtype", "int8"], "int8"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_written(run: Any, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert not Path("attnviz-out").exists()


def test_a_layer_that_is_not_reproduced_ends_with_3_and_writes_nothing(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(reference.ACTIVATIONS, "gelu", reference.ACTIVATIONS["relu"])
    done = run()
    assert (done.exit_code, done.stdout) == (3, "")
    assert "does not reproduce the model, first at activated of layer 0" in done.stderr
    assert not Path("attnviz-out").exists()
