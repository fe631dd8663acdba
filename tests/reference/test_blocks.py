"""Attention in blocks of query rows: the same numbers whatever their size, and a mistake in any block is found."""

import gc
import math
import random
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import masking_utils

import attnviz
from attnviz.commands.heads import measure
from attnviz.commands.heads.analysis import Analysis
from attnviz.errors import VerificationError
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.memory import row_blocks
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.reference import attention
from attnviz.trace import recorder, verify
from attnviz.trace.patterns import PatternCallback
from attnviz.trace.verify import PendingCheck, VerifiedAttention, VerifiedRows, verify_attention
from tests.support import families
from tests.support.blocks import SIZES, hidden_keys, in_blocks
from tests.support.families import verified
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.mutations import MODELING, OUTPUT_MUTATIONS, PATTERN_MUTATIONS, change_parameters, state_of
from tests.support.recorded import batch, recorded, verified_batch, whole, whole_pattern
from tests.support.tolerances import HALF, SHARP, SHARP_32, SUMS

WORDS = "the cat that i saw ran away unbelievableness dogs houses and was he they in".split()
LONG = " ".join(random.Random(1).choices(WORDS, k=60))
SENTENCE = families.TEXT


@cache
def made(kind: str, dtype: torch.dtype) -> Checkpoint:
    return families.checkpoint_of(kind, dtype, positions=300)


