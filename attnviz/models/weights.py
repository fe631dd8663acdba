"""Reads and checks the weights of a checkpoint, from the files that are hashed."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from attnviz.errors import ArchitectureError, CheckpointError, OutOfMemoryError
from attnviz.memory import free_memory, memory_size
from attnviz.models.families.base import Architecture
from attnviz.models.families.fit import check_fit
from attnviz.models.files import read_json
from attnviz.models.offloading import is_spread, with_values
from attnviz.models.quantised import is_quantised
from attnviz.models.sources import Source, weight_files, weights_sha256
from attnviz.reference.tolerances import TOLERANCES
from attnviz.wording import shortened


def read_weights(files: Iterable[Path]) -> dict[str, Tensor]:
    """All tensors of these safetensors files by name, on the CPU; CheckpointError where one is truncated or corrupt."""
    weights: dict[str, Tensor] = {}
    for path in files:
        with _reading(path):
            weights |= load_file(path)
    return weights


def each_weight(files: Iterable[Path]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of these files one by one, each loaded alone; errors as for :func:`read_weights`."""
    for path in files:
        with _reading(path):
            with safe_open(path, "pt") as file:
                names = list(file.keys())
            for name in names:
                with safe_open(path, "pt") as file:
                    yield name, file.get_tensor(name)


def refuse_beyond_memory(name: str, empty: nn.Module, device: torch.device) -> None:
    """Raise OutOfMemoryError for weights that take more memory than is free on a device; only of CPUs and GPUs known.

    ``empty`` is the model without its weights, in its final number format; ``name`` is for the message.
    """
    if device.type not in ("cpu", "cuda"):
        return
    free, where = free_memory(), ""
    if device.type == "cuda":  # with torch's unused cache
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        free -= torch.cuda.memory_allocated(device)
        where = f" on {device}"
    weights = sum(parameter.numel() * parameter.element_size() for parameter in empty.parameters())
    if weights > free:
        raise OutOfMemoryError(
            f"{name} needs {memory_size(weights)} of memory for its weights, and {memory_size(free)} are free{where}; "
            "--dtype bfloat16 (dtype=...) or --device-map auto (device_map=...) needs less."
        )


def own_dtype(folder: Path) -> torch.dtype:
    """The number format of a checkpoint, as its config.json states it, else that of its first weight.

    CheckpointError where attnviz does not compute in it.
    """
    content = read_json(folder / "config.json")
    stated = content.get("dtype") or content.get("torch_dtype")
    if stated is None:
        stated = next((tensor.dtype for _, tensor in each_weight(weight_files(folder))), None)
    name = str(stated).removeprefix("torch.")
    dtypes = {str(dtype).removeprefix("torch."): dtype for dtype in TOLERANCES}
    if name not in dtypes:
        raise CheckpointError(
            f"the checkpoint in {folder} is in the number format {shortened(name, 40)!r}; expected one of "
            f"{', '.join(dtypes)}. Name one of them instead of --dtype auto (dtype=...)."
        )
    return dtypes[name]


def check_weights(weights: Iterable[tuple[str, Tensor]], where: str) -> None:
    """Raise CheckpointError for weights of an unsupported number format, on the meta device, or not finite."""
    for name, tensor in weights:
        named = shortened(name, 100)
        if tensor.dtype not in TOLERANCES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in TOLERANCES)
            raise CheckpointError(
                f"the tensor {named} in {where} has numbers of type {str(tensor.dtype).removeprefix('torch.')}; "
                f"expected one of {known}. Save the model anew in one of these, such as bfloat16."
            )
        if tensor.is_meta:
            raise CheckpointError(
                f"the tensor {named} in {where} is on the device meta, without values; load its weights first, for "
                "example with from_pretrained."
            )
        if not all_finite(tensor):
            n = int((~tensor.isfinite()).sum())
            raise CheckpointError(
                f"the tensor {named} in {where} has values that are not finite (NaN or infinite): {n:,} of "
                f"{tensor.numel():,}; no --dtype helps. Take a sound checkpoint: this one may come from a training "
                "that diverged."
            )


def all_finite(values: Tensor) -> bool:
    """Whether all values are finite; takes less memory than ``isfinite``."""
    return not values.numel() or bool(torch.stack(torch.aminmax(values.detach())).isfinite().all())


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is truncated or corrupt ({error}, {path.stat().st_size} bytes found); "
            "download or save the checkpoint again."
        ) from error


def check_parts(architecture: Architecture, model: Any) -> None:
    """Raise ArchitectureError for a model in memory that lacks a part, or has several number formats or devices."""
    by_module = [[weight for weight in module._parameters.values() if weight is not None] for module in model.modules()]
    parameters = [weight for weights in by_module if not any(map(is_quantised, weights)) for weight in weights]
    dtypes = {weight.dtype for weight in parameters}
    devices = set() if is_spread(model) else {weight.device for weight in parameters}
    for what, kinds in (("number format", dtypes), ("device", devices)):
        if len(kinds) > 1:
            several = ", ".join(sorted(map(str, kinds)))
            how = "model.to(one), or, of quantised weights, the lines in the guide, troubleshooting.md"
            raise ArchitectureError(f"expected a model with all weights of one {what}, found {several}; {how}.")
    check_fit(architecture, model)
    names = ("weight", "bias") if architecture.linear_biases else ("weight",)
    try:
        layers = architecture.modules(model)
        n_attending = len(architecture.attending(model.config))
        if len(layers) != (expected := n_attending + len(architecture.not_attending(model.config))):
            raise ValueError(f"its config has {expected} layers, the model {len(layers)}")
        for number, layer in enumerate(layers):
            for module in layer.linear_maps:
                if missing := [name for name in names if getattr(module, name, None) is None]:
                    path = next(path for path, part in model.named_modules() if part is module)
                    raise ValueError(f"{path} has no {missing[0]}")
            if number < n_attending:
                architecture.parameters(model, number)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ArchitectureError(
            f"the model is no whole {type(model).__name__} as transformers makes it: {error}. The reference attention "
            "reproduces these alone."
        ) from error


