"""Scores on repeated random tokens: induction, duplicate-token, previous-token and retrieval heads."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnviz.errors import CheckpointError
from attnviz.inputs.batches import Batch
from attnviz.inputs.prompt import Text
from attnviz.measures.measure import Measure, copy_to_host
from attnviz.measures.patterns import RETRIEVAL, allowed_units
from attnviz.measures.tallies import ordinary_ids
from attnviz.models.checkpoint import Checkpoint
from attnviz.reference.attention import uniform_pattern
from attnviz.run.corpus import CorpusLoop
from attnviz.wording import counted

# Random sequences, and their tokens before they are repeated: 25 in Olsson et al. 2022, 100 in Wang et al. 2022.
SEQUENCES, LENGTH = 32, 50

# Most tokens of a sequence, and of its needle; attnviz's own choice (the paper: 1,000 to 50,000 tokens).
CONTEXT, NEEDLE = 256, 10


@dataclass(frozen=True)
class RepeatScores:
    """Scores on random tokens repeated once.

    ``previous``, ``duplicate`` and ``induction`` are means on a diagonal, the last two over the second half, whose
    tokens have an earlier copy; causal models also have ``retrieval``, a share of tokens, see :class:`Needles`.
    """

    scores: dict[str, Tensor]  # [n_sequences, n_layers, n_heads]
    length: int  # tokens before they are repeated
    baselines: dict[str, Tensor]  # the scores of uniform attention in each layer, [n_layers, 1]
    needle: tuple[int, int] | None = None  # tokens of a sequence with a needle, and of the needle; None without any

    def sequences(self, role: str = "") -> dict[str, int]:
        """Descriptions of the sequences with their numbers, for one role or for all."""
        described = {}
        if role != RETRIEVAL:
            described[f"{self.length} random tokens, repeated"] = len(self.scores["previous"])
        if self.needle is not None and role in ("", RETRIEVAL):
            context, needle = self.needle
            described[f"{context} random tokens, {needle} of them copied"] = len(self.scores[RETRIEVAL])
        return described


class Needles:
    """Sequences for retrieval scores (Wu et al. 2024): whether a head attends to the token to be copied next.

    A sequence is filler, a needle of a few tokens, filler, and the needle again. At the copy's i-th token a head
    retrieves if its largest attention is on the needle's token i + 1. The score is the share of the needle's tokens
    that are retrieved, without the first, which nothing predicts.

    Unlike in the paper, tokens are random, and the copy is given (teacher forcing), so that every model is measured on
    the same tokens. Unlike induction, the largest attention counts, not the mean, and only a few tokens of a long
    context are repeated, at any depth, which occur nowhere else.
    """

    def __init__(self, checkpoint: Checkpoint, seed: int, n_sequences: int) -> None:
        self._checkpoint, self._seed, self._n_sequences = checkpoint, seed, n_sequences
        self.context = min(CONTEXT, checkpoint.positions)
        self.needle = max(2, min(NEEDLE, self.context // 8))
        long_enough = checkpoint.architecture.causal and self.context >= 2 * self.needle + 2
        self.measurable = long_enough and len(ordinary_ids(checkpoint)) > self.needle

    def starts(self, numbers: list[int]) -> Tensor:
        """Start positions of the needles, [n]: evenly from the second token to just before the copy."""
        last = self.context - 2 * self.needle - 1
        return 1 + torch.tensor(numbers) * (last - 1) // max(1, self._n_sequences - 1)

    def drawn(self) -> Tensor:
        """Tokens of all sequences, [n_sequences, context]; a needle's tokens differ, and are not in its filler."""
        generator, ordinary = torch.Generator().manual_seed(self._seed), torch.tensor(ordinary_ids(self._checkpoint))
        rows = []
        for start in self.starts(list(range(self._n_sequences))).tolist():
            shuffled = ordinary[torch.randperm(len(ordinary), generator=generator)]
            needle, rest = shuffled[: self.needle], shuffled[self.needle :]
            filler = rest[torch.randint(len(rest), (self.context - 2 * self.needle,), generator=generator)]
            rows.append(torch.cat([filler[:start], needle, filler[start:], needle]))
        return torch.stack(rows)

    def largest(self, pattern: Tensor) -> Tensor:
        """The key of largest weight of the copy's tokens but the last, [.., needle - 1] of patterns [.., n, n]."""
        return pattern[..., -self.needle : -1, :].argmax(-1)

    def retrieved(self, largest: Tensor, numbers: list[int]) -> Tensor:
        """The share of needle tokens that heads retrieve, [.., n, n_heads], from the keys of :meth:`largest`."""
        return (largest == self._wanted(numbers)[:, None]).double().mean(-1)

    def uniform(self, window: int | None) -> float:
        """The score of a head whose largest attention is on a random visible token, in a layer with this window."""
        chance = uniform_pattern(allowed_units(self.context, True, window)[-self.needle : -1])  # [needle - 1, context]
        wanted = self._wanted(list(range(self._n_sequences)))
        return float(chance.expand(len(wanted), -1, -1).gather(-1, wanted[..., None]).mean())

    def _wanted(self, numbers: list[int]) -> Tensor:
        """The position to retrieve at each of the copy's tokens but the last, [n, needle - 1]."""
        return self.starts(numbers)[:, None] + torch.arange(1, self.needle)


