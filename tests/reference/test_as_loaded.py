"""The model is verified with the implementation of attention that it was loaded with, whatever that returns."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, LlamaConfig, LlamaModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface, eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaAttention, eager_attention_forward

import attnviz
from attnviz.errors import UsageError, VerificationError
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.opening import open_checkpoint
from attnviz.reference import attention
from attnviz.trace import recorder
from attnviz.trace.verify import VerifiedRows
from tests.support.families import FAMILIES, TEXT, checkpoint_of, padded, verified
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.recorded import recorded, running_eager, verified_batch
from tests.support.tolerances import SHARP_32, of_weights

HALVES = (torch.float16, torch.bfloat16)

SAME_STATES = 1e-5
"""Share of the largest final state by which two passes of one model differ: sums in other blocks round at 1e-7."""


def llama(implementation: str = "sdpa", dtype: torch.dtype = torch.float32) -> Checkpoint:
    """A sharp Llama with groups of heads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, attn_implementation=implementation,
    )  # fmt: skip
    state = LlamaModel(config).state_dict()
    state = {name: 20 * each if "q_proj" in name or "k_proj" in name else each for name, each in state.items()}
    model = LlamaModel.from_pretrained(
        None, config=config, state_dict=state, dtype=dtype, attn_implementation=implementation
    )
    return from_loaded(model, gpt2_tokenizer())


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


# --- what runs is what was loaded


@pytest.mark.parametrize("family", FAMILIES)
def test_the_recomputed_patterns_are_those_of_eager_attention(family):
    checkpoint, seen = checkpoint_of(family), list[VerifiedRows]()
    inputs = padded(checkpoint)
    verification = verified_batch(checkpoint, inputs, seen.append)
    own = {layer.layer: layer for layer in recorded(checkpoint, inputs)}
    assert verification.attention == checkpoint.attention
    for rows in seen:
        real, eager = inputs["attention_mask"].bool(), own[rows.layer]
        pairs = (each.transpose(1, 2)[real] for each in (rows.pattern, eager.pattern))
        largest = eager.largest_score(checkpoint.architecture.parameters(checkpoint.model, rows.layer).scale)
        torch.testing.assert_close(*pairs, rtol=0, atol=of_weights(torch.float32, largest))


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "whisper"])
def test_the_pass_that_is_looked_at_is_the_one_that_anybody_runs(family):
    checkpoint = checkpoint_of(family)
    inputs = padded(checkpoint)
    real = inputs.get("decoder_attention_mask", inputs["attention_mask"]).bool()
    for name in dict.fromkeys((checkpoint.attention, "eager")):
        if name != checkpoint.attention:  # those that bypass the interface stay as they are
            checkpoint.model.set_attn_implementation(name)
        with torch.inference_mode():
            plain = checkpoint.model(**inputs, use_cache=False)[0]
        seen = recorder.record_attention(checkpoint, inputs, recorder.Observer())
        difference = (seen - plain)[real].abs().max() / plain[real].abs().max()
        assert difference <= SAME_STATES


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


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("known", [True, False])
def test_a_model_that_attends_otherwise_under_other_names_runs_under_its_own(monkeypatch, implementation, known):
    """As DeepSeek V3.2 does, whose mask of the best keys is there under two names alone."""
    checkpoint = llama(implementation)
    monkeypatch.setattr(Branching, "known", known)
    for layer in checkpoint.model.layers:
        layer.self_attn.__class__ = Branching
    if not known:
        assert verified(checkpoint).verification.heads_compared == 12
        return
    with pytest.raises(VerificationError):
        verified(checkpoint)


def test_final_states_are_those_of_the_model_as_loaded_to_the_bit():
    checkpoint = llama()
    inputs = checkpoint.tokenize(TEXT).model_inputs(checkpoint.device)
    with torch.inference_mode():
        expected = checkpoint.model(**inputs, use_cache=False)[0]
    states: list[Tensor] = []
    checkpoint.model.norm.register_forward_hook(lambda _, __, result: states.append(result))
    verified(checkpoint)
    assert torch.equal(states[-1], expected)
    assert AttentionInterface()["sdpa"] is sdpa_attention_forward


