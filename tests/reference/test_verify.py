"""Verification must fail for every wrong attention, pass for the right one, and never compare nothing."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM, BertModel, GPT2LMHeadModel, GPT2Model
from typer.testing import CliRunner

from attnviz.cli.program import app
from attnviz.errors import VerificationError
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.opening import open_checkpoint
from attnviz.reference import attention
from attnviz.reference.attention import HeadParameters
from attnviz.reference.tolerances import TOLERANCES
from attnviz.trace.checks import LayerCheck, LayerComparison
from attnviz.trace.verify import VerifiedAttention, VerifiedRows, verify_attention
from tests.conftest import SENTENCE, needs_minilm
from tests.support.blocks import hidden_keys
from tests.support.models import bert_config, bert_tokenizer, gpt2_config, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.mutations import (
    MODELING,
    PATTERN_MUTATIONS,
    change_parameters,
    state_of,
)
from tests.support.recorded import own_patterns, whole_pattern
from tests.support.tolerances import SHARP_32, SUMS_32

KINDS = ["bert", "gpt2"]
DTYPES = [torch.float32, torch.float64]
MAKERS = {"bert": sharp_bert, "gpt2": sharp_gpt2}
HEADED = {"bert": BertForMaskedLM, "gpt2": GPT2LMHeadModel}
TOKENIZERS = {"bert": bert_tokenizer(), "gpt2": gpt2_tokenizer()}
N_LAYERS, N_HEADS = 3, 4
VALUE = r"-?(?:\d[\d.]*(?:e[+-]\d+)?|nan|inf)"


def checkpoint_of(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Checkpoint:
    """With eager attention, which shows its weights."""
    return from_loaded(MAKERS[kind](attn_implementation="eager", **changes).to(dtype), TOKENIZERS[kind])


def run(checkpoint: Checkpoint, visit: Callable[[VerifiedRows], None] = lambda layer: None) -> VerifiedAttention:
    return verify_attention(checkpoint, checkpoint.tokenize(SENTENCE), visit)


# --- the right attention ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_right_reference_verifies_every_head_far_inside_the_tolerance_and_again_later(kind, dtype):
    seen: list[VerifiedRows] = []
    verified = run(checkpoint_of(kind, dtype), seen.append)
    verification, n = verified.verification, len(verified.tokens)
    assert verification.pattern_error <= TOLERANCES[dtype].pattern / 10
    assert verification.output_error <= TOLERANCES[dtype].output / 10
    assert verification.tolerance == TOLERANCES[dtype]
    checks = verification.layers
    assert [(check.layer, check.heads_compared) for check in checks] == [(i, N_HEADS) for i in range(N_LAYERS)]
    assert [rows.layer for rows in seen] == list(range(N_LAYERS))
    assert all(layer.pattern.shape == (1, N_HEADS, n, n) for layer in seen)
    assert all(check.output_scale > 0 for check in verification.layers)
    for layer in (2, 0, 1):
        (again,) = verified.rows(layer)
        torch.testing.assert_close(again.pattern, seen[layer].pattern, rtol=0, atol=SUMS_32)
        assert again.check == verification.layers[layer]


# --- mutations: every wrong attention must be noticed ------------------------------------------------


def softmax_over_queries(scores: Tensor, allowed: Tensor, _: Tensor | None) -> Tensor:
    return torch.softmax(scores.masked_fill(hidden_keys(scores, allowed), -torch.inf), dim=-2)


def softmax_before_mask(scores: Tensor, allowed: Tensor, _: Tensor | None) -> Tensor:
    return torch.softmax(scores, dim=-1).masked_fill(hidden_keys(scores, allowed), 0)


def no_concatenation(weighted: Tensor, parameters: HeadParameters) -> Tensor:
    """Heads reshaped without moving the head axis behind the position."""
    flat = weighted.reshape(*weighted.shape[:-3], weighted.shape[-2], -1)
    return flat @ parameters.output_weight.flatten(0, 1) + parameters.output_bias


def head_average(weighted: Tensor, parameters: HeadParameters) -> Tensor:
    each = torch.einsum("...hqe,hed->...hqd", weighted, parameters.output_weight)
    return each.mean(-3) + parameters.output_bias


@pytest.mark.parametrize(
    ("kind", "function", "wrong"),
    [
        ("bert", "attention_pattern", softmax_over_queries),
        ("gpt2", "attention_pattern", softmax_before_mask),
        *((kind, "joined_output", wrong) for kind in KINDS for wrong in (no_concatenation, head_average)),
    ],
)
def test_wrong_steps_of_the_reference_fail_verification(monkeypatch, kind, function, wrong):
    checkpoint = checkpoint_of(kind)
    monkeypatch.setattr(attention, function, wrong)
    with pytest.raises(VerificationError, match="do not reproduce the model: 3 of 3 layers differ"):
        run(checkpoint)


@pytest.mark.parametrize("part", ["pattern", "output"])
@pytest.mark.parametrize(("kind", "dtype", "size"), [("bert", torch.float32, 1e-3), ("gpt2", torch.float64, 1e-9)])
def test_a_tiny_perturbation_of_one_number_fails_verification(monkeypatch, kind, part, dtype, size):
    if part == "pattern":
        disturb(monkeypatch, pattern=lambda rows: rows[0, 3, 4, 2].add_(size))
    else:
        disturb(monkeypatch, output=lambda output: output[0, 4, 31].add_(size * output.abs().max()))
    with pytest.raises(VerificationError, match="3 of 3 layers differ"):
        run(checkpoint_of(kind, dtype))


# --- what the user is told ----------------------------------------------------------------------------


def disturb(
    monkeypatch: pytest.MonkeyPatch,
    layer: int | None = None,
    pattern: Callable[[Tensor], Any] = lambda _: None,
    output: Callable[[Tensor], Any] = lambda _: None,
) -> None:
    """Change the reference's patterns or outputs in place, in one layer or in all, where a layer is one block."""
    pattern_of, joined_output, done = attention.pattern_of, attention.joined_output, list[Tensor]()

    def disturbed_pattern(query: Tensor, *more: Any) -> Tensor:
        rows = pattern_of(query, *more)
        if query.shape[-2] > 1 and layer in (None, len(done) % N_LAYERS):  # a single row is sampled for the fingerprint
            pattern(rows)
        return rows

    def disturbed_output(*given: Any) -> Tensor:
        done.append(joined_output(*given))
        if layer in (None, (len(done) - 1) % N_LAYERS):
            output(done[-1])
        return done[-1]

    monkeypatch.setattr(attention, "pattern_of", disturbed_pattern)
    monkeypatch.setattr(attention, "joined_output", disturbed_output)


