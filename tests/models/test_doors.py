"""What tokenizers, loaders and the file system do with hostile files is caught where they are called, and named."""

import json
import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel
from typer.testing import CliRunner

from attnviz.cli.program import app
from attnviz.commands.ablate.measure import ablate
from attnviz.commands.heads import measure as heads_measure
from attnviz.commands.heads.measure import analyze
from attnviz.errors import ArchitectureError, CheckpointError, ParserError, VerificationError
from attnviz.language.parsers import parsed_words
from attnviz.models import configs
from attnviz.models.checkpoint import Checkpoint, from_loaded, load_checkpoint
from attnviz.models.configs import empty_model, read_config
from attnviz.models.libraries import calling_transformers
from attnviz.models.sources import find_checkpoint, weight_files
from attnviz.texts.batches import collate, encode
from attnviz.texts.reading import Text
from tests.conftest import SENTENCE
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


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# --- weights: what is loaded is what is hashed --------------------------------------------------------------------


@pytest.mark.parametrize("key", ["transformers_weights", "quantization_config", "fusion_config"])
@pytest.mark.parametrize("language_head", [True, False])
def test_a_config_that_asks_for_other_weights_is_refused_by_name(bert, key, language_head):
    weights = load_file(bert / "model.safetensors")
    save_file({name: 2 * tensor for name, tensor in weights.items()}, bert / "other.safetensors")
    change_json(bert / "config.json", **{key: "other.safetensors"})
    with pytest.raises(CheckpointError, match=rf"config\.json has {key}, which .*save the whole model anew"):
        load(bert, language_head=language_head)


def test_an_adapter_beside_the_weights_is_refused(bert):
    (bert / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    with pytest.raises(CheckpointError, match=r"has an adapter \(adapter_config\.json\)"):
        load(bert)


def test_a_distributed_checkpoint_beside_good_weights_is_not_read(bert):
    expected = load(bert).model.state_dict()
    (bert / "shard-00001-model-00001-of-00001.safetensors").write_bytes(b"truncated")
    loaded = load(bert).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("name", ["../other/x.safetensors", "/{other}/x.safetensors", "sub/x.safetensors", "..", ""])
def test_an_index_cannot_name_weights_elsewhere(bert, name):
    shutil.copytree(bert, bert.parent / "other")
    (bert / "sub").mkdir()
    for folder in (bert.parent / "other", bert / "sub"):
        shutil.copy(bert / "model.safetensors", folder / "x.safetensors")
    (bert / "model.safetensors").unlink()
    name = name.replace("/{other}", str(bert.parent / "other"))
    index = {"weight_map": dict.fromkeys(load_file(bert.parent / "other" / "x.safetensors"), name)}
    (bert / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"names weights outside the checkpoint, .*without a folder"):
        find_checkpoint(str(bert))


def test_links_as_in_the_cache_of_the_hub_are_followed(bert, tmp_path):
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for path in list(bert.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(blobs / path.name)
    assert weight_files(bert) == [bert / "model.safetensors"]
    assert load(bert).n_layers == 3


# --- configs: nothing is fetched, nothing is built that the weights cannot fill ------------------------------------


@pytest.mark.parametrize("kernel", ["kernels-community/any-repo@main:fn", "flash_attention_2", "no-such"])
@pytest.mark.parametrize("language_head", [True, False])
def test_a_kernel_named_in_the_config_is_not_asked_for(bert, monkeypatch, kernel, language_head):
    from transformers import modeling_utils

    def asked(*_: Any, **__: Any) -> None:
        pytest.fail("a kernel was asked for")

    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", asked)
    change_json(bert / "config.json", _attn_implementation=kernel, attn_implementation=kernel)
    assert load(bert, language_head=language_head).config._attn_implementation == "eager"
    assert read_config(bert)._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"hidden_size": 8192}, r"hidden_size=8192.*numbers, its weights have [\d,]+ bytes"),
        ({"vocab_size": 30_000_000}, r"vocab_size=30000000.*its model has [\d,]+ numbers"),
        ({"intermediate_size": 10_000_000}, r"its model has [\d,]+ numbers"),
        ({"num_hidden_layers": 900_000}, r"num_hidden_layers=900000.*more than [\d,]+ modules"),
        ({"num_hidden_layers": 10_000_000}, "num_hidden_layers=10000000; expected at most 1,000,000"),
        ({"num_labels": 10**12}, "num_labels=1000000000000; expected at most 1,000,000"),
    ],
    ids=str,
)
def test_a_config_far_beyond_its_weights_is_refused_before_anything_is_built(bert, monkeypatch, changes, found):
    from transformers import BertModel

    change_json(bert / "config.json", **changes)
    monkeypatch.setattr(BertModel, "from_pretrained", lambda *_, **__: pytest.fail("built"))
    with pytest.raises(CheckpointError, match=rf"config\.json.*{found}"):
        load(bert)


