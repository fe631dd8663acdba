"""Attention in blocks of query rows: the same numbers whatever their size, and a mistake in any block is found."""

import gc
import importlib
import math
import random
import re
import weakref
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.bert import modeling_bert

import attnviz
from attnviz.analysis.findings import HeadFindings
from attnviz.analysis.result import Analysis
from attnviz.commands.heads import measure
from attnviz.errors import VerificationError
from attnviz.inputs.text import tokenize
from attnviz.inputs.words import vocabulary_labels
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.memory import row_blocks
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.reference import attention
from attnviz.run import record, verify
from attnviz.run.verify import PendingCheck, VerifiedAttention, VerifiedRows, verify_attention
from tests.support import families
from tests.support.blocks import in_blocks
from tests.support.families import verified
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.mutations import change_parameters, state_of
from tests.support.recorded import recorded, verified_batch, whole, whole_pattern
from tests.support.tolerances import HALF, SHARP, SHARP_32, SUMS

WORDS = "the cat that i saw ran away unbelievableness dogs houses and was he they in".split()
LONG = " ".join(random.Random(1).choices(WORDS, k=30))
SENTENCE = families.TEXT


@cache
def made(kind: str, dtype: torch.dtype) -> Checkpoint:
    return families.checkpoint_of(kind, dtype, positions=300)