@pytest.mark.parametrize(("name", "right"), [("sdpa", sdpa_attention_forward), ("eager", eager_attention_forward)])
@pytest.mark.parametrize("factor", [1, 2])
def test_a_function_that_is_set_in_place_of_transformers_own_is_what_is_verified(name, right, factor):
    calls: list[Any] = []

    def mine(module: Any, query: Tensor, *given: Any, **more: Any) -> Any:
        calls.append(module)
        return right(module, factor * query, *given, **more)

    checkpoint = llama(name)
    ALL_ATTENTION_FUNCTIONS[name] = mine
    try:
        if factor == 1:
            assert verified(checkpoint).verification.heads_compared == 12
        else:
            with pytest.raises(VerificationError, match="head"):
                verified(checkpoint)
        assert ALL_ATTENTION_FUNCTIONS[name] is mine
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]
    assert calls


def test_eager_attention_and_masks_of_other_models_stay_their_own_beside_a_long_text(monkeypatch):
    monkeypatch.setattr(recorder, "MOST_MASKS", 0)  # masks are lazy
    checkpoint, other = llama("eager"), llama("eager")
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        expected = other.model(ids, use_cache=False)[0]
    found: list[Tensor] = []

    def beside(*_: Any) -> None:
        found.append(other.model(ids, use_cache=False)[0])
        thread = threading.Thread(target=lambda: found.append(other.model(ids, use_cache=False)[0]))
        thread.start()
        thread.join()

    checkpoint.model.layers[1].mlp.register_forward_hook(beside)
    assert verified(checkpoint).verification.heads_compared == 12
    for each in found:
        torch.testing.assert_close(each, expected, rtol=0, atol=SAME_STATES * float(expected.abs().max()))
    assert "eager" not in ALL_ATTENTION_FUNCTIONS
    assert ALL_MASK_ATTENTION_FUNCTIONS["eager"] is eager_mask


def test_of_what_a_pass_is_probed_with_nothing_is_kept():
    verified(checkpoint := llama())
    assert not any(kept.cache_info().currsize for kept in recorder.KEPT_IN_A_PASS)
    values = torch.zeros(3, 4, 9, 8)
    assert recorder.random_values(values).untyped_storage().nbytes() == values[0, 0].nbytes
    assert checkpoint.attention == "sdpa"


def test_one_pass_of_the_model_and_one_probe_a_layer(registered):
    calls: list[Any] = []

    def counting(module: Any, *given: Any, **more: Any) -> Any:
        calls.append(module)
        return sdpa_attention_forward(module, *given, **more)

    registered("counting", counting)
    verified(checkpoint := llama("counting"))
    layers = [layer.self_attn for layer in checkpoint.model.layers]
    assert calls == [each for layer in layers for each in (layer, layer)]


@pytest.mark.parametrize("itself", [False, True])
def test_another_run_beside_it_in_another_thread_is_left_alone(registered, itself):
    checkpoint, here = llama(), threading.get_ident()
    other = checkpoint if itself else llama()
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        expected = other.model(ids, use_cache=False)[0]
    found: list[Tensor] = []

    def beside(*_: Any) -> None:
        if threading.get_ident() != here:
            return

        def run() -> None:
            with torch.inference_mode():
                found.append(other.model(ids, use_cache=False)[0])

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    checkpoint.model.layers[1].mlp.register_forward_hook(beside)
    assert verified(checkpoint).verification.heads_compared == 12
    assert torch.equal(found[0], expected)


# --- what is refused


def test_a_model_that_attends_both_ways_as_loaded_is_refused_and_says_so():
    checkpoint = llama()
    for layer in checkpoint.model.layers:
        layer.self_attn.is_causal = False
    with pytest.raises(VerificationError, match=r"both ways .*is_causal=False"):
        verified(checkpoint)
    with running_eager(checkpoint.model):
        verified(checkpoint)  # whose mask is causal all the same


@pytest.mark.parametrize(
    "wrong",
    [
        lambda module, query, *more, **named: sdpa_attention_forward(module, 3 * query, *more, **named),
        lambda module, query, key, value, mask, **named: sdpa_attention_forward(
            module, query, key, value, mask, **named | {"scaling": 1.01 * named["scaling"]}
        ),
        lambda module, query, key, *more, **named: sdpa_attention_forward(module, query, key.flip(1), *more, **named),
    ],
    ids=["queries times 3", "scale 1 % off", "keys of the other group"],
)
def test_a_function_of_attention_of_the_users_that_differs_is_refused(registered, wrong):
    registered("mine", wrong)
    with pytest.raises(VerificationError, match=r"head .*random values .*mine"):
        verified(llama("mine"))