def test_message_names_layer_head_query_key_and_both_values(monkeypatch):
    checkpoint = checkpoint_of("bert")
    inputs = checkpoint.tokenize(SENTENCE).model_inputs(checkpoint.device)
    model_value = float(own_patterns(checkpoint, inputs)[1][0, 2, 5, 3])

    def change(pattern: Tensor) -> None:
        pattern[0, 2, 5, 3] += 0.5
        pattern[0, 1, 5, 3] += 0.25

    disturb(monkeypatch, 1, pattern=change)
    with pytest.raises(VerificationError, match=r"\(L1H2\), query 5 \('saw'\), key 3 \('that'\)") as caught:
        run(checkpoint)
    found = re.search(rf"the model attends ({VALUE}), the reference ({VALUE})", str(caught.value))
    assert [float(value) for value in found.groups()] == pytest.approx([model_value, model_value + 0.5], rel=SHARP_32)


SIZES = cycle([0.1, 0.4, 0.2])


@pytest.mark.parametrize(("disturbed", "where"), [
    ({"layer": 2, "output": lambda output: output[0, 6, 17].add_(7.0)}, r"layer 2 .* query 6 .*, dimension 17: "),
    ({"pattern": lambda pattern: pattern[0, 0, 1, 1].add_(next(SIZES))}, r"3 of 3 layers differ\. .* layer 1, head 0"),
])  # fmt: skip
def test_message_names_the_dimension_of_an_output_and_the_worst_layer(monkeypatch, disturbed, where):
    disturb(monkeypatch, **disturbed)
    with pytest.raises(VerificationError, match=where):
        run(checkpoint_of("bert"))


# --- on the command line -------------------------------------------------------------------------------


def heads_command(folder, out, *options: str):
    return CliRunner().invoke(app, ["heads", SENTENCE, "-m", str(folder), "-o", str(out), "--no-syntax", *options])


