"""Chat templates are programs that come with a checkpoint: they run for a limited time, and in limited memory."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnviz.errors import TextError

# The longest time that a template may take, the most characters that it may make, and bytes that it may use. Memory is
# limited on Linux alone.
SECONDS, LARGEST, MEMORY = 10.0, 10_000_000, 1 << 28

_ONE_AT_A_TIME = threading.Lock()  # the limit on memory is the process's


class _TooLongError(BaseException):
    """No Exception, which jinja would take for one of a constant."""


@contextmanager
def limited_template() -> Iterator[None]:
    """Raise TextError where a template, which the block runs, takes too long or too much memory.

    Time is looked at with every line of Python that the template runs in this thread.
    """
    end = time.monotonic() + SECONDS
    before = sys.gettrace()

    def look(*_: Any) -> Any:
        if time.monotonic() > end:
            raise _TooLongError
        return look

    with _ONE_AT_A_TIME, _limited_memory():
        sys.settrace(look)
        try:
            yield
        except _TooLongError:
            raise _refusal(f"takes longer than {SECONDS:g} seconds") from None
        except MemoryError:
            raise _refusal("takes too much memory") from None
        finally:
            sys.settrace(before)


def check_rendered(text: str) -> str:
    """The text that a template made; TextError for one longer than :data:`LARGEST`."""
    if len(text) > LARGEST:
        raise _refusal(f"makes {len(text):,} characters")
    return text


def _refusal(what: str) -> TextError:
    return TextError(
        f"the tokenizer's chat template {what}; expected one that ends and makes at most {LARGEST:,} characters: mend "
        "it, or render the chat yourself and give its text."
    )


@contextmanager
def _limited_memory() -> Iterator[None]:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(statm.read_text().split()[0]) * resource.getpagesize()
    limits = [limit for limit in (used + MEMORY, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
