"""Entry point of the process; nothing heavy is imported before signals are handled."""

import errno
import io
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from attnviz.errors import INTERRUPTED, OutOfMemoryError
from attnviz.memory import out_of_memory_named
from attnviz.signals import SIGNALS, handled, interruption


def main() -> None:
    """The console script ``attnviz``; raises SystemExit."""
    came = list[int]()
    try:
        with handled(interruption(came)):
            _run()
    except BaseException as error:
        if not came:
            raise
        for number in SIGNALS:  # later ones, while the process ends
            signal.signal(number, signal.SIG_IGN)
        if isinstance(error, SystemExit) and error.code == INTERRUPTED:
            raise
        _end("interrupted.", INTERRUPTED)  # outside of a command, or a library made another error of it, or none


def _run() -> None:
    try:
        with out_of_memory_named():
            _prepare()
            from attnviz.cli.program import app

            try:
                app()
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
    except OSError as error:  # help, usage or version cannot be written
        if error.filename is not None or sys.stdout is None:
            raise
        from attnviz.cli.terminal import discard

        discard(sys.stdout)
        if error.errno != errno.EPIPE:
            _end(f"cannot print: {error.strerror}.", 1)
    except OutOfMemoryError as error:  # while importing
        _end(str(error), error.exit_code)


def _prepare() -> None:
    """Set up streams, and environment variables that keep libraries silent and off the display."""
    import logging

    for descriptor in range(3):  # the next file would get the number of a closed one, and what is printed to it
        try:
            os.fstat(descriptor)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 gets ? for what it cannot show
    os.environ["MPLBACKEND"] = "agg"  # the only one that is needed, whatever the user's is
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # else it tells of a folder that it cannot write to
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # else it tells in each pass that it rounds


def _end(message: str, code: int) -> NoReturn:
    if sys.stderr is not None:
        sys.stderr.write(f"attnviz: {message}\n")
    sys.exit(code)
