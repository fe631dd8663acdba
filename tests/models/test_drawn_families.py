"""Families that differ from others in a few attributes: drawn settings verify, and every wrong step is refused."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from torch import Tensor

from attnviz.errors import VerificationError
from attnviz.models.checkpoint import Checkpoint
from attnviz.reference.attention import HeadParameters
from attnviz.run.checks import Verification
from tests.support.families import checkpoint_of, drawn_settings, first_of
from tests.support.llamas import RECENT
from tests.support.recorded import verified_batch

ENCODERS = ("jina_embeddings_v3", "data2vec-text", "ernie", "layoutlm")
LENGTHS = (17, 120)


def without_bias(p: HeadParameters, name: str) -> dict[str, Any]:
    projection = getattr(p, name)
    return {} if projection.bias is None else {name: replace(projection, bias=None)}


def turned(p: HeadParameters, **changes: Any) -> dict[str, Any]:
    return {} if p.rotary is None else {"rotary": replace(p.rotary, **changes)}


def slower(p: HeadParameters) -> dict[str, Any]:
    if p.rotary is None:
        return {}
    beyond = None if p.rotary.beyond is None else p.rotary.beyond * 0.9
    return turned(p, frequencies=p.rotary.frequencies * 0.9, beyond=beyond)


WRONG: dict[str, Callable[[HeadParameters], dict[str, Any]]] = {
    "scale": lambda p: {"scale": p.scale * 1.1},
    "both ways or one": lambda p: {"causal": not p.causal},
    "window": lambda p: {"window": p.window and p.window + 1} if p.window else {},
    "no rotation": lambda p: {"rotary": None} if p.rotary else {},
    "another base": slower,
    "pairs": lambda p: turned(p, interleaved=p.rotary is not None and not p.rotary.interleaved),
    "no norm of queries": lambda p: {"query_norm": None} if p.query_norm else {},
    "no norm of keys": lambda p: {"key_norm": None} if p.key_norm else {},
    "norms on the other side of the rotation": lambda p: (
        {"rotated_first": not p.rotated_first} if p.rotary and p.query_norm else {}
    ),
    "no temperature": lambda p: {"temperature": None} if p.temperature else {},
    "the temperature of the position after": lambda p: (
        {"temperature": replace(p.temperature, original=p.temperature.original - 1)} if p.temperature else {}
    ),
    "no cap": lambda p: {"cap": None} if p.cap else {},
    "no bias of queries": lambda p: without_bias(p, "query"),
    "no bias of values": lambda p: without_bias(p, "value"),
    "no bias of outputs": lambda p: {"output_bias": None} if p.output_bias is not None else {},
    "queries of other heads": lambda p: (
        {"query": replace(p.query, weight=p.query.weight.roll(1, 0))} if p.n_heads > 1 else {}
    ),
    "outputs of other heads": lambda p: {"output_weight": p.output_weight.roll(1, 0)} if p.n_heads > 1 else {},
}
"""What is changed in the right parameters; nothing where they have no such step."""


def inputs_of(checkpoint: Checkpoint, n: int) -> dict[str, Tensor]:
    ids = torch.randint(5, int(checkpoint.config.vocab_size), (1, n), generator=torch.Generator().manual_seed(n))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def each_implementation(checkpoint: Checkpoint) -> Iterator[str]:
    for name in ("eager", "sdpa") if checkpoint.model._supports_sdpa else ("eager",):
        checkpoint.model.set_attn_implementation(name)
        yield name


@settings(max_examples=3)
@given(data=st.data())
@pytest.mark.parametrize("family", first_of([*RECENT, *ENCODERS], "ministral3"))
def test_drawn_settings_verify_at_level_4_and_no_wrong_step_does(family, data):
    changes = data.draw(drawn_settings(family))
    checkpoint = checkpoint_of(family, max_position_embeddings=130, **changes)
    kind = type(checkpoint.architecture)
    for implementation in each_implementation(checkpoint):
        for n in LENGTHS:
            verification = verified_batch(checkpoint, inputs_of(checkpoint, n))
            assert (verification.level, len(verification.layers)) == (Verification.level, 2 + (family in ENCODERS))
        right = checkpoint.architecture.parameters
        parameters = [right(checkpoint.model, layer) for layer in checkpoint.layers]
        for name, change in WRONG.items():
            wrong = [replace(each, **change(each)) for each in parameters]
            if all(not change(each) for each in parameters):
                continue
            note(f"{implementation}, {name}")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kind, "parameters", lambda _, __, layer, wrong=wrong: wrong[layer])
                with pytest.raises(VerificationError):
                    verified_batch(checkpoint, inputs_of(checkpoint, 120))
