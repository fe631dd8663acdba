"""Lists of retrieval heads, as DuoAttention reads them."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from attnviz.commands.profile.exports import RETRIEVAL_HEADS
from attnviz.commands.profile.measure import refuse_list
from attnviz.errors import UsageError
from attnviz.models.checkpoint import Checkpoint
from attnviz.present.kv_heads import kv_groups
from attnviz.profiles.store import read_json


class HeadList(NamedTuple):
    """A number for each KV head, layer by layer, and what the config.json beside it says."""

    file: Path
    rows: list[list[float]]
    threshold: float  # from which on a KV head retrieves
    model: str | None
    weights_sha256: Any  # None where it says none

    def refuse(self, checkpoint: Checkpoint) -> None:
        """Raise UsageError where it is of another model, or has other sizes."""
        refuse_list(checkpoint)
        n_layers, found = checkpoint.n_layers, sorted({len(row) for row in self.rows})
        n_kv_heads = len(kv_groups(checkpoint)) // n_layers
        if (len(self.rows), found) != (n_layers, [n_kv_heads]):
            numbers = " or ".join(map(str, found))
            raise UsageError(
                f"{self.file}: expected {n_layers} lines of {n_kv_heads}, for the layers and KV heads of "
                f"{checkpoint.name}, found {len(self.rows)} lines of {numbers} numbers."
            )
        if self.weights_sha256 not in (None, checkpoint.weights_sha256):
            raise UsageError(f"{self.file}: expected a list of {checkpoint.name}, found other weights, {self.model}.")


def read_head_list(path: Path) -> HeadList | None:
    """The list in a folder, or in a .tsv file; None for any other file.

    UsageError where it is damaged.
    """
    file = path / RETRIEVAL_HEADS if path.is_dir() else path
    if file.suffix != ".tsv":
        return None
    try:
        rows = [[float(cell) for cell in line.split("\t")] for line in file.read_text(encoding="utf-8").splitlines()]
        if not rows or not all(math.isfinite(value) for row in rows for value in row):
            raise ValueError("no numbers")
        beside = file.with_name("config.json")
        config = read_json(beside) if beside.exists() else {}
        named = config.get("model_name")
        model = named if isinstance(named, str) else None
        return HeadList(file, rows, float(config.get("threshold", 0.5)), model, config.get("weights_sha256"))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"expected {file} as a list for DuoAttention, numbers with tabs between: {error}.") from error
