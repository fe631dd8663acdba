"""Composition and copying: against full matrices, in closed form, against simulation, and known truth."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertForMaskedLM, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import attnviz
from attnviz.measures.composition import COMPOSITION_INPUTS, rotation_spread, successors
from attnviz.measures.successors import SEQUENCES, ordinal_sequences
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.reference.attention import repeat_kv
from tests.models.test_families import model
from tests.support.llamas import sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2, word_tokenizer
from tests.support.tolerances import SHARP_32, SUMS_32

FOR_EVERYONE = ["gpt2", "bert", "llama", "qwen3", "t5", "deepseek_v3"]
OTHERS = ["gpt_neox", "olmo2", "gemma2", "modernbert", "bart", "phi3", "deepseek_v2"]


def norm_matrix(checkpoint: Checkpoint, norm: Any, d: int) -> np.ndarray:
    """A norm without its scale, from the module's own weight."""
    if norm is None:
        return np.eye(d)
    kind, weight = checkpoint.architecture.norm_kind, getattr(norm, "weight", None)
    gamma = np.ones(d) if weight is None else weight.detach().double().numpy() + (kind == "rms, 1 + w")
    centring = np.eye(d) - (1 / d if kind == "layer" else 0)
    return centring * gamma


def head_norm_matrix(checkpoint: Checkpoint, norm: Any, head: int, d_head: int) -> np.ndarray:
    if hasattr(norm, "norms"):
        return norm_matrix(checkpoint, norm.norms[head], d_head)
    if norm is None or len(norm.weight) == d_head:
        return norm_matrix(checkpoint, norm, d_head)
    return np.diag(norm.weight.detach().double().numpy()[head * d_head :][:d_head])


def _randomise_norms(checkpoint: Checkpoint) -> None:
    """Weights of norms are far from 1."""
    torch.manual_seed(1)
    for name, parameter in checkpoint.model.named_parameters():
        if parameter.ndim == 1 and "norm" in name.lower().replace("ln_", "norm") and name.endswith("weight"):
            parameter.data.uniform_(0.3, 2)


def through_norms(checkpoint: Checkpoint, layer: int, read: np.ndarray, written: np.ndarray) -> tuple[Any, Any]:
    """What a head reads of rows of the embeddings, and what is left of its output at the end."""
    if checkpoint.architecture.pre_norm:
        return read, written
    for number, modules in enumerate(checkpoint.modules):
        for norm in (modules.attention_norm, modules.feed_forward_norm):
            matrix = norm_matrix(checkpoint, norm, checkpoint.d_model)
            if number < layer:
                read = read @ matrix
            else:
                written = written @ matrix
    return read, written


def to_logits(checkpoint: Checkpoint) -> np.ndarray:
    """From the last state to logits, [d_model, n_tokens]; of a BERT without its nonlinearity."""
    head: Any = getattr(checkpoint.language_head, "head", checkpoint.language_head)
    if hasattr(head, "transform"):
        dense = head.transform.dense.weight.detach().double().numpy().T
        last = dense @ norm_matrix(checkpoint, head.transform.LayerNorm, checkpoint.d_model)
        head = head.decoder
    else:
        last = norm_matrix(checkpoint, checkpoint.architecture.final_norm(checkpoint.model), checkpoint.d_model)
    return last @ head.weight.detach().double().numpy().T


def of_latents(attention: Any) -> tuple[np.ndarray, ...]:
    """From the input to queries, keys and values, of both the part that is not rotated, [n_heads, d_model, d]."""

    def normed(linear: Any, norm: Any) -> Any:
        return (linear.weight[: len(norm.weight)].T * norm.weight).detach().double()

    down = normed(attention.kv_a_proj_with_mqa, attention.kv_a_layernorm)
    both = (down @ attention.kv_b_proj.weight.double().T).unflatten(-1, (attention.num_heads, -1)).movedim(1, 0)
    if attention.q_lora_rank is None:
        query = attention.q_proj.weight.double().T
    else:
        query = normed(attention.q_a_proj, attention.q_a_layernorm) @ attention.q_b_proj.weight.double().T
    query, own = query.unflatten(-1, (attention.num_heads, -1)).movedim(1, 0), attention.qk_nope_head_dim
    return tuple(each.detach().numpy() for each in (query[..., :own], both[..., :own], both[..., own:]))


