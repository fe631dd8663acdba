"""Retrieval scores (Wu et al. 2024): whether a head looks at the token of a needle that is to be copied next.

A sequence is filler, a needle of a few tokens, filler, and the needle again. Where the copy has its i-th token, a head
retrieves if its largest attention is on the needle's token i + 1, the one to come. The score is the share of the
needle's tokens of which the head does so. The first token is left out: nothing says that the needle is to come.

Unlike the paper, tokens are random ones in place of text, and no question is asked and nothing generated: the copy is
given (teacher forcing), so that every model is measured on the same tokens, also one that would not copy them. Unlike
induction, the largest attention counts and not its mean, a few tokens of a long context come back and not all, at every
depth, and none of them stands anywhere else.
"""

import torch
from torch import Tensor

from attnviz.commands.profile.tallies import ordinary_ids
from attnviz.model.checkpoint import Checkpoint
from attnviz.patterns.registry import allowed_units

CONTEXT, NEEDLE = 256, 10
"""Tokens of a sequence, and of its needle, at most; attnviz's own choice (the paper: 1,000 to 50,000 tokens)."""


class Needles:
    """Random sequences with a needle and its copy.

    Attributes:
        context, needle: tokens of a sequence, and of its needle.
        measurable: not of a model that sees what follows, in which nothing is copied token by token, nor of one with
            hardly a position or a token.
    """

    def __init__(self, checkpoint: Checkpoint, seed: int, n_sequences: int) -> None:
        self._checkpoint, self._seed, self._n_sequences = checkpoint, seed, n_sequences
        self.context = min(CONTEXT, checkpoint.positions)
        self.needle = max(2, min(NEEDLE, self.context // 8))
        long_enough = checkpoint.architecture.causal and self.context >= 2 * self.needle + 2
        self.measurable = long_enough and len(ordinary_ids(checkpoint)) > self.needle

    def starts(self, numbers: list[int]) -> Tensor:
        """Where the needles of these sequences stand, [n]: evenly from the second token to just before the copy."""
        last = self.context - 2 * self.needle - 1
        return 1 + torch.tensor(numbers) * (last - 1) // max(1, self._n_sequences - 1)

    def drawn(self) -> Tensor:
        """Tokens of all sequences, [n_sequences, context]: needles of different tokens, which are not in the filler."""
        generator, ordinary = torch.Generator().manual_seed(self._seed), torch.tensor(ordinary_ids(self._checkpoint))
        rows = []
        for start in self.starts(list(range(self._n_sequences))).tolist():
            shuffled = ordinary[torch.randperm(len(ordinary), generator=generator)]
            needle, rest = shuffled[: self.needle], shuffled[self.needle :]
            filler = rest[torch.randint(len(rest), (self.context - 2 * self.needle,), generator=generator)]
            rows.append(torch.cat([filler[:start], needle, filler[start:], needle]))
        return torch.stack(rows)

    def retrieved(self, pattern: Tensor, numbers: list[int]) -> Tensor:
        """The share of needle tokens that heads retrieve, [batch, n_heads], from patterns [batch, n_heads, n, n]."""
        largest = pattern[..., -self.needle : -1, :].argmax(-1).cpu()  # of the copy, all but its last token
        return (largest == self._wanted(numbers)[:, None]).double().mean(-1)

    def uniform(self, window: int | None) -> float:
        """The score of a head whose largest attention is on any visible token alike, in a layer with this window."""
        seen = allowed_units(self.context, True, window)[-self.needle : -1].double()  # [needle - 1, context]
        chance = seen / seen.sum(-1, keepdim=True)
        wanted = self._wanted(list(range(self._n_sequences)))
        return float(chance.expand(len(wanted), -1, -1).gather(-1, wanted[..., None]).mean())

    def _wanted(self, numbers: list[int]) -> Tensor:
        """The positions to look at from the copy's tokens, [n, needle - 1]."""
        return self.starts(numbers)[:, None] + torch.arange(1, self.needle)
