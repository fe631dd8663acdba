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

from attnviz.cli.program import app
from attnviz.commands.ablate.measure import ablate
from attnviz.commands.heads import measure as heads_measure
from attnviz.commands.heads.measure import analyze
from attnviz.errors import CheckpointError, ParserError, TextError
from attnviz.language.parsers import parsed_words
from attnviz.models import configs
from attnviz.models.checkpoint import Checkpoint, from_loaded, load_checkpoint
from attnviz.models.configs import empty_model
from attnviz.models.libraries import calling_tokenizer, calling_transformers
from attnviz.models.sources import find_checkpoint
from attnviz.texts.batches import collate, encode
from attnviz.texts.reading import Text
from tests.conftest import SENTENCE
from tests.support.families import model_of
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2

CPU = torch.device("cpu")


def load(folder: Path, **options: Any) -> Checkpoint:
    return load_checkpoint(find_checkpoint(str(folder)), CPU, torch.float32, **options)


@pytest.fixture
def bert(bert_folder: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(bert_folder, tmp_path / "bert"))


@pytest.fixture
def gpt2(gpt2_folder: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(gpt2_folder, tmp_path / "gpt2"))


# --- whatever is raised


def test_the_modules_of_an_empty_model_are_limited_in_any_architecture(monkeypatch):
    from transformers import T5Config

    monkeypatch.setattr(configs, "_MOST_MODULES", 200)
    config = T5Config(d_model=8, d_ff=8, num_layers=2, num_heads=2, d_kv=4, vocab_size=10)
    assert sum(parameter.numel() for parameter in empty_model(config).parameters())
    config.num_decoder_layers = 50
    with pytest.raises(CheckpointError, match="its model has more than 200 modules"):
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


def panicking(content: Any) -> None:
    processor = content["post_processor"]
    content["post_processor"] = {"type": "Sequence", "processors": [processor, processor]}


def test_a_panic_of_a_tokenizer_leaves_nothing_on_standard_error(bert, capfd):
    """Rust writes to the file descriptor, before Python hears of it."""
    change_tokenizer(bert, panicking)
    with pytest.raises(CheckpointError):
        load(bert).tokenize("the cat")
    assert capfd.readouterr().err == ""


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


# --- tokenizers: one check for all commands


def run(command: str, folder: Path, text: str, out: Path, *options: str) -> Any:
    """A command on a text; ``profile`` reads it from a file."""
    given = text
    if command == "profile":
        given = str(out.with_name("texts.txt"))
        Path(given).write_text(f"{text}\n" * 3)
    more = {"heads": ["--no-syntax"], "profile": ["--no-syntax"], "explain": ["--layer", "1"]}.get(command, [])
    words = [command, given, "-m", str(folder), "-o", str(out), "-q", "--figures", "none", *options, *more]
    return CliRunner().invoke(app, words)


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


def third_type(content: Any) -> None:
    for piece in content["post_processor"]["single"]:
        next(iter(piece.values()))["type_id"] = 2


@pytest.mark.parametrize(
    ("change", "text", "message"),
    [
        (without_unknown, "the zebra", "tokenizer fails on .*Missing"),
        (overflowing, "a" * 40 + "c", "tokenizer fails on .*retry-limit"),
        (dropping, "the cat", "no tokens are left of"),
        (beyond, "the cat", "token id 5000, but the model's vocabulary ends at 60"),
        (third_type, "the cat", "2 token types only"),
    ],
)
def test_a_broken_tokenizer_is_named_by_every_way_in(bert, tmp_path, change, text, message):
    change_tokenizer(bert, change)
    checkpoint = load(bert)
    for read in (lambda: checkpoint.tokenize(text), lambda: encode(checkpoint, [Text(text)])):
        with pytest.raises((CheckpointError, TextError), match=message):
            read()
    assert run("rollout", bert, text, tmp_path / "out").exit_code == 1


