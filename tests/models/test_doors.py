"""What tokenizers, loaders and the file system do with hostile files is caught where they are called, and named."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel
from typer.testing import CliRunner

from attnviz import profile_heads
from attnviz.cli.program import app
from attnviz.commands.ablate import ablate
from attnviz.commands.heads import measure as heads_measure
from attnviz.commands.heads.measure import analyze
from attnviz.errors import CheckpointError, CorpusError, ParserError, TextError
from attnviz.inputs.batches import collate
from attnviz.inputs.prompt import Text
from attnviz.inputs.text import encode, tokenize
from attnviz.language.parsers import parsed_words
from attnviz.models import configs
from attnviz.models.checkpoint import Checkpoint, from_loaded, load_checkpoint
from attnviz.models.configs import empty_model
from attnviz.models.libraries import calling_tokenizer, calling_transformers
from attnviz.models.sources import find_checkpoint
from tests.conftest import SENTENCE
from tests.support.families import model_of
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2


def load(folder: Path) -> Checkpoint:
    return load_checkpoint(find_checkpoint(str(folder)), torch.device("cpu"), torch.float32)


@pytest.fixture
def bert(bert_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert_folder, tmp_path / "bert"))


def test_the_modules_of_an_empty_model_are_limited_in_any_architecture(monkeypatch):
    from transformers import T5Config

    monkeypatch.setattr(configs, "_MOST_MODULES", 200)
    config = T5Config(d_model=8, d_ff=8, num_layers=2, num_heads=2, d_kv=4, vocab_size=10)
    assert sum(parameter.numel() for parameter in empty_model(config).parameters())
    config.num_decoder_layers = 50
    with pytest.raises(CheckpointError):
        empty_model(config)
    assert sum(1 for _ in torch.nn.Sequential(*[torch.nn.Identity() for _ in range(300)])) == 300  # the hook is gone


class PanicException(BaseException):
    """What Rust code raises when it panics."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *((error, CheckpointError) for error in (ValueError, KeyError, RecursionError, PanicException)),
        *((error, error) for error in (KeyboardInterrupt, SystemExit, MemoryError)),  # no fault of a file
    ],
)
def test_whatever_a_library_raises_is_named(error, expected):
    with pytest.raises(expected, match="broken"), calling_transformers("cannot read x"):
        raise error("broken")


def test_what_others_write_while_a_tokenizer_works_is_not_lost(capfd):
    def fail() -> None:
        with calling_tokenizer("cannot read x"):
            os.write(2, b"from elsewhere\n")
            raise ValueError("broken")

    with pytest.raises(CheckpointError):
        fail()
    with calling_tokenizer("cannot read x"):
        os.write(2, b"and more\n")
    assert capfd.readouterr().err == "from elsewhere\nand more\n"


def change_tokenizer(folder: Path, change: Any) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))


def without_unknown(content: Any) -> None:
    del content["model"]["vocab"]["[UNK]"]
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[UNK]"]


def overflowing(content: Any) -> None:
    pattern = {"Regex": r"(a|a?)+$|(.*)*b|\w+"}
    content["pre_tokenizer"] = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def dropping(content: Any) -> None:
    single = content["post_processor"]["single"]
    content["post_processor"]["single"] = [piece for piece in single if "SpecialToken" in piece]


