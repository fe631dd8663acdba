"""The arguments that the functions of Python share, what they take, and how values are checked."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar, get_args

from attnviz.arguments import as_found, check_kind, flag_of, is_there, n_bytes, one_of, spelled
from attnviz.errors import UsageError
from attnviz.locks import IN_USE
from attnviz.memory import out_of_memory_named

if TYPE_CHECKING:
    from attnviz.models.head_ids import HeadId

P = ParamSpec("P")
R = TypeVar("R")
FLOAT32 = "float32"  # the default of --dtype
_ON = "syntax", "circuits"  # by default, among the options that :func:`typed` writes
# the least and the largest value of arguments that are numbers
RANGES: dict[str, tuple[int, int | None]] = {
    "limit": (1, None),
    "batch_size": (1, 1_000_000),
    "seed": (0, 2**63 - 1),
    "max_new_tokens": (1, None),
    "generate": (1, None),
    "layer": (0, None),
    "residual": (0, 1),
    "depth": (1, 12),
    "examples": (0, 100),  # of each role of each head: all are in memory
    "top": (0, None),
}

# What an argument with choices takes, on the command line and in Python.
Replacement = Literal["zero", "mean", "uniform"]  # of a removed head
HeadMetric = Literal["loss", "kl", "margin", "changed", "logit_difference", "cosine", "l2"]
PatchDirection = Literal["denoise", "noise"]
PatchSite = Literal["z", "q", "k", "v", "attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post"]
PatchMetric = Literal["logit_difference", "loss", "kl"]
PathNetworks = Literal["frozen", "run"]
ExportFormat = Literal["duo-attention", "headvis"]
TableFormat = Literal["tex", "md"]


class ModelOptions(TypedDict, total=False):
    """How a model is opened: keywords of every function that takes one.

    Attributes:
        tokenizer: of a model in memory, a fast one; or a built-in name, folder or hub id, of a model without one.
        revision: branch, tag or commit of a hub id.
        adapter: of peft (LoRA and its kin), a folder or hub id; merged into the model, by default its own base.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``, or a torch.device.
        device_map: instead of a device, for a model larger than one: ``auto``, ``balanced`` or ``sequential``.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``, ``auto`` (the checkpoint's own), or one
            of torch.
        attention: the implementation that the model runs with, ``eager``, ``sdpa`` or another of transformers; by
            default what transformers chooses.
    """

    tokenizer: Any
    revision: str | None
    adapter: str | Path | None
    device: Any
    device_map: str | None
    dtype: Any
    attention: str | None


class CorpusOptions(ModelOptions, total=False):
    """How a model is opened and which columns of a table are read: keywords of functions that take corpora.

    Attributes:
        text_column: of a table, the column of its texts; default ``text``, ``sentence`` or ``prompt``, or the only
            column of words.
        pair_column: of a table, the column of second segments.
    """

    text_column: str | None
    pair_column: str | None


class ViewOptionNames(TypedDict, total=False):
    """The options that are keywords of what a result draws, lists and writes."""

    select: "str | HeadId | Sequence[str | HeadId]"
    top: int | None
    verbose: bool
    drop_special: bool
    token: str | int | None
    maps: Sequence[str]
    save_attention: bool
    save_npz: bool
    relation: str | None
    table: TableFormat | None
    by: Literal["kv-head"] | None


class DrawingOptionNames(ViewOptionNames, total=False):
    """With the arguments of :class:`attnviz.figures.Style` the keywords of ``figure``, ``draw``, ``save``, ``page``."""

    theme: str
    scale: str
    width: float | str | None
    bare: bool
    font_size: float | None
    font: str | None


def typed(values: Mapping[str, object]) -> list[str]:
    """Command-line arguments for these values, in their order; what is empty or the default is left out."""
    words = list[str]()
    for name, given in values.items():
        if name in _ON:
            words += [] if given else [f"--no-{name}"]
        elif given and (name, given) != ("dtype", FLOAT32):
            for value in given if isinstance(given, list) else [given]:
                words += [flag_of(name)] if value is True else [flag_of(name), str(value)]
    return words


def check_value(name: str, value: Any) -> None:
    """Raise UsageError for a number beyond the :data:`RANGES` of its name, or no size of memory; None is neither."""
    if name == "memory" and value is not None:
        n_bytes(name, value)
    if name in RANGES and value is not None:
        least, most = RANGES[name]
        if not least <= value <= (math.inf if most is None else most):
            upwards = "on" if most is None else f"to {most}"
            raise UsageError(f"expected {spelled(name)} as a number from {least} {upwards}, found {as_found(value)}.")


def keywords_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's arguments by name, with those of the TypedDict that it unpacks."""
    kinds = dict[str, Any]()
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            for unpacked in get_args(parameter.annotation):
                kinds |= unpacked.__annotations__
        elif parameter.kind is parameter.VAR_POSITIONAL:
            kinds[name] = GenericAlias(Sequence, (parameter.annotation,))  # they come as a tuple
        elif name != "self":
            kinds[name] = parameter.annotation
    return kinds


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check a function's arguments against its annotations and :data:`RANGES`.

    Of the functions that use a model, which take a ``device``, one runs at a time.

    Raises:
        TextError: by the function, where ``text`` or ``pair`` is no string.
        UsageError: by the function, with what was expected and found; for an unknown keyword also the nearest one.
        OutOfMemoryError: by the function, whatever a library raised for want of memory.
    """
    signature = inspect.signature(function)
    kinds = keywords_of(function)
    guard = IN_USE if "device" in kinds else nullcontext()

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in kinds:
                said = one_of(name, kinds, f"help({function.__qualname__}) lists them")
                raise UsageError(f"{function.__name__}() has no argument {name!r}: {said}")
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"{function.__name__}(): {error}.") from error
        arguments = {name: value for name, value in bound.arguments.items() if name in kinds} | bound.kwargs
        _check_order(function.__name__, next(iter(kinds)), arguments)
        for name, value in arguments.items():
            check_kind(name, value, kinds[name])
            check_value(name, value)
        with guard, out_of_memory_named():
            return function(*args, **kwargs)

    return call


def _check_order(function: str, first: str, arguments: Mapping[str, Any]) -> None:
    """Raise UsageError where a model stands in the place of a text, or a text in that of the model."""
    given, model = arguments.get(first), arguments.get("model")
    is_model = first not in ("model", "first") and hasattr(given, "config")
    if is_model or (isinstance(model, str) and len(model.split()) > 1 and not is_there(model)):
        found = f"a {type(given).__name__} as {first}" if is_model else f"the model {as_found(model)}"
        raise UsageError(f"expected {function}({first}, model, ...), in this order, found {found}.")