def test_mask_and_padding_tokens_beyond_the_vocabulary(tmp_path):
    tokenizer = bert_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "[OTHER]"})
    folder = save_checkpoint(*model_of("bert", headed=True), tmp_path / "m")
    tokenizer.save_pretrained(folder)
    result = run("ablate", folder, "the cat ran", tmp_path / "out")
    assert (result.exit_code, "vocabulary ends at 60" in " ".join(result.stderr.split())) == (1, True)
    tokenizer.add_special_tokens({"pad_token": "[OTHER]"})
    checkpoint = from_loaded(sharp_bert(), tokenizer)
    batch = collate(checkpoint, encode(checkpoint, [Text("the cat"), Text("the cat ran away")]))
    assert int(batch.inputs["input_ids"].max()) < 61  # padding does no harm


def test_corpora_are_read_with_the_tokenizers_own_token_types(bert):
    """As one text is: a tokenizer may give other types than 0."""

    def second_type(content: Any) -> None:
        for piece in content["post_processor"]["single"]:
            next(iter(piece.values()))["type_id"] = 1

    change_tokenizer(bert, second_type)
    checkpoint = load(bert)
    assert checkpoint.tokenize("the cat ran").type_ids == (1,) * 5
    batch = collate(checkpoint, encode(checkpoint, [Text("the cat ran"), Text("the cat")]))
    assert batch.inputs["token_type_ids"].tolist() == [[1] * 5, [1] * 4 + [0]]


# --- models and texts at the edge ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["zero", "mean", "uniform"])
def test_heads_of_width_one_are_removed(method):
    model = sharp_gpt2(0, GPT2LMHeadModel, n_embd=4, n_head=4)
    assert len(ablate(SENTENCE, model, tokenizer=gpt2_tokenizer(), method=method, curve=False).heads) == 12


def test_lines_of_one_token_are_left_out_of_a_profile_of_gpt2(gpt2, tmp_path):
    (tmp_path / "some.txt").write_text("e\nthe cat ran away\nb\n")
    (tmp_path / "none.txt").write_text("e\nb\n")
    options = ["-m", str(gpt2), "-o", str(tmp_path / "out"), "--no-syntax", "--figures", "none", "--no-control"]
    result = CliRunner().invoke(app, ["profile", str(tmp_path / "some.txt"), *options])
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "some.txt:1: left out: its only token is a sink" in " ".join(result.stderr.split())
    assert json.loads((tmp_path / "out" / "profile.json").read_text())["corpora"][0]["sentences"] == 1
    for words, word in (([str(tmp_path / "none.txt")], "could be measured"), (["--repeats"], "needs four")):
        folder = save_checkpoint(sharp_gpt2(0, n_positions=1), gpt2_tokenizer(), tmp_path / "m")
        nothing = CliRunner().invoke(app, ["profile", *words, "-m", str(folder), *options[2:]])
        assert (nothing.exit_code, word in nothing.stderr) == (1, True)


def test_only_what_the_model_reads_is_parsed(bert_folder, monkeypatch):
    """A text of 300,000 words takes the parser half a minute and gigabytes, and the model reads 38 of them."""
    parsed: list[str] = []

    def never(texts: list[str], *_: Any) -> tuple[None, str]:
        parsed.extend(texts)
        return None, "a test"

    monkeypatch.setattr(heads_measure, "parser_for", never)
    analyze("the cat " * 10_000, bert_folder, truncate=True)
    analyze("the cat " * 10_000, bert_folder, pair="a dog " * 1000, truncate=True)
    analyze("the cat  ", bert_folder)
    assert parsed[0] == ("the cat " * 19).strip()
    assert [text[:5] for text in parsed[1:]] == ["the c", "a dog", "the c"]
    assert sum(map(len, parsed[1:3])) < 300
    assert parsed[3] == "the cat  "


def test_what_a_parser_raises_is_named():
    def raising(text: str) -> None:
        raise ValueError("[E088] Text of length 1000004 exceeds maximum of 1000000.")

    with pytest.raises(ParserError, match=r"the parser fails on a text of 3 characters: \[E088\] .*--no-syntax"):
        parsed_words(raising, "abc")