def full(checkpoint: Checkpoint) -> list[tuple[int, Any, Any, Any, Any]]:
    """Of each head its layer, W_V W_O as written, and W_Q W_K^T, W_K W_Q^T and W_V W_O as read, [d_model, d_model]."""
    heads, d = [], checkpoint.d_model
    for layer, modules in enumerate(checkpoint.modules):
        parameters = checkpoint.architecture.parameters(checkpoint.model, layer)
        n, linears = parameters.n_heads, (parameters.query, parameters.key, parameters.value)
        query, key, value = (repeat_kv(each.weight.detach(), n).double().numpy() for each in linears)
        if len(modules.projections) == 2:
            query, key, value = of_latents(modules.attention)
        before = norm_matrix(checkpoint, modules.attention_norm if checkpoint.architecture.pre_norm else None, d)
        after = norm_matrix(checkpoint, modules.attention_output_norm, d)
        of_query, of_key = modules.head_norms or (None, None)
        for head in range(n):
            group, d_head = head // (n // parameters.key.weight.shape[0]), query.shape[-1]
            q = before @ query[head] @ head_norm_matrix(checkpoint, of_query, head, d_head)
            k = before @ key[head] @ head_norm_matrix(checkpoint, of_key, group, d_head)
            ov = before @ value[head] @ parameters.output_weight[head].detach().double().numpy() @ after
            heads.append((layer, ov, q @ k.T, k @ q.T, ov))
    return heads


@pytest.mark.parametrize(
    "family", [*FOR_EVERYONE, *(pytest.param(family, marks=pytest.mark.thorough) for family in OTHERS)]
)
def test_composition_is_that_of_full_matrices(family):
    checkpoint = model(family)
    _randomise_norms(checkpoint)
    checkpoint = checkpoint.encoder
    found, heads, d = attnviz.circuits(checkpoint), full(checkpoint), checkpoint.d_model
    centred = checkpoint.architecture.pre_norm and checkpoint.architecture.norm_kind == "layer"
    assert found.baseline == pytest.approx((d - centred) ** -0.5)
    for i, (later, *reads) in enumerate(heads):
        for j, (earlier, written, *_) in enumerate(heads):
            if earlier >= later:
                assert all(found.scores[kind][i, j].isnan() for kind in COMPOSITION_INPUTS)
                continue
            between = written @ (np.eye(d) - 1 / d) if centred else written
            if not checkpoint.architecture.pre_norm:
                for modules in checkpoint.modules[earlier:later]:
                    for norm in (modules.attention_norm, modules.feed_forward_norm):
                        between = between @ norm_matrix(checkpoint, norm, d)
            for kind, read in zip(COMPOSITION_INPUTS, reads[1:], strict=True):
                expected = np.linalg.norm(between @ read) / np.linalg.norm(between) / np.linalg.norm(read)
                assert float(found.scores[kind][i, j]) == pytest.approx(expected, abs=SUMS_32), (kind, i, j)


def test_the_baseline_and_its_spread_are_those_of_random_rotations():
    torch.manual_seed(0)
    d, a, b = 9, torch.tensor([3.0, 1.0, 0.5]), torch.tensor([2.0, 1.5])
    turned = torch.linalg.qr(torch.randn(40_000, d, d)).Q
    squared = (a[:, None] * turned[:, :3, :2] * b).square().sum((1, 2)) / (a.square().sum() * b.square().sum())
    assert float(squared.mean() * d) == pytest.approx(1, abs=0.02)
    even = [each.pow(4).sum() / each.square().sum() ** 2 for each in (a, b)]
    assert float(rotation_spread(*even, d)) == pytest.approx(float(squared.std() * d), rel=0.03)


def test_a_model_with_random_weights_is_at_the_baseline():
    torch.manual_seed(0)
    found = attnviz.circuits(sharp_gpt2(n_layer=4, n_embd=64, n_head=8), tokenizer=gpt2_tokenizer())
    for kind in COMPOSITION_INPUTS:
        above = found.deviations[kind]
        above = above[~above.isnan()]
        assert len(above) == 6 * 64
        assert abs(float(above.mean())) < 0.3
        assert 0.7 < float(above.std()) < 1.4


