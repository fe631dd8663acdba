"""Successor heads, from the weights alone (Gould et al. 2023): from " Monday" to " Tuesday", from " 3" to " 4".

Of each token t of an ordinal sequence a head is given MLP_0(W_E[t]), the first layer's network of the embedding, which
the paper takes as the embedding that heads read. Of the logits that the head then writes, those of the tokens of the
sequence are compared: the score is the share of tokens at which the largest is that of the successor.
"""

import string
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnviz.measures.bootstrap import named_generator
from attnviz.models.checkpoint import Checkpoint
from attnviz.run.stream import first_network
from attnviz.wording import counted

_NUMBERS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_MONTHS = "January February March April May June July August September October November December".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
# The kinds of sequences of the paper: whether the first follows the last, and the words.
SEQUENCES: dict[str, tuple[bool, list[str]]] = {
    "numbers": (False, [str(number) for number in range(1, 201)]),
    "number words": (False, f"{_NUMBERS} seventeen eighteen nineteen twenty".split()),
    "ordinal words": (False, "first second third fourth fifth sixth seventh eighth ninth tenth".split()),
    "days": (True, _DAYS),
    "short days": (True, [day[:3] for day in _DAYS]),
    "months": (True, _MONTHS),
    "short months": (True, [month[:3] for month in _MONTHS]),
    "letters": (False, list(string.ascii_uppercase)),
}

FEWEST = 20  # tokens with a successor below which nothing is measured (our own choice)

SHUFFLES = 20  # random orders of each sequence; a head's control is its best score among them (our own choice)

MAJORITY = 0.5  # a head is a successor head where it writes at least this share of successors (our own choice)


@dataclass(frozen=True)
class OrdinalSequence:
    """The words of a sequence that are single tokens."""

    name: str  # of :data:`SEQUENCES`
    ids: Tensor  # vocabulary entries, [n]
    pairs: Tensor  # indices of a token and of its successor among these, [n_pairs, 2]


@dataclass(frozen=True)
class Succession:
    """Successor scores of all heads."""

    right: dict[str, tuple[Tensor, int]]  # by sequence, right successors, [n_layers, n_heads], and tokens that have one
    shuffled: Tensor  # the best score of each head on random orders, [n_layers, n_heads]
    why_none: str = ""  # why nothing was measured

    @property
    def n(self) -> int:
        """Tokens with a successor."""
        return sum(n for _, n in self.right.values())

    @property
    def scores(self) -> Tensor:
        """Share of tokens at which a head writes the successor, [n_layers, n_heads]."""
        return torch.stack([right for right, _ in self.right.values()]).sum(0) / self.n


def ordinal_sequences(tokenizer: Any) -> list[OrdinalSequence]:
    """The sequences with a pair of single tokens that follow one another, in the spelling that has most of these."""
    sequences = []
    for name, (cyclic, words) in SEQUENCES.items():
        spellings: list[dict[int, int]] = []  # the vocabulary entry of each word that is a token of its own, by place
        for before in (" ", ""):
            encoded = tokenizer([f"{before}{word}" for word in words], add_special_tokens=False)["input_ids"]
            single = {place: ids[0] for place, ids in enumerate(encoded) if len(ids) == 1}
            special, counts = tokenizer.all_special_ids, Counter(single.values())
            spellings.append({place: id for place, id in single.items() if id not in special and counts[id] == 1})
        entries = max(spellings, key=len)  # of equal ones with the space
        places = {place: number for number, place in enumerate(entries)}
        following = [(place, (place + 1) % len(words)) for place in entries if cyclic or place + 1 < len(words)]
        pairs = [[places[one], places[two]] for one, two in following if two in places]
        if pairs:
            sequences.append(OrdinalSequence(name, torch.tensor([*entries.values()]), torch.tensor(pairs)))
    return sequences


def succession(checkpoint: Checkpoint, logits_of: Callable[[Tensor, Tensor], Tensor]) -> Succession:
    """Scores of all heads.

    ``logits_of`` takes rows [n, d_model] and vocabulary entries [n], and gives the logits of these that each head
    writes of each row, [n_layers, n_heads, n, n].
    """
    sequences = ordinal_sequences(checkpoint.tokenizer)
    n_pairs = sum(len(sequence.pairs) for sequence in sequences)
    if n_pairs < FEWEST:
        why_none = f"the tokenizer has {counted(n_pairs, 'token')} with a successor, of {FEWEST} at least"
        return Succession({}, torch.empty(0), why_none)
    right, shuffled = dict[str, tuple[Tensor, int]](), list[Tensor]()
    draw = named_generator("successors")
    for sequence in sequences:
        logits = logits_of(first_network(checkpoint, sequence.ids), sequence.ids)
        first, second = sequence.pairs.T
        chosen = logits.argmax(-1).cpu()[..., first]
        right[sequence.name] = (chosen == second).sum(-1), len(first)
        orders = [torch.randperm(len(sequence.ids), generator=draw) for _ in range(SHUFFLES)]
        shuffled.append(torch.stack([(chosen == order[second]).sum(-1) for order in orders]))
    return Succession(right, (torch.stack(shuffled).sum(0) / n_pairs).amax(0))
