"""The named sites of a block, in every family: their values, and that a replaced one is all that follows."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from attnviz.errors import ArchitectureError, UsageError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import is_of_source
from attnviz.reference import attention
from attnviz.run.edit import run_model, running
from attnviz.run.sites import COMPUTED, OF_HEADS, SITES, at_named, recording, site_of, sites_of
from tests.support import llamas
from tests.support.families import FAMILIES, checkpoint_of, first_of, padded

UNLIKE = ("albert", "bert", "gpt2", "gpt_neox", "llama", "opt")
LACKING = {  # sites that one of its layers lacks, but for those that no module gives
    "falcon": {"resid_mid"},
    "gpt_neox": {"resid_mid"},
    "deepseek_v3": {"k"},
    "deberta-v2": {"q", "k"},
    "gemma4_text": {"k", "v"},
    "granitemoehybrid": {"q", "k", "v", "z", "attn_out", "mlp_out"},
    "t5": {"mlp_out", "resid_post"},
}


def sites(checkpoint: Checkpoint) -> list[tuple[int, str]]:
    """All that modules give, of all layers."""
    found = []
    for layer in (*checkpoint.layers, *checkpoint.other_layers):
        for name in SITES:
            try:
                site_of(checkpoint, layer, name)
            except ArchitectureError:
                continue
            found.append((layer, name))
    return found


def values(checkpoint: Checkpoint, inputs: dict[str, Tensor], instead: dict[tuple[int, str], Tensor] | None = None):
    """The value of each site in a pass, as it was before any is replaced; and the final states."""
    seen, instead = {}, instead or {}

    def visit(key: tuple[int, str], value: Tensor) -> Tensor | None:
        seen[key] = value.clone()
        return instead.get(key)

    with running(checkpoint), at_named(checkpoint, sites(checkpoint), visit):
        return seen, run_model(checkpoint, inputs)


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one.detach(), other.detach(), rtol=1e-5, atol=1e-5 * float(other.detach().abs().max()))


@pytest.fixture(params=first_of([*FAMILIES, *llamas.LIKE_DEEPSEEK], *UNLIKE))
def checkpoint(request: pytest.FixtureRequest) -> Checkpoint:
    return checkpoint_of(request.param)


def test_values_are_those_of_their_definitions(checkpoint):
    inputs = padded(checkpoint, (8, 8))
    found, final = values(checkpoint, inputs)
    recorder = sites_of(checkpoint, ("source", "attention_input"), checkpoint.layers)
    with running(checkpoint), recording(recorder) as read:
        assert torch.equal(run_model(checkpoint, inputs), final)
    for layer, name in found:
        if name in ("q", "k", "v"):
            x = read[layer, "attention_input" if name == "q" else "source"]
            parameters = checkpoint.architecture.parameters(checkpoint.model, layer)
            projection = {"q": parameters.query, "k": parameters.key, "v": parameters.value}[name]
            plain = attention.project(x, replace(projection, clip=None))
            assert close(found[layer, name], plain.transpose(1, 2)), (layer, name)
        if name == "z" and checkpoint.modules[layer].attention_output_norm is None:
            parameters = checkpoint.architecture.parameters(checkpoint.model, layer)
            factor = checkpoint.architecture.residual_multiplier(checkpoint.config)
            written = factor * attention.joined_output(found[layer, name].transpose(1, 2), parameters)
            assert close(found[layer, "attn_out"], written), (layer, name)


def test_the_stream_is_the_sum_of_what_is_added(checkpoint):
    found, _ = values(checkpoint, padded(checkpoint, (8, 8)))
    for layer, modules in enumerate(checkpoint.modules):
        names = {name: value for (of, name), value in found.items() if of == layer}
        if checkpoint.architecture.pre_norm and {"attn_out", "resid_mid"} <= {*names}:
            assert close(names["resid_mid"], names["resid_pre"] + names["attn_out"])
        if {"mlp_out", "resid_post"} <= {*names} and checkpoint.architecture.stream_alone:
            before = names.get("resid_mid")
            if before is None:  # both halves read the same stream
                before = names["resid_pre"] + names["attn_out"]
            after = before + names["mlp_out"]
            if not checkpoint.architecture.pre_norm:
                after = modules.feed_forward_norm(after)
            assert close(names["resid_post"], after)
    if not checkpoint.stacks:
        for one, other in pairwise(checkpoint.every_layer):
            assert torch.equal(found[one, "resid_post"], found[other, "resid_pre"])


@pytest.mark.parametrize(
    ("replaced", "read"),
    [
        (("q", "k", "v"), "z"),
        (("z",), "attn_out"),
        (("resid_pre", "attn_out"), "resid_mid"),
        (("resid_mid",), "resid_post"),
        (("resid_pre", "attn_out", "mlp_out"), "resid_post"),
        (("resid_pre",), "resid_post"),
    ],
    ids=", ".join,
)
def test_a_replaced_value_is_what_follows_is_made_of(checkpoint, replaced, read):
    inputs = padded(checkpoint, (8, 8))
    own, _ = values(checkpoint, inputs)
    other, _ = values(checkpoint, {name: tensor.flip(0) for name, tensor in inputs.items()})
    assert not close(own[0, "resid_pre"], other[0, "resid_pre"])
    gated = getattr(checkpoint.architecture, "gated", False) and read == "z"
    for layer in [layer for layer in checkpoint.every_layer if {(layer, name) for name in (*replaced, read)} <= {*own}]:
        if gated or not checkpoint.architecture.stream_alone or (checkpoint.stacks and not is_of_source(layer)):
            continue  # more than these comes in
        changed, _ = values(checkpoint, inputs, {(layer, name): other[layer, name] for name in replaced})
        assert close(changed[layer, read], other[layer, read]), layer


def test_a_value_that_replaces_itself_changes_nothing(checkpoint):
    inputs = padded(checkpoint, (8, 6))
    own, final = values(checkpoint, inputs)
    tokens = inputs["decoder_attention_mask" if checkpoint.stacks else "attention_mask"].bool()
    _, again = values(checkpoint, inputs, own)
    assert close(again[tokens], final[tokens])


@pytest.mark.parametrize("family", first_of(LACKING, "gpt_neox", "t5"))
def test_what_a_family_lacks_is_an_error(family):
    checkpoint = checkpoint_of(family)
    known = sites(checkpoint)
    lacking = {name for layer in range(len(checkpoint.modules)) for name in SITES if (layer, name) not in known}
    assert lacking == LACKING[family] | {*COMPUTED}
    assert {*OF_HEADS} <= {*SITES}


def test_a_site_that_there_is_not_is_an_error():
    with pytest.raises(UsageError):
        site_of(checkpoint_of("gpt2"), 0, "resid")
