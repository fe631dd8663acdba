"""What is drawn of a text does not depend on the blocks in which its rows come, and needs no whole pattern."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import attnviz
from attnviz.analysis.pictures import pooled_patterns
from attnviz.analysis.result import Analysis, Part
from attnviz.figures.matrix import PooledPattern, max_pool
from attnviz.figures.style import Style
from attnviz.present.view import ViewOptions
from tests.support.blocks import in_blocks
from tests.support.drawn import drawing_of, numbers_of
from tests.support.encoder_decoders import SOURCE, TARGET, sharp, unigram_tokenizer
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import LONG_TEXT, bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.recorded import whole_pattern
from tests.support.tolerances import SHARP_32, SUMS_32
from tests.support.verified import random_patterns

SIZES = [1, 7]


@cache
def bert(**options: Any) -> Analysis:
    model = sharp_bert(max_position_embeddings=99)
    return attnviz.analyze(LONG_TEXT, model, tokenizer=bert_tokenizer(), syntax=False, **options)


@cache
def gpt2(**options: Any) -> Analysis:
    model = sharp_gpt2(n_positions=200)
    return attnviz.analyze(LONG_TEXT, model, tokenizer=gpt2_tokenizer(), syntax=False, **options)


def windowed() -> Analysis:
    model, tokenizer = sharp_llama("gemma2"), sentencepiece_tokenizer()
    return attnviz.analyze("the cat that i saw ran away", model, tokenizer=tokenizer, syntax=False)


def translated() -> Part:
    tokenizer = unigram_tokenizer()
    model = sharp("t5", len(tokenizer))
    return attnviz.analyze(SOURCE, model, tokenizer=tokenizer, target=TARGET, syntax=False).parts[2]


CASES = [
    pytest.param(lambda: bert(words=True), id="words"),
    pytest.param(gpt2, id="causal", marks=pytest.mark.thorough),
    pytest.param(translated, id="cross-attention"),
    pytest.param(bert, id="tokens", marks=pytest.mark.thorough),
    pytest.param(lambda: gpt2(words=True), id="causal words", marks=pytest.mark.thorough),
    pytest.param(windowed, id="windows", marks=pytest.mark.thorough),
]


def whole(part: Part, layer: int, drop: bool) -> np.ndarray:
    """The patterns of a layer by the definition: matrices that merge and pick, rows over their sums."""
    context = part.context_of(layer)
    pattern = whole_pattern(part.source, layer)[0].double().numpy()

    def members(units: Any, n: int) -> np.ndarray:
        matrix = np.zeros((len(units), n))
        for unit, places in enumerate(units.members):
            matrix[unit, list(places)] = 1
        return matrix

    of_queries, of_keys = members(context.units, pattern.shape[1]), members(context.keys, pattern.shape[2])
    merged = (of_queries / of_queries.sum(1, keepdims=True)) @ pattern @ of_keys.T
    if not drop:
        return merged
    kept = [np.flatnonzero(~np.array(units.sink)) for units in (context.units, context.keys)]
    left = merged[:, kept[0]][:, :, kept[1]]
    totals = left.sum(-1, keepdims=True)
    return left / np.where(totals == 0, 1, totals)


def largest_of_each(values: np.ndarray, factor: int) -> np.ndarray:
    rows, columns = (range(0, n, factor) for n in values.shape)
    return np.array([[values[r : r + factor, c : c + factor].max() for c in columns] for r in rows])


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("make", CASES)
def test_patterns_are_pooled_as_the_whole_ones_are(make: Any, drop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make()
    part = made if isinstance(made, Part) else made.parts[0]
    chosen = [head for head in part.heads if head.id.head % 2]
    expected = {layer: whole(part, layer, drop) for layer in {head.id.layer for head in chosen}}
    for size in (*SIZES, 10**6):
        in_blocks(monkeypatch, size)
        shown = part.drawn(drop)
        for factor in (3, 10):
            for head, cells in pooled_patterns(shown, chosen, factor):
                largest = largest_of_each(expected[head.id.layer][head.id.head], factor)
                np.testing.assert_allclose(np.nan_to_num(cells), largest, rtol=SHARP_32, atol=SUMS_32)
        for head, pattern in shown.patterns(chosen):
            np.testing.assert_allclose(pattern, expected[head.id.layer][head.id.head], rtol=SHARP_32, atol=SUMS_32)
            assert torch.equal(shown.pattern(head.id), pattern) or size < 10**6


@pytest.mark.parametrize("factor", [1, 2, 70])
@pytest.mark.parametrize("size", [7, 64])
@pytest.mark.parametrize("causal", [False, True])
def test_the_cells_are_those_of_the_whole_pattern_to_the_bit(factor: int, size: int, causal: bool) -> None:
    pattern = random_patterns(70, 1, causal)[0].float()
    pooled = PooledPattern(70, 70, factor)
    for first in range(0, 70, size):
        pooled.add(first, pattern[first : first + size, : first + size if causal else 70])
    np.testing.assert_array_equal(pooled.cells, max_pool(pattern.numpy(), factor))


@pytest.mark.parametrize("name", ["overview", "heads", "lines", "mean", "text"])
def test_no_picture_depends_on_the_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    analysis, view = bert(pair="i saw the dog"), drawing_of("heads", name)
    wanted = [
        ViewOptions(select=("L0H1", "L1"), style=Style(width=3.3)),
        ViewOptions(select=("L1",), drop_special=True, token="#4", style=Style(scale="per-head")),
    ]
    expected = [plan for choices in wanted for plan in view.plans(analysis, choices)]
    for size in SIZES:
        in_blocks(monkeypatch, size)
        found = [plan for choices in wanted for plan in view.plans(analysis, choices)]
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.caption == theirs.caption
            assert numbers_of(theirs)
            for some, others in zip(numbers_of(ours), numbers_of(theirs), strict=True):
                np.testing.assert_allclose(some, others, rtol=SUMS_32, atol=SUMS_32)


@pytest.mark.parametrize("name", ["overview", "heads", "lines", "text", "page"])
def test_no_tensor_of_a_picture_grows_with_the_square_of_the_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = gpt2()
    n = len(analysis.tokens)
    in_blocks(monkeypatch, 4)
    seen: list[int] = []

    class Sizes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and n in result.shape[-2:-1]:
                seen.append(result.shape[-1])
            return result

    with Sizes():
        if name == "page":
            analysis.page()
        else:
            view = drawing_of("heads", name)
            assert list(view.plans(analysis, ViewOptions(select=("L1H1",), token="#3" if name == "lines" else None)))
    assert seen
    assert max(seen) < n
