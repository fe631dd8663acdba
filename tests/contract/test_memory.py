"""Running out of memory, which a request for a petabyte does on every machine: one line, and nothing is lost."""

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertModel
from typer.testing import CliRunner

from attnviz.cli.program import app
from attnviz.errors import CheckpointError, OutOfMemoryError
from attnviz.language import parsers
from attnviz.memory import LESS_MEMORY, memory_size, out_of_memory_named
from attnviz.models.libraries import calling_transformers
from attnviz.run.processes import Process as OneOfMany
from attnviz.run.processes import Unfinished, gathered
from tests.conftest import SENTENCE
from tests.support.corpora import sentences
from tests.support.tolerances import SUMS_32

PETABYTE = 1 << 50


def short_of(n_bytes: int = PETABYTE) -> torch.Tensor:
    return torch.empty(n_bytes, dtype=torch.uint8)


def failed(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "take",
    [
        short_of,
        lambda: np.empty(PETABYTE // 8),
        lambda: bytearray(PETABYTE),
        lambda: failed(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")),
        lambda: failed(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.")),
    ],
    ids=["torch", "numpy", "python", "GPU", "Windows"],
)
def test_whatever_asks_for_too_much_is_named(take: Callable[[], Any]):
    with pytest.raises(OutOfMemoryError) as raised, out_of_memory_named():
        take()
    assert LESS_MEMORY in str(raised.value)
    assert raised.value.exit_code == 1


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"),
        ValueError("the label 'out of memory' is unknown"),
        KeyError("out of memory"),
        OSError(errno.ENOSPC, "No space left on device"),
        CheckpointError("expected a folder with a checkpoint at ./out of memory, found nothing."),
    ],
    ids=repr,
)
def test_other_errors_are_what_they_are(error: Exception):
    with pytest.raises(type(error)) as raised, out_of_memory_named():
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    ("n_bytes", "size"),
    [(0, "0 bytes"), (999, "999 bytes"), (5.4e8, "540 MB"), (6.44e9, "6.44 GB"), (2e13, "20 TB")],
)
def test_sizes_are_as_people_read_them(n_bytes: float, size: str):
    assert memory_size(n_bytes) == size


def reading(context: AbstractContextManager[Any]) -> None:
    with context:
        short_of()


@pytest.mark.parametrize(
    "take",
    [
        lambda _: reading(calling_transformers("cannot read x")),
        lambda _: parsers.parsed_words(lambda _: short_of(), "the cat"),
        lambda folder: reading(Unfinished(folder / "u", {}).restoring()),
        lambda _: gathered(OneOfMany(0, 2), {}),
    ],
    ids=["a file", "a parser", "an unfinished run", "another process"],
)
def test_nothing_else_is_blamed(take: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.distributed.gather_object", lambda *_: short_of())
    with pytest.raises(OutOfMemoryError), out_of_memory_named():
        take(tmp_path)


@pytest.mark.parametrize("command", ["heads", "outputs", "explain", "rollout", "ablate", "compare", "profile"])
def test_a_command_that_runs_out_of_memory_says_so_in_a_line_and_writes_nothing(
    command: str, bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(BertModel, "forward", lambda *_, **__: short_of())
    texts = {"profile": [str(sentences(tmp_path / "t.txt", 5))], "compare": [SENTENCE, SENTENCE[:20]]}
    more = ["--no-syntax"] if command in ("heads", "compare", "profile") else []
    words = [command, *texts.get(command, [SENTENCE]), "-m", str(bert_folder), "-o", str(tmp_path / "out"), *more]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1, result.output
    assert result.stderr == f"attnviz: out of memory; {LESS_MEMORY}.\n"
    assert not (tmp_path / "out").exists()


def test_a_long_run_keeps_what_it_has_and_goes_on_with_the_same_numbers(
    bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_at_once: None
):
    more = ["--no-control", "--no-syntax", "--batch-size", "8", "--figures", "none"]
    arguments = ["profile", str(sentences(tmp_path / "t.txt", 40)), "-m", str(bert_folder), *more]
    passes, forward = list[int](), BertModel.forward

    def short(model: nn.Module, *of: Any, **inputs: Any) -> Any:
        passes.append(1)
        return short_of() if len(passes) == 4 else forward(model, *of, **inputs)

    def run(out: str) -> Any:
        return CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / out)])

    whole = run("whole")
    with monkeypatch.context() as limited:
        limited.setattr(BertModel, "forward", short)
        failed = run("out")
    resumed = run("out")
    assert [each.exit_code for each in (whole, failed, resumed)] == [0, 1, 0]
    assert str(tmp_path / "out.unfinished") in failed.stderr
    assert "continuing after" in resumed.stderr
    expected, found = (json.loads((tmp_path / out / "profile.json").read_text()) for out in ("whole", "out"))
    np.testing.assert_allclose(numbers(found["statistics"]), numbers(expected["statistics"]), atol=SUMS_32)


def numbers(content: Any) -> list[float]:
    if isinstance(content, dict | list):
        parts = content if isinstance(content, list) else [content[key] for key in sorted(content)]
        return [each for part in parts for each in numbers(part)]
    return [float(content)] if isinstance(content, int | float) else []


def test_memory_that_ends_while_the_program_is_imported_is_a_line(tmp_path: Path):
    (tmp_path / "typer.py").write_text("bytearray(1 << 50)")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from attnviz.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"attnviz: out of memory; {LESS_MEMORY}.\n")
