"""Heads with gates (Qwen3-Next, Qwen 3.5): what they write, beside plain hooks on transformers' own models."""

import json
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import BitNetConfig
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.errors import ArchitectureError, AttnvizError, CheckpointError
from attnviz.figures.style import Style
from attnviz.inputs.batches import batch_of_ids
from attnviz.inputs.encoding import encodings
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families import ARCHITECTURES, REFUSED
from attnviz.models.head_ids import HeadId, number_of
from attnviz.run.corpus import SampledAttention
from attnviz.run.verify import verify_attention
from tests.support.blocks import in_blocks
from tests.support.drawn import drawing_of
from tests.support.families import TEXT, checkpoint_of, model_of, padded, verified
from tests.support.llamas import GATED, ROPE
from tests.support.models import save_checkpoint
from tests.support.recorded import verified_batch
from tests.support.tolerances import SUMS_32

N_HEADS, D_HEAD, LAYERS = 4, 16, (1, 2)
THREE = ["linear_attention", "full_attention", "full_attention"]


@cache
def checkpoint(family: str = "qwen3_5_text") -> Checkpoint:
    """Of three layers, of which the last two attend; without experts in float64, which these do not take."""
    dtype = torch.float64 if family == "qwen3_5_text" else torch.float32
    return checkpoint_of(family, dtype, num_hidden_layers=3, layer_types=THREE)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """But for what is rounded in float32, as a share of the largest."""
    assert float((found - expected).abs().max()) <= SUMS_32 * float(expected.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", GATED)
def test_every_head_verifies_in_long_texts(family, dtype):
    model = checkpoint_of(family, dtype, positions=128, num_hidden_layers=3, layer_types=THREE)
    for name in ("eager", "sdpa"):
        model.model.set_attn_implementation(name)
        verification = verified_batch(model, padded(model, (120, 17)))
        assert (verification.level, verification.heads_compared, verification.attention) == (4, 2 * N_HEADS, name)


@torch.no_grad()
def passed(model: Checkpoint, ids: Tensor) -> dict[int, dict[str, Tensor]]:
    """By layer what a plain pass of transformers' model shows: the pattern, values and gate of each head, and W_O."""
    seen: dict[tuple[int, str], Tensor] = {}
    modules = {layer: model.model.layers[layer].self_attn for layer in LAYERS}
    handles = [
        getattr(modules[layer], name).register_forward_hook(
            lambda _, __, given, key=(layer, name): seen.update({key: given[0]})
        )
        for layer, name in product(LAYERS, ("q_proj", "v_proj"))
    ]
    before = model.attention
    model.model.set_attn_implementation("eager")
    patterns = model.model(ids, output_attentions=True).attentions
    model.model.set_attn_implementation(before)
    for handle in handles:
        handle.remove()
    own = {}
    attending = [pattern[0] for pattern in patterns if pattern is not None]
    for (layer, module), pattern in zip(modules.items(), attending, strict=True):
        gate = seen[layer, "q_proj"].unflatten(-1, (N_HEADS, 2, D_HEAD))[:, :, 1].sigmoid()
        value = seen[layer, "v_proj"].unflatten(-1, (-1, D_HEAD)).repeat_interleave(2, 1)  # two heads share one
        output = module.o_proj.weight.T.unflatten(0, (N_HEADS, D_HEAD))
        own[layer] = {"pattern": pattern, "gate": gate, "value": value, "output": output}
    return own


@pytest.mark.parametrize("family", GATED)
@torch.no_grad()
def test_outputs_and_norms_have_the_gate(family, monkeypatch):
    in_blocks(monkeypatch, 4)
    model = checkpoint(family)
    result = attnviz.head_outputs(TEXT, model)
    own = passed(model, torch.tensor([result.tokens.ids]))
    sink, plans = torch.tensor(result.tokens.sink), drawing_of("outputs", "heads").plans
    for layer, number in product(LAYERS, range(N_HEADS)):
        A, gate, value, W = (own[layer][name] for name in ("pattern", "gate", "value", "output"))
        A, gate, value, W = A[number], gate[:, number], value[:, number], W[number]
        norms = (A[:, :, None] * (value * gate[:, None] @ W)).norm(dim=-1)  # of [n_queries, n_keys, d_model]
        head = f"L{layer}H{number}"
        assert_close(result.output(head), (A @ value * gate) @ W)
        assert_close(result.norms(head), norms)
        assert_close(result.value_norms(head), (value @ W).norm(dim=-1))
        shares = norms[~sink][:, sink].sum(-1) / norms[~sink].sum(-1)
        (measured,) = result.select([head])
        assert measured.largest == pytest.approx(float(norms.max()), rel=SUMS_32)
        (plan,) = plans(result, result._choices(Style(scale="per-head"), {"select": [head]}))
        assert_close(torch.tensor(plan.tiles[2].values).nan_to_num(), norms / norms.max())
        assert sink.any() == (measured.sink_by_norm is not None)
        if measured.sink_by_norm is not None:
            assert measured.sink_by_norm == pytest.approx(float(shares.mean()), abs=SUMS_32)
    assert max(layer.sum_error for layer in result.layers) < SUMS_32
    assert result.effects.error < SUMS_32


@torch.no_grad()
def logits(model: Checkpoint, ids: Tensor, change: Callable[[int, Tensor], Tensor] = lambda _, x: x) -> Tensor:
    """Those of transformers' model whose W_O are given something else, [n, vocabulary]."""
    handles = [
        model.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(
            lambda _, given, layer=layer: (change(layer, given[0].clone()),)
        )
        for layer in LAYERS
    ]
    found: Tensor = model.whole(ids).logits[0]
    for handle in handles:
        handle.remove()
    return found


def of_head(head: HeadId, instead: Callable[[int, Tensor], Tensor]) -> Callable[[int, Tensor], Tensor]:
    columns = slice(head.head * D_HEAD, (head.head + 1) * D_HEAD)

    def changed(layer: int, values: Tensor) -> Tensor:
        if layer == number_of(head.layer):
            values[..., columns] = instead(layer, values)[..., columns]
        return values

    return changed


@pytest.mark.parametrize("method", ["zero", "mean", "uniform"])
def test_ablation_is_that_of_plain_hooks(method):
    model = checkpoint()
    result = attnviz.ablate(TEXT, model, method=method, curve=False, gradient=False)
    ids = torch.tensor([encodings(model, [TEXT])[0].ids])
    own, n = passed(model, ids), ids.shape[1]
    weights = torch.ones(n, n, dtype=torch.float64).tril()
    weights /= weights.sum(-1, keepdim=True)

    def instead(layer: int, values: Tensor) -> Tensor:
        if method == "zero":
            return torch.zeros_like(values)
        if method == "mean":
            return values.mean(1, keepdim=True).expand_as(values)
        of_layer = own[layer]
        uniform = torch.einsum("qk,khd->qhd", weights, of_layer["value"]) * of_layer["gate"]
        return uniform.flatten(-2)[None]

    clean = cross_entropy(logits(model, ids)[:-1], ids[0, 1:])
    for head in result.heads:
        removed = logits(model, ids, of_head(head.id, instead))
        expected = float(cross_entropy(removed[:-1], ids[0, 1:]) - clean)
        assert head.damage["loss"].value == pytest.approx(expected, abs=SUMS_32)
    assert max(abs(head.damage["loss"].value) for head in result.heads) > 1e-4


def test_patching_is_that_of_plain_hooks(monkeypatch):
    monkeypatch.setattr("attnviz.commands.patch._LEAST", 0.0)  # untrained models hardly tell prompts apart
    model = checkpoint()
    clean, corrupt = "the cat saw the dog", "the dog saw the cat"
    result = attnviz.patch(clean, model, corrupt=corrupt, answer=" ran", foil=" saw", direction="denoise")
    runs = [torch.tensor([encodings(model, [text])[0].ids]) for text in (clean, corrupt)]
    kept: dict[int, Tensor] = {}
    answer, foil = (encodings(model, [word])[0].ids[0] for word in (" ran", " saw"))

    def difference(found: Tensor) -> float:
        return float(found[-1, answer] - found[-1, foil])

    whole = difference(logits(model, runs[0], kept.setdefault))
    unpatched = difference(logits(model, runs[1]))
    for head in result.heads:
        patched = difference(logits(model, runs[1], of_head(head.id, lambda layer, _: kept[layer])))
        assert head.effect == pytest.approx((patched - unpatched) / (whole - unpatched), abs=SUMS_32)
    assert max(abs(head.effect) for head in result.heads) > 1e-2


@pytest.mark.parametrize("verifying", [True, False])
def test_what_a_profile_measures_of_heads_is_what_their_output_map_is_given(verifying, monkeypatch):
    monkeypatch.setattr("attnviz.run.corpus.SampledAttention.next_is_verified", verifying)
    model, found, given = checkpoint(), dict[int, Tensor](), dict[int, Tensor]()
    ids = encodings(model, [TEXT])[0].ids
    SampledAttention(model).run(batch_of_ids(model, [ids]), lambda *_: None, found.__setitem__)
    logits(model, torch.tensor([ids]), given.setdefault)
    for index, layer in enumerate(LAYERS):
        assert_close(found[index].flatten(-2), given[layer])


def test_what_a_head_takes_from_each_key_has_the_gate_and_some_queries_verify():
    model = checkpoint()
    found = attnviz.why(TEXT, model, head="L1H1", query=4, answer=7, foil=11, depth=2)
    effects = attnviz.head_outputs(TEXT, model, token=4, answer=7, foil=11).effects
    assert sum(found.effects.keys) == pytest.approx(effects.heads[found.head], abs=SUMS_32 * effects.scale)
    some = verify_attention(model, tokenize(model, TEXT), queries=(2, 4, 5))
    assert some.verification.output_error < SUMS_32


@pytest.mark.parametrize("command", ["circuits", "rollout", "explain"])
def test_what_does_not_know_the_gate_refuses_by_name(command, monkeypatch):
    monkeypatch.setattr(ARCHITECTURES["qwen3_5_text"], "explained", False, raising=False)
    model = checkpoint_of("qwen3_5_text", layer_types=["full_attention"] * 2)  # no layer is another one
    given = [model] if command == "circuits" else [TEXT, model]
    with pytest.raises(ArchitectureError, match="qwen3_5_text"):
        getattr(attnviz, command)(*given)


@pytest.mark.parametrize("paper", ["wang-2022", "mcdougall-2023", "gould-2023"])
def test_papers_that_read_weights_alone_refuse(paper, tmp_path):
    (tmp_path / "corpus.txt").write_text(f"{TEXT}\n")
    corpora = tmp_path / "corpus.txt" if paper == "mcdougall-2023" else ()
    with pytest.raises(AttnvizError, match="gates"):
        attnviz.check(corpora, checkpoint(), published=paper)


def test_a_card_leaves_circuits_out():
    card = attnviz.card("L1H0", TEXT, checkpoint(), syntax=False)
    assert (card.circuits, card.document()["options"]["circuits"]) == (None, False)


@pytest.mark.parametrize("kind", ROPE)
def test_all_kinds_of_rotary_positions_of_a_part_of_a_head_verify(kind):
    settings = {"rope_type": kind.split(",")[0], "rope_theta": 1e4, "partial_rotary_factor": 0.5, **ROPE[kind]}
    for name in ("short_factor", "long_factor"):
        if name in settings:
            settings[name] = settings[name][: D_HEAD // 4]
    for family in GATED:
        verified(checkpoint_of(family, rope_parameters=settings))


@pytest.mark.parametrize(("family", "gated"), [("qwen3_5_text", False), ("qwen3", True)])
def test_a_gate_wrongly_declared_is_named(family, gated, monkeypatch):
    monkeypatch.setattr(type(ARCHITECTURES[family]), "gated", gated)
    with pytest.raises(ArchitectureError, match=f"gated = {gated}"):
        checkpoint_of(family)


def test_weights_that_predict_several_tokens_are_left_out(tmp_path: Path):
    folder = save_checkpoint(*model_of("qwen3_5"), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"mtp.fc.weight": torch.zeros(2, 2)}, folder / "model.safetensors", {"format": "pt"})
    assert attnviz.analyze(TEXT, folder, device="cpu", syntax=False).verification.level == 4
    save_file(weights | {"more.weight": torch.zeros(2, 2)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError):
        attnviz.analyze(TEXT, folder, device="cpu", syntax=False)


@pytest.mark.parametrize("family", GATED)
def test_models_verify_says_level_4(family, tmp_path, monkeypatch):
    folder = save_checkpoint(*model_of(family), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["models", str(folder), "--verify", "--json"])
    (found,) = json.loads(ran.stdout)["models"]
    assert (ran.exit_code, found["level"], found["reason"]) == (0, 4, None)


def test_bitnet_is_refused_before_its_weights_are_looked_for(tmp_path):
    BitNetConfig().save_pretrained(tmp_path)
    with pytest.raises(ArchitectureError, match="bitnet"):
        attnviz.analyze(TEXT, tmp_path, device="cpu", syntax=False)
    assert "bitnet" in REFUSED
