"""Reads files of a checkpoint that may be broken, or not themselves."""

import json
from pathlib import Path
from typing import Any

from attnviz.errors import CheckpointError

_POINTER = b"version https://git-lfs.github.com/spec/"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises CheckpointError: the file cannot be read, or holds something else."""
    try:
        refuse_pointer(path)
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {error}; save or download the checkpoint again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"cannot read {path}: expected a JSON object, found {type(content).__name__}.")
    return content


def refuse_pointer(path: Path) -> None:
    """Refuse a Git LFS pointer in the place of a large file. Raises CheckpointError: with what to do."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise CheckpointError(
                f"{path} is a pointer of Git LFS, not the file itself; in its repository type: git lfs pull"
            )
