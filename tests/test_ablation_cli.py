"""``attnviz ablate`` as it is typed."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForMaskedLM
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.commands.ablate import passes as ablation_passes
from attnviz.errors import CorpusError, UsageError, VerificationError
from tests.conftest import needs_minilm
from tests.corpora import sentences
from tests.models import bert_tokenizer, save_checkpoint, sharp_bert

RUNNER = CliRunner()
TEXT = "one two three four one two three four"


def run(*arguments: str, **options: Any) -> Any:
    return RUNNER.invoke(app, ["ablate", *arguments], **options)


def test_tiny_gpt2_on_a_text(tmp_path: Path) -> None:
    result = run(TEXT, "--model", "tiny-gpt2", "-o", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert "Verified 16 heads in 4 layers of tiny-gpt2 on 1 input" in " ".join(result.stdout.split())
    assert "too few for intervals" in result.stdout
    assert "Wrote 7 files to" in result.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "ablate-curve.png", "ablate-gradient.png", "ablate-heads.png", "ablate-map.png", "ablate.csv", "ablate.json",
        "captions.md",
    ]  # fmt: skip
    content = json.loads((tmp_path / "out" / "ablate.json").read_text())
    assert content["texts"] == [TEXT]
    assert content["measured"]["kind"] == "next-token"
    assert content["heads"][0]["id"].startswith("L0")  # without its first layer it cannot tell where it is


@needs_minilm
def test_minilm_on_a_text(tmp_path: Path) -> None:
    result = run("The cat ran", "--select", "L5", "--no-curve", "--json", "-q", "-o", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    content = json.loads(result.stdout)
    assert content["measured"]["kind"] == "states"
    assert len(content["heads"]) == 12
    assert content["curve"] is None
    assert content["heads"][0]["cosine"]["value"] > 0.001


def test_a_corpus_and_a_masked_language_model(tmp_path: Path) -> None:
    folder = save_checkpoint(sharp_bert(model_class=BertForMaskedLM), bert_tokenizer(), tmp_path / "bert")
    corpus = sentences(tmp_path / "s.txt", 8)
    out = tmp_path / "out"
    line = "--method uniform --limit 5 --select L0H1,L2H3 --together --no-gradient --batch-size 7"
    options = ["--model", str(folder), *line.split(), *"--format svg --theme dark --width 84mm".split()]
    result = run(str(corpus), *options, "-o", str(out))
    assert result.exit_code == 0, result.output
    content = json.loads((out / "ablate.json").read_text())
    assert content["corpora"][0]["sentences"] == 5
    assert content["measured"]["kind"] == "masked-token"
    assert content["together"]["heads"] == ["L0H1", "L2H3"]
    assert content["figures"] == ["ablate-heads.svg", "ablate-map.svg"]
    assert content["options"] == {
        "method": "uniform", "select": ["L0H1,L2H3"], "together": True, "limit": 5, "seed": 0,
    }  # fmt: skip
    again = run(str(corpus), *options, "--no-figures", "-o", str(out))
    assert again.exit_code == 0
    assert (out / "ablate-map.svg").exists()  # of the same ablation, so it stays
    other = run(str(corpus), "--model", str(folder), "--select", "L1H1", "--no-figures", "-o", str(out))
    assert other.exit_code == 0
    assert not (out / "ablate-map.svg").exists()
    assert "removed 3 files of an earlier run there" in other.stderr


def test_standard_input(gpt2_folder: Path, tmp_path: Path) -> None:
    arguments = ["-", "the cat ran", "--model", str(gpt2_folder), "--select", "L0", "--no-figures", "--top", "2"]
    result = run(*arguments, "-o", str(tmp_path / "o"), input="he saw it\n")
    assert result.exit_code == 0, result.output
    assert "2 more heads are left out" in result.stdout
    assert json.loads((tmp_path / "o" / "ablate.json").read_text())["texts"] == ["he saw it", "the cat ran"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-", "-"], 2, "standard input (-) can be read only once"),
        (["the cat", "-o", " "], 2, "-o is empty"),
        (["  "], 1, "empty or blank"),
        (["nowhere.conllu"], 1, "expected a corpus at nowhere.conllu, found nothing"),
        (["the cat", "--method", "magic"], 2, "unknown method 'magic': expected one of zero, mean, uniform"),
        (["the cat", "--select", "L7"], 2, "names layer 7, but the model has layers 0 to 2"),
        (["the cat", "--select", "L0H0", "--together"], 2, "two heads or more"),
        (["the cat", "--format", "gif"], 2, "unknown format 'gif'"),
        (["the cat", "--theme", "pink"], 2, "unknown theme 'pink'"),
        (["the cat " * 40], 1, "but the model has 40 positions"),
        ([], 2, "Missing argument"),
    ],
)
def test_errors(gpt2_folder: Path, tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    given = arguments if "-o" in arguments else [*arguments, "-o", str(tmp_path / "out")]
    result = run(*given, "--model", str(gpt2_folder), input="x")
    assert result.exit_code == code
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""
    assert not (tmp_path / "out").exists()


def test_what_does_not_verify_is_exit_code_3(
    gpt2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise VerificationError("layer 1 differs")

    monkeypatch.setattr(ablation_passes.Passes, "_compare_resumed", fail)
    result = run("the cat ran", "--model", str(gpt2_folder), "-o", str(tmp_path / "out"))
    assert result.exit_code == 3
    assert "layer 1 differs" in result.stderr
    assert not (tmp_path / "out").exists()


def test_interrupted(gpt2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ablation_passes, "resume", stop)
    result = run("the cat ran", "--model", str(gpt2_folder), "-o", str(tmp_path / "out"))
    assert result.exit_code == 130
    assert "interrupted; nothing was written" in result.stderr
    assert not (tmp_path / "out").exists()


def test_sentences_left_out_are_named(gpt2_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("the cat ran\n" + "the cat " * 40 + "\n")
    arguments = [str(tmp_path / "s.txt"), "--model", str(gpt2_folder), "--select", "L0H0", "-o", str(tmp_path / "out")]
    assert "left out" in run(*arguments).stderr
    assert run(*arguments, "-q").stderr == ""


def test_the_default_folder(gpt2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("the cat ran", "--model", str(gpt2_folder), "--select", "L0H0", "--no-figures").exit_code == 0
    assert (tmp_path / "attnviz-out" / "ablate-tiny-gpt2" / "ablate.json").exists()


def test_help_is_light() -> None:
    code = "import sys; from attnviz.cli.program import app; app(['ablate', '--help'], standalone_mode=False); " \
           "print([name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules])"  # fmt: skip
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
    assert "--together" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": None}, "expected a text, a corpus's path, or a list of these, found None"),
        ({"texts": b"one"}, "expected a text"),
        ({"texts": ["one", 3]}, "expected a text"),
        ({"select": 3}, "expected a list of selections"),
        ({"limit": "3"}, "expected limit of at least 1, found '3'"),
        ({"batch_size": 2.5}, "expected batch-size of at least 1, found 2.5"),
        ({"seed": -1}, "expected seed of at least 0, found -1"),
        ({"seed": True}, "expected seed of at least 0, found True"),
    ],
)
def test_odd_arguments_from_python_get_one_message(options, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        attnviz.ablate(**{"texts": "one two three", "model": "tiny-gpt2", **options})


@pytest.mark.parametrize("select", ["L1H1", attnviz.HeadId(1, 1), ["L1H1"]])
def test_a_single_selection_needs_no_list_from_python(select):
    found = attnviz.ablate("one two three four", "tiny-gpt2", select=select, curve=False, gradient=False)
    assert [str(head.id) for head in found.heads] == ["L1H1"]


def test_a_folder_is_no_text(tmp_path):
    for folder in (tmp_path, f"{tmp_path}/", "."):
        with pytest.raises(CorpusError, match="is a folder; expected a corpus in it"):
            attnviz.ablate(folder, "tiny-gpt2")


def test_gradients_are_measured_within_inference_mode_too():
    with torch.inference_mode():
        found = attnviz.ablate("one two three four", "tiny-gpt2", select="L1", curve=False)
    assert all(head.gradient > 0 for head in found.heads)
