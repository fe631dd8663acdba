"""A folder is replaced whole or not at all: what is the user's stays, and a run that fails or is killed leaves it."""

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.errors import CheckpointError, OutputError
from attnviz.present.output_folder import MARKER, OutputFolder
from attnviz.signals import SIGNALS, handled
from tests.conftest import SENTENCE
from tests.support.models import bert_tokenizer, sharp_bert

FILES = ("overview.png", "heads/L00H00.png")


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, hidden ones too, with its bytes (None for a folder)."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def files_in(folder: Path) -> set[str]:
    return {name for name, data in contents(folder).items() if data is not None}


def save(folder: Path, files: tuple[str, ...] = FILES, content: bytes = b"picture", command: str = "heads") -> None:
    with OutputFolder(folder, command) as output:
        for name in files:
            output.write(name, content)
        output.put_in_place()


@contextmanager
def unchanged(folder: Path, error: type[BaseException] = OutputError, match: str | None = None) -> Iterator[None]:
    """What runs inside fails, and leaves all below the folder as it was."""
    before = contents(folder)
    with pytest.raises(error, match=match):
        yield
    assert contents(folder) == before


def test_a_run_leaves_its_files_and_a_marker_that_lists_them(tmp_path: Path):
    save(tmp_path / "a" / "b")
    assert files_in(tmp_path) == {f"a/b/{name}" for name in (*FILES, MARKER)}
    marker = json.loads((tmp_path / "a" / "b" / MARKER).read_text())
    assert (marker["command"], set(marker["files"])) == ("heads", {*FILES, MARKER})


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("name", ["out", "new/folder"])
def test_an_error_leaves_what_was_there(tmp_path: Path, error: type[BaseException], name: str):
    save(tmp_path / "out")
    with unchanged(tmp_path, error), OutputFolder(tmp_path / name, "heads") as output:
        output.write("overview.png", b"other")
        raise error