def repeated_tokens(checkpoint: Checkpoint, seed: int) -> Tensor:
    """Random ordinary tokens, each sequence followed by itself, [SEQUENCES, 2 * length]; the same in every process.

    CheckpointError: the model has fewer than four positions, or its tokenizer special tokens only.
    """
    length = min(LENGTH, checkpoint.positions // 2)
    if length < 2:  # of a single token, what followed it is its copy, the query itself
        raise CheckpointError(
            f"the model has {counted(checkpoint.positions, 'position')}; --repeats needs four at least, "
            "for two tokens and their copies: leave it out."
        )
    ordinary = ordinary_ids(checkpoint)
    if not ordinary:
        raise CheckpointError(
            "the model's tokenizer has special tokens only; --repeats draws from the others: leave it out, or take a "
            "model with its whole tokenizer."
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(ordinary), (SEQUENCES, length), generator=generator)
    return torch.tensor(ordinary)[drawn].repeat(1, 2)


class RepeatTally(Measure):
    """Scores of random sequences without special tokens (Wang et al. 2022, Olsson et al. 2022)."""

    def __init__(self, checkpoint: Checkpoint, seed: int) -> None:
        self._checkpoint, self._seed = checkpoint, seed
        n = self._length = min(LENGTH, checkpoint.positions // 2)
        # offset of each diagonal, and the first query that has such a key
        self._diagonals = {"previous": (-1, 1), "duplicate": (-n, n), "induction": (1 - n, n)}
        self._needles, self._numbers = Needles(checkpoint, seed, SEQUENCES), list[int]()  # of the batch's sequences
        names = [*self._diagonals, RETRIEVAL] if self._needles.measurable else self._diagonals
        super().__init__()
        shape = SEQUENCES, checkpoint.n_layers, checkpoint.n_heads
        self._counts = {name: torch.zeros(shape, dtype=torch.float64) for name in names}

    def measure(self, loop: CorpusLoop) -> None:
        """Measure this process's share of the sequences."""
        kinds = {"repeats": (repeated_tokens(self._checkpoint, self._seed), self._add)}
        if self._needles.measurable:
            kinds["needles"] = (self._needles.drawn(), self._add_needles)
        for name, (sequences, add) in kinds.items():
            texts = [
                Text("", number=number, ids=tuple(ids))
                for number, ids in enumerate(sequences.tolist())
                if loop.process.owns(number)
            ]
            loop.over(texts, partial(self._run, loop, add), name, len(texts))

    def _run(self, loop: CorpusLoop, add: Callable[[int, Tensor], None], batch: Batch) -> None:
        self._numbers = [item.source.number for item in batch.items]
        loop.attention.run(batch, add)
        copy_to_host([self])

    def _add(self, _: int, pattern: Tensor) -> None:
        for name, (offset, first) in self._diagonals.items():
            self._keep(name, torch.diagonal(pattern[..., first:, :], first + offset, -2, -1).double().mean(-1))

    def _add_needles(self, _: int, pattern: Tensor) -> None:
        self._keep(RETRIEVAL, self._needles.largest(pattern))

    def _count(self, name: str, values: Tensor) -> None:
        """Keep the scores of some sequences, from means or largest weights, [n_layers, n, n_heads, …]."""
        scores = self._needles.retrieved(values, self._numbers) if name == RETRIEVAL else values
        self._counts[name][self._numbers] = scores.transpose(0, 1)

    def results(self) -> RepeatScores:
        """The scores, beside those of attention that is uniform over visible keys."""
        windows, causal, needles = self._checkpoint.windows, self._checkpoint.architecture.causal, self._needles
        uniform = [uniform_pattern(allowed_units(2 * self._length, causal, window)) for window in windows]
        baselines = {}
        for name, (offset, first) in self._diagonals.items():
            means = [float(torch.diagonal(pattern[first:], first + offset, -2, -1).mean()) for pattern in uniform]
            baselines[name] = torch.tensor(means)[:, None]
        if not needles.measurable:
            return RepeatScores(self._counts, self._length, baselines)
        baselines[RETRIEVAL] = torch.tensor([needles.uniform(window) for window in windows])[:, None]
        return RepeatScores(self._counts, self._length, baselines, (needles.context, needles.needle))
