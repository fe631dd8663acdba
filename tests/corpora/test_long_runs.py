"""Long runs: what an unfinished one leaves and whether it is still the same, and which process does what."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attnviz.errors import OutputError, ProcessError
from attnviz.texts.long_runs import (
    Measured,
    Process,
    Unfinished,
    gathered,
    joined_processes,
    own_file,
    remove_kept,
    this_process,
)
from attnviz.texts.reading import Text


def half_done() -> Measured:
    """Texts 3, 0 and 4 are measured, 1 was left out."""
    measured = Measured()
    for number in (3, 0, 4):
        measured.note(Text("", number=number), n_tokens=5)
    measured.note(Text("", number=1))
    return measured


def test_what_is_done_is_counted():
    assert half_done() == Measured({0, 1, 3, 4}, texts=3, tokens=15, left_out=1)


def test_the_state_survives_a_file(tmp_path: Path):
    kept = Unfinished(tmp_path / "new" / "profile.unfinished", {"seed": 1})
    assert kept.load() is None
    kept.save({"measured": half_done().state(), "sums": torch.arange(3.0)})
    state = Unfinished(kept.path, {"seed": 1}).load()
    assert state["sums"].tolist() == [0, 1, 2]
    assert Measured.of(state["measured"]) == half_done()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["profile.unfinished"]


def test_what_another_run_has_measured_is_not_replaced(tmp_path: Path):
    Unfinished(tmp_path / "u", {"seed": 1, "model": "m"}).save({"a": 1})
    with pytest.raises(OutputError, match=r"other settings has measured \(seed 1, now 2\); give the same settings"):
        Unfinished(tmp_path / "u", {"seed": 2, "model": "m"}).load()
    assert Unfinished(tmp_path / "u", {"seed": 1, "model": "m"}).load() == {"a": 1}


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x05."])
def test_a_file_that_is_something_else_is_not_replaced(tmp_path: Path, content: bytes):
    (tmp_path / "u").write_bytes(content)
    with pytest.raises(OutputError, match="found something else, or a damaged file; delete it to begin anew"):
        Unfinished(tmp_path / "u", {}).load()
    assert (tmp_path / "u").read_bytes() == content
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OutputError, match="found something else"):
            Unfinished(path, {}).load()


def test_a_damaged_file_is_noticed(tmp_path: Path):
    kept = Unfinished(tmp_path / "u", {"seed": 1})
    kept.save({"sums": torch.full((1000,), 1.5)})
    (tmp_path / "u").write_bytes((tmp_path / "u").read_bytes()[:-40])
    with pytest.raises(OutputError, match="damaged"):
        kept.load()


def test_only_the_parts_of_this_run_are_deleted(tmp_path: Path):
    base = tmp_path / "u"
    for process in (Process(), Process(0, 2), Process(1, 2), Process(1, 3)):
        Unfinished(own_file(base, process), {}).save({})
    for name in ("u-notes", "u.old"):
        (tmp_path / name).write_text("mine")
    remove_kept(base, Process(0, 2))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["u", "u-2-of-3", "u-notes", "u.old"]


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match=f"cannot keep what was measured in {tmp_path / 'file' / 'u'}: "):
        Unfinished(tmp_path / "file" / "u", {}).save({})


# --- processes


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the environment as torchrun does, and takes away what is not given."""

    def describe(**given: str) -> None:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)

    return describe


def test_torchrun_says_which_process_it_is_and_without_it_there_is_one(torchrun: Callable[..., None]):
    torchrun()
    assert this_process() == Process(0, 1, 0)
    assert this_process().first
    torchrun(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1")
    assert this_process() == Process(3, 4, 1)
    assert not this_process().first


@pytest.mark.parametrize(("rank", "count"), [("4", "4"), ("-1", "2"), ("0", "many")])
def test_an_environment_that_makes_no_sense_is_refused(torchrun: Callable[..., None], rank: str, count: str):
    torchrun(RANK=rank, WORLD_SIZE=count)
    message = f"expected RANK below WORLD_SIZE.*found RANK='{rank}', WORLD_SIZE='{count}'"
    with pytest.raises(ProcessError, match=message):
        this_process()


def test_each_text_is_of_one_process():
    assert [number for number in range(6) if Process(1, 3).owns(number)] == [1, 4]


def test_each_of_several_processes_has_a_file_of_its_own():
    assert [own_file(Path("a/b"), of) for of in (Process(), Process(1, 3))] == [Path("a/b"), Path("a/b-2-of-3")]


def test_processes_that_cannot_meet_are_an_error(torchrun: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    torchrun()
    with pytest.raises(ProcessError, match=r"cannot connect 2 processes: .*; start them with torchrun"):
        joined_processes(Process(0, 2)).__enter__()
    monkeypatch.setattr("torch.distributed.is_available", lambda: False)
    with pytest.raises(ProcessError, match=r"no torch\.distributed; start attnviz without torchrun"):
        joined_processes(Process(0, 2)).__enter__()


def test_another_process_that_stopped_is_an_error(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr("torch.distributed.gather_object", broken)
    for rank in (0, 1):
        with pytest.raises(ProcessError, match="another process has stopped before it was done; see its message"):
            gathered(Process(rank, 2), {})


def test_processes_part_when_they_are_done(monkeypatch: pytest.MonkeyPatch):
    calls = []
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_, **__: calls.append("joined"))
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: calls.append("parted"))
    with pytest.raises(KeyError), joined_processes(Process(1, 2)):
        raise KeyError
    assert calls == ["joined", "parted"]
