"""``attnviz outputs`` from the command line: files, documents, tables, messages and exit codes."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from transformers import BertForMaskedLM
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.commands.outputs import document as outputs_document
from attnviz.errors import UsageError
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

    def invoke(kind: str, *arguments: str, text: str = SENTENCE, figures: bool = False) -> Any:
        options = [] if figures or "--no-figures" in arguments else ["--no-figures"]
        return CliRunner().invoke(app, ["outputs", text, "-m", str(folders[kind]), "-d", "cpu", *arguments, *options])

    return invoke


def document(folder: str = "out") -> Any:
    return json.loads((Path(folder) / "outputs.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("kind", "more"), [("bert", set()), ("gpt2", {"outputs-effects.png"})])
def test_everything_is_written_and_listed(run: Any, kind: str, more: set[str]):
    result = run(kind, figures=True)
    assert result.exit_code == 0, result.output
    folder = Path("attnviz-out") / f"outputs-tiny-{kind}"
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    heads = {f"outputs/L{layer:02d}H{head:02d}.png" for layer in range(3) for head in range(4)}
    pictures = {"outputs.png", "outputs-shares.png", *more, *heads}
    assert found == {"outputs.json", "outputs.csv", "captions.md", *pictures}
    content = document(str(folder))
    assert set(content["figures"]) == pictures
    assert set(content["files"]) == found
    captions = (folder / "captions.md").read_text(encoding="utf-8")
    assert all(f"**{name}**" in captions for name in pictures)
    assert f"Wrote {len(found)} files to {folder}" in result.stderr
    for name in pictures:
        assert np.asarray(Image.open(folder / name)).std() > 1


def test_the_document_holds_what_python_gives(run: Any, folders: dict[str, Path]):
    assert run("gpt2", "-o", "out", "--at", "#2").exit_code == 0
    content = document()
    found = attnviz.head_outputs(SENTENCE, folders["gpt2"], device="cpu", at=2)
    assert {key: content[key] for key in content if key != "files"} == json.loads(json.dumps(found.document()))
    assert content["model"]["architecture"] == "gpt2"
    assert content["options"] == {"at": 2, "tokens_cut_off": 0}
    assert [token["text"] for token in content["tokens"]] == list(found.tokens.labels)
    assert content["verification"]["passed"] is True
    assert content["verification"]["heads_compared"] == 12
    assert all(0 < layer["sum_error"] < 1e-5 for layer in content["verification"]["layers"])
    assert 0 < content["verification"]["logits"]["error"] < 1e-5
    first = content["heads"][0]
    assert first["rank"] == 1
    assert first["id"] == str(found.heads[0].id)
    for name in ("norm", "norm_share", "projection_share", "sink", "sink_by_norm", "value_norm", "largest"):
        assert first[name] == getattr(found.heads[0], name)
    promotion = found.promoted(first["id"])
    assert [token["id"] for token in first["promotion"]["promoted"]] == [token.id for token in promotion.promoted]
    assert first["promotion"]["actual"] == promotion.actual
    assert content["attribution"]["position"] == 2
    assert len(content["attribution"]["parts"]) == 9
    assert content["no_attribution"] is None


def test_bert_has_null_where_gpt2_has_tokens(run: Any):
    assert run("bert", "-o", "out").exit_code == 0
    content = document()
    assert content["attribution"] is None
    assert content["verification"]["logits"] is None
    assert {head["promotion"] for head in content["heads"]} == {None}
    assert content["no_attribution"].endswith("can be told apart.")
    assert content["options"]["at"] is None
    with Path("out/outputs.csv").open(encoding="utf-8", newline="") as table:
        assert {row["predicted"] for row in csv.DictReader(table)} == {""}


def test_the_table_has_a_row_a_head(run: Any):
    assert run("gpt2", "-o", "out").exit_code == 0
    with Path("out/outputs.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    content = document()
    assert [row["id"] for row in rows] == [head["id"] for head in content["heads"]]
    assert len(rows) == 12
    for row, head in zip(rows, content["heads"], strict=True):
        assert float(row["projection_share"]) == head["projection_share"]
        assert float(row["predicted"]) == head["promotion"]["predicted"]
        assert row["actual"] == ""


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        (["--top", "2"], 2),
        (["--top", "0"], 12),
        (["--select", "L1"], 4),
        (["--select", "L1", "--top", "3"], 3),
        (["--select", "L*H0,2.3"], 4),
    ],
)
def test_top_and_select_choose_pictures_and_rows(run: Any, options: list[str], drawn: int):
    result = run("gpt2", "-o", "out", *options, figures=True)
    assert result.exit_code == 0, result.output
    pictures = list(Path("out/outputs").iterdir())
    content = document()
    assert len(pictures) == drawn
    ranked = [head["id"] for head in content["heads"]][:drawn]
    assert {re.sub("L0?(.)H0?(.)", r"L\1H\2", path.stem) for path in pictures} == set(ranked)
    for title in ("Heads (", "Tokens promoted ("):
        rows = result.stdout.split(title)[1].split("\n\n")[0].splitlines()
        assert sum(bool(re.match(r"L\dH\d", row)) for row in rows) == drawn


def test_tables_fit_eighty_columns_and_say_what_was_verified(run: Any):
    result = run("gpt2", "-o", "out", "--at", "#2")
    assert max(map(len, result.stdout.splitlines())) <= 80
    said = " ".join(result.stdout.split())
    assert "Verified 12 heads in 3 layers" in said
    assert "heads' outputs and b_O sum to the model's attention output within" in said
    assert "All parts sum to the model's logits at #2 within" in said
    assert "next in the text: ‘" in said
    assert "Over all queries but the first token." in said
    assert "with the standard deviation of the last residual stream held fixed" in said
    bert = " ".join(run("bert", "-o", "bert").stdout.split())
    assert "Tokens promoted" not in bert
    assert "Over all queries but special tokens." in bert
    assert "no head's part of the logits can be told apart." in bert


def test_json_is_the_document_and_nothing_else(run: Any):
    result = run("bert", "-o", "out", "--json")
    assert json.loads(result.stdout) == document()
    assert run("bert", "-o", "out", "--quiet").output == ""


def test_outputs_are_saved_as_tensors_that_sum_to_the_models_output(run: Any, folders: dict[str, Path]):
    assert run("gpt2", "-o", "out", "--save-outputs").exit_code == 0
    found = attnviz.head_outputs(SENTENCE, folders["gpt2"], device="cpu")
    with safe_open("out/outputs.safetensors", framework="pt") as tensors:
        assert set(tensors.keys()) == {f"{name}.{layer}" for name in ("layer", "bias") for layer in range(3)}
        assert json.loads(tensors.metadata()["labels"]) == list(found.tokens.labels)
        for layer in range(3):
            outputs = tensors.get_tensor(f"layer.{layer}")
            assert outputs.shape == (4, len(found.tokens), 32)
            assert torch.equal(outputs[2], found.output(f"L{layer}H2"))
            total = outputs.sum(0) + tensors.get_tensor(f"bias.{layer}")
            assert torch.allclose(total, found.attention.model_output(layer)[0], atol=1e-5)
    assert "outputs.safetensors" in document()["files"]


def test_only_selected_heads_are_saved(run: Any):
    assert run("bert", "-o", "out", "--save-outputs", "--select", "L1H3,L1H0,L2H2", "--dtype", "float64").exit_code == 0
    with safe_open("out/outputs.safetensors", framework="pt") as tensors:
        assert set(tensors.keys()) == {"layer.1", "layer.2", "bias.1", "bias.2"}
        assert tensors.get_tensor("layer.1").shape == (2, 9, 32)
        assert tensors.get_tensor("layer.1").dtype == torch.float64
        assert json.loads(tensors.metadata()["heads"]) == {"layer.1": [0, 3], "layer.2": [2]}


def test_too_many_outputs_are_refused_before_anything_is_drawn(run: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outputs_document, "MOST_BYTES", 12 * 9 * 32 * 4 - 1)
    result = run("bert", "-o", "out", "--save-outputs", figures=True)
    assert result.exit_code == 2
    assert "the outputs of 12 heads are 0.0 GiB, more than" in result.stderr
    assert "choose heads with --select" in result.stderr
    assert not Path("out").exists()
    assert run("bert", "-o", "out", "--save-outputs", "--select", "L0-1").exit_code == 0


def test_formats_themes_and_scales(run: Any):
    options = ["--format", "svg,pdf", "--theme", "dark", "--scale", "shared", "--width", "3.3in", "--top", "1"]
    assert run("gpt2", "-o", "out", *options, figures=True).exit_code == 0
    content = document()
    assert len(content["figures"]) == 8
    svg = next(Path("out/outputs").glob("*.svg")).read_text(encoding="utf-8")
    assert "by norm: ‖A[q, k] f(x)‖" in svg
    assert "3.3" in svg or "237.6pt" in svg
    assert "the same for every head" in Path("out/captions.md").read_text(encoding="utf-8")


def test_a_rerun_adds_to_its_files_and_another_text_replaces_them(run: Any):
    run("bert", "-o", "out", "--select", "L0H0", figures=True)
    run("bert", "-o", "out", "--select", "L0H1", figures=True)
    assert {path.name for path in Path("out/outputs").iterdir()} == {"L00H00.png", "L00H01.png"}
    assert Path("out/captions.md").read_text(encoding="utf-8").count("**outputs/L00H0") == 2
    result = run("bert", "-o", "out", "--select", "L1H1", text="the dog ran", figures=True)
    assert {path.name for path in Path("out/outputs").iterdir()} == {"L01H01.png"}
    assert "removed 2 files of an earlier run" in result.stderr
    Path("out/outputs/L00H00.png").write_text("mine", encoding="utf-8")
    refused = run("bert", "-o", "out", figures=True)
    assert refused.exit_code == 1
    assert "which attnviz did not write" in refused.stderr
    assert Path("out/outputs/L00H00.png").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("kind", "arguments", "code", "message"),
    [
        ("bert", ["-o", ""], 2, "-o is empty"),
        ("bert", ["--theme", "red"], 2, "unknown theme 'red': expected one of light, dark"),
        ("bert", ["--scale", "log"], 2, "norms are not drawn on a logarithmic scale: expected shared or per-head"),
        ("bert", ["--scale", "best"], 2, "unknown scale 'best'"),
        ("bert", ["--width", "wide"], 2, "expected a width such as 3.3in"),
        ("bert", ["--select", "L9"], 2, "the model has layers 0 to 2"),
        ("bert", ["--dtype", "int8"], 2, "int8"),
        ("bert", ["--revision", "main"], 2, "revision"),
        ("bert", ["--at", "cat"], 2, "a position (--at, at=...) is for promoted tokens. Promoted tokens are not given"),
        ("gpt2", ["--at", "dog"], 2, "no token “dog” in the text: expected one of"),
        ("gpt2", ["--at", "#77"], 2, "or a position from #0 to #"),
        ("gpt2", ["--pair", "the dog"], 1, "no sentence segments"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(run: Any, kind: str, arguments: list[str], code: int, message: str):
    result = run(kind, *arguments)
    (line,) = result.stderr.splitlines()
    assert message in line
    assert result.exit_code == code
    assert not Path("attnviz-out").exists()


def test_texts_that_are_too_long_or_blank(run: Any):
    result = run("bert", text="the cat " * 40)
    assert result.exit_code == 1
    assert "the text has 82 tokens, but the model has 40 positions" in result.stderr
    cut = run("bert", "-o", "out", "--truncate", text="the cat " * 40)
    assert cut.exit_code == 0
    assert "its last 42 tokens were left out" in " ".join(cut.stdout.split())
    assert document()["options"]["tokens_cut_off"] == 42
    assert run("bert", text=" ").exit_code == 1


def test_an_unknown_format_leaves_nothing_behind(run: Any):
    result = run("bert", "-o", "out", "--format", "gif", figures=True)
    assert result.exit_code == 2
    assert "unknown format 'gif': expected any of png, svg, pdf" in result.stderr
    assert not Path("out").exists()


def test_a_narrow_width_for_many_heads_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    from tests.models import sharp_bert

    model = sharp_bert(model_class=BertForMaskedLM, num_attention_heads=32)
    folder = save_checkpoint(model, bert_tokenizer(), tmp_path / "wide")
    result = CliRunner().invoke(app, ["outputs", SENTENCE, "-m", str(folder), "--width", "2in", "-o", "out"])
    assert result.exit_code == 2
    assert "no room for 32 heads side by side" in result.stderr
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("attnviz.attention.reference.head_outputs", "do not sum to the model's own attention output"),
        ("attnviz.commands.outputs.promoted_tokens._embeddings", "do not sum to the model's own logits at position"),
    ],
)
def test_sums_that_do_not_verify_are_exit_code_3(run: Any, place: str, message: str, monkeypatch: pytest.MonkeyPatch):
    wrong: Any = {
        "attnviz.attention.reference.head_outputs": lambda A, v, p: v @ p.output_weight,
        "attnviz.commands.outputs.promoted_tokens._embeddings": lambda *_: [],
    }[place]
    monkeypatch.setattr(place, wrong)
    result = run("gpt2", "-o", "out", figures=True)
    assert result.exit_code == 3
    (line,) = result.stderr.splitlines()
    assert message in line
    assert "(tolerance 0.0001 of" in line or "tolerance 0.0001 of the largest" in line
    assert not Path("out").exists()


def test_an_interrupt_leaves_nothing(run: Any, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnviz.commands.outputs.saving.maps_figure", interrupted)
    result = run("bert", "-o", "out", figures=True)
    assert result.exit_code == 130
    assert "interrupted; nothing was written" in result.stderr
    assert not Path("out").exists()


def test_python_saves_the_same_files(folders: dict[str, Path], tmp_path: Path, run: Any):
    run("gpt2", "-o", "out", "--top", "1", figures=True)
    found = attnviz.head_outputs(SENTENCE, folders["gpt2"], device="cpu")
    told: list[tuple[str, int, int]] = []
    found.save(tmp_path / "python", top=1, progress=lambda *what: told.append(what))
    for name in document()["files"]:
        assert Path("out", name).read_bytes() == (tmp_path / "python" / name).read_bytes()
    assert told == [("drawing", done, 4) for done in (1, 2, 3, 4)]
    assert found.save(tmp_path / "bare", figures=False)["figures"] == []
    with pytest.raises(UsageError, match="unknown format"):
        found.save(tmp_path / "bare", formats=["gif"])
    with pytest.raises(UsageError, match=r"expected a list of formats .* found 'png'; write \['png'\]"):
        found.save(tmp_path / "bare", formats="png")
    for nowhere in (None, 3):
        with pytest.raises(UsageError, match=f"expected a folder as a text or a Path .* found {nowhere}"):
            found.save(nowhere)  # type: ignore[arg-type]
    for top in ("3", -1, True):
        with pytest.raises(UsageError, match=f"expected top as a whole number from 0 on, found {top!r}"):
            found.save(tmp_path / "bare", top=top)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="expected top as a whole number from 0 on"):
            found.report(top=top)  # type: ignore[arg-type]


def test_help_imports_nothing_heavy_and_states_the_norm():
    code = (
        "import sys\nfrom attnviz.cli.program import app\n"
        "try:\n    app(['outputs', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules])"
    )
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "[]"
    said = " ".join(done.stdout.split())
    assert "--save-outputs" in said
    assert "standard deviation that the last residual stream has at that position (held fixed), times gamma" in said


@needs_minilm
def test_special_tokens_of_minilm_shrink_in_norm():
    """What Kobayashi et al. 2020 found of BERT holds of this one: attention on [SEP] and [CLS] carries little."""
    found = attnviz.head_outputs(SENTENCE, "minilm", device="cpu")
    sinks = np.mean([(head.sink, head.sink_by_norm) for head in found.heads], axis=0)
    assert sinks[0] > 0.5
    assert sinks[1] < 0.25
    smaller = [head.sink_by_norm < head.sink for head in found.heads]
    assert np.mean(smaller) > 0.95


def test_induction_heads_of_tiny_gpt2_promote_the_next_word():
    """After “one two three four five one two three four” the heads of layer 1 copy what followed “four”."""
    found = attnviz.head_outputs("one two three four five one two three four", "tiny-gpt2", device="cpu")
    assert found.attribution.predicted.text == "five"
    effects = {head.id: head.predicted for head in found.attribution.heads}
    strongest = sorted(effects, key=effects.__getitem__, reverse=True)[:4]
    assert {head.layer for head in strongest} == {1}
    assert sum(effects[head] for head in strongest) > 0.5 * found.attribution.predicted.logit
