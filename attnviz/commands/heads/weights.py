"""Attention weights as libraries return them, as one array: of a forward pass, or of the steps of a generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.arguments import as_found, as_list, is_whole
from attnviz.errors import UsageError

_SHAPES = "[n_layers, n_heads, n, n], [n_layers, batch, n_heads, n, n], [n_heads, n, n] or [n, n]"

_ROUNDING = 1e-2  # how far above 1 a row may sum, in half precision


@dataclass(frozen=True)
class Weights:
    """Weights of one text.

    Attributes:
        patterns: [n_layers, n_heads, n_queries, n_keys], on the CPU, in float32 or wider.
        layers: the number of each layer.
        steps: of a generation, how many; 0 of one pass.
    """

    patterns: Tensor
    layers: tuple[int, ...]
    steps: int = 0

    def without_padding(self, queries: Sequence[bool] | None, keys: Sequence[bool] | None) -> "Weights":
        """With the rows and columns that are True alone; None for all of them."""
        patterns = self.patterns
        if queries is not None:
            patterns = patterns[:, :, torch.tensor(queries)]
        if keys is not None:
            patterns = patterns[..., torch.tensor(keys)]
        return replace(self, patterns=patterns)

    def check(self) -> None:
        """Raise UsageError for the first number that is no attention weight, and say where it is."""
        sums, found = self.patterns.sum(-1), ""
        wrong = (~self.patterns.isfinite() | (self.patterns < 0)).nonzero()
        too_large = (sums > 1 + _ROUNDING).nonzero()
        if len(wrong):
            layer, head, query, key = at = tuple(wrong[0].tolist())
            found = f"{float(self.patterns[at]):.4g} at L{self.layers[layer]}H{head}, query #{query}, key #{key}"
        elif len(too_large):
            layer, head, query = at = tuple(too_large[0].tolist())
            found = f"a row that sums to {float(sums[at]):.4g} at L{self.layers[layer]}H{head}, query #{query}"
        if found:
            raise UsageError(
                f"expected attention weights, from 0 to 1, whose rows sum to at most 1, found {found}; give "
                "softmax(scores)."
            )


def read_weights(
    weights: Any, layers: Sequence[int] | None, batch: int | Sequence[int] | None, between_texts: bool
) -> Weights:
    """One array of weights, of one text of a batch.

    Args:
        weights: an array of one of the shapes that the message names, or what transformers returns: a tuple with an
            array for each layer, [batch, n_heads, n_queries, n_keys], or such a tuple for each step of a generation.
        layers: numbers of the layers; default their places, of which some may hold None.
        batch: the index of the text; of a beam search that of its beam in each step.
        between_texts: whether keys are of another text.

    Raises:
        UsageError: another shape, no real numbers, several texts and no index.
    """
    if isinstance(weights, Mapping):
        names = [f".{name}" for name in weights if "attentions" in str(name)]
        raise UsageError(
            f"expected the attention weights of a model's output, such as {' or '.join(names) or '.attentions'}, found "
            "the whole output."
        )
    n_steps, found = 0, list[int]()
    if _is_sequence(weights) and all(_is_array(each) for each in weights):
        numbers = [number for number, each in enumerate(weights) if each is not None]
        of_layers = [_of_one_text(real_array(weights[number]), batch, 0) for number in numbers]
    elif _is_sequence(weights) and _is_sequence(weights[0]) and all(_is_array(each) for each in weights[0]):
        n_steps = len(weights)
        numbers = [number for number, each in enumerate(weights[0]) if each is not None]
        of_layers = [_of_steps([step[number] for step in weights], batch, between_texts) for number in numbers]
    else:
        given = real_array(weights)
        found = list(given.shape)
        given = given[(None,) * max(0, 4 - given.ndim)]
        numbers = list(range(len(given)))
        of_layers = [_of_one_text(each, batch, 0) for each in given]
    if not of_layers:
        raise UsageError(
            "expected attention weights, found none: models that transformers loads with sdpa return no weights; load "
            'the model with attn_implementation="eager".'
        )
    shapes = sorted({tuple(each.shape) for each in of_layers})
    if len(shapes) > 1:
        raise UsageError(f"expected layers of one shape, found {' and '.join(str(list(each)) for each in shapes)}.")
    (shape,) = shapes
    if len(shape) != 3 or 0 in shape or not (between_texts or shape[1] == shape[2]):
        hint = "; cross-attention also takes keys=, the tokens of its columns" if len(shape) == 3 else ""
        raise UsageError(f"expected weights of the shape {_SHAPES}, found {found or list(shape)}{hint}.")
    return Weights(torch.stack(of_layers), _numbers(layers, numbers), n_steps)


def _is_sequence(weights: Any) -> bool:
    return isinstance(weights, list | tuple)


def _is_array(weights: Any) -> bool:
    """Whether it is the array of a layer, or None of one without attention."""
    return weights is None or hasattr(weights, "ndim")


def real_array(given: Any, what: str = "attention weights") -> Tensor:
    """A tensor on the CPU, in float32 or wider; UsageError, with ``what``, for anything but real numbers."""
    try:
        if isinstance(given, np.ma.MaskedArray):  # torch would take what is masked, too
            raise TypeError("masked values")
        array = torch.as_tensor(given).detach().cpu()
        if array.is_complex() or array.is_nested or array.is_quantized or array.layout is not torch.strided:
            raise TypeError("other numbers, or another layout")
    except (TypeError, ValueError, RuntimeError) as error:
        of = f" of {given.dtype}" if hasattr(given, "dtype") else ""
        where = f", {given.layout} on {given.device}" if isinstance(given, Tensor) else ""
        nested = "nested " if getattr(given, "is_nested", False) else ""
        raise UsageError(
            f"expected {what} as a dense array of real numbers, found {nested}{type(given).__name__}{of}{where}."
        ) from error
    return array if array.dtype == torch.float64 else array.float()


def _of_one_text(weights: Tensor, batch: int | Sequence[int] | None, step: int) -> Tensor:
    """The weights of one text, [n_heads, n_queries, n_keys], from those of a layer with or without a batch axis."""
    if weights.ndim != 4:
        if batch is not None:
            found = list(weights.shape)
            raise UsageError(f"expected batch with the weights of several texts, found one text: a layer is {found}.")
        return weights
    n, at = len(weights), 0
    if batch is None and n > 1:
        raise UsageError(
            f"expected the weights of one text, found a batch of {n}: give its index, batch=0 to batch={n - 1}; of a "
            "beam search, whose beams change places, batch=output.beam_indices[0]."
        )
    if batch is not None:
        at = batch if is_whole(batch) else _beam(batch, step)
    if not 0 <= at < n:
        raise UsageError(f"expected batch as an index from 0 to {n - 1}, found {at}.")
    return weights[at]


def _beam(beams: Any, step: int) -> int:
    what = "batch as an index, or as the index of the beam in each step"
    listed = as_list(beams, what)
    if not all(is_whole(each) for each in listed) or step >= len(listed):
        raise UsageError(f"expected {what}, found {as_found(listed)}.")
    return int(listed[step])


def _of_steps(steps: Sequence[Any], batch: int | Sequence[int] | None, between_texts: bool) -> Tensor:
    """The pattern of a layer from its rows in each step of a generation, [n_heads, n_queries, n_keys]."""
    blocks = [_of_one_text(real_array(step), batch, number) for number, step in enumerate(steps)]
    if any(block.ndim != 3 for block in blocks):
        raise UsageError(
            "expected of each step of a generation an array [batch, n_heads, n_queries, n_keys] a layer, found "
            f"{list(torch.as_tensor(steps[0]).shape)}."
        )
    n_heads, n_prompt, n_keys = blocks[0].shape
    n = n_prompt + len(steps) - 1
    whole = blocks[0].new_zeros(n_heads, n, n_keys if between_texts else n)
    for number, block in enumerate(blocks):
        end, rows, keys = n_prompt + number, block.shape[1], block.shape[2]
        if rows not in (1, end) or (number == 0 and rows != n_prompt):
            raise UsageError(f"expected of step {number} of the generation one row, or all {end}, found {rows}.")
        if between_texts:
            whole[:, end - rows : end] = block
        elif keys >= end and not block[..., end:].any():
            whole[:, end - rows : end, :end] = block[..., :end]
        elif keys < end:
            whole[:, end - rows : end, end - keys : end] = block
        else:
            raise UsageError(f"expected of step {number} of the generation {end} keys, found {keys}.")
    return whole


def _numbers(layers: Sequence[int] | None, found: Sequence[int]) -> tuple[int, ...]:
    """The numbers of the layers: those that were given, or those of their places."""
    if layers is None:
        return tuple(found)
    listed = list(layers) if isinstance(layers, Sequence) and not isinstance(layers, str) else []
    if not listed or not all(is_whole(each) and each >= 0 for each in listed) or sorted(set(listed)) != listed:
        raise UsageError(f"expected layers as numbers in order, such as [3, 7], found {as_found(layers)}.")
    if len(listed) != len(found):
        raise UsageError(f"expected a number for each of {len(found)} layers, found {len(listed)}: {listed}.")
    return tuple(map(int, listed))
