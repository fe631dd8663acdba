"""Ways to spoil a checkpoint folder: each takes the folder and changes one thing in it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
"""What Git LFS leaves in the place of a large file."""

Spoil = Callable[[Path], Any]


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def config(**changes: Any) -> Spoil:
    return lambda folder: change_json(folder / "config.json", **changes)


def write(name: str, content: str | bytes) -> Spoil:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def weights(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Spoil:
    def spoil(folder: Path) -> None:
        changed = change(load_file(folder / WEIGHTS))
        save_file({name: tensor.contiguous() for name, tensor in changed.items()}, folder / WEIGHTS, {"format": "pt"})

    return spoil


def without(*ends: str) -> Spoil:
    """Without the weights whose names end so."""
    return weights(lambda all: {name: tensor for name, tensor in all.items() if not name.endswith(ends)})


def also(**more: Tensor) -> Spoil:
    """With weights of these names, whose dots are written as ``__``."""
    return weights(lambda all: all | {name.replace("__", "."): tensor for name, tensor in more.items()})


def as_pickle(folder: Path) -> None:
    """A pickle of the weights in the place of safetensors."""
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def cut(keep: int) -> Spoil:
    return lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:keep])


def indexed(index: str) -> Spoil:
    """An index of shards in the place of the weights."""

    def spoil(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / f"{WEIGHTS}.index.json").write_text(index)

    return spoil


def both(*spoils: Spoil) -> Spoil:
    return lambda folder: [spoil(folder) for spoil in spoils]
