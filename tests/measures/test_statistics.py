"""Statistics and baselines: worked by hand, null where nothing can be measured, and their properties."""

from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnviz.measures.measure import LayerRows, copy_to_host
from attnviz.measures.patterns import ON_REPEATS, REPEATS, SHUFFLED, TYPES, allowed_units, shares
from attnviz.measures.statistics import HeadStatistics, TextContext, scalars
from tests.support import independent
from tests.support.tolerances import HALF, SUMS_32, SUMS_64
from tests.support.verified import context_of, measure, random_patterns, verified

SINK, TEXT = True, False
# the first position is a sink
CAUSAL = [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.5, 0.25, 0.25, 0], [0, 0.25, 0.5, 0.25]]


def one_head(pattern: Any, context: TextContext) -> dict[str, float | None]:
    return {name: values[0] for name, values in measure(verified(pattern), context).items()}


def approx(limit: float = SUMS_32, /, **expected: float | None) -> Any:
    return {name: value if value is None else pytest.approx(value, abs=limit) for name, value in expected.items()}


NO_REPEATS = dict.fromkeys((*REPEATS, *ON_REPEATS.values(), *TYPES.values()))
"""What is found of induction and duplicate tokens where no token repeats (see test_repeats.py)."""

ON_CONTENT = ("entropy_non_sink", "distance_non_sink", "confidence_non_sink")


def test_every_statistic_and_baseline_of_a_causal_head_by_hand():
    context = context_of([SINK, TEXT, TEXT, TEXT], causal=True, long_range_from=2)
    found = one_head(CAUSAL, context)
    assert found == approx(
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
    )
    uniform = {"previous": (1 / 2 + 1 / 3) / 3, "current": (1 + 1 / 2 + 1 / 3) / 3, "next": None, "long_range": 0.0}
    uniform |= {"local": (1 + 1 + 2 / 3) / 3, **dict.fromkeys(REPEATS)}
    assert context.baselines_of(found) == approx(**uniform)
    n = {"previous": 2, "current": 3, "next": 0, "local": 3, "long_range": 1, "induction": 0, "duplicate": 0}
    assert context.counts == n
    assert context.uniform["entropy"] == pytest.approx((log(2) + log(3) + log(4)) / 4)
    assert context.uniform["entropy_non_sink"] == pytest.approx((log(2) + log(3)) / 3)
    assert context.uniform["sink"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)


def test_what_a_text_has_nothing_of_is_null():
    """No shares without content, no sink without sinks or content; of a head on sinks alone no shares."""
    context = context_of([SINK, SINK])
    found = one_head([[0.5, 0.5], [0.25, 0.75]], context)
    missing = {name for name, value in found.items() if value is None}
    assert missing == {"sink", *ON_CONTENT, *shares(), SHUFFLED, *NO_REPEATS}
    assert found["confidence"] == pytest.approx(0.625)
    assert {*context.baselines_of(found).values(), context.uniform["sink"]} == {None}
    no_sinks = context_of([TEXT] * 3)
    assert (one_head(random_patterns(3, 1), no_sinks)["sink"], no_sinks.uniform["sink"]) == (None, None)
    short = one_head(random_patterns(5, 1), context_of([SINK] + [TEXT] * 4))
    assert (short["long_range"], short["long_range_baseline"]) == (None, None)
    of_sink = torch.tensor([[1.0, 0, 0, 0]] * 4)
    mixed = torch.tensor([[1, 0, 0, 0], [0.25, 0.25, 0.5, 0], [0, 0.5, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]])
    found = measure(verified(torch.stack([of_sink, mixed])), context_of([SINK, TEXT, TEXT, SINK]))
    assert found["sink"][0] == 1.0
    assert {found[name][0] for name in (*ON_CONTENT, *shares())} == {None}
    assert found["current"][1] == pytest.approx(1 / 3)


def test_rows_and_baselines_are_summed_in_float64():
    """A sum of 300 rows in float32 is off by about 1e-8."""
    pattern = random_patterns(300, 1).float()
    found = measure(verified(pattern, torch.float32), context_of([TEXT] * 300))
    assert found["confidence"] == pytest.approx(pattern.amax(-1).double().mean(-1).tolist(), abs=SUMS_64)
    uniform, keys = context_of([SINK, *[TEXT] * 7], causal=True, tokens="xabcabcd").uniform, range(1, 8)
    assert uniform["previous"] == pytest.approx(sum(1 / n for n in keys[1:]) / 7, abs=SUMS_64)
    assert uniform["sink"] == pytest.approx(sum(1 / (n + 1) for n in keys) / 7, abs=SUMS_64)
    wanted = sum(1 / (n + 1) for n in keys[3:6]) / 3
    assert uniform["duplicate_on_repeats"] == pytest.approx(wanted, abs=SUMS_64)