def checkpoint_of(kind: str, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """Of any family, for texts of up to 100 tokens or so; with eager attention, whatever a test before has set."""
    checkpoint = made(kind, dtype)
    checkpoint.model.set_attn_implementation("eager")
    return checkpoint


# --- the size of a block -------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 10**6), st.integers(0, 10**8))
def test_blocks_follow_from_the_memory_and_cover_every_row_once(n, row_bytes, memory):
    blocks = list(row_blocks(n, row_bytes, memory))
    assert [row for first, last in blocks for row in range(first, last)] == list(range(n))
    size = blocks[0][1]
    assert all(last - first == size for first, last in blocks[:-1])
    assert size == 1 or size * row_bytes * 6 <= memory
    assert size == n or (size + 1) * row_bytes * 6 > memory
    assert list(row_blocks(n, row_bytes, math.inf)) == [(0, n)]


def test_the_memory_that_is_asked_for_makes_the_blocks():
    checkpoint = checkpoint_of("bert")
    tokens = checkpoint.tokenize(SENTENCE)
    row = 4 * len(tokens) * 4  # heads, keys, bytes
    for rows in (1, 2, 5):
        seen: list[VerifiedRows] = []
        found = verify_attention(checkpoint, tokens, seen.append, memory=6 * row * rows)
        firsts = list(range(0, len(tokens), rows)) * 3
        assert [block.first for block in seen] == firsts
        assert [block.first for layer in range(3) for block in found.rows(layer)] == firsts


# --- the same numbers ----------------------------------------------------------------------------------------------


def random_parse(n_tokens: int, seed: int = 0) -> Parse:
    """Words of one to three tokens, some of which share a token, or have none of what comes next; and random arcs."""
    draw, words, at = random.Random(seed), list[Word](), 1
    while at < n_tokens - 4:
        pieces = tuple(range(at, at + draw.randint(1, 3)))
        words.append(Word(f"w{at}", pieces))
        at = pieces[-1] + draw.choice([0, 1, 1, 1, 2]) if len(pieces) > 1 else at + 1
    places = range(len(words))
    arcs = [Arc(place, draw.choice([p for p in places if p != place]), draw.choice(["nsubj", "det", "obj"]))
            for place in places]  # fmt: skip
    return Parse(tuple(words), tuple(arcs), "drawn")


def analysis(monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype, words: bool, pair: str | None) -> Analysis:
    parsed = kind != "t5"  # far copies of a token tie there, since its positions are distances up to a bound
    monkeypatch.setattr(measure, "_parse", lambda _, tokens, *__: (random_parse(len(tokens)) if parsed else None, ""))
    target = "ein Hund lief weg und die Katzen sahen das Haus" if kind in families.ENCODER_DECODERS else None
    text = LONG if target is None else LONG[: len(LONG) // 2]  # whose tokens are three times as many
    return attnviz.analyze(text, checkpoint_of(kind, dtype), words=words, pair=pair, target=target, warn=lambda _: None)


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number, name and None of nested dataclasses, dictionaries and tuples."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from numbers(each, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from numbers(each, f"{path}[{place}]")
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from numbers(getattr(value, name), f"{path}.{name}")
    else:
        yield path, value


def findings(result: Analysis) -> dict[str, Any]:
    return dict(numbers(result.heads))


CASES = [
    ("bert", torch.float32, False, None),
    ("gpt2", torch.float64, False, None),
    ("gpt2", torch.float32, True, None),
    ("bert", torch.float64, True, "the dogs that ran away"),
    ("mistral", torch.float32, False, None),
    ("gemma2", torch.float32, True, None),
    ("t5", torch.float64, False, None),
    ("bart", torch.float32, True, None),
]


@pytest.mark.parametrize(("kind", "dtype", "words", "pair"), CASES)
def test_every_number_of_every_head_is_the_same_whatever_the_blocks(monkeypatch, kind, dtype, words, pair):
    limit = SUMS[dtype]
    expected = analysis(monkeypatch, kind, dtype, words, pair)
    wanted = findings(expected)
    assert sum(isinstance(value, float) for value in wanted.values()) > 400
    for size in SIZES:
        with monkeypatch.context() as patch:
            in_blocks(patch, size)
            found = analysis(patch, kind, dtype, words, pair)
            assert_same(findings(found), wanted, limit)
            assert_same_layers(found.verified, expected.verified, SHARP[dtype], size)


def assert_same(found: dict[str, Any], wanted: dict[str, Any], limit: float) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        expected = pytest.approx(value, abs=limit, rel=limit) if isinstance(value, float) else value
        assert found[name] == expected, name


def assert_same_layers(found: VerifiedAttention, expected: VerifiedAttention, limit: float, size: int) -> None:
    tolerance = expected.verification.tolerance
    for place, (check, other) in enumerate(zip(found.verification.layers, expected.verification.layers, strict=True)):
        assert (check.layer, check.heads_compared) == (other.layer, other.heads_compared)
        errors = check.pattern_error, check.input_error, check.output_error, check.head_output_error
        assert max(errors) <= tolerance.output / 2
        layer = found.checkpoint.layers[place]
        mine, theirs = found._kept[layer], expected._kept[layer]
        torch.testing.assert_close(mine.fingerprint, theirs.fingerprint, rtol=SHARP_32, atol=SHARP_32)
        blocks = list(found.rows(layer))
        assert {block.pattern.shape[2] for block in blocks[:-1]} <= {size}
        torch.testing.assert_close(whole(blocks), whole_pattern(expected, layer), rtol=0, atol=limit)
        torch.testing.assert_close(whole(blocks), whole_pattern(found, layer), rtol=0, atol=limit)
        some = list(found.rows(layer, [2, 0]))
        torch.testing.assert_close(whole(some), whole(blocks)[:, [2, 0]], rtol=0, atol=limit)


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("kind", families.FAMILIES)
def test_final_states_are_those_of_the_untouched_run(monkeypatch, kind, size):
    """Within rounding: experts run one by one while attnviz looks, where torch would multiply them in groups."""
    checkpoint = checkpoint_of(kind)
    inputs = checkpoint.tokenize(SENTENCE).model_inputs(checkpoint.device)
    if checkpoint.stacks:
        inputs |= {"decoder_input_ids": torch.tensor([[0, 5, 6, 7, 8, 9]])}
    checkpoint.model.set_attn_implementation("eager")
    with torch.inference_mode():
        untouched = checkpoint.model(**inputs)[0]
    in_blocks(monkeypatch, size)
    keeping: Any = _Quiet()
    states = recorder.record_attention(checkpoint, inputs, keeping)
    if size < 100:
        assert keeping.blocks >= 2 * checkpoint.n_layers
    assert (states - untouched).abs().max() <= SHARP_32 * untouched.abs().max()


class _Quiet(recorder.Observer):
    """An observer that counts blocks."""

    blocks = 0

    def begin(self, *_: Any) -> None:
        pass

    def rows(self, *_: Any) -> None:
        self.blocks += 1

    def end(self, *_: Any) -> None:
        pass


NOTHING_TO_SEE = [("llama", "left"), ("mistral", "left"), ("mistral", "right")]
"""Padding that may attend to nothing: float64's lowest number is no float32, in which these models take the softmax."""


@pytest.mark.parametrize(
    ("kind", "dtype", "side"),
    [
        ("gpt2", torch.float32, "left"),
        ("roberta", torch.float64, "left"),
        ("roberta", torch.bfloat16, "right"),
        ("llama", torch.float64, "left"),
        ("llama", torch.float64, "right"),
        ("llama", torch.bfloat16, "left"),
        ("mistral", torch.float32, "left"),
        ("mistral", torch.float64, "right"),
    ],
)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_padded_batches_in_blocks(monkeypatch, kind, dtype, side, implementation):
    inputs = batch(40, (12, 5, 9))
    if side == "left":
        inputs = {name: values.flip(1) for name, values in inputs.items()}
    if kind == "roberta":  # whose positions are counted after padding
        inputs["input_ids"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, 1)
    checkpoint = checkpoint_of(kind, dtype)
    checkpoint.model.set_attn_implementation(implementation)
    seen: list[VerifiedRows] = []
    if implementation == "eager" and dtype == torch.float64 and (kind, side) in NOTHING_TO_SEE:
        with pytest.raises(VerificationError, match=r"own attention in layer 0 .* not finite in float64"):
            verified_batch(checkpoint, inputs)
        return
    verified_batch(checkpoint, inputs, seen.append)
    in_blocks(monkeypatch, 5)
    blocks: list[VerifiedRows] = []
    verified_batch(checkpoint, inputs, blocks.append, memory=0)
    assert len(blocks) == 3 * len(seen)
    limit = HALF.get(dtype, SHARP_32)  # the softmax of these models is float32 in float64, too
    real = inputs["attention_mask"].bool()
    for layer, expected in enumerate(seen):
        found = whole([block for block in blocks if block.layer == layer])
        pairs = found.transpose(1, 2)[real], expected.pattern.transpose(1, 2)[real]
        torch.testing.assert_close(*pairs, rtol=0, atol=limit)
    wrong = torch.ones_like(inputs["attention_mask"])
    with pytest.raises(VerificationError, match="do not reproduce the model"):
        verified_batch(checkpoint, inputs, mask=wrong, memory=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_gpt2_that_reorders_and_upcasts_comes_in_blocks(monkeypatch, dtype):
    checkpoint = from_loaded(sharp_gpt2(reorder_and_upcast_attn=True).to(dtype), gpt2_tokenizer())
    inputs = checkpoint.tokenize(SENTENCE).model_inputs(checkpoint.device)
    checkpoint.model.set_attn_implementation("eager")
    with torch.inference_mode():
        untouched = checkpoint.model(**inputs)[0]
    assert torch.equal(recorder.record_attention(checkpoint, inputs, PatternCallback(checkpoint), math.inf), untouched)
    expected = recorded(checkpoint, inputs)
    in_blocks(monkeypatch, 4)
    seen: list[VerifiedRows] = []
    verified(checkpoint, visit=seen.append)
    assert len(seen) == 3 * math.ceil(inputs["input_ids"].shape[1] / 4)
    for layer, own in enumerate(expected):
        found = whole([block for block in seen if block.layer == layer])
        torch.testing.assert_close(found, own.pattern, rtol=0, atol=HALF.get(dtype, SHARP_32))


# --- wrong in a later block ----------------------------------------------------------------------------------------


def only_later(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any]) -> None:
    """Another function of the reference, but in the first block of each layer."""
    pattern_of, right, later = attention.pattern_of, getattr(attention, name), [False]

    def noticed(query: Tensor, key: Tensor, scoring: Any, allowed: Tensor, first: int) -> Tensor:
        later[0] = first > 0
        return pattern_of(query, key, scoring, allowed, first)

    monkeypatch.setattr(attention, "pattern_of", noticed)

    def either(*given: Any) -> Any:
        return wrong(*given) if later[0] else right(*given)

    monkeypatch.setattr(attention, name, either)


right_allowed, right_scores, right_pattern = (
    attention.allowed_positions, attention.attention_scores, attention.pattern_of
)  # fmt: skip


def first_rows_again(mask: Tensor, causal: bool, window: int | None, first: int, rows: int) -> Tensor:
    return right_allowed(mask, causal, window, 0, rows)


def one_key_too_many(mask: Tensor, causal: bool, window: int | None, first: int, rows: int) -> Tensor:
    return right_allowed(mask, causal, window, first + (first > 0), rows)


def no_window_later(mask: Tensor, causal: bool, window: int | None, first: int, rows: int) -> Tensor:
    return right_allowed(mask, causal, None if first else window, first, rows)


LATER: list[tuple[str, str, Callable[..., Any]]] = [
    *(
        (kind, "attention_pattern", lambda scores, seen, _: torch.softmax(scores, -1) * ~hidden_keys(scores, seen))
        for kind in ("gpt2", "llama")
    ),
    *(
        (kind, "attention_scores", lambda q, k, scale: right_scores(q, k, 1.1 * scale))
        for kind in ("bert", "bart", "t5")
    ),
    ("gemma2", "softcap", lambda scores, cap: scores),
]
IN_ROWS: list[tuple[str, str, Callable[..., Any]]] = [
    *((kind, "allowed_positions", first_rows_again) for kind in ("gpt2", "llama")),
    *((kind, "allowed_positions", one_key_too_many) for kind in ("gpt2", "llama", "mistral")),
    ("mistral", "allowed_positions", no_window_later),
    *((kind, "pattern_of", lambda *given: right_pattern(*given[:4])) for kind in ("t5", "mt5")),  # a bias begins anew
]


def refused(checkpoint: Checkpoint) -> str:
    """The message, whose worst weight stands in a row after the first block."""
    with pytest.raises(VerificationError, match=r"layers differ\. The largest difference is in layer") as caught:
        verified(checkpoint)
    assert int(str(caught.value).partition("query ")[2].partition(" ")[0]) >= 4
    return str(caught.value)


@pytest.mark.parametrize(("kind", "function", "wrong"), [*LATER, *IN_ROWS])
def test_a_wrong_step_in_a_later_block_fails(monkeypatch, kind, function, wrong):
    in_blocks(monkeypatch, 4)
    if (kind, function, wrong) in LATER:
        only_later(monkeypatch, function, wrong)
        assert "before that" not in refused(checkpoint_of(kind))
    else:
        monkeypatch.setattr(attention, function, wrong)
        refused(checkpoint_of(kind))


@pytest.mark.parametrize(
    ("kind", "name"), [*(("bert", name) for name in PATTERN_MUTATIONS), *(("gpt2", name) for name in OUTPUT_MUTATIONS)]
)
def test_wrong_parameters_fail_in_blocks(monkeypatch, kind, name):
    checkpoint = from_loaded({"bert": sharp_bert, "gpt2": sharp_gpt2}[kind](), checkpoint_of(kind).tokenizer)
    in_blocks(monkeypatch, 4)
    change_parameters(monkeypatch, kind, {**PATTERN_MUTATIONS, **OUTPUT_MUTATIONS}[name])
    message = "The largest difference is in layer" if name in PATTERN_MUTATIONS else "attention output of layer"
    with pytest.raises(VerificationError, match=message):
        verified(checkpoint)


@pytest.mark.parametrize(("kind", "size"), [("bert", 4), ("gpt2", 1), ("llama", 4), ("t5", 1)])
def test_one_weight_of_a_later_block_is_named_by_its_own_place_after_the_rows_before_it(monkeypatch, kind, size):
    in_blocks(monkeypatch, size)
    pattern_of, checkpoint = attention.pattern_of, checkpoint_of(kind)

    def perturbed(query: Tensor, key: Tensor, scoring: Any, allowed: Tensor, first: int) -> Tensor:
        pattern = pattern_of(query, key, scoring, allowed, first)
        if first <= 5 < first + query.shape[-2]:
            pattern[0, 1, 5 - first, 3] += 1e-3
        return pattern

    monkeypatch.setattr(attention, "pattern_of", perturbed)
    seen: list[VerifiedRows] = []
    with pytest.raises(VerificationError, match=r"head 1 \(\w+H1\), query 5 \('.*'\), key 3 \('"):
        verified(checkpoint, visit=seen.append)
    assert {type(rows.check) for rows in seen} == {PendingCheck}  # and nothing is returned


def ahead_from(query_row: int, own: Callable[..., Any]) -> Callable[..., Any]:
    """An eager attention that ignores its mask in the blocks whose last row is this one or a later one."""

    def eager(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any) -> Any:
        return own(module, query, key, value, None if key.shape[-2] > query_row else attention_mask, **more)

    return eager


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_model_that_attends_ahead_in_a_later_block_fails(monkeypatch, kind, size):
    module = MODELING.get(kind, "transformers.models.llama.modeling_llama.eager_attention_forward")
    path, _, name = module.rpartition(".")
    own = getattr(__import__(path, fromlist=[name]), name)
    monkeypatch.setattr(module, ahead_from(5, own))
    in_blocks(monkeypatch, size)
    refused(checkpoint_of(kind))


@pytest.mark.parametrize("kind", families.LLAMAS)
def test_a_model_whose_mask_is_lost_fails_in_blocks(monkeypatch, kind):
    """Under sdpa it would be right: without a mask that asks ``is_causal``."""
    checkpoint = checkpoint_of(kind)
    module = type(checkpoint.model).__module__
    for name in ("create_causal_mask", "create_sliding_window_causal_mask"):
        monkeypatch.setattr(f"{module}.{name}", lambda *_, **__: None, raising=False)
    in_blocks(monkeypatch, 4)
    with pytest.raises(VerificationError, match=f"{checkpoint.n_layers} of .* The largest difference is in layer"):
        verified(checkpoint)


# --- the mask ------------------------------------------------------------------------------------------------------

KINDS_OF_MASK = {
    "causal": masking_utils.causal_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(3),
    "bidirectional": masking_utils.bidirectional_mask_function,
    "window on both sides": masking_utils.sliding_window_bidirectional_mask_function(3),
}


@pytest.mark.parametrize("padded", [None, "left", "right"])
@pytest.mark.parametrize("kind", KINDS_OF_MASK)
def test_the_lazy_mask_has_the_rows_of_transformers_own(monkeypatch, kind, padded):
    monkeypatch.setattr(recorder, "MOST_MASKS", 0)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1] = torch.arange(9) < 5
    given = None if padded is None else mask.flip(1) if padded == "left" else mask
    named = {"batch_size": 2, "q_length": 9, "kv_length": 9, "mask_function": KINDS_OF_MASK[kind],
             "attention_mask": given, "dtype": torch.float32}  # fmt: skip
    expected, lazy = masking_utils.eager_mask(**named), recorder._lazy_mask(masking_utils.eager_mask, **named)
    of_lazy, of_expected = recorder._MaskRows(), recorder._MaskRows()
    assert lazy is not None
    assert lazy.shape == (*expected.shape[:1], 1, 9, 9)
    assert lazy.isnan().all()
    for size in (1, 4, 9):
        for first in range(0, 9, size):
            last = min(first + size, 9)
            rows, n_keys = of_lazy.of(lazy, first, last, 9)
            again, same = of_expected.of(expected, first, last, 9)
            assert n_keys == same
            assert torch.equal(rows, expected[:, :, first:last, :n_keys])
            assert torch.equal(again, rows)
            assert (expected[:, :, first:last, n_keys:] < 0).all()
            if n_keys < 9:
                assert "window on both" in kind or kind in ("causal", "window") or padded == "right"


# --- the model is left as it was -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [VerificationError("stop"), KeyboardInterrupt(), ValueError("a bug")])
@pytest.mark.parametrize("upcast", [False, True])
def test_a_gpt2_is_set_back_after_an_error_in_a_later_block(monkeypatch, upcast, error):
    model = sharp_gpt2(reorder_and_upcast_attn=upcast)
    model.set_attn_implementation("sdpa")
    model.train()
    before = state_of(model), [dict(vars(block.attn)) for block in model.h]
    in_blocks(monkeypatch, 4)

    def visit(rows: VerifiedRows) -> None:
        if (rows.layer, rows.first) == (1, 4):
            raise error

    checkpoint = from_loaded(model, gpt2_tokenizer())
    verified(checkpoint)
    with pytest.raises(type(error)):
        verified(checkpoint, visit=visit)
    assert state_of(model) == before[0]
    assert [vars(block.attn).keys() for block in model.h] == [names.keys() for names in before[1]]


@pytest.mark.parametrize("kind", ["bart", "llama", "roberta"])
def test_a_model_that_fails_itself_is_set_back(monkeypatch, kind):
    checkpoint = checkpoint_of(kind)
    checkpoint.model.set_attn_implementation("sdpa")
    before = state_of(checkpoint.model)

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    handle = checkpoint.architecture.modules(checkpoint.model)[1].output.register_forward_hook(broken)
    with pytest.raises(ZeroDivisionError):
        verified(checkpoint)
    handle.remove()
    assert state_of(checkpoint.model) == before
    assert set(before[1].values()) == {"sdpa"}


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_classes_of_the_users_own_file_pass(monkeypatch, kind):
    model = families.checkpoint_of(kind, positions=300).model
    model.set_attn_implementation("eager")  # of which the function is looked for
    layers = model.encoder.layer if kind == "bert" else model.layers
    for module in (model, *(layer.attention.self if kind == "bert" else layer.self_attn for layer in layers)):
        module.__class__ = type("Mine", (type(module),), {"__module__": __name__})
    in_blocks(monkeypatch, 4)
    found = verified(from_loaded(model, checkpoint_of(kind).tokenizer))
    assert found.verification.level == 4
    assert found.verification.heads_compared == len(found.checkpoint.layers) * 4


# --- what the pattern does not show ----------------------------------------------------------------------------------


def test_a_forgotten_bias_of_keys_is_found_although_the_softmax_cancels_it(monkeypatch):
    """Every score of a query moves by the same number, so no weight and no output does."""

    def forgotten(parameters: Any) -> Any:
        return replace(parameters, key=replace(parameters.key, bias=torch.zeros_like(parameters.key.bias)))

    change_parameters(monkeypatch, "bert", forgotten)
    with pytest.raises(VerificationError, match=r"All patterns and outputs of layer \d agree\. The keys differ before"):
        verified(checkpoint_of("bert"))


def test_queries_twice_as_long_and_keys_half_as_long_are_found(monkeypatch):
    def scaled(parameters: Any) -> Any:
        query, key = parameters.query, parameters.key
        return replace(
            parameters,
            query=replace(query, weight=2 * query.weight, bias=2 * query.bias),
            key=replace(key, weight=key.weight / 2, bias=key.bias / 2),
        )

    change_parameters(monkeypatch, "gpt2", scaled)
    with pytest.raises(VerificationError, match=r"outputs .* The queries differ before .* The keys differ"):
        verified(checkpoint_of("gpt2"))


def test_weighted_values_that_w_o_does_not_read_are_found(monkeypatch):
    model = sharp_bert(attn_implementation="eager")
    with torch.no_grad():
        model.encoder.layer[1].attention.output.dense.weight[:, 8:16] = 0
    place = "transformers.models.bert.modeling_bert.eager_attention_forward"
    own = __import__("transformers.models.bert.modeling_bert", fromlist=["x"]).eager_attention_forward
    last = model.encoder.layer[1].attention.self

    def eager(module: Any, *more: Any, **named: Any) -> Any:
        weighted, weights = own(module, *more, **named)
        if module is last:
            weighted[0, 3, 1] += 1
        return weighted, weights

    monkeypatch.setattr(place, eager)
    with pytest.raises(VerificationError, match=r"attention outputs agree, but head 1 \(L1H1\) gives .* at query 3 "):
        verified(from_loaded(model, bert_tokenizer()))


def test_nothing_of_a_run_stays_in_memory():
    checkpoint = from_loaded(sharp_bert(), bert_tokenizer())
    verifier = verify.Verifier(checkpoint, lambda _: (lambda _: [],) * 2, lambda _: None)
    recorder.record_attention(checkpoint, checkpoint.tokenize(SENTENCE).model_inputs(checkpoint.device), verifier)
    left = weakref.ref(verifier)
    del verifier
    gc.collect()
    assert left() is None
