"""Statistics and baselines: worked by hand, null where nothing can be measured, and their properties."""

from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnviz.errors import VerificationError
from attnviz.measures.patterns import (
    ON_REPEATS,
    REPEATS,
    SHARES,
    SHUFFLED,
    TYPES,
    allowed_units,
)
from attnviz.measures.statistics import SCALARS, TextContext, measure
from attnviz.reference.tolerances import Tolerance
from attnviz.trace.checks import LayerCheck
from attnviz.trace.verify import VerifiedRows
from tests.support import independent
from tests.support.tolerances import HALF, SUMS_32, SUMS_64
from tests.support.verified import context_of, random_patterns, verified

SINK, TEXT = True, False
property_test = settings(deadline=None, max_examples=60)

# [CLS] a b [SEP]
BIDIRECTIONAL = [[1, 0, 0, 0], [0.25, 0.25, 0.5, 0], [0, 0.5, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]
# the first position is a sink
CAUSAL = [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.5, 0.25, 0.25, 0], [0, 0.25, 0.5, 0.25]]


def one_head(pattern: Any, context: TextContext) -> dict[str, float | None]:
    return {name: values[0] for name, values in measure(verified(pattern), context).items()}


def approx(**expected: float | None) -> Any:
    return {name: value if value is None else pytest.approx(value, abs=SUMS_32) for name, value in expected.items()}


# --- worked by hand -----------------------------------------------------------------------------


NO_REPEATS = dict.fromkeys((*REPEATS, *ON_REPEATS.values(), *TYPES.values()))
"""What is found of induction and duplicate tokens where no token repeats (see test_repeats.py)."""

ON_CONTENT = ("entropy_non_sink", "distance_non_sink", "confidence_non_sink")


def test_every_statistic_and_baseline_of_a_causal_head_by_hand():
    context = context_of([SINK, TEXT, TEXT, TEXT], causal=True, long_range_from=2)
    assert one_head(CAUSAL, context) == approx(
        entropy=(0 + 1 + 1.5 + 1.5) * log(2) / 4,
        entropy_non_sink=(0 + 1 + 1.5) * log(2) / 3,
        distance=(0 + 0.5 + 1.25 + 1.0) / 4,
        distance_non_sink=(0 + 0.25 / 0.5 + (0.25 * 2 + 0.5) / 1) / 3,
        confidence=(1 + 0.5 + 0.5 + 0.5) / 4,
        confidence_non_sink=(1 + 0.5 + 0.5) / 3,
        sink=(0.5 + 0.5 + 0) / 3,
        previous=(0.25 + 0.5) / 2,
        current=(0.5 + 0.25 + 0.25) / 2,
        next=None,
        local=(0.5 + 0.5 + 0.75) / 2,
        long_range=0.0,
        long_range_baseline=0.0,
        **NO_REPEATS,
    )  # fmt: skip
    assert context.baselines_of(one_head(CAUSAL, context)) == approx(
        previous=(0 + 1 / 2 + 1 / 3) / 3,
        current=(1 + 1 / 2 + 1 / 3) / 3,
        next=None,
        local=(1 + 1 + 2 / 3) / 3,
        long_range=0.0,
        **dict.fromkeys(REPEATS),
    )
    assert context.counts == {
        "previous": 2, "current": 3, "next": 0, "local": 3, "long_range": 1, "induction": 0, "duplicate": 0,
    }  # fmt: skip
    assert context.uniform["entropy"] == pytest.approx((log(2) + log(3) + log(4)) / 4)
    assert context.uniform["entropy_non_sink"] == pytest.approx((log(2) + log(3)) / 3)
    assert context.uniform["sink"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)


# --- not measurable -----------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_long_range_is_null_on_a_text_without_such_a_pair(causal: bool):
    short, enough = context_of([SINK] + [TEXT] * 4, causal=causal), context_of([SINK] + [TEXT] * 5, causal=causal)
    found = one_head(random_patterns(5, 1, causal), short)
    assert (found["long_range"], found["long_range_baseline"]) == (None, None)
    assert short.counts["long_range"] == 0
    assert one_head(random_patterns(6, 1, causal), enough)["long_range"] is not None
    assert enough.counts["long_range"] == (1 if causal else 2)


