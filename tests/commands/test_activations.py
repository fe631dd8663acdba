"""The tensors of an analysis, against plain hooks on the model and plain formulas; and what is refused."""

from functools import partial

import pytest
import torch
from torch import Tensor

import attnviz
from attnviz.errors import ArchitectureError, UsageError, VerificationError
from attnviz.run.sites import SITES
from tests.support.families import TEXT, model_of
from tests.support.tolerances import SHARP_32


def hooked(model, text, tokenizer, sites):
    """What modules take (``<``) or give (``>``) in a plain pass, without the batch."""
    seen, handles = {}, []

    def keep_input(name, _, args, kwargs):
        seen[name] = (*args, *kwargs.values())[0]

    def keep_output(name, _, __, out):
        seen[name] = out if isinstance(out, Tensor) else out[0]

    for name, (path, side) in sites.items():
        module = model.get_submodule(path)
        if side == "<":
            handles.append(module.register_forward_pre_hook(partial(keep_input, name), with_kwargs=True))
        else:
            handles.append(module.register_forward_hook(partial(keep_output, name)))
    with torch.no_grad():
        attentions = model(**tokenizer(text, return_tensors="pt"), output_attentions=True).attentions
    for handle in handles:
        handle.remove()
    return {name: value[0] for name, value in seen.items()}, [pattern[0] for pattern in attentions]


BERT, GPT2, LLAMA = "encoder.layer.1", "h.1", "model.layers.1"
MODULES = {
    "bert": {
        "resid_pre": (BERT, "<"), "q": (f"{BERT}.attention.self.query", ">"), "k": (f"{BERT}.attention.self.key", ">"),
        "v": (f"{BERT}.attention.self.value", ">"), "z": (f"{BERT}.attention.output.dense", "<"),
        "attn_out": (f"{BERT}.attention.output.dense", ">"), "resid_mid": (f"{BERT}.attention.output", ">"),
        "mlp_out": (f"{BERT}.output.dense", ">"), "resid_post": (BERT, ">"),
    },
    "gpt2": {
        "resid_pre": (GPT2, "<"), "qkv": (f"{GPT2}.attn.c_attn", ">"), "z": (f"{GPT2}.attn.c_proj", "<"),
        "attn_out": (f"{GPT2}.attn.c_proj", ">"), "resid_mid": (f"{GPT2}.ln_2", "<"), "mlp_out": (f"{GPT2}.mlp", ">"),
        "resid_post": (GPT2, ">"),
    },
    "llama": {
        "resid_pre": (LLAMA, "<"), "q": (f"{LLAMA}.self_attn.q_proj", ">"), "k": (f"{LLAMA}.self_attn.k_proj", ">"),
        "v": (f"{LLAMA}.self_attn.v_proj", ">"), "z": (f"{LLAMA}.self_attn.o_proj", "<"),
        "attn_out": (f"{LLAMA}.self_attn.o_proj", ">"), "resid_mid": (f"{LLAMA}.post_attention_layernorm", "<"),
        "mlp_out": (f"{LLAMA}.mlp", ">"), "resid_post": (LLAMA, ">"),
    },
}  # fmt: skip
OUTPUT = {"bert": f"{BERT}.attention.output.dense", "gpt2": f"{GPT2}.attn.c_proj", "llama": f"{LLAMA}.self_attn.o_proj"}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", MODULES)
def test_every_site_is_what_plain_hooks_see(family, implementation):
    model, tokenizer = model_of(family, attn_implementation=implementation)
    analysis = attnviz.analyze(TEXT, model, tokenizer=tokenizer, syntax=False)
    model.set_attn_implementation("eager")
    seen, attentions = hooked(model, TEXT, tokenizer, MODULES[family])
    if family == "gpt2":
        seen |= zip("qkv", seen.pop("qkv").chunk(3, -1), strict=True)
    d_head = analysis.checkpoint.d_head
    seen |= {name: seen[name].unflatten(-1, (-1, d_head)) for name in ("q", "k", "v", "z")}
    linear = model.get_submodule(OUTPUT[family])
    weight = linear.weight if family == "gpt2" else linear.weight.T
    seen["head_out"] = torch.einsum("nhd,hde->nhe", seen["z"], weight.detach().unflatten(0, (-1, d_head)))
    seen["pattern"] = attentions[1]
    scores = analysis.activation("scores", layer=1)
    seen["scores"] = scores.masked_fill(scores == -torch.inf, 0)
    if family != "llama":  # which rotates queries and keys first
        seen["scores"] = torch.einsum("qhd,khd->hqk", seen["q"], seen["k"]) * d_head**-0.5
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1) & (family != "bert")
    assert torch.equal(scores == -torch.inf, hidden)
    assert (scores.softmax(-1) - attentions[1]).abs().max() <= SHARP_32
    for name in SITES:
        found, expected = analysis.activation(name, layer=1), seen[name]
        if name == "scores":
            found, expected = found.masked_fill(hidden, 0), expected.masked_fill(hidden, 0)
        assert found.shape == expected.shape, name
        assert (found - expected).abs().max() / expected.abs().max() <= SHARP_32, name
    if family == "llama":
        assert analysis.activation("k", 1).shape[1] < analysis.activation("q", 1).shape[1]


