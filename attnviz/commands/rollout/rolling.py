"""A text through a model to its attention rollout: verified layers, one after the other, to numbers."""

from collections.abc import Sequence
from itertools import repeat
from numbers import Integral, Real

import numpy as np
import torch
from torch import Tensor

from attnviz.attention.verify import VerifiedAttention, verify_attention
from attnviz.commands.rollout.attention_rollout import (
    mixed_with_identity,
    norm_patterns,
    rolled_out,
    rows_apart,
    uniform_pattern,
)
from attnviz.commands.rollout.max_flow import FlowGraph, check_flow_library, flow_shares
from attnviz.commands.rollout.results import LayerShares, RolledOut, RolloutOptions
from attnviz.commands.rollout.summed_norms import checked_norms
from attnviz.errors import UsageError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.tokens import Units, find_positions, merge_pattern, merge_units
from attnviz.progress import Progress, tell

__all__ = ["MOST_FLOWS", "check_options", "roll"]

MOST_FLOWS = 128
"""Tokens up to which the flow between all pairs is found: n² problems."""

_SUMMARISED = ("attention", "rollout", "norm_rollout", "uniform", "uniform_rollout")


def check_options(options: RolloutOptions) -> None:
    """Refuse what can be told without a model.

    Raises:
        UsageError: a layer that is no whole number, or a share of the identity that is no number from 0 to 1.
        AttnvizError: the flow was asked for, but SciPy is not installed.
    """
    layer, residual = options.layer, options.residual
    if layer is not None and (isinstance(layer, bool) or not isinstance(layer, Integral)):
        raise UsageError(f"expected a layer (layer) as a whole number from 0 on, found {layer!r}.")
    if isinstance(residual, bool) or not isinstance(residual, Real):
        raise UsageError(f"expected a share of the identity (residual) as a number from 0 to 1, found {residual!r}.")
    if not 0 <= residual <= 1:
        raise UsageError(f"expected a share of the identity (--residual) from 0 to 1, found {residual:g}.")
    if options.flow or options.all_flows:
        check_flow_library()


def roll(
    text: str,
    checkpoint: Checkpoint,
    options: RolloutOptions,
    *,
    pair: str | None = None,
    truncate: bool = False,
    progress: Progress | None = None,
) -> RolledOut:
    """Verify every head of a model on a text, and roll its attention out.

    Args:
        text: one text.
        checkpoint: the model.
        options: what is asked for.
        pair: a second segment (BERT).
        truncate: cut a text that is longer than the model instead of raising.
        progress: told of every layer verified and rolled out, and of every flow.

    Raises:
        UsageError: no such layer or token, or too many tokens for all flows.
        TextError: the text cannot be read.
        VerificationError: the heads, or what they add from each token, do not reproduce the model.
    """
    check_options(options)
    n_layers = _layers(options.layer, checkpoint.n_layers)
    tokens = checkpoint.tokenize(text, pair, truncate)
    units = merge_units(tokens, options.words)
    causal = checkpoint.architecture.causal
    positions = _positions(units, options.from_token, causal)
    queries = _queries(units, positions, options)
    tell(progress, "verifying", 0, checkpoint.n_layers)
    attention = verify_attention(
        checkpoint, tokens, lambda found: tell(progress, "verifying", found.check.layer + 1, checkpoint.n_layers)
    )
    means, norm_means, errors = _patterns(attention, n_layers, progress)
    weights, norms = (_rollout(patterns, units, options.residual) for patterns in (means, norm_means))
    plain, shares = _flows(means, options.residual, queries, progress)
    flows = None if shares is None else merge_pattern(shares, units.members)
    means, norm_means = merge_pattern(means, units.members), merge_pattern(norm_means, units.members)
    layers, uniform, uniform_rollout = _summaries(units, causal, options.residual, errors, (means, weights, norms))
    here = list(positions)
    return RolledOut(
        text=text,
        pair=pair,
        checkpoint=checkpoint,
        tokens=tokens,
        units=units,
        attention=attention,
        options=options,
        means=means,
        norm_means=norm_means,
        weights=weights,
        norms=norms,
        uniform=uniform,
        uniform_rollout=uniform_rollout,
        layers=layers,
        positions=positions,
        flow=None if flows is None else flows[here].mean(0),
        max_flow=None if plain is None or options.words else plain[here].mean(0),
        flows=flows if options.all_flows else None,
    )