@settings(max_examples=20)
@given(st.lists(st.booleans(), min_size=2, max_size=10), st.booleans(), st.integers(0, 3), st.integers(1, 5))
def test_attention_uniform_over_allowed_content_scores_exactly_its_baseline(sink, causal, local, far):
    context, n = context_of(sink, causal, local, far), len(sink)
    everywhere = allowed_units(n, causal)
    content = everywhere & ~torch.tensor(sink)[None, :]
    content = torch.where(content.any(1, keepdim=True), content, torch.eye(n, dtype=torch.bool)).double()
    found = one_head(content / content.sum(1, keepdim=True), context)
    baselines = context.baselines_of(found)
    assert {name: found[name] for name in shares()} == approx(**{name: baselines[name] for name in shares()})
    found = one_head(everywhere / everywhere.sum(1, keepdim=True), context)
    uniform = {name: context.uniform[name] for name in ("entropy", "sink")}
    assert {name: found[name] for name in uniform} == approx(**uniform)


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, SUMS_32), *HALF.items()])
def test_statistics_come_from_layers_of_every_dtype(dtype: torch.dtype, precision: float):
    pattern, context = (
        random_patterns(9, 3, sharpness=1.5),
        context_of([SINK] + [TEXT] * 7 + [SINK], tokens="xabcabcay"),
    )
    expected, found = (measure(verified(pattern, each), context) for each in (torch.float64, dtype))
    for name in scalars():
        assert found[name] == pytest.approx(expected[name], abs=precision), name
        assert all(type(value) is float for value in found[name])


@st.composite
def measured_in_blocks(draw: st.DrawFn) -> tuple[Tensor, TextContext, list[str], int | None, int]:
    """Patterns of tokens, the context of their units, the units' texts, the window, and the rows of a block."""
    sizes = draw(st.one_of(st.lists(st.integers(1, least), min_size=1, max_size=8) for least in (1, 3)))
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    members = [tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    causal = draw(st.booleans())
    sees = draw(st.sampled_from([None, 1, 2, 4])) if causal and max(sizes) == 1 else None
    patterns = random_patterns(ends[-1], 2, causal, draw(st.integers(0, 999)), draw(st.sampled_from([0.5, 3.0, 20.0])))
    if sees is not None:
        patterns = patterns.triu(1 - sees)
        patterns = patterns / patterns.sum(-1, keepdim=True)
    sink = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    texts = draw(st.lists(st.sampled_from("abc"), min_size=len(sizes), max_size=len(sizes)))
    context = context_of(sink, causal, draw(st.integers(0, 2)), draw(st.integers(3, 5)), members, texts)
    return patterns, replace(context, window=sees), texts, sees, draw(st.integers(1, ends[-1]))


@settings(max_examples=40)
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
        of_head = {name: values[head] for name, values in found.items()}
        for name in of_head.keys() & wanted.keys():
            assert of_head[name] == approx(SUMS_64, value=wanted[name])["value"], name
        assert context.uniform["entropy"] == pytest.approx(wanted["entropy_uniform"])
        baselines = context.baselines_of(of_head)
        assert {name: baselines[name] for name in wanted["baseline"]} == approx(**wanted["baseline"])
    whole = measure(verified(patterns, torch.float64), context)
    for name, values in found.items():
        assert whole[name] == [approx(SUMS_64, value=value)["value"] for value in values], name


def test_layers_that_are_measured_together_are_told_apart():
    """The types of repeated tokens, too: one layer attends to the last copy of each token, the other to itself."""
    tokens = [0, 1, 2, 1, 2, 1, 2]
    context = context_of([True] + [False] * 6, causal=True, tokens=tokens)
    on_copies = torch.eye(7)
    for query in (3, 4, 5, 6):
        on_copies[query] = torch.eye(7)[query - 2]
    layers = [torch.eye(7)[None], on_copies[None]]
    statistics = HeadStatistics(lambda _: context)
    for layer, pattern in enumerate(layers):
        statistics.update(LayerRows(layer, pattern[None]))
    copy_to_host([statistics])
    together = statistics.results()
    assert [together[layer][TYPES["duplicate"]] for layer in range(2)] == [[0], [2]]
    for layer, pattern in enumerate(layers):
        assert together[layer] == measure(verified(pattern), context)