def test_a_text_without_content_has_no_shares_and_one_without_sinks_or_content_no_sink():
    context = context_of([SINK, SINK])
    found = one_head([[0.5, 0.5], [0.25, 0.75]], context)
    assert {name for name, value in found.items() if value is None} == {
        "sink",
        *ON_CONTENT,
        *SHARES,
        *SHUFFLED.values(),
        *NO_REPEATS,
    }
    assert found["confidence"] == pytest.approx(0.625)
    assert set(context.baselines_of(found).values()) == {None}
    assert context.uniform["sink"] is None
    no_sinks = context_of([TEXT] * 3)
    assert one_head(random_patterns(3, 1), no_sinks)["sink"] is None
    assert no_sinks.uniform["sink"] is None


def test_a_head_that_attends_to_sinks_alone_has_no_shares_but_others_keep_theirs():
    context = context_of([SINK, TEXT, TEXT, SINK])
    sink_only = torch.tensor([[1.0, 0, 0, 0]] * 4)
    found = measure(verified(torch.stack([sink_only, torch.tensor(BIDIRECTIONAL)])), context)
    assert found["sink"][0] == 1.0
    assert {name: found[name][0] for name in (*ON_CONTENT, *SHARES)} == dict.fromkeys((*ON_CONTENT, *SHARES))
    assert found["current"][1] == pytest.approx(1 / 3)
    assert context.uniform["current"] == 0.5


def test_rows_are_summed_in_float64():
    """A sum of 300 of them in float32 is off by about 1e-8."""
    pattern = random_patterns(300, 1).float()
    found = measure(verified(pattern, torch.float32), context_of([TEXT] * 300))
    assert found["confidence"] == pytest.approx(pattern.amax(-1).double().mean(-1).tolist(), abs=SUMS_64)


def test_baselines_are_computed_in_float64():
    context = context_of([SINK, *[TEXT] * 7], causal=True, tokens="xabcabcd")
    keys = range(1, 8)
    assert context.uniform["previous"] == pytest.approx(sum(1 / n for n in keys[1:]) / 7, abs=SUMS_64)
    assert context.uniform["sink"] == pytest.approx(sum(1 / (n + 1) for n in keys) / 7, abs=SUMS_64)
    wanted = sum(1 / (n + 1) for n in keys[3:6]) / 3
    assert context.uniform["duplicate_on_repeats"] == pytest.approx(wanted, abs=SUMS_64)


def test_an_unverified_layer_cannot_be_measured():
    check = LayerCheck(layer=0, heads_compared=1, pattern_error=1.0, output_error=0.0, output_scale=1.0)
    with pytest.raises(VerificationError, match="layer 0 did not verify"):
        VerifiedRows(check, Tolerance(1e-4, 1e-4, "a test"), torch.eye(3)[None, None], 0, 3, 3)


# --- properties ---------------------------------------------------------------------------------


@st.composite
def heads_and_context(draw: st.DrawFn) -> tuple[Tensor, TextContext]:
    n, causal = draw(st.integers(2, 10)), draw(st.booleans())
    sink = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    context = context_of(sink, causal, draw(st.integers(0, 3)), draw(st.integers(1, 5)))
    sharpness = draw(st.sampled_from([0.0, 1.0, 5.0, 50.0]))
    return random_patterns(n, draw(st.integers(1, 4)), causal, draw(st.integers(0, 999)), sharpness), context


