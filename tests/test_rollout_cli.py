"""``attnviz rollout`` as its users meet it: options, files, messages, exit codes; and the same from Python."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
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

    def invoke(
        *arguments: str, text: str = TEXT, model: Path = bert_folder, figures: bool = False, stdin: str | None = None
    ) -> Result:
        options = ["-m", str(model), "-o", "out", *([] if figures else ["--no-figures"])]
        return CliRunner().invoke(app, ["rollout", text, *options, *arguments], input=stdin)

    return invoke


def document(folder: str = "out") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(folder) / "rollout.json").read_text(encoding="utf-8"))
    return content


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
    assert content["model"]["name"].endswith("tiny-bert")
    verification = content["verification"]
    assert (verification["passed"], verification["heads_compared"]) == (True, 12)
    assert all(0 < layer["parts_error"] < 1e-5 for layer in verification["layers"])
    found = attnviz.rollout(TEXT, sharp_bert(), tokenizer=bert_tokenizer())
    assert content["from"] == {"text": "[CLS]", "positions": [0]}
    for position, entry in enumerate(content["inputs"]):
        assert (entry["position"], entry["text"]) == (position, found.units.labels[position])
        assert entry["rollout"] == pytest.approx(float(found.weights[-1][0, position]), abs=1e-6)
        assert entry["norm_rollout"] == pytest.approx(float(found.norms[-1][0, position]), abs=1e-6)
        assert entry["attention"] == pytest.approx(float(found.means[-1][0, position]), abs=1e-6)
        assert (entry["flow"], entry["max_flow"]) == (None, None)
    assert [layer["layer"] for layer in content["layers"]] == [0, 1, 2]
    assert content["layers"][2]["rows_apart"]["uniform_rollout"] == pytest.approx(0.125)
    assert content["files"] == ["rollout.csv", "rollout.json"]
    assert "Verified 12 heads in 3 layers" in result.stdout
    assert "Inputs of “[CLS]” (#0) at the output of layer 2, the last, ranked" in result.stdout
    assert "Wrote 2 files to out" in result.stderr


def test_lines_fit_the_terminal_and_ranks_are_each_methods_own(run: Any):
    result = run("--flow", "--top", "3")
    assert max(map(len, result.stdout.splitlines())) <= 80
    lines = result.stdout.splitlines()
    (first,) = [line for line in lines if line.startswith("   1  ")]
    inputs = document()["inputs"]
    best = [max(inputs, key=lambda entry: entry[name]) for name in ("attention", "rollout", "norm_rollout", "flow")]
    for name, entry in zip(("attention", "rollout", "norm_rollout", "flow"), best, strict=True):
        assert f"{entry[name]:.3f} #{entry['position']} {entry['text'][:4]}" in first
    assert not any(line.startswith("   4  ") for line in lines)
    assert "6 more tokens left out: --top 0 lists all; rollout.csv has them." in result.stdout
    assert any(line.startswith("   9  ") for line in run("--top", "0").stdout.splitlines())


def test_options_reach_the_rollout(run: Any):
    options = ["--from", "cat", "--layer", "1", "--residual", "0.25", "--dtype", "float64", "--pair", "he ran"]
    assert run(*options).exit_code == 0
    content = document()
    assert content["pair"] == "he ran"
    assert content["from"] == {"text": "cat", "positions": [2]}
    assert (content["options"]["layer"], content["options"]["residual"]) == (1, 0.25)
    assert content["model"]["dtype"] == "float64"
    assert len(content["layers"]) == 2
    assert [layer["parts_error"] is None for layer in content["verification"]["layers"]] == [False, False, True]


def test_words_are_merged(run: Any):
    assert run("--words", "--flow", "--from", "unbelievableness", text="the unbelievableness ran").exit_code == 0
    content = document()
    assert content["words"] == ["[CLS]", "the", "unbelievableness", "ran", "[SEP]"]
    assert len(content["tokens"]) == 8
    assert [entry["max_flow"] for entry in content["inputs"]] == [None] * 5
    assert sum(entry["flow"] for entry in content["inputs"]) == pytest.approx(1)


def test_the_default_token_of_a_causal_model_is_the_last(run: Any, gpt2_folder: Path):
    assert run(model=gpt2_folder).exit_code == 0
    content = document()
    assert content["from"]["positions"] == [len(content["tokens"]) - 1]


def test_matrices_of_every_layer_can_be_saved(run: Any):
    assert run("--save-rollout", "--all-flows").exit_code == 0
    found = attnviz.rollout(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), all_flows=True)
    with safe_open("out/rollout.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"rollout", "norm_rollout", "flow"}
        assert file.metadata()["unit"] == "token"
        assert json.loads(file.metadata()["labels"]) == list(found.units.labels)
        torch.testing.assert_close(file.get_tensor("rollout"), found.weights)
        torch.testing.assert_close(file.get_tensor("norm_rollout"), found.norms)
        torch.testing.assert_close(file.get_tensor("flow"), found.flows)
    assert document()["options"]["flow"] == "all"
    assert run("--save-rollout", "--no-flow").exit_code == 0
    with safe_open("out/rollout.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"rollout", "norm_rollout"}


def test_figures_are_written_in_every_format_theme_and_width(run: Any):
    options = ["--format", "png,svg", "--theme", "dark", "--width", "84mm"]
    result = run(*options, figures=True)
    assert result.exit_code == 0, result.output
    names = ["rollout", "rollout-layers", "rollout-from"]
    assert document()["figures"] == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    for name in names:
        with Image.open(f"out/{name}.png") as picture:
            assert picture.width == round(84 / 25.4 * 300)
            assert picture.getpixel((0, 0)) == (0x14, 0x14, 0x14)
    assert Path("out/captions.md").read_text(encoding="utf-8").count("**rollout") == 3


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--layer", "3"], 2, "the model has no layer 3: expected 0 to 2."),
        (["--residual", "2"], 2, "expected a share of the identity (--residual) from 0 to 1, found 2."),
        (["--from", "dog"], 2, "no token “dog” in the text: expected one of [CLS], the, cat"),
        (["--from", "#9"], 2, "or a position from #0 to #8."),
        (["--figures", "map"], 2, "unknown figure 'map': expected any of rollout, layers, from"),
        (["--dtype", "int8"], 2, "unknown dtype 'int8'"),
        (["--pair", " "], 1, "the pair is blank; expected at least one word."),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_written(run: Any, options: list[str], code: int, message: str):
    refused(run(*options, figures=True), code, message)


def test_without_scipy_the_flow_names_what_to_type(run: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("attnviz.commands.rollout.max_flow.importlib.util.find_spec", lambda _: None)
    for option in ("--flow", "--all-flows"):
        refused(run(option), 1, "is not installed; type: pip install 'attnviz[flow]'")
    assert run("--no-flow").exit_code == 0


def test_parts_that_do_not_add_up_exit_with_3(run: Any, monkeypatch: pytest.MonkeyPatch):
    right = attnviz.attention.reference.transformed_values
    monkeypatch.setattr("attnviz.commands.rollout.summed_norms.transformed_values", lambda *of: 1.1 * right(*of))
    refused(run(figures=True), 3, "does not sum to the model's attention output: at query")


def test_an_interrupted_run_writes_nothing(run: Any, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnviz.results.view.figure_bytes", interrupted)
    refused(run(figures=True), 130, "attnviz: interrupted; nothing was written.")
