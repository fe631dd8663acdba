"""Attention weights as libraries return them, as one array: of a forward pass, or of the steps of a generation."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.arguments import as_found, is_whole
from attnviz.errors import UsageError

_EXPECTED = (
    "expected weights of the shape [n, n], [n_heads, n, n] or [n_layers, n_heads, n, n], or as a model returns them: "
    "[batch, n_heads, n, n] for each layer, of generate() a tuple of these for each step; found"
)

# How caches of TransformerLens and JSON of servers name a layer, and its weights.
_LAYER = re.compile(r"(?:blocks\.|layer[_ .]?)?([0-9]{1,4})(?:\.attn\.hook_pattern)?")
_WEIGHTS = ("attention", "attentions", "attn", "weights", "pattern", "heads")

_ROUNDING = 1e-2  # how far above 1 a row may sum, in half precision


def check_weights(patterns: Tensor, layers: Sequence[int]) -> None:
    """Raise UsageError for the first number that is no attention weight, and say where it is."""
    sums, found = patterns.sum(-1), ""
    wrong = (~patterns.isfinite() | (patterns < 0)).nonzero()
    too_large = (sums > 1 + _ROUNDING).nonzero()
    if len(wrong):
        layer, head, query, key = place = tuple(wrong[0].tolist())
        found = f"{float(patterns[place]):.4g} at L{layers[layer]}H{head}, query #{query}, key #{key}"
    elif len(too_large):
        layer, head, query = place = tuple(too_large[0].tolist())
        found = f"a row that sums to {float(sums[place]):.4g} at L{layers[layer]}H{head}, query #{query}"
    if found:
        raise UsageError(
            f"expected attention weights, from 0 to 1, whose rows sum to at most 1, found {found}; give "
            "softmax(scores)."
        )


def read_weights(
    weights: Any, layers: Sequence[int] | None, batch: int | None, between_texts: bool
) -> tuple[Tensor, list[int], int]:
    """The weights of one text, the numbers of their layers, and the steps of a generation; 0 steps of one pass.

    Weights are [n_layers, n_heads, n_queries, n_keys], on the CPU, in float32 or wider.

    Args:
        weights: of one of the shapes that the message names; None stands for a layer without attention.
        layers: numbers of the layers; default their places.
        batch: the index of the text.
        between_texts: whether keys are of another text.

    Raises:
        UsageError: another shape, no real numbers, several texts and no index.
    """
    weights = getattr(weights, "cache_dict", weights)  # of TransformerLens
    of_layers = isinstance(weights, list | tuple) and all(isinstance(layer, Mapping) for layer in weights)
    if isinstance(weights, Mapping) or (of_layers and weights):
        by_layer = _by_layer(weights)
        layers = sorted(by_layer) if layers is None else layers
        weights = [real_array(by_layer[number]) for number in sorted(by_layer)]
    steps, n_steps = [weights], 0
    if isinstance(weights, list | tuple) and weights and all(map(_is_pass, weights)):
        steps, n_steps = list(weights), len(weights)
    elif not _is_pass(weights):
        array = real_array(weights)
        steps = [list(array[(None,) * max(0, 4 - array.ndim)])]
        if array.ndim > 4 or 0 in array.shape:
            raise UsageError(f"{_EXPECTED} {list(array.shape)}.")
    numbers = [number for number, layer in enumerate(steps[0]) if layer is not None]
    if not numbers:
        raise UsageError(
            "expected attention weights, found none: models that transformers loads with sdpa return no weights; load "
            'the model with attn_implementation="eager".'
        )
    if n_steps:
        patterns = [_joined([_of_one_text(step[number], batch) for step in steps], between_texts) for number in numbers]
    else:
        patterns = [_of_one_text(steps[0][number], batch) for number in numbers]
    shapes = sorted({tuple(pattern.shape) for pattern in patterns})
    if len(shapes) > 1:
        raise UsageError(f"expected layers of one shape, found {' and '.join(str(list(shape)) for shape in shapes)}.")
    if not between_texts and patterns[0].shape[1] != patterns[0].shape[2]:
        raise UsageError(
            f"{_EXPECTED} {list(shapes[0][1:])}; cross-attention also takes keys=, the tokens of its columns."
        )
    if layers is not None:
        listed = list(layers) if isinstance(layers, Sequence) and not isinstance(layers, str) else []
        in_order = all(is_whole(number) and number >= 0 for number in listed) and sorted(set(listed)) == listed
        if not in_order or len(listed) != len(numbers):
            raise UsageError(
                f"expected a number for each of {len(numbers)} layers, in order, such as [3, 7], found "
                f"{as_found(layers)}."
            )
        numbers = list(map(int, listed))
    return torch.stack(patterns), numbers, n_steps


def _by_layer(given: Any) -> dict[int, Any]:
    """The weights of each layer, of a mapping or of JSON of one object a layer; UsageError for other forms."""
    if isinstance(given, Mapping):
        names = {key: _LAYER.fullmatch(str(key)) for key in given}
        numbered = [(int(name[1]), given[key]) for key, name in names.items() if name]
    else:
        numbered = [
            (number, entry[name])
            for entry in given
            for key, number in entry.items()
            for name in _WEIGHTS
            if key.startswith("layer") and is_whole(number) and name in entry
        ]
    n_layers = len(numbered) if isinstance(given, Mapping) else len(given)
    if not 0 < len(dict(numbered)) == len(numbered) == n_layers:
        raise UsageError(
            'expected weights as {"layer_0": …}, as [{"layer": 0, "attention": …}, …] with each layer once, as a cache '
            "of TransformerLens (blocks.0.attn.hook_pattern), or .attentions of a model's output, found the keys "
            f"{as_found(list(given if isinstance(given, Mapping) else given[0]))}."
        )
    return {number: heads for number, heads in numbered if heads is not None}


def _is_pass(weights: Any) -> bool:
    """Whether these are arrays, one a layer; None of a layer without attention."""
    return isinstance(weights, list | tuple) and all(layer is None or hasattr(layer, "ndim") for layer in weights)


def real_array(given: Any, what: str = "attention weights") -> Tensor:
    """A tensor on the CPU, in float32 or wider; UsageError, with ``what``, for anything but real numbers."""
    try:
        if isinstance(given, np.ma.MaskedArray):  # torch would take what is masked, too
            raise TypeError("masked values")
        array = torch.as_tensor(given).detach().cpu()
        if array.is_complex() or array.is_nested or array.is_quantized or array.layout is not torch.strided:
            raise TypeError("other numbers, or another layout")
    except (TypeError, ValueError, RuntimeError) as error:
        dtype = f" of {given.dtype}" if hasattr(given, "dtype") else ""
        raise UsageError(
            f"expected {what} as a dense array of real numbers, found {type(given).__name__}{dtype}."
        ) from error
    return array if array.dtype == torch.float64 else array.float()


def _of_one_text(layer: Any, batch: int | None) -> Tensor:
    """The weights of one text, [n_heads, n_queries, n_keys], from those of a layer with or without a batch axis."""
    weights = real_array(layer)
    shape = list(weights.shape)
    n_texts = len(weights) if weights.ndim == 4 else 1
    if weights.ndim not in (3, 4) or 0 in shape:
        raise UsageError(f"{_EXPECTED} a layer of {shape}.")
    if batch is None and n_texts > 1:
        raise UsageError(
            f"expected the weights of one text, found a batch of {n_texts}: give its index, batch=0 to "
            f"batch={n_texts - 1}; the beams of a search are not followed."
        )
    if batch is not None and not 0 <= batch < n_texts:
        raise UsageError(f"expected batch as an index from 0 to {n_texts - 1}, found {batch}.")
    return weights if weights.ndim == 3 else weights[batch or 0]


def _joined(steps: Sequence[Tensor], between_texts: bool) -> Tensor:
    """The pattern of a layer, [n_heads, n_queries, n_keys], from its rows in each step of a generation."""
    n_heads, n_prompt, n_keys = steps[0].shape
    n = n_prompt + len(steps) - 1
    whole = steps[0].new_zeros(n_heads, n, n_keys if between_texts else n)
    for number, step in enumerate(steps):
        end, rows, keys = n_prompt + number, step.shape[1], step.shape[2]
        if rows not in (1, end):
            raise UsageError(f"expected of step {number} of the generation one row, or all {end}, found {rows}.")
        if between_texts:
            whole[:, end - rows : end] = step
        elif keys >= end and not step[..., end:].any():  # a static cache has keys that are not filled yet
            whole[:, end - rows : end, :end] = step[..., :end]
        elif keys < end:  # a window
            whole[:, end - rows : end, end - keys : end] = step
        else:
            raise UsageError(f"expected of step {number} of the generation {end} keys, found {keys}.")
    return whole
