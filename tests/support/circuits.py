"""GPT-2 with circuits by design: heads that match what stands in parts of the residual stream, and move it.

The residual stream is cut into parts of the same width, by name: ``token`` and ``position`` have a random code of each
token and position, ``out`` is what the unembedding reads by the same codes, all others are empty until a head writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

WIDTH, SHARP = 64, 40.0  # dimensions of a part, and the usual factor of a score


@dataclass(frozen=True)
class Head:
    """A head: scores are sums of query part · W · key part, and of constant directions on key parts."""

    match: Sequence[tuple[str, str, Any]] = ()  # query part, key part, and W, a matrix or a factor
    beside: Mapping[str, Tensor] = field(default_factory=dict)  # by key part, a direction [WIDTH] that raises the score
    write: Sequence[tuple[str, str, float]] = ()  # from part, to part, and a factor; of what is attended to


def codes(n: int, seed: int) -> Tensor:
    """Random unit vectors of zero mean, [n, WIDTH]."""
    drawn = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(seed))
    drawn = drawn - drawn.mean(1, keepdim=True)
    return drawn / drawn.norm(dim=1, keepdim=True)


def _angles() -> Tensor:
    return torch.rand(WIDTH // 2, generator=torch.Generator().manual_seed(9)) * torch.pi


def position_codes(n: int) -> Tensor:
    turned = torch.arange(n)[:, None] * _angles()
    return torch.cat([turned.cos(), turned.sin()], 1) / (WIDTH // 2) ** 0.5


def back(steps: int, factor: float = SHARP) -> Tensor:
    """W with which a position matches the one ``steps`` before it."""
    turn = -steps * _angles()
    cos, sin = torch.diag(turn.cos()), torch.diag(turn.sin())
    return factor * torch.cat([torch.cat([cos, sin], 1), torch.cat([-sin, cos], 1)])


def before(steps: int, to: str, factor: float = 1.0) -> Head:
    """A head that copies the token so many positions before into a part."""
    return Head(match=[("position", "position", back(steps))], write=[("token", to, factor)])


def circuit_gpt2(
    parts: Sequence[str], layers: Sequence[Sequence[Head]], vocabulary: int, n_positions: int = 256, gain: float = 20.0
) -> Any:
    """The model; ``gain`` is the length of the unembedding's rows. Its networks add nothing."""
    names = ["token", "position", "out", *parts]
    n_heads, d_model = max(map(len, layers)), WIDTH * len(names)
    d_model += -d_model % n_heads
    place = {name: slice(at * WIDTH, (at + 1) * WIDTH) for at, name in enumerate(names)}
    config = GPT2Config(
        vocab_size=vocabulary, n_embd=d_model, n_layer=len(layers), n_head=n_heads, n_positions=n_positions,
        n_inner=1, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(config).eval()
    table = codes(vocabulary, 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
        model.transformer.wte.weight[:, place["token"]] = table
        model.transformer.wpe.weight[:, place["position"]] = position_codes(n_positions)
        model.lm_head.weight[:, place["out"]] = gain * table
        for block, heads in zip(model.transformer.h, layers, strict=True):
            for at, head in enumerate(heads):
                _set(block.attn, at, head, place, d_model, d_model // n_heads)
    return model


def _set(attention: Any, at: int, head: Head, place: Mapping[str, slice], d_model: int, d_head: int) -> None:
    weight, first, used = attention.c_attn.weight, at * d_head, 0
    scale = d_head**0.5
    for query, key, matrix in head.match:
        columns = slice(first + used, first + used + WIDTH)
        wide = matrix if isinstance(matrix, Tensor) else matrix * torch.eye(WIDTH)
        weight[place[query], columns] = wide * scale
        weight[place[key], d_model + columns.start : d_model + columns.stop] = torch.eye(WIDTH)
        used += WIDTH
    for key, direction in head.beside.items():
        attention.c_attn.bias[first + used] = scale
        weight[place[key], d_model + first + used] = direction
        used += 1
    assert used <= d_head
    moved = 0
    for source, to, factor in head.write:
        columns = slice(first + moved, first + moved + WIDTH)
        weight[place[source], 2 * d_model + columns.start : 2 * d_model + columns.stop] = torch.eye(WIDTH)
        attention.c_proj.weight[columns, place[to]] = factor * torch.eye(WIDTH)
        moved += WIDTH
    assert moved <= d_head
