"""Masks of patterns: boolean [n, n] selectors of (query, key), True where the pattern would look."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

__all__ = [
    "allowed_units",
    "current",
    "distances",
    "duplicate",
    "following",
    "induction",
    "local",
    "long_range",
    "previous",
]


def distances(n: int) -> Tensor:
    """Key position minus query position, [n, n]: negative looks back."""
    positions = torch.arange(n)
    return positions[None, :] - positions[:, None]


def previous(n: int) -> Tensor:
    """The position just before the query."""
    return distances(n) == -1


def current(n: int) -> Tensor:
    """The query itself."""
    return distances(n) == 0


def following(n: int) -> Tensor:
    """The position just after the query ("next")."""
    return distances(n) == 1


def local(n: int, window: int) -> Tensor:
    """At most ``window`` positions away, the query itself included."""
    return distances(n).abs() <= window


def long_range(n: int, at_least: int) -> Tensor:
    """At least ``at_least`` positions away."""
    return distances(n).abs() >= at_least


def allowed_units(n: int, causal: bool) -> Tensor:
    """Which keys a query may attend to at all; for merged words as for tokens."""
    return distances(n) <= 0 if causal else torch.ones(n, n, dtype=torch.bool)


def duplicate(tokens: Sequence[Hashable]) -> Tensor:
    """An earlier copy of the query's own token, [n, n] ("duplicate-token", Wang et al. 2022).

    Args:
        tokens: [n], equal where two positions hold the same token.
    """
    numbers: dict[Hashable, int] = {}
    ids = torch.tensor([numbers.setdefault(token, len(numbers)) for token in tokens], dtype=torch.long)
    return (ids[:, None] == ids[None, :]) & (distances(len(ids)) < 0)


def induction(tokens: Sequence[Hashable]) -> Tensor:
    """The position just after an earlier copy of the query's token, [n, n] (Olsson et al. 2022).

    Args:
        tokens: as for :func:`duplicate`.
    """
    earlier = duplicate(tokens)
    return torch.cat([torch.zeros_like(earlier[:, :1]), earlier[:, :-1]], dim=1)
