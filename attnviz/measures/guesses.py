"""Baselines of relation accuracy: guesses of the other end that track no relation.

Attention to a word is the sum over its pieces, so a head with uniform attention picks the word with most pieces; a head
that attends to one position picks the first word or the last. Such heads score what these guesses score.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Guess = Callable[[Tensor, Tensor], Tensor]


def _first(visible: Tensor, pieces: Tensor) -> Tensor:  # noqa: ARG001 - as other guesses
    return visible.long().argmax(-1)


def _last(visible: Tensor, pieces: Tensor) -> Tensor:  # noqa: ARG001 - as other guesses
    return visible.shape[-1] - 1 - visible.long().flip(-1).argmax(-1)


def _longest(visible: Tensor, pieces: Tensor) -> Tensor:
    return (visible * pieces[:, None]).argmax(-1)


# Guesses without head or offset, by name: the word that each word, [batch, n], guesses. They are given ``visible``,
# boolean [batch, n, n], the other words that each may attend to, and how many pieces words have, [batch, n]; of a word
# that sees no other the guess does not matter. An entry here is a baseline of relations everywhere, beside
# the best fixed offset, a random word, and the same head's guesses from other words.
GUESSES: dict[str, Guess] = {"first word": _first, "last word": _last, "longest word": _longest}


def error_reduction(score: float | None, baseline: float | None) -> float | None:
    """Share of the baseline's errors that a head does not make: (s - b) / (1 - b), at most 1; None where not known.

    A margin of 0.1 above 0.8 is half of the errors, one above 0.1 a ninth.
    """
    if score is None or baseline is None or baseline >= 1:
        return None
    return (score - baseline) / (1 - baseline)


def fast_argmax(pattern: Tensor) -> Tensor:
    """Each row's first key of largest weight; on the CPU by NumPy's argmax, ten times as fast there as torch's."""
    if pattern.device.type == "cpu" and pattern.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(pattern.numpy().argmax(-1))
    return pattern.argmax(-1)


@dataclass(frozen=True)
class WordGuesses:
    """Guesses for the words of a batch of sentences, padded with words without pieces."""

    visible: Tensor  # boolean [batch, n, n], the other words that each word may attend to; without words without pieces
    words: dict[str, Tensor]  # by name of GUESSES, [batch, n], the guess for each word; -1 where it sees no other
    chance: Tensor  # [batch, n], 1 / number of visible words; 0 where there is none

    @classmethod
    def of(cls, pieces: Tensor, causal: bool) -> "WordGuesses":
        """The guesses for words by how many of their tokens are no sinks, [batch, n]; n is at least 1."""
        n = pieces.shape[1]
        visible = (pieces > 0)[:, :, None] & (pieces > 0)[:, None, :] & ~torch.eye(n, dtype=torch.bool)
        if causal:
            visible &= torch.ones(n, n, dtype=torch.bool).tril(-1)
        count = visible.sum(-1)
        words = {name: guess(visible, pieces).masked_fill(count == 0, -1) for name, guess in GUESSES.items()}
        return cls(visible, words, torch.where(count > 0, 1 / count.clamp(min=1).double(), 0.0))


def votes_elsewhere(guesses: Tensor, visible: Tensor, text: Tensor, query: Tensor, target: Tensor) -> Tensor:
    """Share of the other words from which the same head guesses the target, [n_pairs, n_heads]; 0 where none sees it.

    A head that tracks a relation guesses the target from the related word, not from others. ``guesses`` are each head's
    for each word, [batch, n_heads, n], -1 for none. Pairs are given by text, guessing word and target, [n_pairs] each.
    """
    votes = torch.zeros(*guesses.shape[:2], guesses.shape[2] + 1, dtype=torch.float64)
    votes.scatter_add_(-1, guesses + 1, torch.ones((), dtype=votes.dtype).expand(guesses.shape))
    right = guesses[text, :, query] == target[:, None]
    others = visible.sum(1)[text, target] - visible[text, query, target].long()
    return (votes[text, :, target + 1] - right.double()) / others.clamp(min=1)[:, None] * (others > 0)[:, None]
