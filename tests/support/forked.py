"""A program in a process of its own, forked from this one: a fresh one would first import torch, for seconds."""

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from locale import LC_ALL, setlocale
from multiprocessing.context import ForkProcess

import pytest

from attnviz.signals import SIGNALS

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked")


def forked(program: Callable[[], object], stdout: int, stderr: int, locale: str = "") -> ForkProcess:
    """Start it with the signals of a program in the foreground, and with these descriptors as its streams.

    In the locale ``C`` files are ASCII unless an encoding is named, and so are the streams.
    """
    process = multiprocessing.get_context("fork").Process(
        target=_as_if_fresh, args=(program, stdout, stderr, locale), daemon=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of pytest-xdist, which only wait
        process.start()
    return process


def _as_if_fresh(program: Callable[[], object], stdout: int, stderr: int, locale: str) -> None:
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    if locale:
        setlocale(LC_ALL, locale)
    encoding = None if locale else "utf-8"
    sys.stdout, sys.stderr = open(1, "w", encoding=encoding), open(2, "w", encoding=encoding)  # noqa: SIM115
    program()
