"""Contacts of a protein that heads find: of the pairs of residues that score highest, the share that is in contact.

Rao et al. 2021, "Transformer protein language models are unsupervised structure learners"; precisions are as in CASP.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.errors import UsageError
from attnviz.inputs.arrays import real_numbers
from attnviz.measures.rows import Statistic
from attnviz.models.libraries import first_line
from attnviz.wording import visible

_LONG = 24
# By statistic: how far apart the residues of a pair are at least, the part of L, their number, that is ranked, and
# whether scores are less their average product.
CONTACTS = {
    f"{name}{ending}": (least, part, apc)
    for name, least, part in (
        ("contacts_l", 6, 1),
        ("contacts_l5", 6, 5),
        ("long_contacts_l", _LONG, 1),
        ("long_contacts_l5", _LONG, 5),
    )
    for ending, apc in (("", False), ("_apc", True))
}

_CONTACTS = "share of contacts among the L (or L/5) pairs of L residues that attend most to each other"


def _statistic(name: str, least: int, part: int, apc: bool) -> Statistic:
    title = f"{'long ' if least == _LONG else ''}P@L{'/5' if part == 5 else ''}{' APC' if apc else ''}"
    how = " by A + Aᵀ less its average product" if apc else ""
    return Statistic(name, title, f"{_CONTACTS}{how}, {least} or more apart")


STATISTICS = tuple(_statistic(name, *how) for name, how in CONTACTS.items())

_NEAR, _NEAREST = 8.0, 1.0  # ångström: residues nearer than the first are in contact; none are nearer than the second


def corrected(patterns: Tensor, apc: bool) -> Tensor:
    """A + Aᵀ of patterns [.., n, n]; with ``apc`` less its average product, a_i a_j / a (Dunn et al. 2008)."""
    both = patterns + patterns.mT
    sums = both.sum(-1, keepdim=True)
    total = sums.sum(-2, keepdim=True)
    return both - sums * sums.mT / total.where(total > 0, 1.0) if apc else both


def _read(file: str | Path, n: int) -> NDArray[np.float64]:
    """Which of n residues are in contact, [n, n]: 1, 0, or NaN where that is not known."""
    expected = f"expected in {visible(str(file))} {n} × {n} numbers (.npy), or lines of two residues up to {n}, found"
    is_array = Path(file).suffix == ".npy"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a text without lines, whose numbers are [0, 1]
            numbers = real_numbers(file) if is_array else np.loadtxt(file, int, ndmin=2, encoding="utf-8-sig")
    except (OSError, EOFError, TypeError, ValueError) as error:
        raise UsageError(f"{expected} what cannot be read: {first_line(error)}.") from error
    known = numbers >= 0
    contacts = np.zeros((n, n))
    if not is_array and numbers.shape[1] == 2 and numbers.min() >= 1 and numbers.max() <= n:
        contacts[tuple(numbers.T - 1)] = 1
    elif numbers.shape != (n, n):
        shape = " × ".join(map(str, numbers.shape))
        raise UsageError(f"{expected} {shape} numbers from {numbers.min(initial=0)} to {numbers.max(initial=0)}.")
    elif np.isin(numbers[known], (0, 1)).all():
        contacts = np.where(known, numbers, np.nan)
    else:
        contacts = np.where(known, numbers < _NEAR, np.nan)
        if numbers[known & ~np.eye(n, dtype=bool)].min(initial=np.inf) < _NEAREST:
            raise UsageError(f"{expected} distances below {_NEAREST:g}: they are in ångström, contacts are 0 and 1.")
    return np.fmax(contacts, contacts.T)


class ContactMap:
    """The residues of a text that are in contact.

    Args:
        file: .npy, [n, n] of 0 and 1 or of distances in ångström, NaN or below 0 where they are not known; or a text
            with two residues in contact on each line, counted from 1.
        special: which positions are no residues. One between residues parts two chains, whose pairs count, as long
            ones, if the file has contacts between chains.

    Raises:
        UsageError: the file is neither, of another number of residues, or without contacts.
    """

    def __init__(self, file: str | Path, special: Sequence[bool]) -> None:
        self._residues = np.flatnonzero(~np.array(special))
        n = len(self._residues)
        (first, second), chains = np.triu_indices(n, 1), self._residues - np.arange(n)
        truth, between = _read(file, n)[first, second], chains[first] != chains[second]
        of_chains = _LONG if (truth[between] == 1).any() else 0
        apart = np.where(between, of_chains, second - first)
        self._pairs = dict[int, tuple[Tensor, Tensor]]()  # by how far apart they are
        for least, _, _ in CONTACTS.values():
            ranked = (apart >= least) & (truth >= 0)
            self._pairs[least] = torch.tensor((first * n + second)[ranked]), torch.tensor(truth[ranked])
        if not self._pairs[min(self._pairs)][1].any():
            raise UsageError(f"expected in {visible(str(file))} contacts of residues 6 or more apart, found none.")

    @property
    def chance(self) -> dict[str, float | None]:
        """The statistics under uniform attention: the share of contacts among all pairs; None without pairs."""
        shares = {least: float(truth.mean()) if len(truth) else None for least, (_, truth) in self._pairs.items()}
        return {name: shares[least] for name, (least, _, _) in CONTACTS.items()}

    def statistics(self, pattern: Tensor) -> dict[str, float | None]:
        """The statistics of a pattern, [n, n], by :func:`corrected` attention between residues."""
        n = len(self._residues)
        between = pattern[self._residues][:, self._residues]
        scores = {apc: corrected(between, apc).flatten() for apc in (False, True)}
        precisions = dict[str, float | None]()
        for name, (least, part, apc) in CONTACTS.items():
            pairs, truth = self._pairs[least]
            highest = scores[apc][pairs].topk(min(len(pairs), max(1, n // part))).indices
            precisions[name] = float(truth[highest].mean()) if len(pairs) else None
        return precisions
