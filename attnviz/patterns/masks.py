"""Patterns as masks: boolean [n, n] selectors of (query, key), True where the pattern would look.

"Attends to X" is the attention under a 0/1 mask, as in Clark et al. 2019's analysis; a score is read
beside what uniform attention puts under the same mask.
"""

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
    "positional_masks",
    "previous",
    "repeat_masks",
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


def positional_masks(n: int, causal: bool, local_window: int, long_range_from: int) -> dict[str, Tensor | None]:
    """The five masks that need nothing but positions, by the name of their statistic.

    ``next`` is None in a causal model, where no query can see it.
    """
    return {
        "previous": previous(n),
        "current": current(n),
        "next": None if causal else following(n),
        "local": local(n, local_window),
        "long_range": long_range(n, long_range_from),
    }


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


def repeat_masks(tokens: Sequence[Hashable]) -> dict[str, Tensor | None]:
    """The two masks that need repeated tokens, by the name of their statistic; empty where none repeats."""
    return {"induction": induction(tokens), "duplicate": duplicate(tokens)}
