"""``attnviz outputs`` from the command line: files, documents, tables, messages and exit codes."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.commands.outputs import report
from tests.conftest import SENTENCE, needs_minilm
from tests.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint
from tests.test_outputs import model_of
from tests.test_outputs_promoted import sharper_gpt2


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("outputs")
    return {
        "bert": save_checkpoint(model_of("bert"), bert_tokenizer(), place / "tiny-bert"),
        "gpt2": save_checkpoint(sharper_gpt2(), gpt2_tokenizer(), place / "tiny-gpt2"),
    }


@pytest.fixture
def run(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def invoke(kind: str, *arguments: str, text: str = SENTENCE, figures: str = "none") -> Any:
        options = ["-m", str(folders[kind]), "-d", "cpu", *(["--figures", figures] if figures else [])]
        return CliRunner().invoke(app, ["outputs", text, *options, *arguments])

    return invoke


def document(folder: str = "out") -> Any:
    return json.loads((Path(folder) / "outputs.json").read_text(encoding="utf-8"))


def test_the_document_and_the_table_hold_what_python_gives(run: Any, folders: dict[str, Path]):
    assert run("gpt2", "-o", "out", "--token", "#2").exit_code == 0
    content = document()
    result = attnviz.head_outputs(SENTENCE, folders["gpt2"], device="cpu", token=2)
    assert {key: content[key] for key in content if key != "files"} == json.loads(json.dumps(result.document()))
    assert content["options"] == {"at": 2, "tokens_cut_off": 0}
    assert all(0 < layer["sum_error"] < 1e-5 for layer in content["verification"]["layers"])
    assert 0 < content["verification"]["logits"]["error"] < 1e-5
    first, promotion = content["heads"][0], result.promoted(result.heads[0].id)
    assert (first["rank"], first["id"]) == (1, str(promotion.id))
    assert first["projection_share"] == result.heads[0].projection_share
    assert [token["id"] for token in first["promotion"]["promoted"]] == [token.id for token in promotion.promoted]
    assert first["promotion"]["actual"] == promotion.actual
    assert (content["attribution"]["position"], len(content["attribution"]["parts"])) == (2, 9)
    with Path("out/outputs.csv").open(encoding="utf-8", newline="") as table:
        for row, head in zip(csv.DictReader(table), content["heads"], strict=True):
            assert row["id"] == head["id"]
            assert float(row["predicted"]) == head["promotion"]["predicted"]


def test_bert_has_null_where_gpt2_has_tokens(run: Any):
    result = run("bert", "-o", "out", "--json")
    content = document()
    assert json.loads(result.stdout) == content
    assert content["attribution"] is content["verification"]["logits"] is content["options"]["at"] is None
    assert {head["promotion"] for head in content["heads"]} == {None}
    assert content["no_attribution"].endswith("can be told apart.")
    with Path("out/outputs.csv").open(encoding="utf-8", newline="") as table:
        assert {row["predicted"] for row in csv.DictReader(table)} == {""}


@pytest.mark.parametrize(("options", "drawn"), [(["--select", "L*H0,2.3"], 4), (["--select", "L1", "--top", "2"], 2)])
@pytest.mark.draws
def test_top_and_select_choose_pictures_and_rows(run: Any, options: list[str], drawn: int):
    result = run("gpt2", "-o", "out", *options, figures="heads")
    ranked = [head["id"] for head in document()["heads"]][:drawn]
    assert {re.sub("L0?(.)H0?(.)", r"L\1H\2", path.stem) for path in Path("out/outputs").iterdir()} == set(ranked)
    for title in ("Heads (", "Tokens promoted ("):
        rows = result.stdout.split(title)[1].split("\n\n")[0].splitlines()
        assert sum(bool(re.match(r"L\dH\d", row)) for row in rows) == drawn


def test_tables_say_what_was_verified_and_add_up(run: Any):
    said = " ".join(run("gpt2", "-o", "out", "--token", "#2").stdout.split())
    assert "All parts sum to the model's logits at #2 within" in said
    assert ". Of the former, heads add" in said
    assert ". Of this, heads add" in " ".join(run("gpt2", "-o", "out").stdout.split())
    assert "Tokens promoted" not in run("bert", "-o", "bert").stdout


def test_outputs_are_saved_as_tensors_that_sum_to_the_models_output(run: Any, folders: dict[str, Path]):
    assert run("gpt2", "-o", "out", "--save-outputs").exit_code == 0
    result = attnviz.head_outputs(SENTENCE, folders["gpt2"], device="cpu")
    with safe_open("out/outputs.safetensors", framework="pt") as tensors:
        assert set(tensors.keys()) == {f"{name}.{layer}" for name in ("layer", "bias") for layer in range(3)}
        assert json.loads(tensors.metadata()["labels"]) == list(result.tokens.labels)
        for layer in range(3):
            outputs = tensors.get_tensor(f"layer.{layer}")
            assert torch.equal(outputs[2], result.output(f"L{layer}H2"))
            total = outputs.sum(0) + tensors.get_tensor(f"bias.{layer}")
            assert torch.allclose(total, result.attention.model_output(layer)[0], atol=1e-5)
    assert run("bert", "-o", "out", "--save-outputs", "--select", "L1H3,L1H0,L2H2", "--dtype", "float64").exit_code == 0
    with safe_open("out/outputs.safetensors", framework="pt") as tensors:
        assert set(tensors.keys()) == {"layer.1", "layer.2", "bias.1", "bias.2"}
        assert tensors.get_tensor("layer.1").shape == (2, 9, 32)
        assert tensors.get_tensor("layer.1").dtype == torch.float64
        assert json.loads(tensors.metadata()["heads"]) == {"layer.1": [0, 3], "layer.2": [2]}


def test_too_many_outputs_are_refused(run: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "MOST_BYTES", 12 * 9 * 32 * 4 - 1)
    result = run("bert", "-o", "out", "--save-outputs", figures="")
    assert result.exit_code == 2
    assert "the outputs of 12 heads are 0.0 GiB, more than" in result.stderr
    assert not Path("out").exists()
    assert run("bert", "-o", "out", "--save-outputs", "--select", "L0-1").exit_code == 0


@pytest.mark.parametrize(
    ("kind", "arguments", "code", "message"),
    [
        ("bert", ["--scale", "log"], 2, "norms are not drawn on a logarithmic scale: expected shared or per-head"),
        ("bert", ["--select", "L9"], 2, "the model has layers 0 to 2"),
        ("bert", ["--figures", "effects"], 2, "there is no figure 'effects': Promoted tokens are not given: in BERT"),
        (
            "bert",
            ["--token", "cat"],
            2,
            "a position (--token, token=...) is for promoted tokens. Promoted tokens are not given",
        ),
        ("gpt2", ["--token", "dog"], 2, "no token “dog” in the text: expected one of"),
        ("gpt2", ["--pair", "the dog"], 1, "no sentence segments"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(run: Any, kind: str, arguments: list[str], code: int, message: str):
    result = run(kind, *arguments)
    (line,) = result.stderr.splitlines()
    assert message in line
    assert result.exit_code == code
    assert not Path("attnviz-out").exists()


def test_a_text_that_was_cut_says_so(run: Any):
    cut = run("bert", "-o", "out", "--truncate", text="the cat " * 40)
    assert "its last 42 tokens were left out" in " ".join(cut.stdout.split())
    assert document()["options"]["tokens_cut_off"] == 42


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (
            "attnviz.attention.reference.head_outputs",
            lambda A, v, W: v @ W,
            "do not sum to the model's own attention output",
        ),
        (
            "attnviz.commands.outputs.promoted_tokens._embeddings",
            lambda *_: [],
            "do not sum to the model's own logits at position",
        ),
    ],
)
def test_sums_that_do_not_verify_are_exit_code_3(run: Any, place, wrong, message, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(place, wrong)
    result = run("gpt2", "-o", "out", figures="")
    assert result.exit_code == 3
    (line,) = result.stderr.splitlines()
    assert message in line
    assert "tolerance 0.0001 of" in line
    assert not Path("out").exists()


@needs_minilm
def test_special_tokens_of_minilm_shrink_in_norm():
    """What Kobayashi et al. 2020 found of BERT holds of this one: attention on [SEP] and [CLS] carries little."""
    result = attnviz.head_outputs(SENTENCE, "minilm", device="cpu")
    sinks = np.mean([(head.sink, head.sink_by_norm) for head in result.heads], axis=0)
    assert sinks[0] > 0.5
    assert sinks[1] < 0.25
    assert np.mean([head.sink_by_norm < head.sink for head in result.heads]) > 0.95


def test_induction_heads_of_tiny_gpt2_promote_the_next_word():
    """After “one two three four five one two three four” the heads of layer 1 copy what followed “four”."""
    result = attnviz.head_outputs("one two three four five one two three four", "tiny-gpt2", device="cpu")
    assert result.attribution.predicted.text == "five"
    effects = {head.id: head.predicted for head in result.attribution.heads}
    strongest = sorted(effects, key=effects.__getitem__, reverse=True)[:4]
    assert {head.layer for head in strongest} == {1}
    assert sum(effects[head] for head in strongest) > 0.5 * result.attribution.predicted.logit
