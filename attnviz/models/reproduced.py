"""Whether a checkpoint is of a model that is reproduced: config.json alone says so."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from attnviz.errors import ArchitectureError
from attnviz.models.configs import read_config, refuse_other_weights
from attnviz.models.families import ARCHITECTURES, architecture_of, instead_of
from attnviz.models.families.base import Architecture
from attnviz.models.files import read_json
from attnviz.models.head_ids import Stack


def config_in(folder: Path, dtype: torch.dtype) -> tuple[Any, Architecture]:
    """The config and its architecture, checked before any weight is read, or downloaded.

    CheckpointError where it cannot be read, or is of a model that is not reproduced.
    """
    content = read_json(folder / "config.json")
    model_type = content.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise ArchitectureError(
            f"{folder / 'config.json'} has model_type {model_type!r}, which the reference attention does not "
            f"reproduce{instead_of(model_type)}."
        )
    refuse_other_weights(folder, content)
    config = read_config(folder)
    config.chunk_size_feed_forward = 0  # saves memory, changes no number, and fails where it does not divide a text
    try:
        return config, architecture_of(config, dtype)
    except ArchitectureError as error:
        raise ArchitectureError(f"{folder / 'config.json'}: {error}") from error


def kinds_in(folder: Path) -> Sequence[Stack]:
    """The kinds of attention of a checkpoint: a stack, or those of an encoder-decoder; by its config alone."""
    config, architecture = config_in(folder, torch.float32)
    return architecture.kinds(getattr(config, "text_config", config))  # of a model that also reads images
