"""Maps of a statistic: its values and baseline, the scales, and what cannot be measured."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from attnviz.commands.heads.map_view import MAP
from attnviz.figures.style import Style
from attnviz.measures.statistics import OPTIONAL, SCALARS
from attnviz.present.statistics import described
from attnviz.present.view import ViewOptions
from tests.support.hand_made import hand_made


@pytest.fixture(scope="module")
def analysis():
    return hand_made()


def plan_of(analysis, statistic, style=None):
    return next(MAP.plans(analysis, ViewOptions(style=style or Style(), maps=(statistic,))))


def map_of(analysis, statistic, style=None):
    (drawn,) = plan_of(analysis, statistic, style).maps
    return drawn


def with_values(analysis, statistic, values):
    """The analysis with these numbers, one a head."""
    pairs = zip(analysis.heads, values, strict=True)
    heads = tuple(replace(head, statistics={**head.statistics, statistic: value}) for head, value in pairs)
    return replace(analysis, heads=heads)


def test_the_values_are_the_statistics_of_every_head_in_its_place(analysis):
    for name in SCALARS:
        values = map_of(analysis, name).values
        for head in analysis.heads:
            value, found = head.statistics[name], values[head.id.layer, head.id.head]
            assert np.isnan(found) if value is None else found == value
    np.testing.assert_allclose(map_of(analysis, "distance").values, [[5 / 6, 35 / 18], [2.5, 2.5 / 4 + 5 / 6 / 4]])


@pytest.mark.parametrize("name", [*SCALARS, *OPTIONAL])
def test_every_statistic_is_a_map_and_a_column_with_its_unit(analysis, name):
    header = " ".join(analysis.report(maps=[name], width=150).partition("Baseline")[2].partition("─")[0].split())
    unit = described(name, "token", "")[2]
    assert header.endswith(f"({unit})") if unit else "(" not in header
    assert np.shape(map_of(analysis, name).values) == (2, 2)


@pytest.mark.parametrize(
    ("found", "name", "expected"),
    [
        (hand_made(), "entropy", np.log(6)),
        (hand_made(), "distance", 35 / 18),
        (hand_made(), "sink", 1 / 3),
        (hand_made(), "previous", 3 / 16),
        (hand_made(causal=True, special=()), "distance", np.mean([q / 2 for q in range(6)])),
        (hand_made(labels=("[CLS]", "a", "b", "a", "b", "[SEP]")), "duplicate_on_repeats", 1 / 6),
    ],
)
def test_uniform_attention_is_marked_on_the_colour_bar(found, name, expected):
    mark = map_of(found, name).reference
    assert expected == (mark and pytest.approx(mark.value))
    if name in ("entropy", "distance"):
        assert map_of(found, name).values[0, 1] == pytest.approx(expected)  # L0H1 is uniform


def test_what_cannot_be_measured_is_hatched_and_has_a_dash_and_is_said(analysis):
    found = with_values(analysis, "sink", [0.2, None, 0.4, 1.0])
    ax, bar = MAP.figure(plan_of(found, "sink"), Style(), False).axes
    (box,) = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    assert (box.get_xy(), box.get_hatch()) == ((0.5, -0.5), "//")
    assert [(text.get_text(), *text.get_position()) for text in ax.texts] == [
        ("0.20", 0, 0), ("–", 1, 0), ("0.40", 0, 1), ("1.00", 1, 1),
    ]  # fmt: skip
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # layer 0 above
    assert "0.33" in bar.texts[0].get_text()
