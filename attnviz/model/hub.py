"""Asking the Hugging Face hub: for no longer than a person waits, and with errors that say what to do."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from attnviz.errors import CheckpointError

__all__ = ["asking_hub", "first_line", "within"]

T = TypeVar("T")


@contextmanager
def asking_hub(name: str, revision: str | None, unknown: Callable[[str], str]) -> Iterator[None]:
    """Make errors to read of what the hub's client raises inside; mistakes of ours keep their traceback.

    Args:
        name: the hub id that is asked for.
        revision: branch, tag or commit; None for the main branch.
        unknown: from the reason to the message for a model that cannot be had.

    Raises:
        CheckpointError: the model is gated, private or unknown, or the hub cannot be reached.
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
        reason = "the hub has no such model, or it is private and HF_TOKEN is not set"
        raise CheckpointError(unknown(reason)) from error
    except Exception as error:
        if not _is_network_error(error):
            raise
        raise CheckpointError(unknown(f"the hub cannot be reached ({first_line(error)})")) from error


def within(seconds: float, call: Callable[[], T]) -> T:
    """The call's result, or TimeoutError: a name server that never answers has no timeout of its own."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 - handed over to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:.0f} seconds")
    return results[0]


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its class where it has none."""
    return (str(error) or type(error).__name__).strip().splitlines()[0]


def _is_network_error(error: Exception) -> bool:
    """Whether an error comes from the network and not from a mistake of ours.

    The hub's client changed its HTTP library more than once, so the library is named by its module.
    """
    library = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or library.startswith(("httpx", "httpcore", "requests", "huggingface_hub"))
