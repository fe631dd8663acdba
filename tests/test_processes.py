"""Which process does what; processes that cannot meet."""

from pathlib import Path

import pytest

from attnviz.corpora.long_runs import Process, gathered, joined_processes, own_file, this_process
from attnviz.errors import ProcessError


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert this_process() == Process(0, 1, 0)
    assert this_process().first


def test_torchrun_says_which_process_it_is(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert this_process() == Process(3, 4, 1)
    assert not this_process().first


@pytest.mark.parametrize(("rank", "count"), [("4", "4"), ("-1", "2"), ("0", "many")])
def test_an_environment_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch, rank: str, count: str):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", count)
    with pytest.raises(
        ProcessError, match=f"expected RANK below WORLD_SIZE.*found RANK='{rank}', WORLD_SIZE='{count}'"
    ):
        this_process()


def test_each_of_several_processes_has_a_file_of_its_own():
    assert own_file(Path("a/b"), Process()) == Path("a/b")
    assert own_file(Path("a/b"), Process(1, 3)) == Path("a/b-2-of-3")


def test_processes_that_cannot_meet_are_an_error(monkeypatch: pytest.MonkeyPatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with (
        pytest.raises(ProcessError, match=r"cannot connect 2 processes: .*; start them with torchrun"),
        joined_processes(Process(0, 2)),
    ):
        pytest.fail("they have met")


def test_a_torch_that_cannot_is_an_error(monkeypatch: pytest.MonkeyPatch):
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
