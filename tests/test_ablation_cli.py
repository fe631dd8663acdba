"""``attnviz ablate`` as it is typed."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import BertForMaskedLM
from typer.testing import CliRunner

from attnviz.cli.program import app
from attnviz.commands.ablate import hooks
from attnviz.errors import VerificationError
from tests.conftest import needs_minilm
from tests.corpora import sentences
from tests.models import bert_tokenizer, save_checkpoint, sharp_bert

RUNNER = CliRunner()
TEXT = "one two three four one two three four"


def run(*arguments: str, **options: Any) -> Any:
    return RUNNER.invoke(app, ["ablate", *arguments], **options)


@pytest.mark.usefixtures("undrawn")
def test_tiny_gpt2_on_a_text(tmp_path: Path) -> None:
    result = run(TEXT, "--model", "tiny-gpt2", "--top", "3", "-o", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "Verified 16 heads in 4 layers of tiny-gpt2" in " ".join(result.stdout.split())
    assert "13 more heads left out" in result.stdout
    assert "Wrote 8 files to" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ablate-curve.png", "ablate-gradient.png", "ablate-heads.png", "ablate-map.png", "ablate.csv", "ablate.json",
        "captions.md",
        "captions.tex",
    ]  # fmt: skip
    content = json.loads((tmp_path / "ablate.json").read_text())
    assert (content["texts"], content["measured"]["kind"]) == ([TEXT], "next-token")
    assert content["options"]["method"] == "mean"
    assert list(content["layers"][0]["methods"]) == ["mean", "uniform"]
    assert content["heads"][0]["id"].startswith("L0")  # without its first layer it cannot tell where it is


@pytest.mark.usefixtures("undrawn")
@needs_minilm
def test_minilm_on_a_text(tmp_path: Path) -> None:
    result = run("The cat ran", "--select", "L5", "--no-curve", "--json", "-q", "--figures", "map", "-o", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    content = json.loads(result.stdout)
    assert (content["measured"]["kind"], content["curve"]) == ("states", None)
    assert content["figures"] == ["ablate-map.png"]
    assert len(content["heads"]) == 12
    assert content["heads"][0]["cosine"]["value"] > 0.001
    assert (content["layers"], list(content["heads"][0]["methods"])) == ([], ["mean"])  # and no second passes


@pytest.mark.usefixtures("undrawn")
def test_a_corpus_and_a_masked_language_model(tmp_path: Path) -> None:
    folder = save_checkpoint(sharp_bert(model_class=BertForMaskedLM), bert_tokenizer(), tmp_path / "bert")
    corpus, out = sentences(tmp_path / "s.txt", 8), tmp_path / "out"
    line = "--method uniform --limit 5 --select L0H1,L2H3 --together --no-gradient --batch-size 7"
    common = [str(corpus), "--model", str(folder), "-o", str(out)]
    options = [*line.split(), *"--format svg --theme dark --width 84mm".split()]
    assert run(*common, *options).exit_code == 0
    content = json.loads((out / "ablate.json").read_text())
    assert content["corpora"][0]["sentences"] == 5
    assert content["measured"]["kind"] == "masked-token"
    assert content["together"]["heads"] == ["L0H1", "L2H3"]
    assert content["figures"] == ["ablate-heads.svg", "ablate-map.svg"]
    assert content["options"] == {
        "method": "uniform", "select": ["L0H1,L2H3"], "together": True, "limit": 5, "seed": 0, "curve": True,
        "gradient": False, "label": None,
    }  # fmt: skip
    assert run(*common, *options, "--no-figures").exit_code == 0
    assert (out / "ablate-map.svg").exists()  # of the same ablation, so it stays
    other = run(*common, "--select", "L1H1", "--figures", "none")
    assert not (out / "ablate-map.svg").exists()
    assert "removed 4 files of an earlier run there" in other.stderr


def test_standard_input_and_sentences_left_out(gpt2_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("the cat ran\n" + "the cat " * 40 + "\n")
    arguments = ["-", str(tmp_path / "s.txt"), "--model", str(gpt2_folder), "--select", "L0", "--no-figures"]
    for quiet, said in (([], True), (["-q"], False)):
        result = run(*arguments, *quiet, "-o", str(tmp_path / "o"), input="he saw it\n")
        assert result.exit_code == 0, result.output
        assert ("left out" in result.stderr) == said
    assert json.loads((tmp_path / "o" / "ablate.json").read_text())["texts"] == ["he saw it"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-", "-"], 2, "standard input (-) can be read only once"),
        (["the cat", "-o", " "], 2, "-o is empty"),
        (["  "], 1, "empty or blank"),
        (["nowhere.conllu"], 1, "expected a corpus at nowhere.conllu, found nothing"),
        (["the cat", "--method", "magic"], 2, "unknown method 'magic': expected one of zero, mean, uniform"),
        (["the cat", "--select", "L7"], 2, "names layer 7, but the model has layers 0 to 2"),
        (["the cat", "--figures", "pie"], 2, "unknown figure 'pie': expected any of heads, map, curve, gradient"),
        (["the cat", "--figures", "curve", "--no-curve"], 2, "no figure 'curve': no curve was asked for"),
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


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (VerificationError("layer 1 differs"), 3, "layer 1 differs"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written"),
    ],
)
def test_what_stops_a_run_leaves_nothing(
    gpt2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(hooks, "resume", stop)
    monkeypatch.chdir(tmp_path)
    result = run("the cat ran", "--model", str(gpt2_folder))
    assert result.exit_code == code
    assert message in result.stderr
    assert not (tmp_path / "attnviz-out" / "ablate-tiny-gpt2").exists()
