"""What a run is sure to need is held against what there is, before a weight is read; nothing is refused that fits."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import attnviz
from attnviz import memory
from attnviz.cli import main
from attnviz.cli.program import app
from attnviz.errors import CheckpointError, OutOfMemoryError, TextError, UsageError
from attnviz.models import estimate
from attnviz.models.opening import open_checkpoint
from attnviz.trace import recorder
from attnviz.trace.recorder import block_memory
from tests.support.forked import forked, needs_fork
from tests.support.models import bert_tokenizer, save_checkpoint, sharp_bert

LINUX = Path("/proc/self/clear_refs").exists()
TEXT = "the cat ran away"


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path / "model")


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> list[estimate.Need]:
    """What each model that is loaded needs, in order."""
    seen: list[estimate.Need] = []
    real = estimate.need_of

    def noted(*given: Any) -> estimate.Need:
        seen.append(real(*given))
        return seen[-1]

    monkeypatch.setattr(estimate, "need_of", noted)
    return seen


def spoil(folder: Path) -> None:
    """Weights of the same size that nobody can read."""
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))


def leave(monkeypatch: pytest.MonkeyPatch, n_bytes: float) -> None:
    monkeypatch.setattr(estimate, "free_memory", lambda: n_bytes)


# --- what is needed


def test_weights_count_where_they_are_converted_and_address_space_where_they_are_mapped(bert, needs):
    n_numbers = sum(parameter.numel() for parameter in sharp_bert().parameters())
    size = (bert / "model.safetensors").stat().st_size
    for dtype in ("float32", "float64", "bfloat16", "auto"):
        open_checkpoint(bert, dtype=dtype)
    open_checkpoint(bert, dtype="float64", device_map={"": "cpu", "encoder": "disk"})
    assert [need.weights for need in needs] == [0, 8 * n_numbers, 2 * n_numbers, 0, 0]
    assert [need.mapped for need in needs] == [size, size, size, size, 0]
    assert [need.text for need in needs] == [0] * 5


def test_a_checkpoint_that_does_not_state_its_number_format_is_judged_by_its_size(bert, needs):
    config = json.loads((bert / "config.json").read_text())
    del config["dtype"]
    (bert / "config.json").write_text(json.dumps(config))
    open_checkpoint(bert, dtype="float32")
    open_checkpoint(bert, dtype="float64")
    assert [need.weights > 0 for need in needs] == [False, True]


def test_of_a_text_the_inputs_of_all_layers_are_kept_and_where_they_are_used_outputs(bert, needs):
    attnviz.analyze(TEXT, bert, memory="60B", syntax=False)
    attnviz.analyze(TEXT, bert, memory="60B", dtype="float64", syntax=False)
    attnviz.head_outputs(TEXT, bert, memory="60B")
    attnviz.rollout(TEXT, bert, memory="60B")
    attnviz.rollout(TEXT, bert, memory="60B", layer=0)
    n, layers, width = needs[0].n_tokens, 3, sharp_bert().config.hidden_size
    kept, square = layers * n * width * 4, n * n * 4  # a sixth of the block's 60 bytes is counted
    assert [need.text for need in needs] == [
        kept + 10, 2 * kept + 10, 2 * kept + 10, 2 * kept + 10 + 4 * layers * square, 2 * kept + 10 + 4 * square,
    ]  # fmt: skip


MEASURED = """
import sys
import attnviz
from attnviz.models import estimate
def resident(kind):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(kind)) * 1024
for given in ({"": "cpu", "encoder": "disk"}, None):
    attnviz.analyze("the cat", sys.argv[1], syntax=False, device_map=given)
    print(resident("VmHWM"))
real = estimate.need_of
def noted(*given):
    need = real(*given)
    open("/proc/self/clear_refs", "w").write("5")  # what was needed so far is forgotten
    print(need.weights + need.text, resident("VmRSS"))
    return need
estimate.need_of = noted
for times, dtype in ((1, "bfloat16"), (100, "float64")):
    attnviz.analyze("the cat ran away " * times, sys.argv[1], syntax=False, dtype=dtype)
    print(resident("VmHWM"))