def test_a_pickle_is_measured_before_a_model_is_built_for_it_too(bert):
    torch.save(load_file(bert / "model.safetensors"), bert / "pytorch_model.bin")
    (bert / "model.safetensors").unlink()
    change_json(bert / "config.json", hidden_size=8192)
    with pytest.raises(CheckpointError, match=r"config\.json does not fit its weights .*hidden_size=8192"):
        load(bert)


def test_the_modules_of_an_empty_model_are_limited_in_any_architecture(monkeypatch):
    from transformers import T5Config

    monkeypatch.setattr(configs, "_MOST_MODULES", 200)
    config = T5Config(d_model=8, d_ff=8, num_layers=2, num_heads=2, d_kv=4, vocab_size=10)
    assert sum(parameter.numel() for parameter in empty_model(config).parameters())
    config.num_decoder_layers = 50
    with pytest.raises(CheckpointError, match="its model has more than 200 modules"):
        empty_model(config)
    assert sum(1 for _ in torch.nn.Sequential(*[torch.nn.Identity() for _ in range(300)])) == 300  # the hook is gone


def test_a_text_that_chunks_do_not_divide_runs(bert):
    expected = load(bert)
    change_json(bert / "config.json", chunk_size_feed_forward=4)
    chunked = load(bert)
    inputs = expected.tokenize(SENTENCE).model_inputs(CPU)
    assert torch.equal(chunked.model(**inputs)[0], expected.model(**inputs)[0])


# --- whatever is raised ---------------------------------------------------------------------------------------------


class PanicException(BaseException):
    """What Rust code raises when it panics."""


@pytest.mark.parametrize("error", [ValueError, KeyError, RecursionError, PanicException])
def test_whatever_a_library_raises_is_named(error):
    named = r"^cannot read x: (there is no )?.?broken"
    with pytest.raises(CheckpointError, match=named), calling_transformers("cannot read x"):
        raise error("broken")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_no_fault_of_a_file_is_not_held_back(error):
    with pytest.raises(error), calling_transformers("cannot read x"):
        raise error


def test_a_pickle_of_protocol_4_prints_no_warning(bert, capfd):
    import pickle

    (bert / "pytorch_model.bin").write_bytes(pickle.dumps({"a": [1]}, protocol=4))
    (bert / "model.safetensors").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(CheckpointError, match=str(bert)):
            load(bert)
    assert capfd.readouterr() == ("", "")


# --- tokenizers: one check for all commands -------------------------------------------------------------------------


COMMANDS = ["heads", "outputs", "explain", "rollout", "ablate", "profile"]


