"""The model is verified with the implementation of attention that it was loaded with, whatever that returns."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, LlamaModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface, eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaAttention, eager_attention_forward

import attnviz
from attnviz.errors import UsageError, VerificationError
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.opening import open_checkpoint
from attnviz.reference import attention
from attnviz.run import record, transformers_compat
from attnviz.run.verify import VerifiedRows
from tests.support.families import FAMILIES, TEXT, checkpoint_of, padded, verified
from tests.support.llamas import convert, llama_config
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert
from tests.support.recorded import recorded, running_eager, verified_batch
from tests.support.tolerances import SHARP_32, of_weights

HALVES = (torch.float16, torch.bfloat16)

SAME_STATES = 1e-5
"""Share of the largest final state by which two passes of one model differ: sums in other blocks round at 1e-7."""


def llama(implementation: str = "sdpa", dtype: torch.dtype = torch.float32) -> Checkpoint:
    """A sharp Llama of two layers with groups of heads."""
    return checkpoint_of("llama", dtype, positions=200, attn_implementation=implementation)


@pytest.fixture
def registered() -> Iterator[Callable[[str, Callable[..., Any]], None]]:
    """Registers a function of attention, with sdpa's mask, for the length of a test."""
    names: list[str] = []

    def register(name: str, function: Callable[..., Any]) -> None:
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, sdpa_mask)
        names.append(name)

    yield register
    for name in names:
        del AttentionInterface._global_mapping[name], AttentionMaskInterface._global_mapping[name]


FIRST = ("bert", "llama", "t5")


@pytest.mark.parametrize(
    "family", [*FIRST, *(pytest.param(each, marks=pytest.mark.thorough) for each in FAMILIES if each not in FIRST)]
)
def test_patterns_are_those_of_eager_attention_and_states_those_that_anybody_gets(family):
    checkpoint, seen = checkpoint_of(family), list[VerifiedRows]()
    inputs = padded(checkpoint)
    verification = verified_batch(checkpoint, inputs, seen.append)
    assert verification.attention == checkpoint.attention
    own, real = {layer.layer: layer for layer in recorded(checkpoint, inputs)}, inputs["attention_mask"].bool()
    for rows in seen:
        eager = own[rows.layer]
        pairs = (each.transpose(1, 2)[real] for each in (rows.pattern, eager.pattern))
        largest = eager.largest_score(checkpoint.architecture.parameters(checkpoint.model, rows.layer).scale)
        torch.testing.assert_close(*pairs, rtol=0, atol=of_weights(torch.float32, largest))
    if family == "whisper":  # whose decoder is padded otherwise
        return
    for name in dict.fromkeys((checkpoint.attention, "eager")):
        if name != checkpoint.attention:  # those that bypass the interface stay as they are
            checkpoint.model.set_attn_implementation(name)
        with torch.inference_mode():
            plain = checkpoint.model(**inputs, use_cache=False)[0]
        states = record.record_attention(checkpoint, inputs, record.Observer())
        assert (states - plain)[real].abs().max() <= SAME_STATES * plain[real].abs().max()


class Branching(LlamaAttention):
    """Doubles its scores under some names of its implementation: those that it knows, or all others."""

    known = True

    def forward(self, *given: Any, **more: Any) -> Any:
        own, is_known = self.scaling, self.config._attn_implementation in ("eager", "sdpa")
        self.scaling = own * (2 if is_known == self.known else 1)
        try:
            return super().forward(*given, **more)
        finally:
            self.scaling = own


@pytest.mark.parametrize(("known", "implementation"), [(False, "sdpa"), (False, "eager"), (True, "sdpa")])
def test_a_model_that_attends_otherwise_under_other_names_runs_under_its_own(monkeypatch, implementation, known):
    """As DeepSeek V3.2 does, whose mask of the best keys is there under two names alone."""
    checkpoint = llama(implementation)
    monkeypatch.setattr(Branching, "known", known)
    for layer in checkpoint.model.layers:
        layer.self_attn.__class__ = Branching
    with pytest.raises(VerificationError) if known else contextlib.nullcontext():
        verified(checkpoint)


@pytest.mark.parametrize(("name", "right"), [("sdpa", sdpa_attention_forward), ("eager", eager_attention_forward)])
@pytest.mark.parametrize("factor", [1, 2])
def test_a_function_that_is_set_in_place_of_transformers_own_is_what_is_verified(monkeypatch, name, right, factor):
    def mine(module: Any, query: Tensor, *given: Any, **more: Any) -> Any:
        return right(module, factor * query, *given, **more)

    checkpoint = llama(name)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, name, mine)
    with contextlib.nullcontext() if factor == 1 else pytest.raises(VerificationError):
        verified(checkpoint)
    assert ALL_ATTENTION_FUNCTIONS[name] is mine


def test_one_pass_of_the_model_and_one_probe_a_layer(registered):
    calls: list[Any] = []

    def counting(module: Any, *given: Any, **more: Any) -> Any:
        calls.append(module)
        return sdpa_attention_forward(module, *given, **more)

    registered("counting", counting)
    verified(checkpoint := llama("counting"))
    layers = [layer.self_attn for layer in checkpoint.model.layers]
    assert calls == [each for layer in layers for each in (layer, layer)]


