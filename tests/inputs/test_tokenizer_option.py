"""A model that was saved without its tokenizer, and the folders that training leaves."""

from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2LMHeadModel
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.errors import CheckpointError, UsageError
from attnviz.models.sources import find_checkpoint
from tests.support.models import gpt2_tokenizer, save_checkpoint, sharp_gpt2

TEXT = "the cat ran away"


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of training: run/checkpoint-40 and -500 without tokenizers; beside it whole/, and its words/."""
    save_checkpoint(sharp_gpt2(model_class=GPT2LMHeadModel), gpt2_tokenizer(), tmp_path / "whole")
    for name in ("checkpoint-40", "checkpoint-500"):
        sharp_gpt2(model_class=GPT2LMHeadModel).save_pretrained(tmp_path / "run" / name)
    gpt2_tokenizer().save_pretrained(tmp_path / "words")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run" / "checkpoint-500"


@pytest.mark.parametrize("with_config", [True, False])
def test_a_folder_around_checkpoints_names_the_newest(trained: Path, with_config: bool) -> None:
    if with_config:
        (trained.parent / "config.json").write_text((trained / "config.json").read_text())
    with pytest.raises(CheckpointError, match="run/checkpoint-500"):
        find_checkpoint("./run")


@pytest.mark.parametrize("tokenizer", ["whole", "./words", Path("words")])
def test_a_model_without_tokenizer_takes_another_ones(trained: Path, tokenizer: Any) -> None:
    found = attnviz.analyze(TEXT, trained, tokenizer=tokenizer, device="cpu", syntax=False)
    assert found.tokens.ids == attnviz.analyze(TEXT, "./whole", device="cpu", syntax=False).tokens.ids
    assert str(tokenizer) in found.reading_notes[0]


@pytest.mark.parametrize(
    ("tokenizer", "error", "message"),
    [
        (None, CheckpointError, "--tokenizer"),
        ("./run", CheckpointError, "run"),
        ("./nowhere", CheckpointError, "nowhere"),
        (gpt2_tokenizer(), UsageError, "tokenizer"),
    ],
)
def test_what_is_no_tokenizer_is_said(trained: Path, tokenizer: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        attnviz.analyze(TEXT, trained, tokenizer=tokenizer, device="cpu")
    with pytest.raises(UsageError):  # a name, with a model in memory
        attnviz.analyze(TEXT, sharp_gpt2(), tokenizer="words")


@pytest.mark.draws
@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ["circuits", "-m", "run/checkpoint-500", "--tokenizer", "words"],
        ["compare", "--corpus", "corpus.txt", "-m", "./whole", "-m", "run/checkpoint-500"],
    ],
)
def test_on_the_command_line(trained: Path, words: list[str]) -> None:
    Path("corpus.txt").write_text("the cat ran away\nthe dog saw the house\n")
    done = CliRunner().invoke(app, [*words, "-d", "cpu", "--figures", "none"])
    assert done.exit_code == 0, done.output