def checkpoint_of(kind: str, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """Of any family, for texts of up to 100 tokens or so; with eager attention, whatever a test before has set."""
    checkpoint = made(kind, dtype)
    checkpoint.model.set_attn_implementation("eager")
    return checkpoint


def first_kinds(*first: str) -> list[Any]:
    """All families; but for these the tests are thorough."""
    rest = (pytest.param(each, marks=pytest.mark.thorough) for each in families.FAMILIES if each not in first)
    return [*first, *rest]


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
    tokens = tokenize(checkpoint, SENTENCE)
    row = 4 * len(tokens) * 4  # heads, keys, bytes
    for rows in (1, 2, 5):
        seen: list[VerifiedRows] = []
        found = verify_attention(checkpoint, tokens, seen.append, memory=6 * row * rows)
        firsts = list(range(0, len(tokens), rows)) * 3
        assert [block.first for block in seen] == firsts
        assert [block.first for layer in range(3) for block in found.rows(layer)] == firsts


def random_parse(n_tokens: int) -> Parse:
    """Words of one to three tokens, some of which share a token, or have none of what comes next; and random arcs."""
    draw, words, at = random.Random(0), list[Word](), 1
    while at < n_tokens - 4:
        pieces = tuple(range(at, at + draw.randint(1, 3)))
        words.append(Word(f"w{at}", pieces))
        at = pieces[-1] + draw.choice([0, 1, 1, 1, 2]) if len(pieces) > 1 else at + 1
    places = range(len(words))
    heads = [draw.choice([p for p in places if p != place]) for place in places]
    arcs = (Arc(place, head, draw.choice(["nsubj", "det", "obj"])) for place, head in enumerate(heads))
    return Parse(tuple(words), tuple(arcs), "drawn")


def analysis(monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype, words: bool, pair: str | None) -> Analysis:
    parsed = kind != "t5"  # far copies of a token tie there, since its positions are distances up to a bound
    monkeypatch.setattr(measure, "parser_for", lambda *_: ("a parser" if parsed else None, ""))
    monkeypatch.setattr(measure, "parse_texts", lambda _, prompt: random_parse(len(prompt)))
    target = "ein Hund lief weg und die Katzen sahen das Haus" if kind in families.ENCODER_DECODERS else None
    text = LONG if target is None else LONG[: len(LONG) // 2]  # whose tokens are three times as many
    return attnviz.analyze(text, checkpoint_of(kind, dtype), words=words, pair=pair, target=target, warn=lambda _: None)


CASES = [
    ("gpt2", torch.float32, True, None),
    pytest.param("bert", torch.float64, True, "the dogs that ran away", marks=pytest.mark.thorough),
    pytest.param("mistral", torch.float32, False, None, marks=pytest.mark.thorough),
    pytest.param("gemma2", torch.float32, True, None, marks=pytest.mark.thorough),
    pytest.param("t5", torch.float64, False, None, marks=pytest.mark.thorough),
    pytest.param("bart", torch.float32, True, None, marks=pytest.mark.thorough),
]


def numbers(head: HeadFindings) -> dict[str, Any]:
    """All that is found of a head, by name."""
    of_verdicts = {f"{each.name}.{name}": value for each in head.verdicts for name, value in vars(each).items()}
    return head.statistics | of_verdicts | {"label": head.label}


@pytest.mark.parametrize(("kind", "dtype", "words", "pair"), CASES)
def test_every_number_of_every_head_is_the_same_whatever_the_blocks(monkeypatch, kind, dtype, words, pair):
    whole_layers, limit = analysis(monkeypatch, kind, dtype, words, pair), SUMS[dtype]
    for size in (1, 7):
        with monkeypatch.context() as patch:
            in_blocks(patch, size)
            found = analysis(patch, kind, dtype, words, pair)
        for head, other in zip(found.heads, whole_layers.heads, strict=True):
            wanted = numbers(other)
            assert sum(isinstance(value, float) for value in wanted.values()) > 10
            for name, value in numbers(head).items():
                is_number = isinstance(wanted[name], float)
                assert value == (pytest.approx(wanted[name], abs=limit, rel=limit) if is_number else wanted[name]), name
        assert_same_layers(found.verified, whole_layers.verified, SHARP[dtype], size)


def assert_same_layers(found: VerifiedAttention, expected: VerifiedAttention, limit: float, size: int) -> None:
    tolerance = expected.verification.tolerance
    for place, (check, other) in enumerate(zip(found.verification.layers, expected.verification.layers, strict=True)):
        assert (check.layer, check.heads_compared) == (other.layer, other.heads_compared)
        errors = check.pattern_error, check.input_error, check.output_error, check.head_output_error
        assert max(errors) <= tolerance.output / 2
        layer = found.checkpoint.layers[place]
        blocks = list(found.rows(layer))
        assert {block.pattern.shape[2] for block in blocks[:-1]} <= {size}
        torch.testing.assert_close(whole(blocks), whole_pattern(expected, layer), rtol=0, atol=limit)
        torch.testing.assert_close(whole(blocks), whole_pattern(found, layer), rtol=0, atol=limit)
        some = list(found.rows(layer, [2, 0]))
        torch.testing.assert_close(whole(some), whole(blocks)[:, [2, 0]], rtol=0, atol=limit)


@pytest.mark.parametrize("kind", first_kinds("gpt2", "llama", "modernbert", "t5"))
def test_final_states_are_those_of_the_untouched_run(monkeypatch, kind):
    """Within rounding: experts run one by one while attnviz looks, where torch would multiply them in groups."""
    checkpoint = checkpoint_of(kind)
    inputs = tokenize(checkpoint, SENTENCE).model_inputs(checkpoint.device)
    if checkpoint.stacks:
        inputs |= {"decoder_input_ids": torch.tensor([[0, 5, 6, 7, 8, 9]])}
    with torch.inference_mode():
        untouched = checkpoint.model(**inputs)[0]
    in_blocks(monkeypatch, 4)
    blocks: list[int] = []
    counting: Any = record.Observer()
    counting.rows = lambda layer, rows: blocks.append(layer)
    states = record.record_attention(checkpoint, inputs, counting)
    assert len(blocks) >= 2 * checkpoint.n_layers
    assert (states - untouched).abs().max() <= SHARP_32 * untouched.abs().max()


@pytest.mark.parametrize(
    ("kind", "dtype", "side"),
    [
        ("gpt2", torch.float32, "left"),
        ("mistral", torch.float32, "left"),
        pytest.param("roberta", torch.bfloat16, "right", marks=pytest.mark.thorough),
        pytest.param("llama", torch.float64, "right", marks=pytest.mark.thorough),
        pytest.param("modernbert", torch.float32, "right", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_padded_batches_in_blocks(monkeypatch, kind, dtype, side, implementation):
    checkpoint = checkpoint_of(kind, dtype)
    inputs = families.padded(checkpoint, (12, 5, 9), left=side == "left")
    checkpoint.model.set_attn_implementation(implementation)
    seen: list[VerifiedRows] = []
    verified_batch(checkpoint, inputs, seen.append)
    in_blocks(monkeypatch, 5)
    blocks: list[VerifiedRows] = []
    verified_batch(checkpoint, inputs, blocks.append, memory=0)
    assert len(blocks) == 3 * len(seen)
    real = inputs["attention_mask"].bool()
    for place, expected in enumerate(seen):
        found = whole(blocks[3 * place : 3 * place + 3])
        pairs = found.transpose(1, 2)[real], expected.pattern.transpose(1, 2)[real]
        torch.testing.assert_close(*pairs, rtol=0, atol=HALF.get(dtype, SHARP_32))
    with pytest.raises(VerificationError):
        verified_batch(checkpoint, inputs, mask=torch.ones_like(inputs["attention_mask"]), memory=0)


@pytest.mark.parametrize(("kind", "left"), [("llama", True), ("mistral", False)])
def test_padding_that_attends_to_nothing_is_not_finite_in_float64(kind, left):
    """Its lowest number is no float32, in which these models take the softmax."""
    checkpoint = checkpoint_of(kind, torch.float64)
    with pytest.raises(VerificationError, match="float64"):
        verified_batch(checkpoint, families.padded(checkpoint, (12, 5, 9), left=left))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_gpt2_that_reorders_and_upcasts_comes_in_blocks(monkeypatch, dtype):
    model = sharp_gpt2(reorder_and_upcast_attn=True, attn_implementation="eager").to(dtype)
    checkpoint = from_loaded(model, gpt2_tokenizer())
    inputs = tokenize(checkpoint, SENTENCE).model_inputs(checkpoint.device)
    with torch.inference_mode():
        untouched = model(**inputs)[0]
    assert torch.equal(record.record_attention(checkpoint, inputs, record.Observer(), math.inf), untouched)
    expected = recorded(checkpoint, inputs)
    in_blocks(monkeypatch, 4)
    seen: list[VerifiedRows] = []
    verified(checkpoint, visit=seen.append)
    n_blocks = math.ceil(inputs["input_ids"].shape[1] / 4)
    for place, own in enumerate(expected):
        found = whole(seen[place * n_blocks : (place + 1) * n_blocks])
        torch.testing.assert_close(found, own.pattern, rtol=0, atol=HALF.get(dtype, SHARP_32))


def refused(checkpoint: Checkpoint) -> None:
    """The worst weight stands in a row after the first block."""
    with pytest.raises(VerificationError, match=r"query \d+") as caught:
        verified(checkpoint)
    assert int(str(caught.value).partition("query ")[2].partition(" ")[0]) >= 4


right = attention.pattern_of


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("gpt2", lambda q, k, scoring, seen, first: right(q, k, scoring, None, first)),
        ("llama", lambda q, k, scoring, seen, first: right(q, k, scoring, seen | seen.roll(1, -1), first)),
        ("mistral", lambda q, k, scoring, seen, first: right(q, k, scoring, torch.ones_like(seen).tril(first), first)),
        ("bert", lambda q, k, scoring, seen, first: right(q, k, replace(scoring, scale=1.1 * scoring.scale), seen)),
        ("gemma2", lambda q, k, scoring, seen, first: right(q, k, replace(scoring, cap=None), seen, first)),
        ("t5", lambda q, k, scoring, seen, first: right(q, k, scoring, seen)),  # a bias begins anew
    ],
    ids=["no mask", "a key ahead", "no window", "scale", "no cap", "bias"],
)
def test_a_step_that_is_wrong_in_later_blocks_fails(monkeypatch, kind, wrong):
    monkeypatch.setattr(attention, "pattern_of", lambda *given: wrong(*given) if given[-1] > 0 else right(*given))
    in_blocks(monkeypatch, 4)
    refused(checkpoint_of(kind))


@pytest.mark.parametrize(("kind", "size"), [("llama", 4), ("t5", 1)])
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


def test_in_cross_attention_a_query_is_a_token_of_the_target_and_a_key_one_of_the_source(monkeypatch):
    pattern_of, checkpoint = attention.pattern_of, checkpoint_of("t5")
    read = verified(checkpoint).inputs

    def perturbed(query: Tensor, key: Tensor, *more: Any) -> Tensor:
        pattern = pattern_of(query, key, *more)
        if 2 < query.shape[-2] != key.shape[-2]:
            pattern[0, 1, 2, 3] += 0.5
        return pattern

    monkeypatch.setattr(attention, "pattern_of", perturbed)
    names = read["decoder_input_ids"][0, 2], read["input_ids"][0, 3]
    query, key = vocabulary_labels(checkpoint.tokenizer, [int(name) for name in names])
    assert query != key
    with pytest.raises(VerificationError, match=re.escape(f"query 2 ({query!r}), key 3 ({key!r})")):
        verified(checkpoint)


@pytest.mark.parametrize(("kind", "size"), [("gpt2", 1), ("llama", 4)])
def test_a_model_that_attends_ahead_in_a_later_block_fails(monkeypatch, kind, size):
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    own = module.eager_attention_forward

    def ahead(given: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any) -> Any:
        return own(given, query, key, value, None if key.shape[-2] > 5 else attention_mask, **more)

    monkeypatch.setattr(module, "eager_attention_forward", ahead)
    in_blocks(monkeypatch, size)
    refused(checkpoint_of(kind))


# --- the model is left as it was -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "gpt2 upcast", "bart"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError()])
def test_a_model_is_set_back_after_an_error_in_a_later_block(monkeypatch, kind, error):
    """Of an observer, or in the model itself."""
    upcast = {"reorder_and_upcast_attn": True} if kind == "gpt2 upcast" else {}
    checkpoint = families.checkpoint_of(kind.split()[0], **upcast)
    checkpoint.model.set_attn_implementation("sdpa")
    checkpoint.model.train()
    before, attributes = state_of(checkpoint.model), [set(vars(module)) for module in checkpoint.model.modules()]
    assert set(before[1].values()) == {"sdpa"}
    in_blocks(monkeypatch, 4)

    def broken(*given: Any) -> None:
        if len(given) == 3 or (given[0].layer, given[0].first) == (1, 4):
            raise error

    visit, handle = broken, None
    if isinstance(error, ZeroDivisionError):
        handle, visit = checkpoint.modules[1].output.register_forward_hook(broken), lambda _: None
    with pytest.raises(type(error)):
        verified(checkpoint, visit=visit)
    if handle is not None:
        handle.remove()
    assert state_of(checkpoint.model) == before
    assert [set(vars(module)) for module in checkpoint.model.modules()] == attributes


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_classes_of_the_users_own_file_pass(monkeypatch, kind):
    model, tokenizer = families.model_of(kind, attn_implementation="eager")
    attends = [layer.attention.self for layer in model.encoder.layer] if kind == "bert" else model.model.layers
    for module in (model, *(getattr(each, "self_attn", each) for each in attends)):
        module.__class__ = type("Mine", (type(module),), {"__module__": __name__})
    in_blocks(monkeypatch, 4)
    found = verified(from_loaded(model, tokenizer))
    assert found.verification.level == 4
    assert found.verification.heads_compared == len(found.checkpoint.layers) * 4


@pytest.mark.parametrize(("factor", "of_bias", "named"), [(1, 0, "keys"), (2, 1, "queries .*keys")])
def test_wrong_queries_and_keys_are_found_although_no_weight_moves(monkeypatch, factor, of_bias, named):
    """A bias of keys moves every score of a query by the same number; or queries are longer and keys shorter."""

    def change(parameters: Any) -> Any:
        query, key = parameters.query, parameters.key
        query = replace(query, weight=factor * query.weight, bias=factor * query.bias)
        return replace(
            parameters, query=query, key=replace(key, weight=key.weight / factor, bias=key.bias * of_bias / factor)
        )

    change_parameters(monkeypatch, "bert", change)
    with pytest.raises(VerificationError, match=named):
        verified(checkpoint_of("bert"))


def test_weighted_values_that_w_o_does_not_read_are_found(monkeypatch):
    model = sharp_bert(attn_implementation="eager")
    last, own = model.encoder.layer[1].attention, modeling_bert.eager_attention_forward
    with torch.no_grad():
        last.output.dense.weight[:, 8:16] = 0

    def eager(module: Any, *more: Any, **named: Any) -> Any:
        weighted, weights = own(module, *more, **named)
        weighted[0, 3, 1] += module is last.self
        return weighted, weights

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", eager)
    with pytest.raises(VerificationError, match=r"L1H1.* query 3"):
        verified(from_loaded(model, bert_tokenizer()))


def test_nothing_of_a_run_stays_in_memory():
    checkpoint = from_loaded(sharp_bert(), bert_tokenizer())
    inputs = tokenize(checkpoint, SENTENCE).model_inputs(checkpoint.device)
    verifier = verify.Verifier(checkpoint, inputs, lambda _: None)
    record.record_attention(checkpoint, inputs, verifier)
    left = weakref.ref(verifier)
    del verifier
    gc.collect()
    assert left() is None