@pytest.mark.parametrize(
    ("implementation", "in_thread", "itself"),
    [
        ("sdpa", False, False),
        ("sdpa", True, False),
        ("sdpa", True, True),
        ("eager", False, False),
        ("eager", True, False),
    ],
)
def test_another_run_beside_it_is_left_alone(monkeypatch, implementation, in_thread, itself):
    monkeypatch.setattr(transformers_compat, "MOST_MASKS", 0)  # masks of eager attention are lazy
    checkpoint, ids = llama(implementation), torch.tensor([[5, 6, 7]])
    other, found = checkpoint if itself else llama(implementation), list[Tensor]()

    def run() -> None:
        with torch.inference_mode():
            found.append(other.model(ids, use_cache=False)[0])

    def beside(*_: Any) -> None:
        handle.remove()
        if in_thread:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        else:
            run()

    run()
    handle = checkpoint.model.layers[1].mlp.register_forward_hook(beside)
    assert verified(checkpoint).verification.heads_compared == 8
    one, expected = found[1], found[0]
    rounding = SAME_STATES * float(expected.abs().max()) if implementation == "eager" else 0
    torch.testing.assert_close(one, expected, rtol=0, atol=rounding)
    assert "eager" not in ALL_ATTENTION_FUNCTIONS
    assert ALL_MASK_ATTENTION_FUNCTIONS["eager"] is eager_mask


def test_a_model_that_attends_both_ways_as_loaded_is_refused_and_says_so():
    checkpoint = llama()
    for layer in checkpoint.model.layers:
        layer.self_attn.is_causal = False
    with pytest.raises(VerificationError, match="is_causal=False"):
        verified(checkpoint)
    with running_eager(checkpoint.model):
        verified(checkpoint)  # whose mask is causal all the same


@pytest.mark.parametrize("wrong", ["scale", "keys"])
def test_a_function_of_attention_of_the_users_that_differs_is_refused(registered, wrong):
    """By a scale that is 1 % off, or keys of the other group."""

    def mine(module: Any, query: Tensor, key: Tensor, *more: Any, **named: Any) -> Any:
        if wrong == "keys":
            return sdpa_attention_forward(module, query, key.flip(1), *more, **named)
        return sdpa_attention_forward(module, query, key, *more, **named | {"scaling": 1.01 * named["scaling"]})

    registered("mine", mine)
    with pytest.raises(VerificationError, match="mine"):
        verified(llama("mine"))


def test_two_weights_that_are_swapped_in_one_row_are_seen(monkeypatch):
    """As small as the tolerance of a weight lets through when weights are compared."""
    right, checkpoint = attention.pattern_of, llama()

    def swapped(*given: Any) -> Tensor:
        pattern = right(*given)
        pattern[0, 1, 5, 2] += 0.0005
        pattern[0, 1, 5, 3] -= 0.0005
        return pattern

    monkeypatch.setattr(attention, "pattern_of", swapped)
    with pytest.raises(VerificationError, match="query 5"):
        verified(checkpoint)


@pytest.mark.parametrize(("number", "named"), [(0.01, "output"), (torch.nan, "layer 1")])
def test_values_and_outputs_are_compared_beside_the_pattern(registered, number, named):
    """The output of layer 1 is another one, or not finite, but not when the layer is probed."""
    calls: list[Any] = []

    def shifted(module: Any, *given: Any, **more: Any) -> Any:
        result, nothing = sdpa_attention_forward(module, *given, **more)
        calls.append(module)
        first = calls.count(module) % 2 == 1
        return (result + number if first and module.layer_idx == 1 else result), nothing

    registered("shifted", shifted)
    with pytest.raises(VerificationError, match=named):
        verified(llama("shifted"))


@pytest.mark.parametrize(
    ("name", "run"),
    [("layers.1.self_attn", verified), ("layers.1", lambda checkpoint: attnviz.head_outputs(TEXT, checkpoint))],
)
@pytest.mark.parametrize("hooked", [True, False])
def test_hooks_that_steer_the_model_are_named_instead_of_finer_numbers(name, run, hooked):
    checkpoint = checkpoint_of("llama")
    module: Any = checkpoint.model.get_submodule(name)
    own = module.forward

    def steered(output: Any) -> Any:
        return output + 0.1 if isinstance(output, Tensor) else (output[0] + 0.1, *output[1:])

    if hooked:
        module.register_forward_hook(lambda _, __, output: steered(output))
    else:
        module.forward = lambda *given, **more: steered(own(*given, **more))
    with pytest.raises(VerificationError) as raised:
        run(checkpoint)
    assert (name in str(raised.value)) == hooked == ("float64" not in str(raised.value))


