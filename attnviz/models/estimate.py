"""A lower bound of the memory that a run needs, checked against free memory before weights are read.

Counted are the weights and what is kept of a text in every layer until the end; not what is freed before (the steps of
a layer, logits), nor what the libraries take.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from attnviz.errors import OutOfMemoryError
from attnviz.memory import TENSORS_OF_A_BLOCK, free_address_space, free_memory, limit_note, memory_size
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.undeclared import Undeclared
from attnviz.models.sources import Source, read_json, weight_files


@dataclass(frozen=True)
class TextRun:
    """A text that is run in one forward pass.

    Attributes:
        block: bytes that a block of rows may take.
        kept: vectors kept of each token in each layer: its attention's input and, where used, output.
        matrices: number of n × n matrices in float32 or wider that a command has in memory at once, beside blocks.
    """

    text: str
    pair: str | None
    truncate: bool
    block: float
    kept: int = 2
    matrices: Callable[[Checkpoint], int] | None = None


@dataclass(frozen=True)
class Need:
    """Bytes that a run needs at least.

    Attributes:
        weights: memory for weights; 0 for those that are mapped from their files.
        mapped: address space for mapped files.
        text: memory for what is kept of the text.
    """

    weights: int
    mapped: int
    text: int
    n_tokens: int


def need_of(empty: Checkpoint, source: Source, on_cpu: bool, spread: bool, run: TextRun | None) -> Need:
    """Memory that a checkpoint and a text need at least, before weights are read.

    Args:
        empty: the checkpoint with an empty model, in its final number format.
        source: its files.
        on_cpu: whether it runs on the CPU.
        spread: whether there is a device map; weights are not counted then.
        run: the text; None where not known yet.
    """
    size, files = empty.dtype.itemsize, weight_files(source.folder)
    n_tokens = 0 if run is None else len(empty.tokenize(run.text, run.pair, run.truncate))
    text = 0 if run is None else _bytes_of_text(empty, run, n_tokens)
    if spread:
        return Need(0, 0, text, n_tokens)
    weights = sum(parameter.numel() for parameter in empty.model.parameters()) * size
    mapped = sum(path.stat().st_size for path in files if path.suffix == ".safetensors") if on_cpu else 0
    settings = read_json(source.folder / "config.json")
    saved = str(settings.get("dtype") or settings.get("torch_dtype") or empty.dtype).removeprefix("torch.")
    converted = mapped < weights or empty.dequantised_from or f"torch.{saved}" != str(empty.dtype)
    return Need(weights if converted else 0, mapped, text, n_tokens)


def refuse_beyond_memory(
    empty: Checkpoint, source: Source, device: torch.device, spread: bool, run: TextRun | None
) -> None:
    """Refuse a run that needs more memory than there is on its device; arguments as for :func:`need_of`.

    Raises:
        OutOfMemoryError: with needed and free memory, and what needs less.
    """
    on_cpu = device.type == "cpu"
    if not on_cpu and (device.type != "cuda" or spread):
        return  # free memory, or the GPU of the text, is not known
    need = need_of(empty, source, on_cpu, spread, run)
    if on_cpu:
        limits = [(0, free_memory(), ""), (need.mapped, free_address_space(), limit_note())]
    else:
        limits = [(0, _free_on_gpu(device), f" on {device}")]
    for mapped, free, where in limits:
        weights = need.weights + mapped
        if weights + need.text <= free:
            continue
        parts = {
            f"weights in {str(empty.dtype).removeprefix('torch.')}": weights,
            f"{need.n_tokens:,} tokens": need.text,
        }
        of = ", ".join(f"{memory_size(size)} for {what}" for what, size in parts.items() if size)
        converted = need.weights > 0 or need.text > need.mapped  # else half of them would no longer stay in files
        ways = ["--dtype bfloat16 (dtype=...)"] * (converted and empty.dtype.itemsize > 2)
        ways += ["a shorter text"] * (need.text > weights) + ["--device-map auto (device_map=...)"] * (weights > 0)
        raise OutOfMemoryError(
            f"{empty.name} needs {memory_size(weights + need.text)} of memory at least ({of}), and "
            f"{memory_size(max(free, 0))} are free{where}; {' or '.join(ways)} needs less."
        )


def _bytes_of_text(empty: Checkpoint, run: TextRun, n: int) -> int:
    """Bytes of each layer's inputs and outputs, a block and matrices; 0 for undeclared families, encoder-decoders."""
    if isinstance(empty.architecture, Undeclared) or empty.stacks:
        return 0
    size = empty.dtype.itemsize
    block = min(empty.n_heads * n * n * size, int(run.block / TENSORS_OF_A_BLOCK))
    matrices = 0 if run.matrices is None else run.matrices(empty) * n * n * max(size, 4)
    return run.kept * empty.n_layers * n * empty.d_model * size + block + matrices


def _free_on_gpu(device: torch.device) -> int:
    """Free memory of a GPU, including torch's unused cache."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