@property_test
@given(heads_and_context())
def test_attention_uniform_over_allowed_content_scores_exactly_its_baseline(drawn: tuple[Tensor, TextContext]):
    _, context = drawn
    n = len(context.units)
    content = ~torch.tensor(context.units.sink)
    keys = allowed_units(n, context.causal) & content[None, :]
    keys = torch.where(keys.any(1, keepdim=True), keys, torch.eye(n, dtype=torch.bool)).double()
    found = one_head(keys / keys.sum(1, keepdim=True), context)
    for name in SHARES:
        expected = context.baselines_of(found)[name]
        assert found[name] == (expected if expected is None else pytest.approx(expected, abs=SUMS_32))
    everywhere = allowed_units(n, context.causal).double()
    found = one_head(everywhere / everywhere.sum(1, keepdim=True), context)
    assert found["entropy"] == pytest.approx(context.uniform["entropy"], abs=SUMS_32)
    assert found["sink"] == (
        None if context.uniform["sink"] is None else pytest.approx(context.uniform["sink"], abs=SUMS_32)
    )


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(torch.float64, SUMS_32), (torch.float32, SUMS_32), *HALF.items()],
)
def test_statistics_come_from_layers_of_every_dtype(dtype: torch.dtype, precision: float):
    pattern, context = (
        random_patterns(9, 3, sharpness=1.5),
        context_of([SINK] + [TEXT] * 7 + [SINK], tokens="xabcabcay"),
    )
    expected = measure(verified(pattern, torch.float64), context)
    found = measure(verified(pattern, dtype), context)
    for name in SCALARS:
        assert found[name] == pytest.approx(expected[name], abs=precision), name
        assert all(type(value) is float for value in found[name])


# --- blocks of rows, against plain loops -------------------------------------------------------------------------


@st.composite
def measured_in_blocks(draw: st.DrawFn) -> tuple[Tensor, TextContext, list[str], int | None, int]:
    """Patterns of tokens, the context of their units, the units' texts, the window, and the rows of a block."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=8))
    if draw(st.booleans()):
        sizes = [1] * len(sizes)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    members = [tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    causal = draw(st.booleans())
    one_each = max(sizes) == 1
    sees = draw(st.sampled_from([None, 1, 2, 4])) if causal and one_each else None
    patterns = random_patterns(ends[-1], 2, causal, draw(st.integers(0, 999)), draw(st.sampled_from([0.5, 3.0, 20.0])))
    if sees is not None:
        patterns = patterns.triu(1 - sees)
        patterns = patterns / patterns.sum(-1, keepdim=True)
    sink = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    texts = draw(st.lists(st.sampled_from("abc"), min_size=len(sizes), max_size=len(sizes)))
    context = context_of(sink, causal, draw(st.integers(0, 2)), draw(st.integers(3, 5)), members, texts)
    return patterns, replace(context, window=sees), texts, sees, draw(st.integers(1, ends[-1]))


@property_test
@given(measured_in_blocks())
def test_blocks_of_any_size_give_what_plain_loops_give(drawn: tuple[Tensor, TextContext, list[str], int | None, int]):
    patterns, context, texts, sees, size = drawn
    blocks = verified(patterns, torch.float64, size)
    if context.causal:  # as they come from a model: without the keys that none of their rows sees
        blocks = [replace(rows, pattern=rows.pattern[..., : rows.first + rows.pattern.shape[2]]) for rows in blocks]
    found = measure(blocks, context)
    assert context.text is not None
    far = context.text.local_window, context.text.long_range_from
    for head, pattern in enumerate(patterns.numpy()):
        merged = independent.merge(pattern, [list(group) for group in context.units.members])
        wanted = independent.statistics(merged, list(context.units.sink), context.causal, *far, texts, sees)
        for name, value in found.items():
            if name in wanted:
                assert value[head] == (None if wanted[name] is None else pytest.approx(wanted[name], abs=SUMS_64)), name
        assert context.uniform["entropy"] == pytest.approx(wanted["entropy_uniform"])
        for name, baseline in wanted["baseline"].items():
            of_head = {key: values[head] for key, values in found.items()}
            assert context.baselines_of(of_head)[name] == (None if baseline is None else pytest.approx(baseline)), name
    for others in (verified(patterns, torch.float64, 1), verified(patterns, torch.float64)):
        again = measure(others, context)
        for name, values in found.items():
            assert again[name] == [None if value is None else pytest.approx(value, abs=SUMS_64) for value in values], (
                name
            )