def test_with_queries_the_rows_of_heads_are_theirs():
    model, tokenizer = model_of("gpt2")
    whole, part = (
        attnviz.analyze(TEXT, model, tokenizer=tokenizer, syntax=False, queries=queries) for queries in (None, "2:5")
    )
    for name in ("z", "head_out", "mlp_out", "q"):
        expected = whole.activation(name, 1)
        expected = expected[2:5] if name in ("z", "head_out") else expected
        torch.testing.assert_close(part.activation(name, 1), expected, rtol=SHARP_32, atol=SHARP_32)
    for name in ("pattern", "scores"):
        torch.testing.assert_close(
            part.activation(name, 1), whole.activation(name, 1)[:, 2:5], rtol=SHARP_32, atol=SHARP_32
        )


def test_keys_of_cross_attention_are_of_the_source():
    model, tokenizer = model_of("t5")
    analysis = attnviz.analyze(TEXT, model, tokenizer=tokenizer, target="a dog ran", syntax=False)
    (n_source, n_target), cross = (len(analysis.tokens), len(analysis.target.tokens)), analysis.checkpoint.stacks[2]
    layer = cross.layers[0]
    assert analysis.activation("k", layer).shape[0] == n_source
    assert analysis.activation("z", layer).shape[0] == n_target
    assert analysis.activation("pattern", layer).shape[1:] == (n_target, n_source)


def test_what_is_no_site_or_lacks_one_is_refused_and_weights_that_changed_are_noticed():
    model, tokenizer = model_of("gpt_neox")
    analysis = attnviz.analyze(TEXT, model, tokenizer=tokenizer, syntax=False)
    with pytest.raises(ArchitectureError):
        analysis.activation("resid_mid", 0)
    with pytest.raises(UsageError):
        analysis.activation("zz", 0)
    with pytest.raises(UsageError):
        analysis.activation("z", 99)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    for name in ("z", "q", "mlp_out"):
        with pytest.raises(VerificationError):
            analysis.activation(name, 0)


@pytest.mark.parametrize(
    ("part", "name"), [("mlp.c_proj", "mlp_out"), ("attn.c_proj", "head_out"), ("mlp.c_fc", "resid_post")]
)
def test_weights_that_make_no_pattern_and_changed_are_noticed(part, name):
    model, tokenizer = model_of("gpt2")
    analysis = attnviz.analyze(TEXT, model, tokenizer=tokenizer, syntax=False)
    last = model.config.n_layer - 1
    before = analysis.activation(name, last)
    assert torch.equal(before, analysis.activation(name, last))
    with torch.no_grad():
        getattr(model, "transformer", model).get_submodule(f"h.{last}.{part}").weight.mul_(1.1)
    with pytest.raises(VerificationError):
        analysis.activation(name, last)
