"""``attnviz rollout`` as its users meet it: options, files, messages, exit codes; and the same from Python."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from typer.testing import CliRunner, Result

import attnviz
from attnviz.cli.program import app
from attnviz.errors import OutputError, UsageError
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


def test_the_table_is_the_inputs_of_the_document(run: Any):
    assert run("--flow").exit_code == 0
    with Path("out/rollout.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    inputs = document()["inputs"]
    assert [row["text"] for row in rows] == [entry["text"] for entry in inputs]
    for row, entry in zip(rows, inputs, strict=True):
        assert float(row["flow"]) == entry["flow"]
        assert float(row["uniform_rollout"]) == entry["uniform_rollout"]
    assert sum(entry["flow"] for entry in inputs) == pytest.approx(1)
    assert document()["options"]["flow"] == "token"


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
    assert "3 of 9 tokens: --top 0 lists all; rollout.csv has them." in result.stdout
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


def test_a_rerun_adds_formats_and_another_text_replaces_all(run: Any):
    assert run(figures=True).exit_code == 0
    assert run("--format", "svg", figures=True).exit_code == 0
    assert "rollout.png" in document()["files"]
    assert "**rollout.png" in Path("out/captions.md").read_text(encoding="utf-8")
    Path("out/mine.txt").write_text("kept", encoding="utf-8")
    result = run("--from", "cat", "--format", "svg", figures=True)
    assert "removed 3 files of an earlier run there" in result.stderr
    assert not Path("out/rollout.png").exists()
    assert Path("out/mine.txt").exists()


def test_json_is_the_document_and_nothing_else(run: Any):
    result = run("--json", "--quiet")
    assert json.loads(result.stdout) == document()
    assert result.stderr == ""
    assert run("--quiet").output == ""


def test_a_text_may_come_from_standard_input(run: Any):
    assert run(text="-", stdin=f"{TEXT}\n").exit_code == 0
    assert document()["text"] == TEXT


def test_the_default_folder_has_the_name_of_command_and_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bert_folder: Path
):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["rollout", TEXT, "-m", str(bert_folder), "-q", "--no-figures"]).exit_code == 0
    assert Path("attnviz-out/rollout-tiny-bert/rollout.json").is_file()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--layer", "3"], 2, "the model has no layer 3: expected 0 to 2."),
        (["--residual", "2"], 2, "expected a share of the identity (--residual) from 0 to 1, found 2."),
        (["--from", "dog"], 2, "no token “dog” in the text: expected one of [CLS], the, cat"),
        (["--from", "#9"], 2, "or a position from #0 to #8."),
        (["--format", "gif"], 2, "unknown format 'gif': expected any of png, svg, pdf."),
        (["--theme", "blue"], 2, "unknown theme 'blue': expected one of light, dark."),
        (["--width", "1in"], 2, "expected a width of 2 to 40 inches, found 1."),
        (["--dtype", "int8"], 2, "unknown dtype 'int8'"),
        (["-o", " "], 2, "-o is empty; expected a folder (. for this one)."),
        (["--model", "nowhere/nothing"], 1, "cannot load the model 'nowhere/nothing'"),
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

    monkeypatch.setattr("attnviz.commands.rollout.saving.tiles_figure", lambda *_, **__: interrupted())
    refused(run(figures=True), 130, "attnviz: interrupted; nothing was written.")


def test_a_foreign_file_is_not_replaced(run: Any):
    Path("out").mkdir()
    Path("out/rollout.png").write_text("mine", encoding="utf-8")
    result = run(figures=True)
    assert result.exit_code == 1
    assert "holds rollout.png, which attnviz did not write" in result.stderr
    assert Path("out/rollout.png").read_text(encoding="utf-8") == "mine"


def test_from_python_it_is_the_same(tmp_path: Path):
    found = attnviz.rollout(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), from_token="cat")
    assert repr(found) == "<Rollout of BertModel through layers 0 to 2, 9 tokens, from “cat” (#2)>"
    content = found.save(tmp_path / "new", formats=["png", "pdf"], save_rollout=True)
    assert len(content["files"]) == 10
    assert content == document(str(tmp_path / "new"))
    assert found.document(content["figures"]) == {key: value for key, value in content.items() if key != "files"}
    assert found.save(tmp_path / "bare", figures=False)["figures"] == []
    with pytest.raises(UsageError, match="unknown format 'gif'"):
        found.save(tmp_path / "other", formats=["gif"])
    with pytest.raises(UsageError, match=r"expected a list of formats .* found 'png'; write \['png'\]"):
        found.save(tmp_path / "other", formats="png")
    for nowhere in (None, 3):
        with pytest.raises(UsageError, match=f"expected a folder as a text or a Path .* found {nowhere}"):
            found.save(nowhere)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="expected top as a whole number from 0 on, found '3'"):
        found.report(top="3")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="expected a width of 20 columns or more, found 1"):
        found.report(1)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="it is a file"):
        found.save(tmp_path / "file")
    assert "Inputs of “cat” (#2)" in found.report(100)


def test_help_needs_nothing_heavy():
    code = (
        "import sys; from typer.testing import CliRunner; from attnviz.cli.program import app; "
        "done = CliRunner().invoke(app, ['rollout', '--help']); assert '--residual' in done.stdout; "
        "print(sorted({'torch', 'transformers', 'matplotlib', 'scipy', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