def check_report(folder: Path, architecture: Architecture, report: dict[str, Any]) -> None:
    """Raise CheckpointError for weights that transformers reports as missing, unexpected or of the wrong shape."""
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(architecture.optional_weights))
    unexpected = sorted(
        key
        for key in report["unexpected_keys"]
        if key.split(".")[0] not in architecture.head_weights and not key.endswith(architecture.old_buffers)
    )
    reshaped = sorted(f"{key} {list(saved)}, expected {list(built)}" for key, saved, built in report["mismatched_keys"])
    problems = [
        f"{len(keys)} {kind} ({', '.join(shortened(key, 150) for key in keys[:3])}{', …' if len(keys) > 3 else ''})"
        for kind, keys in (("missing", missing), ("unexpected", unexpected), ("of the wrong shape", reshaped))
        if keys
    ]
    if problems:
        raise CheckpointError(
            f"the weights in {folder} do not fit its config.json ({architecture.name}): {'; '.join(problems)}. "
            "Heads computed from such weights would mean nothing; save the whole model, or mend config.json."
        )


def refuse_rounded(model: nn.Module) -> None:
    """Raise CheckpointError for rotary frequencies that model.half() has rounded: angles of far positions are wrong."""
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and buffer.dtype not in (torch.float32, torch.float64):
            dtype = str(buffer.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"this model was converted, which rounded its rotary frequencies to {dtype} ({name}); expected them in "
                f"float32: load it in that number format instead, from_pretrained(..., dtype=torch.{dtype})."
            )


class WeightsHash:
    """The SHA-256 of weights, computed when it is first asked for.

    ``state`` gives what changes when the weights do, and ``where`` names them in a message.
    """

    def __init__(self, compute: Callable[[], str], state: Callable[[], object], where: str) -> None:
        self._compute = compute
        self._state = state
        self._where = where
        self._at_opening = state()
        self._digest = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process knows the hash: the weights are other objects there."""
        return partial, (str, self())

    def __call__(self) -> str:
        """The hash of the weights as they were opened. Raises CheckpointError: they have changed since."""
        if not self._digest:
            if self._state() != self._at_opening:
                raise CheckpointError(
                    f"the weights of {self._where} have changed, or are gone, since they were opened; analyze again."
                )
            self._digest = self._compute()
        return self._digest


def hash_of_files(source: Source, files: Sequence[Path]) -> WeightsHash:
    """The hash of a checkpoint's files; see :func:`attnviz.models.sources.weights_sha256`."""

    def state() -> object:
        try:
            return [(stat.st_size, stat.st_mtime_ns) for stat in (path.stat() for path in files)]
        except OSError:  # one is gone
            return None

    return WeightsHash(partial(weights_sha256, source), state, str(source.folder))


# Models in memory whose weights are finite, with what _versions said of these weights.
_finite: WeakKeyDictionary[nn.Module, object] = WeakKeyDictionary()


def check_loaded(model: nn.Module) -> Callable[[], str]:
    """Refuse weights of a model in memory as :func:`check_weights` does; return their hash.

    They are checked once for an object, and again when a weight has changed.
    """
    weights = _saved(model)
    counted = not is_spread(model) and not any(weight.is_inference() for weight in weights.values())
    versions = _versions(weights) if counted else None
    if versions is None or _finite.get(model) != versions:
        plain = ((name, weight) for name, weight in model.named_parameters() if not is_quantised(weight))
        check_weights(with_values(model, plain), "the loaded model")
        _finite[model] = versions
    if counted:
        return WeightsHash(
            compute=lambda: parameters_sha256(_saved(model).items()),
            state=lambda: _versions(_saved(model)),
            where="the loaded model",
        )
    return partial(str, parameters_sha256(with_values(model, weights.items())))


def _saved(model: nn.Module) -> dict[str, Any]:
    """What is saved of a model; of a quantised one its parameters, which bitsandbytes' state_dict() may spoil."""
    parameters = dict(model.named_parameters())
    return parameters if any(map(is_quantised, parameters.values())) else model.state_dict(keep_vars=True)


def _versions(weights: Mapping[str, Any]) -> object:
    """What changes when a weight does: the tensor, its number format, torch's count of changes (not of .data)."""
    return [(id(weight), weight.dtype, weight._version) for weight in weights.values()]


def parameters_sha256(named: Iterable[tuple[str, Tensor]]) -> str:
    """The SHA-256 of a model in memory, of the names, shapes and values of its parameters and buffers."""
    digest = hashlib.sha256()
    for name, parameter in named:
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        numbers = parameter.dequantize() if is_quantised(parameter) else parameter  # bitsandbytes': its codes
        digest.update(numbers.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