@pytest.mark.parametrize("weight", [0.04, 0.0005])
def test_two_weights_that_are_swapped_in_one_row_are_seen(monkeypatch, weight):
    """As small as the tolerance of a weight lets through when weights are compared."""
    right, checkpoint = attention.pattern_of, llama()

    def swapped(*given: Any) -> Tensor:
        pattern = right(*given)
        row = pattern[0, 1, 5]
        row[2] += weight
        row[3] -= weight
        return pattern

    monkeypatch.setattr(attention, "pattern_of", swapped)
    with pytest.raises(VerificationError, match="query 5"):
        verified(checkpoint)


def test_values_and_outputs_are_compared_beside_the_pattern(registered):
    calls: list[Any] = []

    def shifted(module: Any, *given: Any, **more: Any) -> Any:
        """Another output of layer 1, but not when it is probed."""
        result, nothing = sdpa_attention_forward(module, *given, **more)
        calls.append(module)
        first = calls.count(module) % 2 == 1
        return (result + 0.01 if first and module.layer_idx == 1 else result), nothing

    registered("shifted", shifted)
    with pytest.raises(VerificationError, match="output"):
        verified(llama("shifted"))


def test_values_that_are_not_finite_are_an_error(registered):
    def spoiled(module: Any, *given: Any, **more: Any) -> Any:
        result, nothing = sdpa_attention_forward(module, *given, **more)
        result[0, 3, 1] = torch.nan
        return result, nothing

    registered("spoiled", spoiled)
    with pytest.raises(VerificationError, match="not finite"):
        verified(llama("spoiled"))


STEERED: dict[str, Callable[[Checkpoint], Any]] = {
    "layers.1.self_attn": verified,
    "layers.1": lambda checkpoint: attnviz.head_outputs(TEXT, checkpoint),
}


@pytest.mark.parametrize("name", STEERED)
@pytest.mark.parametrize("hooked", [True, False])
def test_hooks_that_steer_the_model_are_named_instead_of_finer_numbers(name, hooked):
    checkpoint = checkpoint_of("llama")
    module: Any = checkpoint.model.get_submodule(name)
    if hooked:
        module.register_forward_hook(lambda _, __, output: steered(output))
    else:
        own = module.forward
        module.forward = lambda *given, **more: steered(own(*given, **more))
    with pytest.raises(VerificationError) as raised:
        STEERED[name](checkpoint)
    assert (name in str(raised.value)) == hooked
    assert ("float64" in str(raised.value)) != hooked


def steered(output: Any) -> Any:
    return output + 0.1 if isinstance(output, Tensor) else (output[0] + 0.1, *output[1:])


# --- half precision


@pytest.mark.draws
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_stays_far_below_its_tolerance(family, dtype):
    checkpoint = checkpoint_of(family, dtype)
    found = verified_batch(checkpoint, padded(checkpoint))
    assert found.pattern_error < found.pattern_tolerance / 2


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("factor", [1.0, 1.03, 0.97])
def test_a_scale_that_is_off_is_seen_in_half_precision(registered, dtype, factor):
    def scaled(module: Any, query: Tensor, *given: Any, **more: Any) -> Any:
        return sdpa_attention_forward(module, query, *given, **more | {"scaling": factor * more["scaling"]})

    registered("scaled", scaled)
    checkpoint = llama("scaled", dtype)
    text = "the cat that i saw ran away from the dog and the house . " * 6
    if factor == 1:
        seen = verified(checkpoint, text).verification.scale_seen
        assert seen is not None
        assert 0 < seen < 0.03
        return
    with pytest.raises(VerificationError, match=r"scores were off by 0\.0|random values"):
        verified(checkpoint, text)


# --- other doors


@pytest.mark.parametrize("model", [lambda: (sharp_bert(), bert_tokenizer()), lambda: (sharp_gpt2(), gpt2_tokenizer())])
def test_commands_that_run_the_model_again_agree_with_eager(model):
    found = {}
    for implementation in ("sdpa", "eager"):
        loaded, tokenizer = model()
        loaded.set_attn_implementation(implementation)
        checkpoint = from_loaded(loaded, tokenizer)
        explained = attnviz.explain(TEXT, checkpoint, layer=1)
        assert explained.stages["pattern"].check is not None
        found[implementation] = explained.tensor("pattern"), attnviz.rollout(TEXT, checkpoint).inputs.rollout
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), rtol=0, atol=SHARP_32)


