"""What a run is sure to need of memory, from config and length, held against what there is before weights are read.

A lower bound, so that nothing is refused that would run: the weights and, of a text, what is kept of every layer until
the end. What is there for a moment (the steps of a layer, logits) and what the libraries take is not counted.
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
    """A text that is run in one piece.

    Attributes:
        block: bytes that a block of rows may take.
        kept: vectors that are kept of each token in each layer: its attention's input, and output where that is used.
        matrices: how many matrices of n × n a command has in memory at once, beside blocks, in float32 or wider.
    """

    text: str
    pair: str | None
    truncate: bool
    block: float
    kept: int = 2
    matrices: Callable[[Checkpoint], int] | None = None


@dataclass(frozen=True)
class Need:
    """Bytes that a run is sure to need.

    Attributes:
        weights: of memory; none of weights that the CPU reads from their files as it needs them.
        mapped: of address space, for these files.
        text: for what is kept of the text.
    """

    weights: int
    mapped: int
    text: int
    n_tokens: int


def need_of(empty: Checkpoint, source: Source, on_cpu: bool, spread: bool, run: TextRun | None) -> Need:
    """What a checkpoint needs, before its weights are read.

    Args:
        empty: the checkpoint with an empty model, in the number format that it will have.
        source: its files.
        on_cpu: whether it runs on the CPU.
        spread: whether a device map says where weights go, so that nothing is known of them here.
        run: the text; None where it is not known yet.
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
        OutOfMemoryError: with both, and what needs less.
    """
    on_cpu = device.type == "cpu"
    if not on_cpu and (device.type != "cuda" or spread):
        return  # nobody says what there is, or on which GPU the text will be
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
    """Each layer's input and perhaps output, a block and matrices; of a family whose parts are not known nothing."""
    if isinstance(empty.architecture, Undeclared) or empty.stacks:
        return 0
    size = empty.dtype.itemsize
    block = min(empty.n_heads * n * n * size, int(run.block / TENSORS_OF_A_BLOCK))
    matrices = 0 if run.matrices is None else run.matrices(empty) * n * n * max(size, 4)
    return run.kept * empty.n_layers * n * empty.d_model * size + block + matrices


def _free_on_gpu(device: torch.device) -> int:
    """What others leave of a GPU's memory, and what torch holds there for nobody."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