def test_command_with_a_wrong_reference_exits_3_and_writes_nothing(monkeypatch, bert_folder, tmp_path):
    change_parameters(monkeypatch, "bert", PATTERN_MUTATIONS["no scale"])
    result = heads_command(bert_folder, tmp_path / "out", "--json")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "do not reproduce the model" in result.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def wrong_eager(scale: float) -> Callable[..., tuple[Tensor, Tensor]]:
    def eager(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        weights = query @ key.mT * scale
        weights = torch.softmax(weights if attention_mask is None else weights + attention_mask, dim=-1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    return eager


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_scales_wrongly_itself_fails_and_with_the_right_scale_it_passes(monkeypatch, kind):
    monkeypatch.setattr(MODELING[kind], wrong_eager(32**-0.5))
    with pytest.raises(VerificationError, match="the model attends"):
        run(checkpoint_of(kind))
    monkeypatch.setattr(MODELING[kind], wrong_eager(8**-0.5))
    assert run(checkpoint_of(kind)).verification.heads_compared == N_LAYERS * N_HEADS


# --- comparing nothing is not passing --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_reference_shares_no_memory_with_the_model_which_runs_once(monkeypatch, kind):
    add_rows, add_outputs = LayerComparison.add_rows, LayerComparison.add_outputs
    compared, passes = list[list[Tensor]](), list[nn.Module]()

    def keep_rows(self, first, pattern, own):
        compared.append([pattern, own])
        return add_rows(self, first, pattern, own)

    def keep(self, record, weighted, output, *more):
        compared[-1] += [record.weighted, weighted, record.output, output]
        return add_outputs(self, record, weighted, output, *more)

    monkeypatch.setattr(LayerComparison, "add_rows", keep_rows)
    monkeypatch.setattr(LayerComparison, "add_outputs", keep)
    seen, checkpoint = list[VerifiedRows](), checkpoint_of(kind)
    checkpoint.model.register_forward_hook(lambda module, args, result: passes.append(module))
    run(checkpoint, seen.append)
    assert (len(compared), len(passes)) == (N_LAYERS, 1)
    for tensors, rows in zip(compared, seen, strict=True):
        assert rows.pattern is tensors[0]
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 6


def without_patterns(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    eager = wrong_eager(8**-0.5)
    place = MODELING[checkpoint.architecture.name]
    monkeypatch.setattr(place, lambda *args, **kwargs: (eager(*args, **kwargs)[0], None))


def times(count: int) -> Callable[[Checkpoint, pytest.MonkeyPatch], None]:
    def spoil(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        forward = checkpoint.model.forward
        monkeypatch.setattr(checkpoint.model, "forward", lambda **inputs: [forward(**inputs) for _ in range(count)])

    return spoil


def skipping_a_layer(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint.modules[1].block, "forward", lambda hidden_states, *args, **kwargs: hidden_states)


@pytest.mark.parametrize(("spoil", "word"), [
    (without_patterns, "layer 0 of the model returned no attention pattern"),
    (times(0), r"layers \[\]"), (times(2), r"layers \[0, 1, 2, 0, 1, 2\]"), (skipping_a_layer, r"layers \[0, 2\]"),
])  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_give_no_pattern_or_not_one_are_an_error(monkeypatch, kind, spoil, word):
    checkpoint = checkpoint_of(kind)
    spoil(checkpoint, monkeypatch)
    with pytest.raises(VerificationError, match=word):
        run(checkpoint)


TOLERANCE = TOLERANCES[torch.float32]
GOOD = LayerCheck(layer=1, heads_compared=4, pattern_error=1e-6, output_error=1e-6, output_scale=1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (f"{part}_error", error)
            for part in ("pattern", "output", "residual", "input", "head_output")
            for error in (1.1e-4, float("nan"))
        ),
        ("heads_compared", 3),
        ("heads_compared", 0),
    ],
)
def test_a_layer_outside_tolerance_cannot_be_built(name, value):
    with pytest.raises(VerificationError, match="layer 1 did not verify"):
        VerifiedRows(replace(GOOD, **{name: value}), TOLERANCE, torch.zeros(1, 4, 2, 2), 0, 2, 2)


# --- numbers that are not finite ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "part", "value"),
    [("bert", "pattern", torch.nan), ("gpt2", "output", torch.inf), ("gpt2", "weight", torch.nan)],
)
def test_one_number_in_the_models_attention_that_is_not_finite_fails_verification(monkeypatch, kind, part, value):
    eager, checkpoint = wrong_eager(8**-0.5), checkpoint_of(kind)

    def spoiled(*args, **kwargs):
        output, pattern = eager(*args, **kwargs)
        if part == "pattern":
            pattern[0, 1, 2, 1] = value
        elif part == "output":
            output[0, 8, 0, 0] = value
        return output, pattern

    monkeypatch.setattr(MODELING[kind], spoiled)
    if part == "weight":  # both sides agree
        with torch.no_grad():
            checkpoint.model.get_parameter("h.1.attn.c_attn.weight")[0, 0] = value
    with pytest.raises(VerificationError, match=r"own attention in layer \d has values .* not finite in float32"):
        run(checkpoint)


@pytest.mark.parametrize("part", ["pattern", "output"])
def test_nan_in_the_reference_fails_verification(monkeypatch, part):
    disturb(monkeypatch, 0, **{part: lambda result: result[0, 1, 2].fill_(float("nan"))})
    with pytest.raises(VerificationError, match=r"layer 0.*query [12] .*the reference nan"):
        run(checkpoint_of("bert"))


def test_a_reference_of_fewer_heads_than_the_model_is_a_difference_of_shapes(monkeypatch):
    right = attention.queries_and_keys
    monkeypatch.setattr(attention, "queries_and_keys", lambda *given: tuple(each[:, :2] for each in right(*given)))
    with pytest.raises(VerificationError, match="shape"):
        run(checkpoint_of("bert"))


@pytest.mark.parametrize(("dtype", "factor", "word"), [
    (torch.float16, 1e4, "not finite in float16; a wider --dtype may help"),
    (torch.float32, 1e25, "squares overflow in float32"),
])  # fmt: skip
def test_overflow_fails_verification_with_its_reason(dtype, factor, word):
    checkpoint = checkpoint_of("bert", dtype)
    wide = "self.query" if dtype == torch.float16 else "output.dense"
    with torch.no_grad():
        checkpoint.model.get_parameter(f"encoder.layer.0.attention.{wide}.weight").mul_(factor)
    with pytest.raises(VerificationError, match=word):
        run(checkpoint)


# --- a model that changed after verification -------------------------------------------------------------------


def test_recomputing_after_the_weights_changed_is_an_error():
    checkpoint = checkpoint_of("gpt2")
    verified = run(checkpoint)
    with torch.no_grad():
        checkpoint.model.get_parameter("h.1.attn.c_attn.weight").mul_(1.5)
    assert [rows.layer for rows in verified.rows(0)] == [0]
    with pytest.raises(VerificationError, match=r"layer 1 no longer gives the verified patterns: .*weights changed"):
        next(verified.rows(1))


def test_recomputing_after_two_sharp_heads_changed_places_is_an_error():
    """One-hot patterns all have the same norm, so a norm alone does not tell one from another."""
    checkpoint = checkpoint_of("bert")
    attention_layer = checkpoint.model.get_submodule("encoder.layer.0.attention.self")
    with torch.no_grad():
        attention_layer.query.weight.mul_(1e4)
        attention_layer.query.bias.mul_(1e4)
    seen: list[VerifiedRows] = []
    verified = run(checkpoint, seen.append)
    assert (seen[0].pattern.roll(1, 1) - seen[0].pattern).abs().max() > 0.99
    with torch.no_grad():
        for linear in (attention_layer.query, attention_layer.key):
            linear.weight.copy_(linear.weight.roll(8, 0))
            linear.bias.copy_(linear.bias.roll(8, 0))
    with pytest.raises(VerificationError, match="layer 0 no longer gives the verified patterns"):
        next(verified.rows(0))


# --- the model is left as it was ---------------------------------------------------------------------------------


def sdpa_model_in_mixed_modes(kind: str) -> Any:
    """With a head on top, attention sdpa, in train mode except for one module."""
    model = MAKERS[kind](model_class=HEADED[kind])
    model.set_attn_implementation("sdpa")
    model.train()
    model.get_submodule("bert.encoder.layer.1" if kind == "bert" else "transformer.h.1").eval()
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_sdpa_and_train_mode_give_the_same_numbers_and_are_restored(monkeypatch, kind):
    expected: list[VerifiedRows] = []
    run(from_loaded(MAKERS[kind](model_class=HEADED[kind]), TOKENIZERS[kind]), expected.append)
    model = sdpa_model_in_mixed_modes(kind)
    before = state_of(model)
    assert set(before[1].values()) == {"sdpa"}
    seen: list[VerifiedRows] = []
    verified = run(from_loaded(model, TOKENIZERS[kind]), seen.append)
    assert verified.verification.heads_compared == N_LAYERS * N_HEADS
    for mine, other in zip(seen, expected, strict=True):
        assert torch.equal(mine.pattern, other.pattern)
    assert state_of(model) == before
    assert before[2] == 0

    def broken(*args, **kwargs):
        raise AssertionError("the model's own attention was called")

    monkeypatch.setattr(MODELING[kind], broken)
    for layer in range(N_LAYERS):  # what is computed later never asks transformers
        torch.testing.assert_close(whole_pattern(verified, layer), seen[layer].pattern, rtol=0, atol=SUMS_32)


# --- what a layer passes on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_after_the_attention_that_gives_something_else_fails_verification(kind):
    checkpoint = checkpoint_of(kind)
    norm = checkpoint.modules[2].after_attention(checkpoint.architecture.pre_norm)
    norm.register_forward_hook(lambda _, __, output: output * 1.001)
    with pytest.raises(VerificationError, match="layer 2 does not pass them on: the norm after its attention"):
        run(checkpoint)


@needs_minilm
@pytest.mark.parametrize("name", ["minilm", "tiny-gpt2"])
def test_what_trained_models_pass_on_is_the_sum_to_the_last_bit(name):
    checkpoint, _ = open_checkpoint(name)
    layers = run(checkpoint).verification.layers
    assert max(check.residual_error for check in layers) <= TOLERANCES[checkpoint.dtype].output / 100


# --- half precision: what a coarse comparison still sees -----------------------------------------------------------

HALVES = ["float16", "bfloat16"]
LONGER = "The old man who had never been to sea told his grandson a story, and then another one, about whales and men."


def scaled_by(factor: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """Eager attention as transformers has it, its scores multiplied by a factor before they are rounded."""

    def eager(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        weights = query @ key.mT * (scaling * factor)
        weights = torch.softmax(weights if attention_mask is None else weights + attention_mask, dim=-1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    return eager


@needs_minilm
@pytest.mark.parametrize(("name", "dtype"), [("minilm", "float16"), ("tiny-gpt2", "bfloat16")])
def test_a_scale_one_per_cent_off_is_seen_in_half_precision(monkeypatch, name, dtype):
    checkpoint, _ = open_checkpoint(name, dtype=dtype, attention="eager")
    kind = checkpoint.architecture.name
    for factor in (1.0, 1.01, 0.99):
        monkeypatch.setattr(MODELING[kind], scaled_by(factor))
        if factor == 1:
            seen = verify_attention(checkpoint, checkpoint.tokenize(LONGER)).verification.scale_seen
            assert seen is not None
            assert 0 < seen < 0.02
        else:
            with pytest.raises(VerificationError, match=r"as if its scores were off by 0\.0"):
                verify_attention(checkpoint, checkpoint.tokenize(LONGER))


FRESH = {
    "bert": lambda: BertModel(bert_config(attn_implementation="eager")).eval(),
    "gpt2": lambda: GPT2Model(gpt2_config(attn_implementation="eager")).eval(),
}


@pytest.mark.parametrize(
    ("kind", "dtype", "wrong"),
    [
        ("bert", "float16", "scale 0"),
        ("gpt2", "bfloat16", "scale 0"),
        ("bert", "bfloat16", "query and key swapped"),
        ("gpt2", "float16", "query and key swapped"),
        *((kind, dtype, None) for kind in KINDS for dtype in HALVES),
    ],
)
def test_attention_that_is_nearly_even_is_seen_to_be_wrong_in_half_precision(monkeypatch, kind, dtype, wrong):
    torch.manual_seed(0)
    checkpoint = from_loaded(FRESH[kind]().to(getattr(torch, dtype)), TOKENIZERS[kind])
    if wrong is None:
        assert (run(checkpoint).verification.scale_seen or 1) < 1
        return
    changes = {**PATTERN_MUTATIONS, "scale 0": lambda p: replace(p, scale=0.0)}
    change_parameters(monkeypatch, kind, changes[wrong])
    with pytest.raises(VerificationError, match=r"\d of 3 layers differ"):
        run(checkpoint)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_small_weight_that_is_wrong_is_seen_in_half_precision_by_its_row(monkeypatch, dtype):
    disturb(monkeypatch, 1, pattern=lambda pattern: pattern[0, 1, 5].mul_(torch.tensor([1.5] + [1] * 39).to(dtype)))
    checkpoint = from_loaded(FRESH["bert"]().to(dtype), TOKENIZERS["bert"])
    with pytest.raises(VerificationError, match=r"layer 1, head 1 \(L1H1\), query 5 .* of the row's largest weight"):
        verify_attention(checkpoint, checkpoint.tokenize("the cat " * 50, truncate=True))


def test_the_line_says_what_half_precision_does_not_see(bert_folder, gpt2_folder, tmp_path):
    half, whole = (
        heads_command(folder, tmp_path / f"{n}", "--figures", "none", *options).stdout
        for n, (folder, options) in enumerate(((bert_folder, ("--dtype", "bfloat16")), (gpt2_folder, ())))
    )
    assert "coarse" in half
    layer = json.loads((tmp_path / "0" / "heads.json").read_text())["verification"]["layers"][0]
    assert layer["scale_error"] <= layer["scale_limit"]
    assert "coarse" not in whole