def beyond(content: Any) -> None:
    content["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [5000]


def panicking(content: Any) -> None:
    processor = content["post_processor"]
    content["post_processor"] = {"type": "Sequence", "processors": [processor, processor]}


def third_type(content: Any) -> None:
    for piece in content["post_processor"]["single"]:
        next(iter(piece.values()))["type_id"] = 2


@pytest.mark.parametrize(
    ("change", "text", "message"),
    [
        (without_unknown, "the zebra", "Missing"),
        (overflowing, "a" * 40 + "c", "retry-limit"),
        (dropping, "the cat", "no tokens"),
        (beyond, "the cat", "5000.* 60"),
        (third_type, "the cat", "2 token types"),
        (panicking, "the cat", ""),
    ],
)
def test_a_broken_tokenizer_is_named_by_every_way_in_and_leaves_nothing_on_standard_error(
    bert, capfd, change, text, message
):
    change_tokenizer(bert, change)
    checkpoint = load(bert)
    for read in (lambda: tokenize(checkpoint, text), lambda: encode(checkpoint, [Text(text)])):
        with pytest.raises((CheckpointError, TextError), match=message or "."):
            read()
    assert capfd.readouterr().err == ""  # Rust writes to the file descriptor, before Python hears of it
    assert CliRunner().invoke(app, ["rollout", text, "-m", str(bert), "--figures", "none"]).exit_code == 1


def test_mask_and_padding_tokens_beyond_the_vocabulary(tmp_path):
    tokenizer = bert_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "[OTHER]"})
    folder = save_checkpoint(*model_of("bert", headed=True), tmp_path / "m")
    tokenizer.save_pretrained(folder)
    with pytest.raises(CheckpointError, match="60"):
        ablate("the cat ran", folder)
    tokenizer.add_special_tokens({"pad_token": "[OTHER]"})
    checkpoint = from_loaded(sharp_bert(), tokenizer)
    batch = collate(checkpoint, encode(checkpoint, [Text("the cat"), Text("the cat ran away")]))
    assert int(batch.inputs["input_ids"].max()) < 61  # padding does no harm


def test_corpora_are_read_with_the_tokenizers_own_token_types(bert):
    def second_type(content: Any) -> None:
        for piece in content["post_processor"]["single"]:
            next(iter(piece.values()))["type_id"] = 1

    change_tokenizer(bert, second_type)
    checkpoint = load(bert)
    assert tokenize(checkpoint, "the cat ran").type_ids == (1,) * 5
    batch = collate(checkpoint, encode(checkpoint, [Text("the cat ran"), Text("the cat")]))
    assert batch.inputs["token_type_ids"].tolist() == [[1] * 5, [1] * 4 + [0]]


@pytest.mark.parametrize("method", ["zero", "mean", "uniform"])
def test_heads_of_width_one_are_removed(method):
    model = sharp_gpt2(0, GPT2LMHeadModel, n_embd=4, n_head=4)
    assert len(ablate(SENTENCE, model, tokenizer=gpt2_tokenizer(), method=method, curve=False).heads) == 12


def test_lines_of_one_token_are_left_out_of_a_profile_of_gpt2(gpt2_folder, tmp_path):
    (tmp_path / "some.txt").write_text("e\nthe cat ran away\nb\n")
    (tmp_path / "none.txt").write_text("e\nb\n")
    options: dict[str, Any] = {"syntax": False, "control": False}
    profile = profile_heads(gpt2_folder, [tmp_path / "some.txt"], **options)
    assert profile.document()["corpora"][0]["sentences"] == 1
    with pytest.raises(CorpusError):
        profile_heads(gpt2_folder, [tmp_path / "none.txt"], **options)


def test_only_what_the_model_reads_is_parsed(bert_folder, monkeypatch):
    parsed: list[str] = []

    def never(texts: list[str], *_: Any) -> tuple[None, str]:
        parsed.extend(texts)
        return None, "a test"

    monkeypatch.setattr(heads_measure, "parser_for", never)
    analyze("the cat " * 10_000, bert_folder, truncate=True)
    analyze("the cat " * 10_000, bert_folder, pair="a dog " * 1000, truncate=True)
    assert parsed[0] == ("the cat " * 19).strip()
    assert [text[:5] for text in parsed[1:]] == ["the c", "a dog"]
    assert sum(map(len, parsed[1:])) < 300


def test_what_a_parser_raises_is_named():
    def raising(text: str) -> None:
        raise ValueError("[E088] Text of length 1000004 exceeds maximum of 1000000.")

    with pytest.raises(ParserError, match="E088"):
        parsed_words(raising, "abc")
