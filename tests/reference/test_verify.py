"""Verification must fail for every wrong attention, pass for the right one, and never compare nothing."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM, BertModel, GPT2LMHeadModel, GPT2Model
from typer.testing import CliRunner

from attnviz.cli.program import app
from attnviz.errors import VerificationError
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.opening import open_checkpoint
from attnviz.reference import attention
from attnviz.reference.attention import HeadParameters
from attnviz.reference.tolerances import TOLERANCES
from attnviz.run.checks import LayerCheck, LayerComparison
from attnviz.run.verify import VerifiedAttention, VerifiedRows, verify_attention
from tests.conftest import SENTENCE, needs_minilm
from tests.support.blocks import hidden_keys
from tests.support.models import bert_config, bert_tokenizer, gpt2_config, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.mutations import MODELING, PATTERN_MUTATIONS, change_parameters, state_of
from tests.support.recorded import own_patterns, whole_pattern
from tests.support.tolerances import SHARP_32, SUMS_32

KINDS = ["bert", "gpt2"]
MAKERS = {"bert": sharp_bert, "gpt2": sharp_gpt2}
HEADED = {"bert": BertForMaskedLM, "gpt2": GPT2LMHeadModel}
TOKENIZERS = {"bert": bert_tokenizer(), "gpt2": gpt2_tokenizer()}
N_LAYERS, N_HEADS = 3, 4


def checkpoint_of(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Checkpoint:
    """With eager attention, which shows its weights."""
    return from_loaded(MAKERS[kind](attn_implementation="eager", **changes).to(dtype), TOKENIZERS[kind])


def run(checkpoint: Checkpoint, visit: Callable[[VerifiedRows], None] = lambda layer: None) -> VerifiedAttention:
    return verify_attention(checkpoint, tokenize(checkpoint, SENTENCE), visit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_right_reference_verifies_every_head_far_inside_the_tolerance_and_again_later(kind, dtype):
    seen: list[VerifiedRows] = []
    verified = run(checkpoint_of(kind, dtype), seen.append)
    verification, n = verified.verification, len(verified.tokens)
    assert verification.pattern_error <= TOLERANCES[dtype].pattern / 10
    assert verification.output_error <= TOLERANCES[dtype].output / 10
    assert verification.tolerance == TOLERANCES[dtype]
    checks = verification.layers
    assert [(check.layer, check.heads_compared) for check in checks] == [(i, N_HEADS) for i in range(N_LAYERS)]
    assert all(check.output_scale > 0 for check in checks)
    assert [(rows.layer, rows.pattern.shape) for rows in seen] == [(i, (1, N_HEADS, n, n)) for i in range(N_LAYERS)]
    for layer in (2, 0, 1):
        (again,) = verified.rows(layer)
        torch.testing.assert_close(again.pattern, seen[layer].pattern, rtol=0, atol=SUMS_32)
        assert again.check == checks[layer]


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
        ("bert", "joined_output", no_concatenation),
        ("gpt2", "joined_output", head_average),
    ],
)
def test_wrong_steps_of_the_reference_fail_verification(monkeypatch, kind, function, wrong):
    checkpoint = checkpoint_of(kind)
    monkeypatch.setattr(attention, function, wrong)
    with pytest.raises(VerificationError, match="3 of 3"):
        run(checkpoint)


@pytest.mark.parametrize(
    ("disturbed", "named"),
    [
        ({"pattern": lambda rows, size: rows[0, 3, 4, 2].add_(size)}, "3 of 3"),
        ({"output": lambda output, size: output[0, 4, 31].add_(size * output.abs().max())}, "3 of 3"),
        ({"layer": 2, "output": lambda output, size: output[0, 6, 17].add_(7.0)}, r"layer 2\W.*query 6 .*dimension 17"),
        ({"layer": 0, "pattern": lambda rows, size: rows[0, 1, 2].fill_(torch.nan)}, r"layer 0.*query \d .*nan"),
        ({"layer": 0, "output": lambda output, size: output[0, 1, 2].fill_(torch.nan)}, r"layer 0.*query \d .*nan"),
    ],
)
@pytest.mark.parametrize(("kind", "dtype", "size"), [("bert", torch.float32, 1e-3), ("gpt2", torch.float64, 1e-9)])
def test_one_number_that_is_a_little_off_is_named(monkeypatch, kind, dtype, size, disturbed, named):
    changes = {name: partial(change, size=size) if callable(change) else change for name, change in disturbed.items()}
    disturb(monkeypatch, **changes)
    with pytest.raises(VerificationError, match=named):
        run(checkpoint_of(kind, dtype))


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


def test_the_largest_difference_is_named_with_both_values(monkeypatch):
    checkpoint = checkpoint_of("bert")
    inputs = tokenize(checkpoint, SENTENCE).model_inputs(checkpoint.device)
    value = float(own_patterns(checkpoint, inputs)[1][0, 2, 5, 3])

    def change(pattern: Tensor) -> None:
        pattern[0, 2, 5, 3] += 0.5
        pattern[0, 1, 5, 3] += 0.25

    disturb(monkeypatch, 1, pattern=change)
    with pytest.raises(VerificationError, match=r"L1H2.*query 5 \('saw'\), key 3 \('that'\)") as caught:
        run(checkpoint)
    found = [float(each) for each in re.findall(r"\d\.[\d.]*(?:e[+-]\d+)?", str(caught.value))]
    for expected in (value, value + 0.5):
        assert any(each == pytest.approx(expected, rel=SHARP_32) for each in found)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_wrong_pattern_is_found_where_values_are_zero_and_hide_it(monkeypatch, implementation):
    model = sharp_bert(attn_implementation=implementation)
    for layer in model.encoder.layer:
        state = layer.attention.self.value.state_dict()
        layer.attention.self.value.load_state_dict({name: torch.zeros_like(values) for name, values in state.items()})
    checkpoint = from_loaded(model, bert_tokenizer())
    assert run(checkpoint).verification.heads_compared == N_LAYERS * N_HEADS
    disturb(monkeypatch, 1, pattern=lambda pattern: pattern[0, 2, 5, 3].add_(0.5))
    with pytest.raises(VerificationError, match="L1H2"):
        run(checkpoint)


def test_of_all_layers_the_worst_is_named(monkeypatch):
    sizes = cycle([0.1, 0.4, 0.2])
    disturb(monkeypatch, pattern=lambda pattern: pattern[0, 0, 1, 1].add_(next(sizes)))
    with pytest.raises(VerificationError, match="L1H0"):
        run(checkpoint_of("bert"))


def test_command_with_a_wrong_reference_exits_3_and_writes_nothing(monkeypatch, bert_folder, tmp_path):
    change_parameters(monkeypatch, "bert", PATTERN_MUTATIONS["no scale"])
    words = ["heads", SENTENCE, "-m", str(bert_folder), "-o", str(tmp_path / "out"), "--no-syntax", "--json"]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def scaled_eager(factor: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """Eager attention as transformers has it, its scores multiplied by a factor before they are rounded."""

    def eager(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        weights = query @ key.mT * (query.shape[-1] ** -0.5 * factor)
        weights = torch.softmax(weights if attention_mask is None else weights + attention_mask, dim=-1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    return eager


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_scales_wrongly_itself_fails_and_with_the_right_scale_it_passes(monkeypatch, kind):
    monkeypatch.setattr(MODELING[kind], scaled_eager(0.5))
    with pytest.raises(VerificationError):
        run(checkpoint_of(kind))
    monkeypatch.setattr(MODELING[kind], scaled_eager(1))
    assert run(checkpoint_of(kind)).verification.heads_compared == N_LAYERS * N_HEADS


def test_reference_shares_no_memory_with_the_model_which_runs_once(monkeypatch):
    add_rows, add_steps = LayerComparison.add_rows, LayerComparison.add_steps
    compared, passes = list[list[Tensor]](), list[nn.Module]()

    def keep_rows(self, first, pattern, expected, own, random):
        compared.append([pattern, own])
        return add_rows(self, first, pattern, expected, own, random)

    def keep(self, steps):
        for name in ("head output", "output"):
            compared[-1] += [steps[name].model, steps[name].expected]
        return add_steps(self, steps)

    monkeypatch.setattr(LayerComparison, "add_rows", keep_rows)
    monkeypatch.setattr(LayerComparison, "add_steps", keep)
    seen, checkpoint = list[VerifiedRows](), checkpoint_of("bert")
    checkpoint.model.register_forward_hook(lambda module, args, result: passes.append(module))
    run(checkpoint, seen.append)
    assert (len(compared), len(passes)) == (N_LAYERS, 1)
    for tensors, rows in zip(compared, seen, strict=True):
        assert rows.pattern is tensors[0]
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 6


@pytest.mark.parametrize(
    ("spoiled", "named"),
    [("no pattern", "layer 0"), (0, r"\[\]"), (2, r"\[0, 1, 2, 0, 1, 2\]"), ("a layer skipped", r"\[0, 2\]")],
)
def test_layers_that_give_no_pattern_or_not_one_are_an_error(monkeypatch, spoiled, named):
    checkpoint = checkpoint_of("bert")
    forward, eager = checkpoint.model.forward, scaled_eager(1)
    if spoiled == "no pattern":
        monkeypatch.setattr(MODELING["bert"], lambda *args, **more: (eager(*args, **more)[0], None))
    elif spoiled == "a layer skipped":
        monkeypatch.setattr(checkpoint.modules[1].block, "forward", lambda hidden_states, *_, **__: hidden_states)
    else:
        monkeypatch.setattr(checkpoint.model, "forward", lambda **given: [forward(**given) for _ in range(spoiled)])
    with pytest.raises(VerificationError, match=named):
        run(checkpoint)


GOOD = LayerCheck(layer=1, heads_compared=4, pattern_error=1e-6, output_error=1e-6, output_scale=1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((f"{part}_error", 1.1e-4) for part in ("pattern", "output", "residual", "input", "head_output")),
        ("pattern_error", float("nan")),
        ("output_error", float("nan")),
        ("heads_compared", 3),
        ("heads_compared", 0),
    ],
)
def test_a_layer_outside_tolerance_cannot_be_built(name, value):
    with pytest.raises(VerificationError, match="layer 1"):
        VerifiedRows(replace(GOOD, **{name: value}), TOLERANCES[torch.float32], torch.zeros(1, 4, 2, 2), 0, 2, 2)


@pytest.mark.parametrize(("part", "value"), [("pattern", torch.nan), ("output", torch.inf), ("weight", torch.nan)])
def test_one_number_in_the_models_attention_that_is_not_finite_fails_verification(monkeypatch, part, value):
    eager, checkpoint = scaled_eager(1), checkpoint_of("gpt2")

    def spoiled(*args, **kwargs):
        output, pattern = eager(*args, **kwargs)
        if part != "weight":
            (pattern if part == "pattern" else output)[0, 1, 2, 1] = value
        return output, pattern

    monkeypatch.setattr(MODELING["gpt2"], spoiled)
    if part == "weight":  # both sides agree
        with torch.no_grad():
            checkpoint.model.get_parameter("h.1.attn.c_attn.weight")[0, 0] = value
    with pytest.raises(VerificationError, match=r"layer \d .* float32"):
        run(checkpoint)


def test_a_reference_of_fewer_heads_than_the_model_is_a_difference_of_shapes(monkeypatch):
    right = attention.queries_and_keys
    monkeypatch.setattr(attention, "queries_and_keys", lambda *given: tuple(each[:, :2] for each in right(*given)))
    with pytest.raises(VerificationError, match="shape"):
        run(checkpoint_of("bert"))


@pytest.mark.parametrize(
    ("dtype", "factor", "named"), [(torch.float16, 1e4, "--dtype"), (torch.float32, 1e25, "float32")]
)
def test_overflow_fails_verification_with_its_reason(dtype, factor, named):
    checkpoint = checkpoint_of("bert", dtype)
    wide = "self.query" if dtype == torch.float16 else "output.dense"
    with torch.no_grad():
        checkpoint.model.get_parameter(f"encoder.layer.0.attention.{wide}.weight").mul_(factor)
    with pytest.raises(VerificationError, match=named):
        run(checkpoint)


@pytest.mark.parametrize("places", [False, True])
def test_recomputing_after_the_weights_changed_is_an_error(places):
    """Or two heads changed places: one-hot patterns have the same norm, so a norm alone does not tell them apart."""
    checkpoint, seen = checkpoint_of("bert"), list[VerifiedRows]()
    attends = checkpoint.model.get_submodule("encoder.layer.1.attention.self")
    parameters = [*attends.query.parameters(), *attends.key.parameters()]
    with torch.no_grad():
        for each in parameters[:2]:
            each.mul_(1e4)
        verified = run(checkpoint, seen.append)
        assert (seen[1].pattern.roll(1, 1) - seen[1].pattern).abs().max() > 0.99
        for each in parameters:
            each.copy_(each.roll(8, 0) if places else 1.01 * each)
    assert [rows.layer for rows in verified.rows(0)] == [0]
    with pytest.raises(VerificationError, match="layer 1"):
        next(verified.rows(1))


@pytest.mark.parametrize("kind", KINDS)
def test_sdpa_and_train_mode_give_the_same_numbers_and_are_restored(monkeypatch, kind):
    """With a head on top, in train mode except for one module."""
    expected, seen = list[VerifiedRows](), list[VerifiedRows]()
    run(from_loaded(MAKERS[kind](model_class=HEADED[kind]), TOKENIZERS[kind]), expected.append)
    model = MAKERS[kind](model_class=HEADED[kind], attn_implementation="sdpa").train()
    model.get_submodule("bert.encoder.layer.1" if kind == "bert" else "transformer.h.1").eval()
    before = state_of(model)
    assert set(before[1].values()) == {"sdpa"}
    verified = run(from_loaded(model, TOKENIZERS[kind]), seen.append)
    assert verified.verification.heads_compared == N_LAYERS * N_HEADS
    assert all(torch.equal(mine.pattern, other.pattern) for mine, other in zip(seen, expected, strict=True))
    assert state_of(model) == before
    monkeypatch.setattr(MODELING[kind], lambda *_, **__: pytest.fail("what is computed later asked transformers"))
    for layer in range(N_LAYERS):
        torch.testing.assert_close(whole_pattern(verified, layer), seen[layer].pattern, rtol=0, atol=SUMS_32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_after_the_attention_that_gives_something_else_fails_verification(kind):
    checkpoint = checkpoint_of(kind)
    norm = checkpoint.modules[2].after_attention(checkpoint.architecture.pre_norm)
    norm.register_forward_hook(lambda _, __, output: output * 1.001)
    with pytest.raises(VerificationError, match="layer 2"):
        run(checkpoint)


LONGER = "The old man who had never been to sea told his grandson a story, and then another one, about whales and men."


@needs_minilm
@pytest.mark.parametrize(
    ("name", "dtype"), [pytest.param("minilm", "float16", marks=pytest.mark.thorough), ("tiny-gpt2", "bfloat16")]
)
def test_a_scale_one_per_cent_off_is_seen_in_half_precision(monkeypatch, name, dtype):
    checkpoint, _ = open_checkpoint(name, dtype=dtype, attention="eager")
    place = MODELING[checkpoint.architecture.name]
    monkeypatch.setattr(place, scaled_eager(1))
    found = verify_attention(checkpoint, tokenize(checkpoint, LONGER)).verification
    assert 0 < (found.scale_seen or 1) < 0.02
    assert all(check.scale_error <= check.scale_limit for check in found.layers)
    for factor in (1.01, 0.99):
        monkeypatch.setattr(place, scaled_eager(factor))
        with pytest.raises(VerificationError):
            verify_attention(checkpoint, tokenize(checkpoint, LONGER))


FRESH = {
    "bert": lambda: BertModel(bert_config(attn_implementation="eager")).eval(),
    "gpt2": lambda: GPT2Model(gpt2_config(attn_implementation="eager")).eval(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_that_is_nearly_even_is_seen_to_be_wrong_in_half_precision(monkeypatch, kind, dtype):
    checkpoint = from_loaded(FRESH[kind]().to(dtype), TOKENIZERS[kind])
    assert (run(checkpoint).verification.scale_seen or 1) < 1
    even = (kind, dtype) in (("bert", torch.float16), ("gpt2", torch.bfloat16))
    wrong = (lambda p: replace(p, scale=0.0)) if even else PATTERN_MUTATIONS["query and key swapped"]
    change_parameters(monkeypatch, kind, wrong)
    with pytest.raises(VerificationError, match="of 3"):
        run(checkpoint)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_small_weight_that_is_wrong_is_seen_in_half_precision_by_its_row(monkeypatch, dtype):
    disturb(monkeypatch, 1, pattern=lambda pattern: pattern[0, 1, 5].mul_(torch.tensor([1.5] + [1] * 39).to(dtype)))
    checkpoint = from_loaded(FRESH["bert"]().to(dtype), TOKENIZERS["bert"])
    with pytest.raises(VerificationError, match=r"L1H1.*query 5"):
        verify_attention(checkpoint, tokenize(checkpoint, "the cat " * 50, truncate=True))
