"""Runs over corpora that are interrupted, or split over processes in this one, and whether their numbers agree."""

import os
from collections.abc import Callable, Iterable
from itertools import count
from signal import Signals
from typing import Any

import pytest

from attnviz.inputs.reading import Corpus
from attnviz.models.checkpoint import Checkpoint
from attnviz.run import corpus
from attnviz.run.corpus import CorpusLoop
from attnviz.run.processes import Process
from tests.support.tolerances import SUMS_32


def quiet_loop(checkpoint: Checkpoint, corpora: Iterable[Corpus] = (), **options: Any) -> CorpusLoop:
    """A loop that tells nobody of its progress."""
    defaults = {"batch_size": 16, "seed": 0, "progress": lambda *_: None, "warn": lambda _: None}
    return CorpusLoop(checkpoint=checkpoint, corpora=tuple(corpora), **defaults | options)


def interrupting(after: int, *signals: Signals) -> Callable[..., None]:
    """A function to be told of progress that sends this process these signals after so many batches."""
    batches = count(1)

    def tell(*_: object) -> None:
        if next(batches) == after:
            for each in signals:
                os.kill(os.getpid(), each)

    return tell


def gathered_here(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The list to which processes add what they have measured, the first process last."""
    states: list[Any] = []

    def gathered(process: Process, state: Any) -> list[Any]:
        states.insert(0, state)
        return states if process.first else []

    monkeypatch.setattr(corpus, "gathered", gathered)
    return states


def close(found: Any, expected: Any, relative: float = SUMS_32) -> None:
    """Assert that documents are equal but for rounding."""
    if isinstance(expected, dict | list):
        assert len(found) == len(expected)
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            close(found[key], expected[key], relative)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=relative, abs=SUMS_32)
    else:
        assert found == expected