"""


@pytest.mark.skipif(not LINUX, reason="needs Linux's own account of memory")
def test_a_run_takes_at_least_what_it_was_said_to_need_and_layers_on_disk_are_never_all_in_memory(tmp_path):
    """10 layers, 84 MB in float32, and 6 or 400 tokens; of the larger run the estimate is half or more."""
    shape = {"hidden_size": 512, "num_hidden_layers": 10, "intermediate_size": 1024, "max_position_embeddings": 512}
    model = sharp_bert(**shape)
    size = sum(parameter.numel() for parameter in model.parameters()) * 4
    folder = save_checkpoint(model, bert_tokenizer(), tmp_path / "model")
    command = [sys.executable, "-c", MEASURED, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    on_disk, in_memory, small, before, peak, large, after, highest = map(int, done.stdout.split())
    assert in_memory - on_disk > 0.7 * size
    assert small < peak - before
    assert 0.5 * (highest - after) < large < highest - after


# --- what a block may take


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, 48 * 2**20), (1_000_000, 1_000_000), ("1000000", 1_000_000), ("64M", 64 * 2**20), ("1.5 GiB", 3 * 2**29),
        ("8GB", 2**33), ("500 kb", 500 * 1024), ("7B", 7),
    ],
)  # fmt: skip
def test_the_memory_of_a_block_is_a_number_of_bytes_or_a_size(given, expected):
    assert block_memory(given) == expected


@pytest.mark.parametrize(
    "given", ["", "M", "0", "-1", 0, -5, True, 1.5, "1e9", "64 X", "٣M", "0.1", "24", " 24 ", "1.5", 24, 999_999]
)
def test_what_is_no_size_is_refused(given):
    with pytest.raises(UsageError, match=r"expected --memory \(memory=\.\.\.\) as a size such as 64M or 24GB, or"):
        block_memory(given)


@pytest.mark.parametrize("command", [attnviz.analyze, attnviz.head_outputs, attnviz.rollout])
def test_a_text_is_read_in_blocks_of_this_size(monkeypatch, bert, command):
    sizes: list[float] = []
    real = recorder.row_blocks

    def noted(n: int, row_bytes: int, memory: float) -> Any:
        sizes.append(memory)
        return real(n, row_bytes, memory)

    monkeypatch.setattr(recorder, "row_blocks", noted)
    command(TEXT, bert, memory="3K")
    assert set(sizes) == {3072}


def test_the_command_hands_the_size_on(bert, tmp_path):
    command = ["heads", TEXT, "-m", str(bert), "--no-syntax", "--no-figures", "-o", str(tmp_path / "out"), "--memory"]
    assert CliRunner().invoke(app, [*command, "1K"]).exit_code == 0
    done = CliRunner().invoke(app, [*command, "much"])
    assert done.exit_code == 2
    assert "found 'much'" in done.stderr


# --- what there is


def fake_system(monkeypatch: pytest.MonkeyPatch, root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    monkeypatch.setattr(memory, "_PROC", root / "proc")
    monkeypatch.setattr(memory, "_GROUPS", root / "groups")


MACHINE = {"proc/meminfo": "MemTotal:  9000 kB\nMemAvailable:    8000 kB\nSwapFree:   500 kB\nHugePages: 0\n"}
SECOND = {"groups/a/memory.max": "3000000\n", "groups/a/memory.current": "1000000\n"}
STAT = "anon 10\nactive_file 100\ninactive_file 23\n"
FIRST = {
    "groups/memory/memory.limit_in_bytes": "9223372036854771712",
    "groups/memory/memory.usage_in_bytes": "5",
    "groups/memory/memory.stat": "",
    "groups/memory/job/7/memory.limit_in_bytes": "2000000",
    "groups/memory/job/7/memory.usage_in_bytes": "500000",
    "groups/memory/job/7/memory.stat": "active_file 9\ntotal_active_file 11\ntotal_inactive_file 1\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (MACHINE, 8_192_000),
        ({**MACHINE, "proc/self/cgroup": "0::/\n"}, 8_192_000),
        ({**MACHINE, "proc/self/cgroup": "0::/a/b\n", **SECOND, "groups/a/memory.stat": STAT}, 2_000_123),
        (
            {**MACHINE, "proc/self/cgroup": "0::/a\n", **SECOND, "groups/a/memory.max": "max\n"},
            8_192_000,
        ),
        ({**MACHINE, "proc/self/cgroup": "9:cpu:/x\n4:memory:/job/7\n0::/\n", **FIRST}, 1_500_012),
        ({**MACHINE, "proc/self/cgroup": "4:memory:/elsewhere\n", **FIRST}, 8_192_000),
    ],
    ids=["machine", "no group", "version 2", "version 2 without a limit", "version 1", "version 1, another's name"],
)
def test_what_is_free_is_what_the_machine_and_the_groups_leave(monkeypatch, tmp_path, files, expected):
    fake_system(monkeypatch, tmp_path, files)
    assert memory.free_memory() == expected + 500 * 1024


def test_where_nobody_says_nothing_is_refused(monkeypatch, tmp_path, bert):
    fake_system(monkeypatch, tmp_path, {})
    assert memory.free_memory() == memory.free_address_space() == float("inf")
    assert attnviz.analyze(TEXT, bert, syntax=False).heads


@pytest.mark.skipif(not LINUX, reason="needs Linux's own account of memory")
def test_this_machine_has_some_memory():
    assert 10_000_000 < memory.free_memory() < 1e15


# --- the refusal


def test_too_large_a_model_is_refused_before_its_weights_are_read(monkeypatch, bert):
    spoil(bert)
    leave(monkeypatch, 1000)
    with pytest.raises(
        OutOfMemoryError,
        match=r"model needs [\d.]+ kB of memory at least \([\d.]+ kB for weights in float64\), and 1 kB are free; "
        r"--dtype bfloat16 \(dtype=\.\.\.\) or --device-map auto \(device_map=\.\.\.\) needs less\.$",
    ):
        open_checkpoint(bert, dtype="float64")
    leave(monkeypatch, 1e9)
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        open_checkpoint(bert, dtype="float64")


@pytest.mark.parametrize("command", [attnviz.analyze, attnviz.head_outputs, attnviz.rollout])
def test_too_long_a_text_is_refused_before_the_weights_are_read(monkeypatch, bert, command):
    spoil(bert)
    leave(monkeypatch, 1000)
    with pytest.raises(OutOfMemoryError, match=r"\([\d.]+ kB for 6 tokens\), .* a shorter text needs less"):
        command(TEXT, bert)


def test_a_text_that_the_model_cannot_read_is_refused_as_such(monkeypatch, bert):
    leave(monkeypatch, 1000)
    with pytest.raises(TextError, match="positions"):
        attnviz.analyze("the cat " * 1000, bert)
    with pytest.raises(OutOfMemoryError, match=r"for \d+ tokens"):
        attnviz.analyze("the cat " * 1000, bert, truncate=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_fits_exactly_runs(monkeypatch, bert, needs, dtype):
    attnviz.analyze(TEXT, bert, dtype=dtype, syntax=False)
    needed = needs[0].weights + needs[0].text
    leave(monkeypatch, needed)
    assert attnviz.analyze(TEXT, bert, dtype=dtype, syntax=False).heads
    leave(monkeypatch, needed - 1)
    with pytest.raises(OutOfMemoryError):
        attnviz.analyze(TEXT, bert, dtype=dtype, syntax=False)


def test_a_gpu_must_hold_all_weights_and_is_named(monkeypatch, bert):
    refused: list[str] = []

    def before(empty: Any) -> None:
        source = estimate.Source("model", bert)
        monkeypatch.setattr(estimate, "_free_on_gpu", lambda _: 1000)
        estimate.refuse_beyond_memory(empty, source, torch.device("mps"), False, None)
        estimate.refuse_beyond_memory(empty, source, torch.device("cuda:1"), True, None)
        with pytest.raises(OutOfMemoryError) as raised:
            estimate.refuse_beyond_memory(empty, source, torch.device("cuda:1"), False, None)
        refused.append(str(raised.value))

    from attnviz.models.checkpoint import load_checkpoint

    load_checkpoint(estimate.Source("model", bert), torch.device("cpu"), torch.float32, before_weights=before)
    assert "kB for weights in float32), and 1 kB are free on cuda:1; --dtype bfloat16" in refused[0]


@needs_fork
@pytest.mark.skipif(not LINUX, reason="needs a limit of address space that the system keeps to")
def test_a_model_beyond_the_limit_of_the_shell_is_refused_unread(tmp_path, monkeypatch):
    """14 GB of weights that are not there: the file is one hole."""
    folder = save_checkpoint(sharp_bert(), bert_tokenizer(), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    shape = {"hidden_size": 8192, "intermediate_size": 32768, "num_hidden_layers": 4}
    (folder / "config.json").write_text(json.dumps({**config, **shape}))
    os.truncate(folder / "model.safetensors", 14 * 10**9)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["attnviz", "heads", TEXT, "-m", str(folder), "--device", "cpu"])
    limit = 12 * 10**9

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        main()

    with Path("stderr").open("wb") as stderr:
        process = forked(limited, stderr.fileno(), stderr.fileno())
        process.join(100)
    said = " ".join(Path("stderr").read_text().split())
    assert process.exitcode == 1
    assert "needs 14 GB of memory at least (14 GB for weights in float32" in said
    assert "are free (ulimit -v allows 12 GB); --device-map auto (device_map=...) needs less." in said
    assert not (tmp_path / "attnviz-out").exists()
