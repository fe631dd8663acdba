"""Long runs: what an unfinished one leaves and whether it is still the same, and which process does what."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnviz.errors import OutputError, ProcessError
from attnviz.inputs.batches import Batch
from attnviz.inputs.prompt import Text, drawn_ids
from attnviz.inputs.reading import Corpus
from attnviz.inputs.tables import Rows
from attnviz.run.corpus import Measured
from attnviz.run.processes import (
    Process,
    Unfinished,
    gathered,
    joined_processes,
    own_file,
    remove_kept,
    this_process,
)

CORPUS = Corpus(Rows(Path("corpus.txt")), "txt", "0")


def half_done() -> Measured:
    """Texts 3, 0 and 4 are measured, 1 was left out."""
    measured = Measured(CORPUS)
    texts = [replace(drawn_ids((1, 2, 3, 4, 5), Text("", number=number)), unknown_id=2) for number in (3, 0, 4)]
    measured.add(Batch(tuple(texts), {}, torch.empty(0), torch.empty(0)))
    measured.numbers.add(1)
    return measured


def test_the_state_survives_a_file_and_another_run_does_not_take_it(tmp_path: Path):
    assert half_done() == Measured(CORPUS, {0, 1, 3, 4}, texts=3, tokens=15, unknown=3)
    assert half_done().left_out == 1
    kept = Unfinished(tmp_path / "new" / "profile.unfinished", {"seed": 1})
    assert kept.load() is None
    kept.save({"measured": half_done().state(), "sums": torch.arange(3.0)})
    state = Unfinished(kept.path, {"seed": 1}).load()
    assert state["sums"].tolist() == [0, 1, 2]
    again = Measured(CORPUS)
    again.merge(state["measured"])
    assert again == half_done()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["profile.unfinished"]
    with pytest.raises(OutputError, match="seed 1"):
        Unfinished(kept.path, {"seed": 2}).load()
    assert kept.load() is not None
    with pytest.raises(OutputError):  # a file is in the way
        Unfinished(kept.path / "u", {}).save({})


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x05.", None])
def test_a_file_that_is_something_else_or_damaged_is_not_replaced(tmp_path: Path, content: bytes | None):
    kept = Unfinished(tmp_path / "u", {})
    kept.save({"sums": torch.full((1000,), 1.5)})
    content = kept.path.read_bytes()[:-40] if content is None else content
    kept.path.write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    for path in (kept.path, tmp_path / "pipe", tmp_path):
        with pytest.raises(OutputError):
            Unfinished(path, {}).load()
    assert kept.path.read_bytes() == content


def test_only_the_parts_of_this_run_are_deleted(tmp_path: Path):
    base = tmp_path / "u"
    for process in (Process(), Process(0, 2), Process(1, 2), Process(1, 3)):
        Unfinished(own_file(base, process), {}).save({})
    for name in ("u-notes", "u.old"):
        (tmp_path / name).write_text("mine")
    remove_kept(base, Process(0, 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["u", "u-2-of-3", "u-notes", "u.old"]


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
    torchrun(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1")
    assert this_process() == Process(3, 4, 1)
    assert (Process().first, Process(3, 4).first) == (True, False)
    assert [number for number in range(6) if Process(1, 3).owns(number)] == [1, 4]
    assert [own_file(Path("a/b"), of) for of in (Process(), Process(1, 3))] == [Path("a/b"), Path("a/b-2-of-3")]
    for rank, count in (("4", "4"), ("-1", "2"), ("0", "many")):
        torchrun(RANK=rank, WORLD_SIZE=count)
        with pytest.raises(ProcessError, match="RANK"):
            this_process()


def test_processes_that_cannot_meet_or_stop_are_an_error(torchrun, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("Connection closed by peer")

    torchrun()
    for available in (True, False):
        monkeypatch.setattr("torch.distributed.is_available", lambda available=available: available)
        with pytest.raises(ProcessError):
            joined_processes(Process(0, 2)).__enter__()
    monkeypatch.setattr("torch.distributed.gather_object", broken)
    for rank in (0, 1):
        with pytest.raises(ProcessError):
            gathered(Process(rank, 2), {})


def test_processes_part_when_they_are_done(monkeypatch: pytest.MonkeyPatch):
    calls = []
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_, **__: calls.append("joined"))
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: calls.append("parted"))
    with pytest.raises(KeyError), joined_processes(Process(1, 2)):
        raise KeyError
    assert calls == ["joined", "parted"]