def run(command: str, folder: Path, text: str, out: Path, *options: str) -> Any:
    """A command on a text; ``profile`` reads it from a file."""
    given = text
    if command == "profile":
        out.mkdir(parents=True)
        (out / "texts.txt").write_text(f"{text}\n" * 3)
        given = str(out / "texts.txt")
    options = (*options, "--no-syntax") if command in ("heads", "profile") else options
    options = (*options, "--layer", "1") if command == "explain" else options
    options = (*options, "--no-figures")
    return CliRunner().invoke(app, [command, given, "-m", str(folder), "-o", str(out), "-q", *options])


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


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("change", "text", "message"),
    [
        (without_unknown, "the zebra", "the model's tokenizer fails on .*Missing"),
        (overflowing, "a" * 40 + "c", "the model's tokenizer fails on .*retry-limit"),
        (dropping, "the cat", "no tokens are left of|no text of .* could be measured|all are too long"),
        (beyond, "the cat", "the tokenizer gives token id 5000, but the model's vocabulary ends at 60"),
        (third_type, "the cat", "this model has 2 token types only, but the text has tokens of type 2"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_tokenizer_is_named_by_every_command(bert, tmp_path, capfd, command, change, text, message):
    change_tokenizer(bert, change)
    result = run(command, bert, text, tmp_path / "out")
    assert result.exit_code == 1, (result.stderr, result.exception)
    assert re.search(message, " ".join(result.stderr.split()))
    assert capfd.readouterr().err == ""  # nothing that Rust prints of a panic by itself


def test_a_mask_token_beyond_the_vocabulary_is_named(tmp_path):
    from transformers import BertForMaskedLM

    tokenizer = bert_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "[OTHER]"})
    folder = save_checkpoint(sharp_bert(0, BertForMaskedLM), tokenizer, tmp_path / "m")
    result = run("ablate", folder, "the cat ran", tmp_path / "out")
    assert result.exit_code == 1
    assert "the tokenizer gives token id 61, but the model's vocabulary ends at 60" in " ".join(result.stderr.split())


def test_a_padding_token_beyond_the_vocabulary_does_no_harm():
    tokenizer = bert_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "[OTHER]"})
    assert tokenizer.pad_token_id == 61
    checkpoint = from_loaded(sharp_bert(), tokenizer)
    batch = collate(checkpoint, encode(checkpoint, [Text("the cat"), Text("the cat ran away")]))
    assert int(batch.inputs["input_ids"].max()) < 61


def test_corpora_are_read_with_the_tokenizers_own_token_types(bert):
    """As one text is: a tokenizer may give other types than 0."""

    def second_type(content: Any) -> None:
        for piece in content["post_processor"]["single"]:
            next(iter(piece.values()))["type_id"] = 1

    change_tokenizer(bert, second_type)
    checkpoint = load(bert)
    tokens = checkpoint.tokenize("the cat ran")
    assert tokens.type_ids == (1,) * 5
    batch = collate(checkpoint, encode(checkpoint, [Text("the cat ran"), Text("the cat")]))
    assert batch.inputs["token_type_ids"].tolist() == [[1] * 5, [1] * 4 + [0]]


# --- models and texts at the edge ---------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, -1e-12, float("nan"), 1.5])
@pytest.mark.parametrize(("folder", "setting"), [("bert", "layer_norm_eps"), ("gpt2", "layer_norm_epsilon")])
def test_an_epsilon_that_no_norm_can_have_is_named_as_such(request, folder, setting, epsilon):
    path = request.getfixturevalue(folder)
    change_json(path / "config.json", **{setting: epsilon})
    with pytest.raises(ArchitectureError, match=rf"config\.json: the config has {setting}={epsilon}; expected a small"):
        load(path)


@pytest.mark.parametrize("name", ["x" * 300, "./" + "x" * 300, "/a" * 3000, "~/" + "y" * 300, "a\0b", "./a\0b"])
@pytest.mark.parametrize("command", ["heads", "models"])
def test_a_model_that_no_file_can_be_called_is_an_error_to_read(command, name, tmp_path):
    arguments = [SENTENCE, "-m", name, "-o", str(tmp_path / "out")] if command == "heads" else [name]
    result = CliRunner().invoke(app, [command, *arguments])
    assert result.exit_code == 1, result.exception
    assert re.search("no built-in|not a built-in name|expected a folder with a", " ".join(result.stderr.split()))


def test_a_config_that_is_a_pipe_is_not_waited_for(bert):
    (bert / "tokenizer_config.json").unlink()
    (bert / "config.json").unlink()
    os.mkfifo(bert / "config.json")
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        find_checkpoint(str(bert))