@cache
def hand_built() -> Any:
    """Two layers of two heads: L0H0 copies dimensions 0-3, L0H1 negates 4-7; L1H0's keys and L1H1's values read 0-3."""
    config = LlamaConfig(
        vocab_size=400, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=4,
        intermediate_size=8, max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    built = LlamaForCausalLM(config).eval()
    first, second = torch.eye(8)[:4], torch.eye(8)[4:]
    with torch.no_grad():
        built.model.embed_tokens.weight.copy_(torch.eye(8).repeat(50, 1))
        built.lm_head.weight.copy_(torch.eye(8).repeat(50, 1))
        earlier, later = (layer.self_attn for layer in built.model.layers)
        earlier.v_proj.weight.copy_(torch.cat([first, second]))
        earlier.o_proj.weight.copy_(torch.cat([first, -second]).T)
        later.k_proj.weight.copy_(torch.cat([first, second]))
        later.q_proj.weight.copy_(torch.cat([second, second]))
        later.v_proj.weight.copy_(torch.cat([second, first]))
        later.o_proj.weight.copy_(torch.cat([second, second]).T)
    return attnviz.circuits(built, tokenizer=gpt2_tokenizer())


def test_hand_built_heads_compose_and_copy_in_closed_form():
    found, half = hand_built(), 4**-0.5  # projections on four dimensions: 2 / (2 * 2)
    expected = {"query": [[0, half], [0, half]], "key": [[half, 0], [0, half]], "value": [[0, half], [half, 0]]}
    for kind, scores in expected.items():
        assert torch.allclose(found.scores[kind][2:, :2], torch.tensor(scores).double(), atol=SUMS_32)
    assert [found.head(head).copying for head in ("L0H0", "L0H1", "L1H0")] == pytest.approx([1, -1, 1])
    assert found.head("L1H1").copying == pytest.approx(0, abs=1e-3)  # it moves dimensions: all eigenvalues are 0


@pytest.mark.draws
@pytest.mark.parametrize("family", ["gpt2", "bert", "llama", pytest.param("gemma2", marks=pytest.mark.thorough)])
def test_copying_is_that_of_the_full_matrix(family):
    if family == "gpt2":
        checkpoint = from_loaded(sharp_gpt2(model_class=GPT2LMHeadModel), gpt2_tokenizer())
    elif family == "bert":
        checkpoint = from_loaded(sharp_bert(model_class=BertForMaskedLM), bert_tokenizer())
    else:
        checkpoint = model(family)
    _randomise_norms(checkpoint)
    words = checkpoint.model.get_input_embeddings().weight.detach().double().numpy()
    if family == "bert":
        words = words @ norm_matrix(checkpoint, checkpoint.model.embeddings.LayerNorm, checkpoint.d_model)
    found = attnviz.circuits(checkpoint)
    assert found.linearised == (family == "bert")
    for head, (layer, output, *_) in zip(found.heads, full(checkpoint), strict=True):
        read, written = through_norms(checkpoint, layer, words, output)
        values = np.linalg.eigvals(read @ written @ to_logits(checkpoint))
        largest = values[np.argsort(-abs(values))[: checkpoint.d_head]]
        assert head.copying == pytest.approx(largest.real.sum() / abs(largest).sum(), abs=1e-3)
        assert abs(head.untrained) < 0.9


@pytest.mark.parametrize(("of", "factor"), [("attn.c_attn", 1e-30), ("attn.c_proj", 1e30), ("ln_", 1e12)])
def test_composition_and_copying_are_ratios_whatever_the_size_of_the_weights(of, factor):
    built = sharp_gpt2(model_class=GPT2LMHeadModel)
    expected = attnviz.circuits(built, tokenizer=gpt2_tokenizer())
    for name, parameter in built.named_parameters():
        if of in name and name.endswith("weight"):
            parameter.data.mul_(factor)
    found = attnviz.circuits(built, tokenizer=gpt2_tokenizer())
    for kind in COMPOSITION_INPUTS:
        torch.testing.assert_close(found.scores[kind], expected.scores[kind], equal_nan=True, rtol=1e-3, atol=SHARP_32)
    copying = ([head.copying for head in each.heads] for each in (found, expected))
    assert next(copying) == pytest.approx(next(copying), abs=SHARP_32)


def test_embeddings_whose_product_overflows_are_one_line_and_not_a_crash():
    built = sharp_gpt2(model_class=GPT2LMHeadModel)
    built.transformer.wte.weight.data.mul_(1e30)
    with pytest.raises(attnviz.VerificationError, match="--dtype"):
        attnviz.circuits(built, tokenizer=gpt2_tokenizer())


def test_tiny_gpt2_induction_heads_read_keys_of_the_previous_token_head():
    found = attnviz.circuits("tiny-gpt2")
    first = [pair for pair in found.pairs() if pair.kind == "key"][:4]
    assert {(str(pair.id), str(pair.writer)) for pair in first} == {(f"L1H{head}", "L0H2") for head in range(4)}
    assert all(pair.deviations > 20 and pair.score > 2 * found.baseline for pair in first)
    assert all(found.head(f"L1H{head}").copying > 0.9 for head in range(4))
    assert max(abs(head.untrained) for head in found.heads) < 0.3


def test_without_a_language_head_copying_is_null_with_the_reason():
    document = attnviz.circuits(sharp_bert(), tokenizer=bert_tokenizer()).document(select="L2H1")
    assert [head["copying"] for head in document["heads"]] == [None]
    assert document["no_copying"]
    assert [pair["id"] for pair in document["pairs"]] == ["L2H1"] * 8
    assert attnviz.circuits(sharp_bert(num_hidden_layers=1), tokenizer=bert_tokenizer()).pairs() == []


# --- successor heads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family",
    ["gpt2", "bert", "gemma2", *(pytest.param(of, marks=pytest.mark.thorough) for of in ("llama", "gpt_neox"))],
)
def test_successors_are_those_of_full_matrices_and_the_models_own_network(family):
    tokenizer = word_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    if family == "gpt2":
        built = sharp_gpt2(model_class=GPT2LMHeadModel, **sizes)
        first = built.transformer.h[0]
        before, network, after = first.ln_2, first.mlp, torch.nn.Identity()
    elif family == "bert":
        built = sharp_bert(model_class=BertForMaskedLM, vocab_size=len(tokenizer), pad_token_id=0)
        first = built.bert.encoder.layer[0]
        before = torch.nn.Sequential(built.bert.embeddings.LayerNorm, first.attention.output.LayerNorm)
        network, after = first.intermediate, first.output.dense
    else:
        built = sharp_llama(family, **sizes)
        first = from_loaded(built, tokenizer).architecture.base_model(built).layers[0]
        before = first.pre_feedforward_layernorm if family == "gemma2" else first.post_attention_layernorm
        after = first.post_feedforward_layernorm if family == "gemma2" else torch.nn.Identity()
        network = first.mlp
    checkpoint = from_loaded(built, tokenizer)
    _randomise_norms(checkpoint)
    out, found = to_logits(checkpoint), successors(checkpoint)
    for at, (layer, written, *_) in enumerate(full(checkpoint)):
        for name, (cyclic, words) in SEQUENCES.items():
            ids = tokenizer.convert_tokens_to_ids(words)
            with torch.no_grad():
                scale = checkpoint.architecture.embeddings(checkpoint.model).scale
                rows = checkpoint.model.get_input_embeddings().weight[ids] * scale
                rows = after(network(before(rows))).double().numpy()
            rows, through = through_norms(checkpoint, layer, rows, written)
            chosen = (rows @ through @ out)[:, ids].argmax(1)
            n = len(words) - (not cyclic)
            right, counted = found.right[name]
            assert counted == n
            assert int(right.flatten()[at]) == sum(chosen[i] == (i + 1) % len(words) for i in range(n))


def test_a_word_of_two_tokens_and_one_written_like_another_break_a_sequence():
    tokenizer = word_tokenizer(without=["Wednesday", *map(str, range(10, 201))])
    found = {each.name: each for each in ordinal_sequences(tokenizer)}
    assert [len(found[name].pairs) for name in ("days", "months", "numbers")] == [5, 12, 8]
    days = [tokenizer.convert_ids_to_tokens([found["days"].ids[i] for i in pair]) for pair in found["days"].pairs]
    assert ["Sunday", "Monday"] in days
    assert ["Tuesday", "Thursday"] not in days
    tokenizer = word_tokenizer(without=[word for _, words in SEQUENCES.values() for word in words[3:]])
    few = attnviz.circuits(sharp_gpt2(model_class=GPT2LMHeadModel), tokenizer=tokenizer)
    assert "successor" in few.succession.why_none
    assert {head.successor for head in few.heads} == {None}
