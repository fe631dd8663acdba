"""What an unfinished run has measured, in one file, for the next run to go on from."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attnviz.corpora.batches import Text
from attnviz.errors import OutputError

__all__ = ["ChangedCorpusError", "Measured", "Unfinished"]

_DIGITS = 1 << 62


class ChangedCorpusError(Exception):
    """What an earlier run has measured does not stand in the corpus any more."""


@dataclass
class Measured:
    """How much of one corpus is done.

    Attributes:
        numbers: of the texts that need not be read again, measured or left out.
        digest: of what stands in them, whatever their order.
        texts: measured.
        tokens: of these.
        left_out: texts that do not count: too long, or too short.
        pending: digests of texts that are being measured, by number.
    """

    numbers: set[int] = field(default_factory=set)
    digest: int = 0
    texts: int = 0
    tokens: int = 0
    left_out: int = 0
    pending: dict[int, int] = field(default_factory=dict)

    def note(self, text: Text, n_tokens: int = 0) -> None:
        """A text is measured; or left out, where it has no tokens."""
        self.numbers.add(text.number)
        self.digest = (self.digest + self.pending.pop(text.number)) % _DIGITS
        self.texts += n_tokens > 0
        self.tokens += n_tokens
        self.left_out += n_tokens == 0

    def remaining(self, texts: Iterator[Text], whole: Callable[[], bool]) -> Iterator[Text]:
        """The texts that are still to be measured.

        Args:
            texts: of the corpus.
            whole: whether, when these have ended, they were all of it.

        Raises:
            ChangedCorpusError: those that are done are not what they were.
        """
        before, digest, found = frozenset(self.numbers), 0, 0
        expected = self.digest
        for text in texts:
            if text.number not in before:
                self.pending[text.number] = _digest(text)
                yield text
                continue
            found, digest = found + 1, (digest + _digest(text)) % _DIGITS
            if found == len(before) and digest != expected:
                raise ChangedCorpusError
        if found < len(before) and whole():
            raise ChangedCorpusError

    def state(self) -> dict[str, Any]:
        """Plain numbers, to save."""
        return {**vars(self), "numbers": sorted(self.numbers), "pending": {}}

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Measured":
        """From what :meth:`state` gave."""
        return cls(**{**state, "numbers": set(state["numbers"])})


class Unfinished:
    """The file of an unfinished run; only a run with the same settings may go on from it."""

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self.path = path
        self._settings = settings

    def load(self) -> dict[str, Any] | None:
        """What an earlier run with the same settings has left; None without one.

        Raises:
            OutputError: the file is of a run with other settings, or no such file at all; it is left as it is.
        """
        if self.path is None or not self.path.exists():
            return None
        try:
            found = torch.load(self.path, weights_only=True)
            settings, state = dict(found["settings"]), dict(found["state"])
        except Exception as error:
            raise OutputError(
                f"expected what an interrupted run has measured in {self.path}, found something else, or a damaged "
                "file; delete it to begin anew, or choose another folder with -o."
            ) from error
        other = [name for name in {**settings, **self._settings} if settings.get(name) != self._settings.get(name)]
        if other:
            changes = ", ".join(f"{name} {settings.get(name)}, now {self._settings.get(name)}" for name in other)
            raise OutputError(
                f"{self.path} holds what an interrupted run with other settings has measured ({changes}); give the "
                "same settings to go on, another folder with -o, or delete it to begin anew."
            )
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Whole or not at all.

        Raises:
            OutputError: the folder cannot be written to.
        """
        if self.path is None:
            return
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"settings": self._settings, "state": state}, new)
            new.replace(self.path)
        except (OSError, RuntimeError) as error:  # torch raises the latter where it cannot open a file
            with suppress(OSError):
                new.unlink()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "no room, or no permission"
            raise OutputError(f"cannot keep what was measured in {self.path}: {reason}.") from error

    def remove(self) -> None:
        """The run is finished."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _digest(text: Text) -> int:
    """Of all that is measured of a text; the same in every process and run."""
    content = repr((text.text, text.spans, text.arcs, text.answer))
    return int.from_bytes(hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()[:7], "big")