def test_a_corpus_is_summed_as_with_eager(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat that i saw ran away\nthe dog saw a house\n" * 10)
    profiles = []
    for name in ("sdpa", "eager"):
        checkpoint = open_checkpoint("tiny-gpt2", attention=name)[0]
        profiles.append(attnviz.profile_heads(checkpoint, [corpus], batch_size=2, control=False))
    statistics = [each.document()["statistics"] for each in profiles]
    for name in ("entropy", "distance", "sink", "previous"):
        one, other = (torch.tensor(each[name]) for each in statistics)
        torch.testing.assert_close(one, other, rtol=SHARP_32, atol=SHARP_32, equal_nan=True)


def test_an_implementation_that_there_is_not_is_named():
    with pytest.raises(UsageError, match=r"quick.*sdpa"):
        open_checkpoint("tiny-gpt2", attention="quick")


def test_rows_over_many_keys_that_are_wrong_are_seen_in_half_precision(registered):
    """Of even attention to many keys little is left of random values."""

    def ahead(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any) -> Any:
        right, nothing = sdpa_attention_forward(module, query, key, value, mask, **more)
        both, _ = sdpa_attention_forward(module, query, key, value, mask, **more | {"is_causal": False})
        right[:, 400:] = both[:, 400:]
        return right, nothing

    registered("ahead", ahead)
    torch.manual_seed(0)
    for name, wrong in (("sdpa", False), ("ahead", True)):
        config = LlamaConfig(
            vocab_size=400, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
            attn_implementation=name,
        )  # fmt: skip
        state = LlamaModel(config).state_dict()
        model = LlamaModel.from_pretrained(
            None, config=config, state_dict=state, dtype=torch.bfloat16, attn_implementation=name
        )
        checkpoint = from_loaded(model, gpt2_tokenizer())
        inputs = {"input_ids": torch.randint(5, 390, (1, 600)), "attention_mask": torch.ones(1, 600, dtype=torch.long)}
        if wrong:
            with pytest.raises(VerificationError, match="random values"):
                verified_batch(checkpoint, inputs)
        else:
            verified_batch(checkpoint, inputs)


@pytest.mark.parametrize("verifying", [True, False])
def test_attention_to_padding_is_refused_in_every_batch_of_a_corpus(registered, monkeypatch, tmp_path, verifying):
    def to_padding(module: Any, query: Tensor, key: Tensor, value: Tensor, _: Any, **more: Any) -> Any:
        return sdpa_attention_forward(module, query, key, value, None, **more)

    registered("to padding", to_padding)
    monkeypatch.setattr("attnviz.texts.batches.SampledAttention.next_is_verified", verifying)
    model = sharp_bert()
    model.set_attn_implementation("to padding")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat that i saw ran away\nthe dog\n" * 3)
    with pytest.raises(VerificationError):
        attnviz.profile_heads(from_loaded(model, bert_tokenizer()), [corpus], batch_size=6, control=False)


# --- several models, stacks and passes


def test_stacks_that_attend_in_different_ways_are_refused_and_left_as_they_are():
    checkpoint = checkpoint_of("t5")
    checkpoint.model.set_attn_implementation("eager")
    checkpoint.model.decoder.config._attn_implementation = "sdpa"
    with pytest.raises(VerificationError, match=r"eager, sdpa"):
        verified(checkpoint)
    assert checkpoint.model.decoder.config._attn_implementation == "sdpa"


def test_another_model_that_a_hook_runs_is_not_recorded():
    checkpoint, other = llama(), llama()
    checkpoint.model.layers[1].mlp.register_forward_hook(lambda *_: other.model(torch.tensor([[5, 6]])) and None)
    assert verified(checkpoint).verification.heads_compared == 12


def test_passes_that_end_out_of_turn_leave_transformers_own_function():
    checkpoint = llama()
    attentions = (recorder._BlockAttention(checkpoint, recorder.Observer(), 1.0, recorder._State()) for _ in range(2))
    one, other = (recorder._exchanged(attention, "sdpa") for attention in attentions)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert AttentionInterface()["sdpa"] is not sdpa_attention_forward
    other.__exit__(None, None, None)
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
