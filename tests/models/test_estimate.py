"""Weights that do not fit are refused before they are read; the memory of a block is a size."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import attnviz
from attnviz import memory
from attnviz.cli.program import app
from attnviz.errors import CheckpointError, OutOfMemoryError, UsageError
from attnviz.models import weights
from attnviz.models.opening import open_checkpoint
from attnviz.run import record
from attnviz.run.record import block_memory
from tests.support.models import bert_tokenizer, save_checkpoint, sharp_bert

TEXT = "the cat ran away"


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path / "model")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None), (1_000_000, 1_000_000), ("1000000", 1_000_000), ("64M", 64 * 2**20), ("1.5 GiB", 3 * 2**29),
        ("8GB", 2**33), ("500 kb", 500 * 1024), ("7B", 7),
    ],
)  # fmt: skip
def test_the_memory_of_a_block_is_a_number_of_bytes_or_a_size(given, expected):
    assert block_memory(given) == expected


@pytest.mark.parametrize(
    "given", ["", "M", "0", "-1", 0, -5, True, 1.5, "1e9", "64 X", "٣M", "0.1", "24", " 24 ", "1.5", 24, 999_999]
)
def test_what_is_no_size_is_refused(given):
    with pytest.raises(UsageError, match="--memory"):
        block_memory(given)


def test_a_text_is_read_in_blocks_of_this_size(monkeypatch, bert):
    sizes: list[float] = []
    real = record.row_blocks

    def noted(n: int, row_bytes: int, memory: float) -> Any:
        sizes.append(memory)
        return real(n, row_bytes, memory)

    monkeypatch.setattr(record, "row_blocks", noted)
    for command in (attnviz.analyze, attnviz.head_outputs, attnviz.rollout):
        command(TEXT, bert, memory="3K")
    assert set(sizes) == {3072}
    for given, code in (("1K", 0), ("much", 2)):
        words = ["heads", TEXT, "-m", str(bert), "--figures", "none", "--json", "--memory", given]
        assert CliRunner().invoke(app, words).exit_code == code
    assert set(sizes) == {3072, 1024}


def test_what_is_free_is_what_the_machine_says_with_its_swap(monkeypatch, tmp_path):
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    assert memory.free_memory() == float("inf")
    meminfo.write_text("MemTotal:  9000 kB\nMemAvailable:    8000 kB\nSwapFree:   500 kB\nHugePages: 0\n")
    assert memory.free_memory() == 8500 * 1024


def test_too_large_a_model_is_refused_before_its_weights_are_read(monkeypatch, bert):
    file = bert / "model.safetensors"
    file.write_bytes(bytes(file.stat().st_size))  # which nobody can read
    needed = 8 * sum(parameter.numel() for parameter in sharp_bert().parameters())
    for free, error in ((needed - 1, OutOfMemoryError), (needed, CheckpointError)):
        monkeypatch.setattr(weights, "free_memory", lambda free=free: free)
        with pytest.raises(error):
            open_checkpoint(bert, dtype="float64")


def test_a_gpu_must_hold_all_weights_and_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 8000))
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda _: 500)
    model: Any = sharp_bert()
    weights.refuse_beyond_memory("model", model, torch.device("mps"))
    with pytest.raises(OutOfMemoryError, match="cuda:1"):
        weights.refuse_beyond_memory("model", model, torch.device("cuda:1"))
