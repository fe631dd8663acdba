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
    try:
        with handled(interruption()):
            _run()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            for number in SIGNALS:  # later ones, while the process ends
                signal.signal(number, signal.SIG_IGN)
        raise


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
    except KeyboardInterrupt:  # likewise
        _end("interrupted.", INTERRUPTED)


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
