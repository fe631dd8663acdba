"""Real numbers of a step: one line on what it holds for the token and the head that are followed."""

from collections.abc import Callable

import torch
from torch import Tensor

from attnviz.commands.explain.measure import Explanation
from attnviz.model.tokens import visible
from attnviz.model.wording import counted

__all__ = [
    "Numbers", "of_activation", "of_head", "of_mask", "of_norm", "of_pattern", "of_residual", "of_scores", "of_split",
    "of_token", "signed",
]  # fmt: skip

Numbers = Callable[[Explanation, str], str]
"""From the layer and the name of the step to the line."""

_FIRST, _STRONGEST, _LONGEST = 4, 4, 16
_ADDED = {
    "attention_residual": ("input", "attention_output"),
    "feed_forward_residual": ("attention_norm", "feed_forward_output"),
    "output": ("attention_residual", "feed_forward_output"),
}
"""The stream and what is added to it."""


def of_token(explanation: Explanation, name: str) -> str:
    """Length and first numbers of the token's vector."""
    return f"{_token(explanation)}: {_vector(explanation.tensor(name)[explanation.token])}"


def of_head(explanation: Explanation, name: str) -> str:
    """The same in the head."""
    row = explanation.tensor(name)[explanation.head.head, explanation.token]
    return f"{_token(explanation)} in {explanation.head}: {_vector(row)}"


def of_split(explanation: Explanation, name: str) -> str:
    """Lengths of the token's query, key and value in the head."""
    vectors = explanation.tensor(name)[:, explanation.head.head, explanation.token]
    lengths = (f"{part} {_length(vector)}" for part, vector in zip(("query", "key", "value"), vectors, strict=True))
    return f"{_token(explanation)} in {explanation.head}: {', '.join(lengths)}"


def of_scores(explanation: Explanation, name: str) -> str:
    """The keys with the highest scores."""
    row = explanation.tensor(name)[explanation.head.head, explanation.token]
    return f"{_token(explanation)} in {explanation.head}, highest: {_keys(explanation, row, signed)}"


def of_mask(explanation: Explanation, name: str) -> str:
    """How many keys the token may attend to."""
    allowed = int(explanation.tensor(name)[explanation.token].sum())
    return f"{_token(explanation)} may attend to {allowed} of {counted(len(explanation.tokens), 'token')}"


def of_pattern(explanation: Explanation, name: str) -> str:
    """The keys that the token attends to most."""
    row = explanation.tensor(name)[explanation.head.head, explanation.token]
    keys = _keys(explanation, row, "{:.2f}".format)
    return f"{_token(explanation)} in {explanation.head} attends to {keys}; sum {float(row.sum()):.4f}"


def of_norm(explanation: Explanation, name: str) -> str:
    """What the layer norm takes out of the token's vector, and its length afterwards."""
    before = {"final_norm": "output", "output": "feed_forward_residual", "feed_forward_norm": "attention_residual"}
    source = before.get(name, "input" if explanation.pre_norm else "attention_residual")
    old = explanation.tensor(source)[explanation.token]
    spread = float(old.var(correction=0).sqrt())
    mean = f"mean {signed(float(old.mean()))} and standard deviation {spread:.3g} are taken out"
    return f"{_token(explanation)}: {mean}; {_length(explanation.tensor(name)[explanation.token])}"


def of_residual(explanation: Explanation, name: str) -> str:
    """Lengths and angle of the stream and what is added to it."""
    stream, added = (explanation.tensor(part)[explanation.token] for part in _ADDED[name])
    cosine = float(torch.nn.functional.cosine_similarity(stream, added, dim=0))
    lengths = f"{float(stream.norm()):.3g} + {float(added.norm()):.3g}"
    total = float(explanation.tensor(name)[explanation.token].norm())
    return f"{_token(explanation)}: lengths {lengths} at a cosine of {signed(cosine)} give {total:.3g}"


def of_activation(explanation: Explanation, name: str) -> str:
    """How many inputs of the activation are positive, and what it gives."""
    before, after = (explanation.tensor(part)[explanation.token] for part in ("expanded", name))
    positive = int((before > 0).sum())
    return f"{_token(explanation)}: {positive} of {len(before)} inputs are positive; {_vector(after)}"


def signed(value: float) -> str:
    """Two decimals, with a true minus sign, and no minus before a zero."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")


def _keys(explanation: Explanation, row: Tensor, write: Callable[[float], str]) -> str:
    """The largest numbers of a row with their keys, of those that the mask allows."""
    allowed = explanation.tensor("mask")[explanation.token] > 0
    order = torch.where(allowed, row, -torch.inf).argsort(descending=True, stable=True)
    keys = [int(key) for key in order[: min(_STRONGEST, int(allowed.sum()))]]
    return ", ".join(f"{_quoted(explanation, key)} {write(float(row[key]))}" for key in keys)


def _token(explanation: Explanation) -> str:
    return _quoted(explanation, explanation.token)


def _quoted(explanation: Explanation, position: int) -> str:
    label = visible(explanation.tokens.labels[position])
    return f"‘{label if len(label) <= _LONGEST else label[: _LONGEST - 1] + '…'}’"


def _length(vector: Tensor) -> str:
    return f"length {float(vector.norm()):.3g}"


def _vector(vector: Tensor) -> str:
    first = ", ".join(signed(float(value)) for value in vector[:_FIRST])
    return f"{_length(vector)}; [{first}{', …' if len(vector) > _FIRST else ''}]"