def _layers(layer: int | None, n_layers: int) -> int:
    """How many layers to roll out.

    Raises:
        UsageError: the model has no such layer.
    """
    if layer is None:
        return n_layers
    if not 0 <= layer < n_layers:
        raise UsageError(f"the model has no layer {layer}: expected 0 to {n_layers - 1}.")
    return layer + 1


def _positions(units: Units, from_token: str | None, causal: bool) -> tuple[int, ...]:
    """Where the output token stands: by default the first position, and in a causal model the last, which sees all."""
    if from_token is not None:
        return find_positions(units.labels, from_token)
    return (len(units) - 1,) if causal else (0,)


def _queries(units: Units, positions: Sequence[int], options: RolloutOptions) -> list[int]:
    """The tokens from which flows are to be found.

    Raises:
        UsageError: they are too many.
    """
    n_tokens = sum(len(members) for members in units.members)
    if options.all_flows:
        if n_tokens > MOST_FLOWS:
            raise UsageError(
                f"the flow between all pairs of {n_tokens} tokens is {n_tokens**2:,} problems; expected at most "
                f"{MOST_FLOWS} tokens: shorten the text, or ask for the flow from one token alone (--flow)."
            )
        return list(range(n_tokens))
    return [token for position in positions for token in units.members[position]] if options.flow else []


def _patterns(
    attention: VerifiedAttention, n_layers: int, progress: Progress | None
) -> tuple[Tensor, Tensor, list[float]]:
    """Mean patterns and norms as patterns, [n_layers, n, n] each, and how closely the parts gave the model's output."""
    means, norms, errors = [], [], []
    for layer in range(n_layers):
        checked = checked_norms(attention, layer)
        means.append(checked.pattern.cpu())
        norms.append(norm_patterns(checked.norms.cpu()))
        errors.append(checked.error)
        tell(progress, "rolling out", layer + 1, n_layers)
    return torch.stack(means), torch.stack(norms), errors


def _rollout(patterns: Tensor, units: Units, residual: float) -> Tensor:
    """Rolled out over tokens, then merged into units; in the number format of the patterns."""
    mixed = (mixed_with_identity(pattern.double(), residual) for pattern in patterns)
    return torch.stack([merge_pattern(rolled, units.members).to(patterns.dtype) for rolled in rolled_out(mixed)])


def _flows(
    means: Tensor, residual: float, queries: Sequence[int], progress: Progress | None
) -> tuple[Tensor | None, Tensor | None]:
    """Maximum flows from some tokens, and each token's divided by their sum; [n, n], 0 in the rows of all others."""
    if not queries:
        return None, None
    mixed, n_tokens = mixed_with_identity(means, residual).numpy(), means.shape[-1]
    plain, shares = torch.zeros(2, n_tokens, n_tokens, dtype=torch.float64)
    for done, query in enumerate(queries, start=1):
        found = FlowGraph(mixed, query).flows()
        plain[query], shares[query] = torch.from_numpy(found), torch.from_numpy(flow_shares(found))
        tell(progress, "flow", done, len(queries))
    return plain, shares


def _summaries(
    units: Units, causal: bool, residual: float, errors: Sequence[float], stacks: Sequence[Tensor]
) -> tuple[tuple[LayerShares, ...], Tensor, Tensor]:
    """What can be said of each layer; uniform attention over units, and its rollout up to the last of these."""
    uniform = uniform_pattern(sum(len(members) for members in units.members), causal)
    rolled = rolled_out(repeat(mixed_with_identity(uniform, residual), len(errors)))
    uniform = merge_pattern(uniform, units.members)
    layers = []
    for layer, (matrix, error) in enumerate(zip(rolled, errors, strict=True)):
        merged = merge_pattern(matrix, units.members)
        named = dict(zip(_SUMMARISED, (*(stack[layer] for stack in stacks), uniform, merged), strict=True))
        sink = {name: _on_sinks(of_method, units) for name, of_method in named.items()}
        apart = {name: rows_apart(of_method) for name, of_method in named.items()}
        layers.append(LayerShares(layer, sink, apart, error))
    return tuple(layers), uniform, merged


def _on_sinks(matrix: Tensor, units: Units) -> float | None:
    """Mean over content positions of what lies on sinks; None where there is no content."""
    sink = np.array(units.sink)
    if sink.all():
        return None
    return float(matrix[~sink][:, sink].double().sum(1).mean())
