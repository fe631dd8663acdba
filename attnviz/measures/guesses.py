"""What finds the other end of a relation without tracking it: guesses that a head has to beat.

Attention to a word is the sum over its pieces, so a head that spreads its attention evenly picks the word with most
pieces; a head that rests on one place picks the first word or the last. Such heads are right about any relation as
often as these guesses are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

GUESSES = ("first word", "last word", "longest word")
"""Guesses that need no head and no offset: always that other word of the sentence."""

BASELINES = ("fixed offset", "chance", *GUESSES, "other words")
"""What a head has to beat: the best fixed offset, a word drawn at random, always the first, last or longest other word,
and the head itself asked from the other words of the sentence."""


def error_reduction(score: float | None, baseline: float | None) -> float | None:
    """Of what a baseline misses, the share that a head does not: (s - b) / (1 - b), 1 at most.

    A margin of 0.1 above 0.8 says more than one above 0.1: half of what was left, not a ninth.

    Returns:
        None where either is unknown, or the baseline leaves nothing to gain.
    """
    if score is None or baseline is None or baseline >= 1:
        return None
    return (score - baseline) / (1 - baseline)


def first_largest(pattern: Tensor) -> Tensor:
    """Each row's first key of largest weight, on the CPU; there NumPy's argmax is ten times as fast as torch's."""
    if pattern.device.type == "cpu" and pattern.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(pattern.numpy().argmax(-1))
    return pattern.argmax(-1).cpu()


@dataclass(frozen=True)
class WordGuesses:
    """Guesses for the words of sentences, of which shorter ones are filled up with words without pieces.

    Attributes:
        visible: boolean [batch, n, n], the other words that each word may attend to; words without pieces are nobody's.
        words: by name of :data:`GUESSES`, [batch, n], what is guessed for each word; -1 where it sees no other.
        chance: [batch, n], how often one of the visible words, drawn at random, is a given one; 0 where there is none.
    """

    visible: Tensor
    words: dict[str, Tensor]
    chance: Tensor

    @classmethod
    def of(cls, pieces: Tensor, causal: bool) -> "WordGuesses":
        """For words of so many pieces each, 0 where the model has none or where they are a sink.

        Args:
            pieces: [batch, n], how many tokens each word has; n is at least 1.
            causal: whether a word sees only those before it.
        """
        n = pieces.shape[1]
        visible = (pieces > 0)[:, :, None] & (pieces > 0)[:, None, :] & ~torch.eye(n, dtype=torch.bool)
        if causal:
            visible &= torch.ones(n, n, dtype=torch.bool).tril(-1)
        count, as_numbers = visible.sum(-1), visible.long()
        found = as_numbers.argmax(-1), n - 1 - as_numbers.flip(-1).argmax(-1), (visible * pieces[:, None]).argmax(-1)
        words = {name: of_name.masked_fill(count == 0, -1) for name, of_name in zip(GUESSES, found, strict=True)}
        return cls(visible, words, torch.where(count > 0, 1 / count.clamp(min=1).double(), 0.0))


def votes_elsewhere(guesses: Tensor, visible: Tensor, text: Tensor, query: Tensor, target: Tensor) -> Tensor:
    """The same heads asked from the other words: the share of these whose guess is the target.

    A head that tracks a relation points at the target from the word that stands in it, and not from others.

    Args:
        guesses: [batch, n_heads, n], each head's guess for each word; -1 for none.
        visible: boolean [batch, n, n], see :class:`WordGuesses`.
        text: [n_pairs], the texts of the pairs.
        query: [n_pairs], the words that stand in the relation.
        target: [n_pairs], what is to be found from them.

    Returns:
        [n_pairs, n_heads], 0-1; 0 where no other word sees the target.
    """
    votes = torch.zeros(*guesses.shape[:2], guesses.shape[2] + 1, dtype=torch.float64)
    votes.scatter_add_(-1, guesses + 1, torch.ones((), dtype=votes.dtype).expand(guesses.shape))
    own = guesses[text, :, query] == target[:, None]
    others = visible.sum(1)[text, target] - visible[text, query, target].long()
    return (votes[text, :, target + 1] - own.double()) / others.clamp(min=1)[:, None] * (others > 0)[:, None]
