"""Figures of an ablation: that numbers reach the artists."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from attnviz.commands.ablate.effects import Estimate
from attnviz.commands.ablate.inputs import NEXT, STATES
from attnviz.commands.ablate.measure import Ablation
from attnviz.commands.ablate.views import draw_curve
from attnviz.figures.style import Style
from attnviz.present.view import ViewOptions
from tests.support.ablations import TEXTS, measured
from tests.support.corpora import sentences
from tests.support.drawn import drawing_of


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    """GPT-2 on 30 sentences: heads that raise the loss, and heads that lower it, with intervals."""
    path = sentences(tmp_path_factory.mktemp("corpus") / "s.txt", 30)
    return measured(NEXT, path, curve=True)


@pytest.fixture(scope="module")
def positive() -> Ablation:
    """BERT without a head on four texts, four heads left in: no intervals."""
    return measured(STATES, TEXTS, curve=True, select=["L0-1"])


def plan_of(name: str, result: Ablation, **choices: Any) -> Any:
    view = drawing_of("ablate", name)
    return next(view.plans(result, ViewOptions(**choices)))


def test_heads(signed: Ablation, positive: Ablation) -> None:
    figure = signed.figure("heads", top=5)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [str(h.id) for h in signed.heads[:5]]
    for ax, metric in zip(figure.axes, signed.metrics, strict=True):
        effects = [head.damage[metric.name] for head in signed.heads[:5]]
        (drawn,) = ax.containers
        assert list(drawn[0].get_xdata()) == [each.value for each in effects]
        segments = [segment[:, 0].tolist() for segment in drawn[2][0].get_segments()]
        assert np.array(segments) == pytest.approx(np.array([[each.low, each.high] for each in effects]))
        assert ax.get_ylim() == (4.5, -0.5)
    (drawn,) = positive.figure("heads").axes[0].containers
    assert all(np.ptp(segment[:, 0]) == 0 for segment in drawn[2][0].get_segments())


@pytest.mark.parametrize(("size", "unit", "drawn"), [(2e-3, "nats/token", 2e-3), (2e-8, "10⁻⁹ nats/token", 20.0)])
def test_numbers_too_small_for_an_axis_have_a_power_of_ten_in_their_unit(
    signed: Ablation, size: float, unit: str, drawn: float
) -> None:
    small = {"loss": Estimate(size, size / 2, 2 * size)}
    heads = tuple(replace(head, damage={**head.damage, **small}) for head in signed.heads)
    ax = replace(signed, heads=heads).figure("heads").axes[0]
    assert ax.get_xlabel().endswith(f"\n({unit})")
    (errors,) = ax.containers
    assert np.asarray(errors[0].get_xdata()) == pytest.approx(drawn)


def test_the_curve(signed: Ablation) -> None:
    assert signed.curve is not None
    points, ax = signed.curve.points, Figure().add_subplot()
    draw_curve(ax, plan_of("curve", signed), Style())
    least, singles, random, _ = ax.lines
    assert np.asarray(least.get_xdata()).tolist() == [point.removed for point in points]
    assert np.asarray(least.get_ydata()).tolist() == [point.least.damage["loss"].value for point in points]
    assert np.asarray(singles.get_ydata()).tolist() == [point.least.singles["loss"].value for point in points]
    assert np.asarray(random.get_ydata()).tolist() == [point.random.damage["loss"].value for point in points]
    assert len(ax.collections) == 2  # bands
