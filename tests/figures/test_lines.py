"""The view of lines: what is planned, what stands on the Axes, and what is left out and said to be."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.legend import Legend

from attnviz.commands.heads.token_views import LINES, MOST_LINES, MOST_ROWS, READABLE_LINES, lines_left_out
from attnviz.errors import UsageError
from attnviz.figures.lines import HEAD_COLOURS
from attnviz.figures.style import Style
from attnviz.present.view import ViewOptions
from tests.support.hand_made import LABELS, by_design, hand_made
from tests.support.tolerances import SUMS_32

LIGHT = Style()


def analysis_of(*patterns, labels=None, segments=None, special=(), **changes):
    """One layer, a head a pattern."""
    n = len(patterns[0])
    given = torch.tensor(np.stack(patterns)[None], dtype=torch.float32)
    found = hand_made(labels=labels or [f"w{i}" for i in range(n)], special=special, patterns=given, **changes)
    return found if segments is None else replace(found, tokens=replace(found.tokens, segments=tuple(segments)))


def plan_of(*patterns, style=LIGHT, token=None, **changes):
    return next(LINES.plans(analysis_of(*patterns, **changes), ViewOptions(style=style, token=token)))


def plans_of(analysis, *select, **choices):
    return list(LINES.plans(analysis, ViewOptions(select=select, **choices)))


def pattern_of(*weights, n=4):
    """All zero but for (query, key, weight)."""
    pattern = np.zeros((n, n), np.float32)
    for query, key, weight in weights:
        pattern[query, key] = weight
    return pattern


def random_pattern(n, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(n, 0.2), n).astype(np.float32)


def lines_of(plan):
    return list(zip(plan.head.tolist(), plan.query.tolist(), plan.key.tolist(), strict=True))


def drawn(plan):
    """The Axes, and the lines on them."""
    (ax, *_) = plan.figure(LIGHT).axes
    (lines,) = (child for child in ax.collections if isinstance(child, PathCollection))
    return ax, lines


def test_a_line_a_weight_from_query_left_to_key_right_the_strongest_last_whichever_the_head():
    plan = plan_of(pattern_of((0, 3, 0.9), (2, 1, 0.3)), pattern_of((3, 3, 0.5)))
    assert lines_of(plan) == [(0, 2, 1), (1, 3, 3), (0, 0, 3)]
    np.testing.assert_allclose(plan.weights, [0.3, 0.5, 0.9])
    ax, lines = drawn(plan)
    assert [path.vertices[[0, -1], 1].round().tolist() for path in lines.get_paths()] == [[2, 1], [3, 3], [0, 3]]
    left, right = lines.get_paths()[0].vertices[[0, -1], 0]
    assert 0 < left < right < ax.get_xlim()[1]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # row 0 is at the top
    assert [to_hex(colour[:3]) for colour in lines.get_edgecolors()] == [HEAD_COLOURS["light"][i] for i in (0, 1, 0)]
    assert (np.diff(lines.get_linewidths()) > 0).all()


@pytest.mark.parametrize("token", [None, "#2"])
def test_sinks_have_no_lines_and_the_picture_says_what_share_they_take(token):
    analysis = hand_made()
    sinks, starts = {0, 5}, [2] if token else [1, 2, 3, 4]
    (plan,) = plans_of(analysis, "L1H1", token=token)
    assert len(plan.key) > 0
    assert not {*plan.query.tolist(), *plan.key.tolist()} & sinks
    pattern = by_design(6)[1, 1].numpy()
    weights = {(query, key): weight for (_, query, key), weight in zip(lines_of(plan), plan.weights, strict=True)}
    assert all(weight == pattern[line] for line, weight in weights.items())
    assert token or len(weights) == (pattern[1:5, 1:5] >= 0.02).sum()
    share = pattern[starts][:, [0, 5]].sum() / pattern[starts].sum()
    assert f"{100 * share:.0f} %" in plan.caption


@pytest.mark.parametrize("n", [4, 60])
@pytest.mark.parametrize("style", [LIGHT, Style("dark", width=3.3)])
def test_weights_of_two_and_ten_hundredths_are_told_apart_in_the_legend(n: int, style: Style) -> None:
    figure = plan_of(random_pattern(n), style=style).figure(style)
    figure.draw_without_rendering()
    (legend,) = figure.axes[0].findobj(Legend)
    faint, strong = legend.get_lines()[:2]
    assert [text.get_text() for text in legend.get_texts()][:2] == ["0.02", "0.1"]
    assert strong.get_linewidth() * strong.get_alpha() >= 1.8 * faint.get_linewidth() * faint.get_alpha()


def test_sinks_have_lines_where_they_are_chosen_or_all_there_is():
    assert lines_of(*plans_of(hand_made(), "L0H0", token="[SEP]")) == [(0, 5, 4)]
    alone = plan_of(np.eye(2, dtype=np.float32), labels=["[CLS]", "[SEP]"], special=(0, 1))
    assert lines_of(alone) == [(0, 0, 0), (0, 1, 1)]


def test_weak_lines_are_dropped_and_the_picture_says_what_share_they_carry():
    plan = plan_of(pattern_of((0, 0, 0.96), (0, 1, 0.02), (0, 2, 0.015), (0, 3, 0.005)))
    assert lines_of(plan) == [(0, 0, 1), (0, 0, 0)]
    assert "2 %" in plan.caption


def test_of_many_tokens_or_heads_each_token_keeps_its_strongest_keys():
    every = np.stack([random_pattern(100, seed) for seed in range(2)])
    plan = plan_of(*every)
    assert READABLE_LINES // 200 == 1
    strongest = [(head, query, int(row.argmax())) for head in range(2) for query, row in enumerate(every[head])]
    assert sorted(lines_of(plan)) == [line for line in strongest if every[line] >= 0.02]
    shared = plan_of(np.full((48, 48), 1 / 48, np.float32))
    assert len(shared.weights) == 48 * 5


def test_the_threshold_rises_until_few_enough_lines_remain():
    every = np.stack([random_pattern(400, seed) for seed in range(8)])
    plan = plan_of(*every)
    least, strongest = plan.samples[0], every.max(-1)
    assert least > 0.02
    assert 0.9 * MOST_LINES < len(plan.weights) == (strongest >= least).sum() <= MOST_LINES
    assert (strongest >= least - 0.001).sum() > MOST_LINES  # and no higher than it takes


def test_of_a_chosen_token_every_line_is_drawn_with_its_weight():
    pattern = pattern_of((20, 4, 0.5), (20, 21, 0.3), (20, 24, 0.1), (7, 8, 1.0), (20, 30, 0.01), n=50)
    plan = plan_of(pattern, token="#20")
    named = [(plan.labels[query], plan.labels[key]) for _, query, key in lines_of(plan)]
    assert named == [("w20", "w24"), ("w20", "w21"), ("w20", "w4")]
    assert plan.written == {4: "0.50", 21: "0.30", 24: "0.10"}
    assert plan.bright == ({20}, {4, 21, 24})


def test_special_tokens_are_dropped_and_rows_renormalised():
    (plan,) = plans_of(hand_made(), "L1H1", token="#2", drop_special=True)
    assert plan.labels == LABELS[1:5]
    assert lines_of(plan) == [(0, 1, 0), (0, 1, 1)]  # numbers are those of the whole text, rows those of what is left
    np.testing.assert_allclose(plan.weights, [1 / 3, 2 / 3], rtol=SUMS_32)
    (empty,) = plans_of(hand_made(), "L1H0", drop_special=True)
    assert not lines_of(empty)  # all of it went to [CLS]


def test_a_token_that_cannot_be_followed_is_refused():
    for choices, name in (({"token": "[CLS]", "drop_special": True}, "CLS"), ({"token": "mouse"}, "mouse")):
        with pytest.raises(UsageError, match=name):
            plans_of(hand_made(), **choices)


def many_heads(n=6, layers=8):
    labels = ["[CLS]", *[f"w{i}" for i in range(n - 2)], "[SEP]"]
    return hand_made(labels=labels, special=(0, n - 1), patterns=torch.cat([by_design(n)] * (layers // 2)))


@pytest.mark.parametrize(("n", "most"), [(6, 24), (200, MOST_ROWS // 200)])
def test_of_very_many_heads_those_of_the_clearest_labels_are_drawn(n, most):
    analysis = many_heads(n, layers=20)
    drawn = [plan.stem for plan in plans_of(analysis)]
    assert len(drawn) == most
    kept = [head for head in analysis.heads if f"lines/{head.id.file_stem}" in drawn]
    assert drawn == [f"lines/{head.id.file_stem}" for head in kept]  # the model's order
    assert max(head.rank_key for head in analysis.heads if head not in kept) <= min(head.rank_key for head in kept)
    assert f"{most} of the 40" in lines_left_out(analysis, ViewOptions())
    few, chosen = many_heads(), ("L0-3", "L4H0")
    assert len(plans_of(few, *chosen)) == 9
    assert lines_left_out(few, ViewOptions(select=chosen)) == ""
    assert [plan.stem for plan in plans_of(few, "L0-3")] == ["lines"]
