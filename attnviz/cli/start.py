"""Entry point of the process; nothing heavy is imported before signal handlers are installed."""

import errno
import io
import os
import sys
from contextlib import suppress

from attnviz import signals
from attnviz.errors import INTERRUPTED, OutOfMemoryError
from attnviz.memory import out_of_memory_named


class _InterruptedError(BaseException):
    """A signal outside of a command; typer turns a KeyboardInterrupt into an exit without a message."""


def main() -> None:
    """The console script ``attnviz``; raises SystemExit."""
    signals.insist(KeyboardInterrupt, _InterruptedError)
    signals.take(signals.interruption(_InterruptedError))
    try:
        try:
            with signals.delivered(_InterruptedError), out_of_memory_named():
                _prepare()
                _run()
        finally:
            signals.ignore()
    except OutOfMemoryError as error:  # while importing
        _say(str(error))
        sys.exit(error.exit_code)
    except (_InterruptedError, KeyboardInterrupt):  # while importing, parsing, or ending
        signals.ignore()
        _say("interrupted.")
        sys.exit(INTERRUPTED)


def _run() -> None:
    """Run the command; prints one message where help, usage or version cannot be written."""
    from attnviz.cli.program import app
    from attnviz.cli.terminal import discard

    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or sys.stdout is None:
            raise
        discard(sys.stdout)
        if error.errno != errno.EPIPE:
            _say(f"cannot print: {error.strerror}.")
            sys.exit(1)


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


def _say(message: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"attnviz: {message}\n")
