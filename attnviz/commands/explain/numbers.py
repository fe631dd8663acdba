"""Real numbers of every step: a summary for documents, and what one token or head shows, for people."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.commands.explain.measure import Explained
from attnviz.commands.explain.stages import Stage
from attnviz.model.tokens import visible
from attnviz.model.wording import counted

__all__ = ["Summary", "shown_numbers", "summary"]

_FIRST, _STRONGEST = 4, 4
_LONGEST = 16


@dataclass(frozen=True)
class Summary:
    """A step's numbers in brief.

    Attributes:
        least: the smallest.
        largest: the largest.
        mean: of all.
        norm: mean length (Euclidean norm) of the vectors along the last axis; None for the mask.
    """

    least: float
    largest: float
    mean: float
    norm: float | None


def summary(stage: Stage) -> Summary:
    """Of all numbers of a step; of the mask: its 0s and 1s, whose mean is the share that is allowed."""
    wide = stage.wide
    norm = None if stage.name == "mask" else float(torch.linalg.vector_norm(wide, dim=-1).mean())
    return Summary(float(wide.min()), float(wide.max()), float(wide.mean()), norm)


def shown_numbers(explained: Explained, name: str) -> str:
    """What a step holds for the token, and the head, that are followed: one line of real numbers."""
    shown: Callable[[Explained, str], str] = _SHOWN.get(name, _vector)
    return shown(explained, name)


def _vector(explained: Explained, name: str) -> str:
    vector = explained.tensor(name)[explained.token]
    return f"{_token(explained)}: {_length(vector)}; {_first(vector)}"


def _of_head(explained: Explained, name: str) -> str:
    rows = explained.tensor(name)
    head, token = explained.head.head, explained.token
    if name == "split":
        parts = ", ".join(
            f"{which} {_length(rows[number, head, token])}" for number, which in enumerate(("query", "key", "value"))
        )
        return f"{_token(explained)} in {explained.head}: {parts}"
    return f"{_token(explained)} in {explained.head}: {_length(rows[head, token])}; {_first(rows[head, token])}"


def _scores(explained: Explained, _: str) -> str:
    row = explained.tensor("scores")[explained.head.head, explained.token]
    return f"{_token(explained)} in {explained.head}, highest: {_keys(explained, row, signed=True)}"


def _mask(explained: Explained, _: str) -> str:
    allowed = int(explained.tensor("mask")[explained.token].sum())
    return f"{_token(explained)} may attend to {allowed} of {counted(len(explained.tokens), 'token')}"


def _pattern(explained: Explained, _: str) -> str:
    row = explained.tensor("pattern")[explained.head.head, explained.token]
    return f"{_token(explained)} in {explained.head} attends to {_keys(explained, row)}; sum {float(row.sum()):.4f}"


def _norm(explained: Explained, name: str) -> str:
    before = {"final_norm": "output", "output": "feed_forward_residual", "feed_forward_norm": "attention_residual"}
    source = before.get(name, "input" if explained.pre_norm else "attention_residual")
    old = explained.tensor(source)[explained.token]
    spread = float(old.var(correction=0).sqrt())
    mean = f"mean {_signed(float(old.mean()))} and standard deviation {spread:.3g} are taken out"
    return f"{_token(explained)}: {mean}; {_length(explained.tensor(name)[explained.token])}"


def _residual(explained: Explained, name: str) -> str:
    pairs = {
        "attention_residual": ("input", "attention_output"),
        "feed_forward_residual": ("attention_norm", "feed_forward_output"),
        "output": ("attention_residual", "feed_forward_output"),
    }
    stream, added = (explained.tensor(part)[explained.token] for part in pairs[name])
    cosine = float(torch.nn.functional.cosine_similarity(stream, added, dim=0))
    lengths = f"{float(stream.norm()):.3g} + {float(added.norm()):.3g}"
    total = float(explained.tensor(name)[explained.token].norm())
    return f"{_token(explained)}: lengths {lengths} at a cosine of {_signed(cosine)} give {total:.3g}"


def _output(explained: Explained, name: str) -> str:
    return _residual(explained, name) if explained.pre_norm else _norm(explained, name)


def _activated(explained: Explained, name: str) -> str:
    before, after = (explained.tensor(part)[explained.token] for part in ("expanded", name))
    positive = int((before > 0).sum())
    return f"{_token(explained)}: {positive} of {len(before)} inputs are positive; {_length(after)}; {_first(after)}"


_SHOWN: dict[str, Callable[[Explained, str], str]] = {
    "split": _of_head,
    "scores": _scores,
    "mask": _mask,
    "pattern": _pattern,
    "weighted": _of_head,
    "attention_norm": _norm,
    "feed_forward_norm": _norm,
    "final_norm": _norm,
    "attention_residual": _residual,
    "feed_forward_residual": _residual,
    "activated": _activated,
    "output": _output,
}


def _keys(explained: Explained, row: Tensor, signed: bool = False) -> str:
    """The largest numbers of a row with their keys, of those that the mask allows."""
    allowed = explained.tensor("mask")[explained.token] > 0
    order = torch.where(allowed, row, -torch.inf).argsort(descending=True, stable=True)
    count = min(_STRONGEST, int(allowed.sum()))
    return ", ".join(
        f"{_quoted(explained, int(key))} {_signed(float(row[key])) if signed else f'{float(row[key]):.2f}'}"
        for key in order[:count]
    )


def _token(explained: Explained) -> str:
    return _quoted(explained, explained.token)


def _quoted(explained: Explained, position: int) -> str:
    label = visible(explained.tokens.labels[position])
    return f"‘{label if len(label) <= _LONGEST else label[: _LONGEST - 1] + '…'}’"


def _length(vector: Tensor) -> str:
    return f"length {float(vector.norm()):.3g}"


def _first(vector: Tensor) -> str:
    more = ", …" if len(vector) > _FIRST else ""
    return f"[{_numbers([float(value) for value in vector[:_FIRST]])}{more}]"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(_signed(value) for value in values)


def _signed(value: float) -> str:
    """Two decimals, with a true minus sign, and no minus before a zero."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")
