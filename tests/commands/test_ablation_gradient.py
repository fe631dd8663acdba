"""Importance by gradients against gates put into transformers' whole model, one text alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from attnviz.commands.ablate import ablate
from attnviz.measures import removals
from attnviz.measures.predictions import MASKED, NEXT, STATES
from attnviz.models.checkpoint import from_loaded
from tests.support.ablations import KINDS, TEXTS, measured, predictions, states_model
from tests.support.tolerances import SHARP_32, SUMS_32


@contextmanager
def gated(model: Any, tokenizer: Any, gates: torch.Tensor) -> Iterator[None]:
    """Every head is multiplied by its gate, [n_layers, n_heads]."""
    checkpoint = from_loaded(model, tokenizer)
    handles = [
        modules.o_proj.register_forward_pre_hook(
            lambda _, args, layer=layer: (args[0] * gates[layer].repeat_interleave(checkpoint.d_head),)
        )
        for layer, modules in enumerate(checkpoint.architecture.modules(checkpoint.model))
    ]
    yield
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("kind", [NEXT, MASKED])
def test_gate_gradients_of_the_loss(kind):
    model, tokenizer = KINDS[kind]()
    with torch.inference_mode():  # a caller's; gradients are measured all the same
        result = ablate(TEXTS, model, tokenizer=tokenizer, curve=False)
    gates = torch.ones(3, 4, requires_grad=True)
    with gated(model, tokenizer, gates):
        losses = (cross_entropy(*predictions(model, tokenizer, text)) for text in TEXTS)
        of_texts = [torch.autograd.grad(loss, gates)[0].abs() for loss in losses]
    expected = torch.stack(of_texts).mean(0)
    assert float(expected.min()) > 1e-3
    for head in result.heads:
        assert head.gradient == pytest.approx(float(expected[head.id]), rel=1e-3, abs=SUMS_32)


def test_random_projections_measure_how_far_the_states_move(monkeypatch):
    monkeypatch.setattr(removals, "PROJECTIONS", 200)
    model, tokenizer = states_model()
    model = model.double()
    text, step = "the cat ran away", 1e-6
    result = ablate(text, model, tokenizer=tokenizer, curve=False)
    inputs, gates = tokenizer(text, return_tensors="pt"), torch.ones(3, 4, dtype=torch.float64)
    with torch.no_grad(), gated(model, tokenizer, gates):
        states = model(**inputs).last_hidden_state[0]
        for head in result.heads:
            gates[head.id] -= step
            moved = (model(**inputs).last_hidden_state[0] - states) / step
            gates[head.id] += step
            assert head.gradient == pytest.approx(float(moved.square().sum(-1).mean().sqrt()), rel=0.15)


def test_projections_follow_the_seed_and_the_text_alone():
    first, again, other = (
        measured(STATES, texts, seed=seed, gradient=True, select=["L0"])
        for texts, seed in ((TEXTS, 0), (TEXTS[::-1], 0), (TEXTS, 1))
    )
    for head in first.heads:
        assert again.head(head.id).gradient == pytest.approx(head.gradient, rel=SHARP_32)
        assert other.head(head.id).gradient != pytest.approx(head.gradient, rel=1e-4)