@pytest.mark.draws
@pytest.mark.thorough
@pytest.mark.parametrize(("family", "dtype"), [*zip(FAMILIES, itertools.cycle(HALVES), strict=False)])
def test_half_precision_stays_far_below_its_tolerance(family, dtype):
    checkpoint = checkpoint_of(family, dtype)
    found = verified_batch(checkpoint, padded(checkpoint))
    assert found.pattern_error < found.pattern_tolerance / 2


@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.float16, 1.0), (torch.float16, 1.03), (torch.bfloat16, 1.0), (torch.bfloat16, 0.97)]
)
def test_a_scale_that_is_off_is_seen_in_half_precision(registered, dtype, factor):
    def scaled(module: Any, query: Tensor, *given: Any, **more: Any) -> Any:
        return sdpa_attention_forward(module, query, *given, **more | {"scaling": factor * more["scaling"]})

    registered("scaled", scaled)
    checkpoint = llama("scaled", dtype)
    text = "the cat that i saw ran away from the dog and the house . " * 6
    if factor == 1:
        assert 0 < (verified(checkpoint, text).verification.scale_seen or 1) < 0.03
    else:
        with pytest.raises(VerificationError):
            verified(checkpoint, text)


def test_an_implementation_that_there_is_not_is_named():
    with pytest.raises(UsageError, match="quick"):
        open_checkpoint("tiny-gpt2", attention="quick")


@pytest.mark.parametrize("wrong", [False, True])
def test_rows_over_many_keys_that_are_wrong_are_seen_in_half_precision(registered, wrong):
    """Of even attention to many keys little is left of random values."""

    def ahead(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any) -> Any:
        right, nothing = sdpa_attention_forward(module, query, key, value, mask, **more)
        both, _ = sdpa_attention_forward(module, query, key, value, mask, **more | {"is_causal": False})
        right[:, 400:] = both[:, 400:]
        return right, nothing

    registered("ahead", ahead)
    config = llama_config(
        "llama", num_hidden_layers=1, hidden_size=64, attn_implementation="ahead" if wrong else "sdpa"
    )
    checkpoint = from_loaded(convert(LlamaModel(config), torch.bfloat16).eval(), gpt2_tokenizer())
    inputs = {"input_ids": torch.randint(5, 390, (1, 600)), "attention_mask": torch.ones(1, 600, dtype=torch.long)}
    with pytest.raises(VerificationError) if wrong else contextlib.nullcontext():
        verified_batch(checkpoint, inputs)


@pytest.mark.parametrize("verifying", [True, False])
def test_attention_to_padding_is_refused_in_every_batch_of_a_corpus(registered, monkeypatch, tmp_path, verifying):
    def to_padding(module: Any, query: Tensor, key: Tensor, value: Tensor, _: Any, **more: Any) -> Any:
        return sdpa_attention_forward(module, query, key, value, None, **more)

    registered("to padding", to_padding)
    monkeypatch.setattr("attnviz.run.corpus.SampledAttention.next_is_verified", verifying)
    model = sharp_bert()
    model.set_attn_implementation("to padding")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat that i saw ran away\nthe dog\n" * 3)
    with pytest.raises(VerificationError):
        attnviz.profile_heads(from_loaded(model, bert_tokenizer()), [corpus], batch_size=6, control=False, syntax=False)


def test_stacks_that_attend_in_different_ways_are_refused_and_left_as_they_are():
    checkpoint = checkpoint_of("t5")
    checkpoint.model.set_attn_implementation("eager")
    checkpoint.model.decoder.config._attn_implementation = "sdpa"
    with pytest.raises(VerificationError, match="eager, sdpa"):
        verified(checkpoint)
    assert checkpoint.model.decoder.config._attn_implementation == "sdpa"


def test_passes_that_end_out_of_turn_leave_transformers_own_function():
    """The second begins within the first, in a thread, and ends after it."""
    first, second = llama(), llama()
    begun, first_ended, failed = threading.Event(), threading.Event(), list[bool]()

    def waits(*_: Any) -> None:
        begun.set()
        failed.append(not first_ended.wait(60))

    def starts(*_: Any) -> None:
        thread.start()
        failed.append(not begun.wait(60))

    thread = threading.Thread(target=lambda: verified(second))
    first.model.layers[1].mlp.register_forward_hook(starts)
    second.model.layers[0].mlp.register_forward_hook(waits)
    assert verified(first).verification.heads_compared == 8
    first_ended.set()
    thread.join()
    assert failed == [False, False]
    assert AttentionInterface()["sdpa"] is sdpa_attention_forward


def test_a_function_that_overwrites_its_values_spoils_no_later_run(registered):
    def overwriting(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any) -> Any:
        result = sdpa_attention_forward(module, query, key, value, mask, **more)
        if not torch.is_grad_enabled() and value.is_contiguous():
            value.zero_()
        return result

    registered("overwriting", overwriting)
    with contextlib.suppress(VerificationError):
        verified(llama("overwriting"))
    assert verified(llama()).verification.pattern_error < SHARP_32


def test_an_implementation_that_transformers_does_not_know_is_named():
    checkpoint = llama()
    checkpoint.model.config._attn_implementation = "mine"
    with pytest.raises(VerificationError, match="mine"):
        verified(checkpoint)