@pytest.mark.parametrize(("text", "d_model"), [("e", 32), ("the cat ran", 1)])
def test_steps_that_share_memory_are_saved(tmp_path, text, d_model):
    heads = 4 if d_model > 1 else 1
    folder = save_checkpoint(sharp_gpt2(0, n_embd=d_model, n_head=heads), gpt2_tokenizer(), tmp_path / "m")
    result = run("explain", folder, text, tmp_path / "out", "--save-stages")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert len(load_file(tmp_path / "out" / "stages.safetensors")) > 10


@pytest.mark.parametrize("method", ["zero", "mean", "uniform"])
def test_heads_of_width_one_are_removed(tmp_path, method):
    model = sharp_gpt2(0, GPT2LMHeadModel, n_embd=4, n_head=4)
    folder = save_checkpoint(model, gpt2_tokenizer(), tmp_path / "m")
    result = run("ablate", folder, SENTENCE, tmp_path / "out", "--method", method)
    assert result.exit_code == 0, (result.stderr, result.exception)


def test_lines_of_one_token_are_left_out_of_a_profile_of_gpt2(gpt2, tmp_path):
    (tmp_path / "some.txt").write_text("e\nthe cat ran away\nb\n")
    (tmp_path / "none.txt").write_text("e\nb\n")
    options = ["-m", str(gpt2), "-o", str(tmp_path / "out"), "--no-syntax", "--no-figures", "--no-control"]
    result = CliRunner().invoke(app, ["profile", str(tmp_path / "some.txt"), *options])
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "some.txt:1: left out: its only token is a sink" in " ".join(result.stderr.split())
    document = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert document["corpora"][0]["sentences"] == 1
    nothing = CliRunner().invoke(app, ["profile", str(tmp_path / "none.txt"), *options, "--overwrite"])
    assert nothing.exit_code == 1
    assert "could be measured: all 2 are too long, too short" in " ".join(nothing.stderr.split())


def test_a_model_of_one_position_is_named_under_profile(tmp_path):
    folder = save_checkpoint(sharp_gpt2(0, n_positions=1), gpt2_tokenizer(), tmp_path / "m")
    (tmp_path / "texts.txt").write_text("e\nb\n")
    for number, (arguments, message) in enumerate(
        (
            ([str(tmp_path / "texts.txt")], "no text of .* could be measured"),
            (["--repeats"], "the model has a single position; --repeats needs two"),
        )
    ):
        options = ["-m", str(folder), "-o", str(tmp_path / f"out-{number}"), "--no-syntax"]
        result = CliRunner().invoke(app, ["profile", *arguments, *options])
        assert result.exit_code == 1, result.exception
        assert re.search(message, " ".join(result.stderr.split()))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_isolate_of_a_text_reaches_the_terminal(gpt2_folder, tmp_path, command):
    folder, out = str(gpt2_folder), tmp_path / "out"
    if command == "profile":
        (tmp_path / "שלום.txt").write_text("שלום עולם טוב\n" * 3)
    given = str(tmp_path / "שלום.txt") if command == "profile" else "שלום \u2067עולם\u2069 טוב"
    options = ["--no-syntax"] if command in ("heads", "profile") else []
    options += ["--figures", "none"]
    result = CliRunner().invoke(app, [command, given, "-m", folder, "-o", str(out), *options])
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert not {"\u2066", "\u2067", "\u2068", "\u2069"} & set(result.stdout + result.stderr)


def test_a_layer_whose_output_leads_nowhere_is_named_under_ablate(tmp_path):
    model = sharp_gpt2(0, GPT2LMHeadModel)
    block = model.transformer.h[1]
    block.register_forward_hook(lambda _, args, result: result.detach() if torch.is_tensor(result) else
                                (result[0].detach(), *result[1:]))  # fmt: skip
    with pytest.raises(VerificationError, match="the output of layer 1 does not depend on its input and its heads"):
        ablate(SENTENCE, model, tokenizer=gpt2_tokenizer())


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
