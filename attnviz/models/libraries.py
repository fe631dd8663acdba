"""Calls of other libraries: output is suppressed, and exceptions become attnviz's errors."""

import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from logging import NullHandler, getLogger
from traceback import walk_tb
from typing import TypeVar

from attnviz.errors import AttnvizError, CheckpointError
from attnviz.memory import is_out_of_memory

T = TypeVar("T")

_MODEL_CODE = {"transformers", "torch", "accelerate"}

_NETWORK_LIBRARIES = ("httpx", "httpcore", "requests", "huggingface_hub")


@contextmanager
def calling_transformers(what: str, error_type: type[AttnvizError] = CheckpointError) -> Iterator[None]:
    """Suppress progress bars and warnings of transformers, accelerate and torch; convert exceptions to ``error_type``.

    Any exception is converted: a broken config makes transformers raise KeyError, TypeError, AssertionError and more,
    and a tokenizer written in Rust panics, which is a BaseException.
    """
    from transformers.utils import logging

    progress = logging.is_progress_bar_enabled()
    loggers = [getLogger(name) for name in ("transformers", "accelerate")]
    kept = [(logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:  # a level that is set clears what every logger has cached
        logger.handlers, logger.propagate = [NullHandler()], False
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except AttnvizError:
        raise
    except BaseException as error:
        if is_out_of_memory(error) or not (isinstance(error, Exception) or _is_panic(error)):
            raise
        raise error_type(f"{what}: {_reason(error)}") from error
    finally:
        for logger, (handlers, propagate) in zip(loggers, kept, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
        if progress:
            logging.enable_progress_bar()


def _reason(error: BaseException) -> str:
    reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
    return " ".join(reason.split())[:300] or type(error).__name__


@contextmanager
def running_own_code() -> Iterator[None]:
    """Turn what a model's own code raises as it runs into CheckpointError: its config has what it cannot run.

    What a hook raises, of attnviz or of the user, stays as it is.
    """
    try:
        yield
    except AttnvizError:
        raise
    except Exception as error:
        packages = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in walk_tb(error.__traceback__)]
        inside = packages[packages.index("transformers") :] if "transformers" in packages else []
        if is_out_of_memory(error) or not inside or not {*inside} <= _MODEL_CODE:
            raise
        raise CheckpointError(
            f"transformers cannot run this model as its config says: {_reason(error)}. Mend its config.json."
        ) from error


@contextmanager
def calling_tokenizer(what: str) -> Iterator[None]:
    """As :func:`calling_transformers`, and what Rust writes about a panic does not reach standard error.

    Rust writes to the file descriptor before Python hears of it; what others write meanwhile is held back, not lost.
    """
    with calling_transformers(what), _STANDARD_ERROR, ExitStack() as stack:
        try:
            shown = os.dup(2)
            stack.callback(os.close, shown)
            written = stack.enter_context(tempfile.TemporaryFile())
        except OSError:  # closed, or nowhere to write
            yield
            return
        os.dup2(written.fileno(), 2)
        told_by_rust = False
        try:
            yield
        except BaseException as error:
            told_by_rust = _is_panic(error)
            raise
        finally:
            os.dup2(shown, 2)
            written.seek(0)
            content = written.read()
            os.write(2, content.partition(b"\nthread ")[0] if told_by_rust else content)


_STANDARD_ERROR = threading.RLock()


def _is_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"  # pyo3's, a class that cannot be imported


@contextmanager
def asking_hub(name: str, revision: str | None, unknown: str) -> Iterator[None]:
    """Convert exceptions of the hub's client to CheckpointError; others keep their traceback.

    ``unknown`` begins the message that there is none of this name, which then says why.
    """
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except GatedRepoError as error:
        raise CheckpointError(
            f"the hub model {name!r} is gated: accept its terms on the hub, then set HF_TOKEN to your access token."
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"the hub model {name!r} has no revision {revision!r}; check --revision.") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{unknown}, and the hub has no such model, or it is private and HF_TOKEN is not set."
        ) from error
    except Exception as error:
        library = type(error).__module__.partition(".")[0]  # by name: the client changed its HTTP library before
        if not isinstance(error, OSError) and not library.startswith(_NETWORK_LIBRARIES):
            raise
        raise CheckpointError(f"{unknown}, and the hub cannot be reached ({first_line(error)}).") from error


def within(seconds: float, call: Callable[[], T]) -> T:
    """The call's result, or TimeoutError; name look-ups have no timeout of their own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - handed over to the caller's thread
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([future], seconds).done:
        raise TimeoutError(f"no answer within {seconds:.0f} seconds")
    return future.result()


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its class where it has none, without a full stop."""
    return (str(error) or type(error).__name__).strip().splitlines()[0].removesuffix(".")
