"""A sentence pair: shares of the four blocks and of the special tokens, and their pictures."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm

from attnviz.commands.heads.pair_view import PAIR, PairShares, segment_positions
from attnviz.figures.style import Style
from attnviz.present.view import ViewOptions
from tests.support.hand_made import by_design, hand_made

LABELS = ("[CLS]", "the", "cat", "ran", "[SEP]", "it", "was", "[SEP]")
GROUPS = ((1, 2, 3), (5, 6), (0, 4, 7))


def pair_of(patterns=None, labels=LABELS, a=3, text="the cat ran", pair="it was", **changes):
    n = len(labels)
    special = (0, a + 1, n - 1)
    given = by_design(n) if patterns is None else patterns
    found = hand_made(labels=labels, special=special, patterns=given, text=text, pair=pair, **changes)
    segments = tuple(None if i in special else int(i > a) for i in range(n))
    return replace(found, tokens=replace(found.tokens, segments=segments))


def random_pair(n_layers, n_heads, labels=LABELS, **changes):
    n = len(labels)
    drawn = np.random.default_rng(1).dirichlet(np.ones(n) / 2, (n_layers, n_heads, n))
    return pair_of(torch.tensor(drawn, dtype=torch.float32), labels=labels, **changes)


def long_pair(n, n_layers=1, n_heads=1):
    return random_pair(n_layers, n_heads, labels=[f"w{i}" for i in range(n)], a=(n - 3) // 2)


@pytest.fixture(scope="module")
def found():
    return pair_of()


def plans_of(analysis, *select, style=None):
    return list(PAIR.plans(analysis, ViewOptions(style=style or Style(), select=select)))


def pair_shares(pattern, groups):
    """[2, 3] of one pattern, from A and from B."""
    shares = PairShares(groups)
    shares.add(0, torch.as_tensor(pattern))
    return shares.of(groups[:2])


def shares_of(plan):
    """[n_layers, n_heads, 2, 3], 0-1, from the maps by their names."""
    by_name = {each.name: each.values / 100 for each in plan.maps}
    return np.stack(
        [np.stack([by_name[f"{x} → {y}"] for y in ("A", "B", "special")], -1) for x in "AB"], -2
    )  # fmt: skip


def test_the_shares_of_hand_made_heads_are_right(found):
    assert tuple(map(tuple, segment_positions(found))) == GROUPS
    (plan,) = plans_of(found)
    expected = {
        (0, 0): [[2 / 3, 0, 1 / 3], [0, 1 / 2, 1 / 2]],  # previous token
        (0, 1): [[3 / 8, 2 / 8, 3 / 8]] * 2,  # uniform
        (1, 0): [[0, 0, 1]] * 2,  # first token
        (1, 1): [[1 / 2 + 1 / 6, 0, 1 / 4 + 1 / 12], [0, 1 / 2 + 1 / 8, 1 / 4 + 1 / 8]],
    }
    for place, of_head in expected.items():
        np.testing.assert_allclose(shares_of(plan)[place], of_head, atol=1e-6)


def test_the_shares_are_means_of_sums_over_the_definition():
    found = random_pair(2, 3)
    for layer in range(2):
        patterns = found.layer_patterns(layer).numpy()
        shares = np.stack([pair_shares(pattern, segment_positions(found)) for pattern in patterns])
        for head in range(3):
            for x, source in enumerate(GROUPS[:2]):
                for y, target in enumerate(GROUPS):
                    by_hand = sum(float(patterns[head, q, k]) for q in source for k in target) / len(source)
                    assert shares[head, x, y] == pytest.approx(by_hand, abs=1e-6)
        np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-6)


def test_without_two_texts_there_is_no_picture_and_why_is_said(found):
    assert PAIR.missing(found) == ""
    assert PAIR.missing(hand_made()) == "it shows two texts; give the second one with --pair (pair=...)"
    for left, which in ((0, "second"), (1, "first")):
        segments = tuple(segment if segment is None else left for segment in found.tokens.segments)
        one = replace(found, tokens=replace(found.tokens, segments=segments))
        assert PAIR.missing(one) == f"no token is left of the {which} text after tokenization"


@pytest.mark.parametrize(("scale", "limits"), [("shared", (0, 100)), ("per-head", (0, 100)), ("log", (1, 100))])
def test_the_scales_of_all_heads(found, scale, limits):
    (plan,) = plans_of(found, style=Style(scale=scale))
    assert all((each.norm.vmin, each.norm.vmax) == pytest.approx(limits) for each in plan.maps)
    assert isinstance(plan.maps[0].norm, LogNorm) == (scale == "log")
    assert "38 % on A, 25 % on B, 38 % on special tokens" in plan.caption  # of uniform attention


def test_all_heads_get_one_picture_and_a_selection_also_one_a_head(found):
    assert [plan.stem for plan in plans_of(found)] == ["pair"]
    stems = [plan.stem for plan in plans_of(found, "L0H1", "L1")]
    assert stems == ["pair", "pair/L00H01", "pair/L01H00", "pair/L01H01"]


def test_a_head_has_rules_between_the_blocks_and_its_shares_beside_uniform_attention(found):
    _, plan = plans_of(found, "L0H0")
    shares = "from A 67 % to A, 0 % to B, 33 % to special tokens; from B 0 % to A, 50 % to B, 50 % to special tokens"
    for said in (plan.notes[-1], plan.caption):
        assert shares in said
        assert "38 % on A, 25 % on B, 38 % on special tokens" in said
    ax = PAIR.figure(plan, Style(), False).axes[0]
    edges = sorted(line.get_ydata()[0] for line in ax.lines if list(line.get_xdata()) == [0, 1])
    assert edges == [0.5, 3.5, 4.5, 6.5]
    assert sorted(line.get_xdata()[0] for line in ax.lines if list(line.get_ydata()) == [0, 1]) == edges
    assert [label.get_text() for label in ax.get_yticklabels()] == list(LABELS)


def test_a_long_pair_is_pooled_for_drawing_but_its_shares_are_not():
    found = long_pair(1000, 1, 2)
    _, plan = plans_of(found, "L0H1")
    ((_, (tile,)),) = plan.groups
    pattern = found.pattern("L0H1").numpy()
    assert (plan.pooled, tile.values.shape) == (2, (500, 500))
    assert tile.values[0, 0] == pattern[:2, :2].max()
    a = 100 * pair_shares(pattern, segment_positions(found))[0, 0]
    assert f"from A {a:.0f} % to A" in plan.caption
    assert "2 × 2 weights" in plan.caption


@pytest.mark.parametrize(("width", "columns"), [(None, 3), (3.3, 2)])
def test_maps_of_pairs_are_alike_in_size_and_name_their_axes_once(width, columns):
    found, style = long_pair(30, 2, 12), Style(width=width)
    (plan,) = plans_of(found, style=style)
    maps = PAIR.figure(plan, style, False).axes[:6]
    assert (plan.columns, plan.maps[1].name) == (columns, "A → B" if columns == 3 else "B → A")
    assert [bool(ax.get_ylabel()) for ax in maps] == ([True] + [False] * (columns - 1)) * (6 // columns)
    assert [bool(ax.get_xlabel()) for ax in maps] == [False] * (6 - columns) + [True] * columns
    for ax, each in zip(maps, plan.maps, strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), each.values)
    assert len({tuple(np.round(ax.get_window_extent().size)) for ax in maps}) == 1