@pytest.mark.parametrize("fails", ["first", "second", "notes.txt"])
def test_a_full_disk_or_a_file_that_cannot_be_moved_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
):
    save(tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    real, calls = Path.rename, list[Path]()

    def full(path: Path, target: Path) -> Path:
        calls.append(path)
        if path.name == fails or fails == {1: "first", 2: "second"}.get(len(calls)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", full)
    with unchanged(tmp_path):
        save(tmp_path / "out", content=b"new")
    assert len(calls) >= 1


KILLED = """
import os, signal, sys
from pathlib import Path
from attnviz.present.output_folder import OutputFolder
with OutputFolder(Path(sys.argv[1]), "heads") as output:
    output.write("overview.png", "new")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_is_killed_leaves_the_folder_and_does_not_block_the_next(tmp_path: Path):
    save(tmp_path / "out")
    before = contents(tmp_path / "out")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert contents(tmp_path / "out") == before
    save(tmp_path / "out", ("lines.png",))
    assert files_in(tmp_path) == {"out/lines.png", f"out/{MARKER}"}  # nothing hidden is left either


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_while_the_folder_is_replaced_waits_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals_heard: None, number: signal.Signals
):
    save(tmp_path / "out")
    real, came = Path.rename, list[int]()

    def signalled(path: Path, target: Path) -> Path:
        signal.raise_signal(number)
        return real(path, target)

    monkeypatch.setattr(Path, "rename", signalled)
    with handled(lambda number, _: came.append(number)):
        save(tmp_path / "out", ("lines.png",))
    assert came == [number]
    assert files_in(tmp_path / "out") == {"lines.png", MARKER}


def test_files_and_links_of_the_users_own_stay_and_a_link_to_the_folder_is_written_through(tmp_path: Path):
    save(tmp_path / "real")
    (tmp_path / "out").symlink_to(tmp_path / "real")
    (tmp_path / "out" / "heads" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "link").symlink_to(tmp_path)
    save(tmp_path / "out", ("lines.png",))
    assert files_in(tmp_path / "real") == {"lines.png", MARKER, "heads/notes.txt"}
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "real" / "link").is_symlink()


CLAIM = '[[claim]]\nhead = "L0H0"\nablate = "loss"\nat_least = 0\ncorpus = "../out/read.csv"'


@pytest.mark.parametrize(("command", "given"), [("ablate", "out/read.csv"), ("check", "claims/c.toml")])
@pytest.mark.parametrize("in_python", [True, False])
def test_a_file_of_an_earlier_run_that_this_one_reads_stays(
    command: str, given: str, in_python: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "out", ("read.csv",), b"text\nthe cat ran\none two\n", command=command)
    Path("claims").mkdir()
    Path("claims/c.toml").write_text(CLAIM)
    before = contents(tmp_path)
    if in_python:
        more = {"curve": False, "select": ["L0H0"]} if command == "ablate" else {}
        found = getattr(attnviz, command)(given, "tiny-gpt2", device="cpu", **more)
        with pytest.raises(OutputError):
            found.save("out", figures=[])
    else:
        words = [command, given, "-o", "out", "-m", "tiny-gpt2", "--device", "cpu"]
        assert CliRunner().invoke(app, words).exit_code == OutputError.exit_code
    assert contents(tmp_path) == before


def test_folders_of_the_users_own_stay_as_they_are(tmp_path: Path):
    save(tmp_path / "out")
    mine = [tmp_path / "out" / "private", tmp_path / "out" / ".git" / "refs", tmp_path / ".out-new-ideas"]
    for folder in mine:
        folder.mkdir(0o700, parents=True)
    save(tmp_path / "out")
    assert [folder.stat().st_mode & 0o777 for folder in mine] == [0o700] * 3


AT_ONCE = """
import sys
from pathlib import Path
from attnviz.present.output_folder import OutputFolder
for _ in range(150):
    with OutputFolder(Path(sys.argv[1]), "heads") as output:
        output.write("overview.png", "new")
        output.put_in_place()
"""


def test_runs_at_once_into_one_folder_wait_for_each_other(tmp_path: Path):
    save(tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    runs = [subprocess.Popen([sys.executable, "-c", AT_ONCE, str(tmp_path / "out")]) for _ in range(3)]
    assert [run.wait() for run in runs] == [0, 0, 0]
    assert files_in(tmp_path) == {"out/notes.txt", "out/overview.png", f"out/{MARKER}"}


@pytest.mark.parametrize("name", ["lines.png", "heads/L00H01.png", "heads/L00H02.png/x"])
def test_a_file_of_the_users_own_is_not_replaced(tmp_path: Path, name: str):
    save(tmp_path / "out")
    (tmp_path / "out" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "out" / name).write_text("mine")
    with unchanged(tmp_path, match=name.removesuffix("/x")):  # a folder stays whole
        save(tmp_path / "out", ("lines.png", "heads/L00H01.png", "heads/L00H02.png"))


@pytest.mark.parametrize("marker", [None, "not json", "[]", '{"files": []}', '{"command": "heads", "files": 3}', "["])
def test_a_folder_without_a_marker_is_refused(tmp_path: Path, marker: str | None):
    (tmp_path / "overview.png").write_text("mine")
    if marker is not None:
        (tmp_path / MARKER).write_text(marker)
    with unchanged(tmp_path, match=MARKER):
        save(tmp_path)


def test_results_of_another_command_and_the_working_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save(tmp_path / "out", command="heads.texts")
    save(tmp_path / "out", command="heads")
    with unchanged(tmp_path):
        save(tmp_path / "out", command="outputs")
    monkeypatch.chdir(tmp_path)
    for folder in (Path(), tmp_path.parent):
        with unchanged(tmp_path):
            save(folder)


def test_a_crafted_marker_cannot_make_us_delete_anything_outside(tmp_path: Path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out").mkdir()
    listed = ["../mine", str(tmp_path / "mine"), ".."]
    (tmp_path / "out" / MARKER).write_text(json.dumps({"command": "heads", "files": listed}))
    save(tmp_path / "out")
    assert (tmp_path / "mine").read_text() == "mine"


def fifo(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / MARKER)


@pytest.mark.parametrize(
    "make",
    [lambda path: path.write_text("mine"), lambda path: path.parent.chmod(0o500), fifo],
    ids=["file", "mode", "pipe"],
)
def test_what_cannot_be_a_folder_of_results_is_one_message(tmp_path: Path, make: Callable[[Path], Any]):
    (tmp_path / "in").mkdir()
    make(tmp_path / "in" / "out")
    if not (tmp_path / "in" / "out").exists() and os.access(tmp_path / "in", os.W_OK):
        pytest.skip("the administrator may write everywhere")
    with pytest.raises(OutputError):
        save(tmp_path / "in" / "out")


def hash_of(analysis: Any) -> str:
    found: str = analysis.document()["model"]["weights_sha256"]
    return found


def test_a_model_in_memory_is_told_by_its_parameters_wherever_they_are():
    model, tokenizer = sharp_bert(), bert_tokenizer()
    hashes = []
    for change in (0.0, 0.0, 0.1):
        model.encoder.layer[0].output.dense.bias.data += change
        analysis = attnviz.analyze(SENTENCE, model, tokenizer=tokenizer, syntax=False)
        model.cpu()
        hashes.append(hash_of(analysis))
    assert hashes[0] == hashes[1] != hashes[2]
    assert pickle.loads(pickle.dumps(analysis.checkpoint.weights_hash))() == hashes[2]


def test_weights_that_are_gone_or_changed_are_one_error(bert_folder: Path) -> None:
    by_name = attnviz.analyze(SENTENCE, str(bert_folder), syntax=False)
    kept = (bert_folder / "model.safetensors").rename(bert_folder / "kept")
    with pytest.raises(CheckpointError):
        hash_of(by_name)
    kept.rename(bert_folder / "model.safetensors")
    model = sharp_bert()
    in_memory = attnviz.analyze(SENTENCE, model, tokenizer=bert_tokenizer(), syntax=False)
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight.mul_(2)
    with pytest.raises(CheckpointError):
        hash_of(in_memory)


def test_signals_that_are_ignored_stay_so(signals_heard: None):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    came: list[int] = []
    with handled(lambda number, _: came.append(number)):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
    assert came == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
