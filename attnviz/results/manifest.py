"""The JSON document that every command writes: as text, and what those of earlier runs tell of a folder."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnviz.errors import OutputError

__all__ = ["files_of", "json_text", "read_document", "texts_of"]


def json_text(content: dict[str, Any], indent: int | None = 1) -> str:
    """The document as JSON; ASCII only, so that no text can steer a terminal. Without ``indent`` it is one line.

    Raises:
        OutputError: naming the number in it that is not finite, for which JSON has no word.
    """
    try:
        return json.dumps(content, indent=indent, allow_nan=False) + "\n"
    except ValueError as error:
        place = next(_not_finite(content), "a number")
        raise OutputError(
            f"cannot write the results: {place} is not finite; nothing was written. A wider --dtype may help."
        ) from error


def read_document(path: Path) -> dict[str, Any]:
    """A document that attnviz wrote; empty where it is another's, or none."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            return {}
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and "attnviz" in content else {}


def files_of(document: dict[str, Any]) -> set[str]:
    """The files that a document lists."""
    files = document.get("files", [])
    return {str(name) for name in files} if isinstance(files, list) else set()


def texts_of(document: dict[str, Any]) -> frozenset[str]:
    """The texts that a document is of, and the paths of its corpora."""
    lists = {
        key: found if isinstance(found := document.get(key), list) else [] for key in ("corpora", "texts", "pairs")
    }
    corpora = [corpus.get("path") for corpus in lists["corpora"] if isinstance(corpus, dict)]
    several = [*lists["texts"], *lists["pairs"]]
    found = [document.get("text"), document.get("pair"), *several, *corpora]
    return frozenset(text for text in found if isinstance(text, str))


def _not_finite(content: Any, place: str = "") -> Iterator[str]:
    """Where numbers stand in a document that are NaN or infinite: ``heads.0.entropy``."""
    if isinstance(content, float) and not math.isfinite(content):
        yield place
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in parts:
        yield from _not_finite(value, f"{place}.{key}".removeprefix("."))
