"""``attnviz rollout`` as its users meet it: options, files, messages, exit codes; and the same from Python."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner, Result

import attnviz
from attnviz.cli.program import app
from tests.models import bert_tokenizer, sharp_bert

TEXT = "the cat that i saw ran away"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bert_folder: Path) -> Any:
    """Runs ``attnviz rollout`` in an empty folder, without figures unless asked for."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str, text: str = TEXT, figures: bool = False) -> Result:
        options = ["-m", str(bert_folder), "-o", "out", *([] if figures else ["--no-figures"])]
        return CliRunner().invoke(app, ["rollout", text, *options, *arguments])

    return invoke


def document() -> Any:
    return json.loads(Path("out/rollout.json").read_text(encoding="utf-8"))


def refused(result: Result, code: int, message: str) -> None:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("out").exists()


def test_a_rollout_is_written_and_printed(run: Any):
    result = run()
    assert result.exit_code == 0, result.output
    content = document()
    assert (content["text"], content["pair"], content["words"]) == (TEXT, None, None)
    assert content["options"] == {
        "words": False, "layer": 2, "residual": 0.5, "from": [0], "flow": None, "tokens_cut_off": 0,
    }  # fmt: skip
    assert all(0 < layer["parts_error"] < 1e-5 for layer in content["verification"]["layers"])
    assert content["from"] == {"text": "[CLS]", "positions": [0]}
    found = attnviz.rollout(TEXT, sharp_bert(), tokenizer=bert_tokenizer())
    for position, entry in enumerate(content["inputs"]):
        assert (entry["position"], entry["text"]) == (position, found.units.labels[position])
        for name in ("attention", "rollout", "norm_rollout", "uniform", "uniform_rollout"):
            assert entry[name] == pytest.approx(float(getattr(found.inputs, name)[position]), abs=1e-6)
        assert (entry["flow"], entry["max_flow"]) == (None, None)
    assert [layer["layer"] for layer in content["layers"]] == [0, 1, 2]
    assert content["layers"][2]["rows_apart"]["uniform_rollout"] == pytest.approx(0.125)
    assert content["files"] == ["rollout.csv", "rollout.json"]
    assert "Inputs of “[CLS]” (#0) at the output of layer 2, the last, ranked" in result.stdout


def test_ranks_are_each_methods_own(run: Any):
    result = run("--flow", "--top", "3")
    assert max(map(len, result.stdout.splitlines())) <= 80
    lines = result.stdout.splitlines()
    (first,) = [line for line in lines if line.startswith("   1  ")]
    for name in ("attention", "rollout", "norm_rollout", "flow"):
        entry = max(document()["inputs"], key=lambda entry: entry[name])
        assert f"{entry[name]:.3f} #{entry['position']} {entry['text'][:4]}" in first
    assert not any(line.startswith("   4  ") for line in lines)
    assert "6 more tokens left out: --top 0 lists all; rollout.csv has them." in result.stdout
    assert any(line.startswith("   9  ") for line in run("--top", "0").stdout.splitlines())


def test_options_reach_the_rollout(run: Any):
    options = ["--token", "cat", "--layer", "1", "--residual", "0.25", "--dtype", "float64", "--pair", "he ran"]
    assert run(*options, "--words", text="the cat unbelievableness").exit_code == 0
    content = document()
    assert content["pair"] == "he ran"
    assert content["words"] == ["[CLS]", "the", "cat", "unbelievableness", "[SEP]", "he", "ran", "[SEP]"]
    assert len(content["tokens"]) == 11
    assert content["from"] == {"text": "cat", "positions": [2]}
    assert (content["options"]["layer"], content["options"]["residual"]) == (1, 0.25)
    assert content["model"]["dtype"] == "float64"
    assert len(content["layers"]) == 2
    assert [layer["parts_error"] is None for layer in content["verification"]["layers"]] == [False, False, True]


def test_matrices_of_every_layer_can_be_saved(run: Any):
    assert run("--save-rollout", "--all-flows").exit_code == 0
    found = attnviz.rollout(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), all_flows=True)
    with safe_open("out/rollout.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"rollout", "norm_rollout", "flow"}
        assert file.metadata()["unit"] == "token"
        assert json.loads(file.metadata()["labels"]) == list(found.units.labels)
        for name, matrices in (("rollout", found.weights), ("norm_rollout", found.norms), ("flow", found.flows)):
            torch.testing.assert_close(file.get_tensor(name), matrices)
    assert document()["options"]["flow"] == "all"
    assert run("--save-rollout", "--no-flow").exit_code == 0
    with safe_open("out/rollout.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"rollout", "norm_rollout"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layer", "3"], "the model has no layer 3: expected 0 to 2."),
        (["--residual", "2"], "expected --residual (residual=...) as a number from 0 to 1, found 2.0."),
        (["--token", "#9"], "or a position from #0 to #8."),
        (["--target", "x"], "rollout follows attention through the encoder alone"),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_written(run: Any, options: list[str], message: str):
    refused(run(*options), 2, message)


def test_without_scipy_the_flow_names_what_to_type(run: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("attnviz.commands.rollout.rollout_and_flow.importlib.util.find_spec", lambda _: None)
    refused(run("--flow"), 1, "is not installed; type: pip install 'attnviz[flow]'")
    assert run("--no-flow").exit_code == 0


def test_parts_that_do_not_add_up_exit_with_3(run: Any, monkeypatch: pytest.MonkeyPatch):
    right = attnviz.attention.reference.transformed_values
    monkeypatch.setattr("attnviz.commands.rollout.measure.transformed_values", lambda *of: 1.1 * right(*of))
    refused(run(figures=True), 3, "does not sum to the model's own attention output: they differ most at query")
