"""Figures of an ablation: what is planned, what is drawn, in every format, theme and width."""

import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from attnviz.commands.ablate.drawing import (
    curve_figure,
    draw_curve,
    draw_gradient,
    draw_heads,
    draw_importance,
    heads_figure,
    importance_figure,
    importance_norm,
)
from attnviz.commands.ablate.measure import Ablation, ablate
from attnviz.commands.ablate.views import plan_curve, plan_gradient, plan_heads, plan_importance
from attnviz.errors import UsageError
from attnviz.figures.look import Look
from tests.ablations import TEXTS, next_token_model, states_model
from tests.corpora import sentences


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    """GPT-2 on 30 sentences: heads that raise the loss, and heads that lower it, with intervals."""
    model, tokenizer = next_token_model()
    path = sentences(tmp_path_factory.mktemp("corpus") / "s.txt", 30)
    return ablate(path, model, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def positive() -> Ablation:
    """BERT without a head on four texts, four heads left in: no intervals."""
    model, tokenizer = states_model()
    return ablate(TEXTS, model, tokenizer=tokenizer, select=["L0-1"])


def test_heads(signed: Ablation) -> None:
    plan = plan_heads(signed, 5)
    assert plan.names == tuple(str(head.id) for head in signed.heads[:5])
    assert plan.title == "GPT2LMHeadModel without one head: 5 of 12 heads"
    assert plan.middle[1] == pytest.approx(np.median([head.damage["kl"].value for head in signed.heads]))
    ax = Figure().add_subplot()
    drawn = draw_heads(ax, plan, 1, Look())
    assert list(drawn[0].get_xdata()) == [head.damage["kl"].value for head in signed.heads[:5]]
    (bars,) = drawn[2]
    for segment, head in zip(bars.get_segments(), signed.heads, strict=False):
        assert segment[:, 0] == pytest.approx([head.damage["kl"].low, head.damage["kl"].high])
    assert [label.get_text() for label in ax.get_yticklabels()] == list(plan.names)
    assert ax.get_ylim() == (4.5, -0.5)
    assert plan_heads(signed, 0).title.endswith("12 heads")


def test_heads_without_intervals(positive: Ablation) -> None:
    plan = plan_heads(positive, 0)
    assert "4 texts: too few for intervals" in plan.caption
    drawn = draw_heads(Figure().add_subplot(), plan, 0, Look())
    assert all(np.ptp(segment[:, 0]) == 0 for segment in drawn[2][0].get_segments())


def test_the_map(signed: Ablation) -> None:
    plan = plan_importance(signed)
    for head in signed.heads:
        value = head.damage["loss"]
        assert plan.values[head.id] == pytest.approx(value.value * plan.factor)
        assert plan.unsure[head.id] == (not (value.above_zero or value.below_zero))
    assert plan.signed
    assert plan.unsure.any()
    assert plan.top == pytest.approx(np.abs(plan.values).max())
    norm = importance_norm(plan)
    assert [float(norm(value)) for value in (-plan.top, 0, plan.top / 4, plan.top)] == pytest.approx([0, 0.5, 0.75, 1])
    figure = importance_figure(plan, Look())
    ax = figure.axes[0]
    texts = [text.get_text() for text in ax.texts]
    assert len(texts) == 12
    assert sum(text.startswith("(") for text in texts) == plan.unsure.sum()
    assert "In brackets: the 95 % interval has zero in it." in " ".join(plan.notes)
    assert "root scale" in " ".join(figure.axes[1].get_xlabel().split())


def test_the_map_of_a_selection(positive: Ablation) -> None:
    plan = plan_importance(positive)
    assert not plan.signed
    assert np.isnan(plan.values[2]).all()
    assert np.isfinite(plan.values[:2]).all()
    assert "Hatched: 4 heads that were not removed." in " ".join(plan.notes)
    ax = Figure().add_subplot()
    draw_importance(ax, plan, Look("dark"))
    assert len([patch for patch in ax.patches if patch.get_hatch()]) == 4
    assert float(importance_norm(plan)(0)) == 0


@pytest.mark.parametrize(("size", "factor", "unit"), [(2.0, 1, "nats/token"), (0.02, 1000, "10⁻³ nats/token"),
                                                     (2e-5, 1_000_000, "10⁻⁶ nats/token")])  # fmt: skip
def test_units_of_the_map(signed: Ablation, size: float, factor: int, unit: str) -> None:
    from dataclasses import replace

    from attnviz.commands.ablate.results import Estimate

    heads = [
        replace(head, damage={"loss": Estimate(size, None, None), "kl": head.damage["kl"]}) for head in signed.heads
    ]
    other = object.__new__(Ablation)
    other.__dict__.update({**signed.__dict__, "heads": tuple(heads)})
    plan = plan_importance(other)
    assert plan.factor == factor
    assert unit in plan.bar
    assert plan.values.max() == pytest.approx(size * factor)


def test_the_curve(signed: Ablation) -> None:
    assert signed.curve is not None
    plan = plan_curve(signed)
    ax = Figure().add_subplot()
    least, singles, random = draw_curve(ax, plan, Look())
    points = signed.curve.points
    assert list(least.get_xdata()) == [point.removed for point in points]
    assert list(least.get_ydata()) == [point.least.damage["loss"].value for point in points]
    assert list(singles.get_ydata()) == [point.least.singles["loss"].value for point in points]
    assert list(random.get_ydata()) == [point.random.damage["loss"].value for point in points]
    assert len(ax.collections) == 2  # bands
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "least important first", "their sum, one at a time", "random order",
    ]  # fmt: skip


def test_the_curve_without_intervals(positive: Ablation) -> None:
    plan = plan_curve(positive)
    assert plan.least.low is None
    ax = Figure().add_subplot()
    draw_curve(ax, plan, Look())
    assert not ax.collections
    assert "too few for intervals" in " ".join(plan.notes)


def test_gradients(signed: Ablation, positive: Ablation) -> None:
    plan = plan_gradient(signed)
    assert [panel.logarithmic for panel in plan.panels] == [False, True]
    assert sum(map(bool, plan.names)) >= 5
    for panel in plan.panels:
        ax = Figure().add_subplot()
        dots = draw_gradient(ax, plan, panel, Look())
        expected = [(head.gradient, head.damage[panel.measure.name].value) for head in signed.heads]
        assert np.asarray(dots.get_offsets()) == pytest.approx(np.array(expected))
        assert panel.correlation is not None
        correlation = f"{panel.correlation:.2f}".replace("-", "−")
        assert ax.get_title(loc="left") == f"{panel.measure.title}: rank correlation {correlation}"
        assert ax.get_xscale() == ("log" if panel.logarithmic else "linear")
    assert "random projections of the final states" in plan_gradient(positive).caption
    assert all(panel.logarithmic for panel in plan_gradient(positive).panels)


def test_a_narrow_figure_still_says_the_correlation(signed: Ablation) -> None:
    figure = signed.figure("gradient", Look(width=2.4))
    for ax in figure.axes:
        title = ax.get_title(loc="left")
        assert re.fullmatch(r".*: rank correlation −?\d\.\d\d", " ".join(title.split()))
        assert not any(
            ax.title.get_window_extent().overlaps(other.get_tightbbox()) for other in figure.axes if other is not ax
        )


def test_gradients_without_a_correlation() -> None:
    model, tokenizer = states_model()
    found = ablate("the cat ran", model, tokenizer=tokenizer, select=["L0H0", "L1H1"])
    plan = plan_gradient(found)
    ax = Figure().add_subplot()
    draw_gradient(ax, plan, plan.panels[0], Look())
    assert ax.get_title(loc="left").endswith("rank correlation –")
    assert "correlation – (cosine distance)" in plan.caption


@pytest.mark.parametrize("look", [Look(), Look("dark"), Look(width=3.3), Look("dark", width=2.0)])
def test_everything_stays_on_the_page(signed: Ablation, positive: Ablation, look: Look) -> None:
    before = dict(matplotlib.rcParams)
    for found in (signed, positive):
        for name in found.figures:
            figure = found.figure(name, look, top=0)
            figure.draw_without_rendering()
            box = figure.get_tightbbox()
            assert box is not None
            assert box.x0 >= -0.02
            assert box.x1 <= figure.get_figwidth() + 0.02
            assert box.y0 >= -0.02
            assert box.y1 <= figure.get_figheight() + 0.02
            if look.width is not None:
                assert figure.get_figwidth() == pytest.approx(look.width, abs=0.01)
    assert dict(matplotlib.rcParams) == before


def test_large_models_have_no_numbers_in_the_cells(signed: Ablation) -> None:
    plan = plan_importance(signed)
    from dataclasses import replace

    wide = replace(plan, values=np.ones((48, 25)), unsure=np.zeros((48, 25), bool), top=1.0)
    assert not importance_figure(wide, Look()).axes[0].texts
    assert not importance_figure(wide, Look(width=3.3)).axes[0].texts


def test_saved_twice_the_bytes_are_the_same(positive: Ablation, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        positive.save(tmp_path / folder, formats=("png", "svg", "pdf"))
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(names) == 4 * 3 + 3
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert "cosine distance" in (tmp_path / "a" / "ablate-map.svg").read_text()
    captions = (tmp_path / "a" / "captions.md").read_text()
    assert captions.count("**ablate-") == 4


def test_saving_without_figures(positive: Ablation, tmp_path: Path) -> None:
    content = positive.save(tmp_path, figures=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ablate.csv", "ablate.json"]
    assert content["figures"] == []
    with pytest.raises(UsageError, match="unknown format"):
        positive.save(tmp_path / "x", formats=("gif",))
    assert not (tmp_path / "x").exists()


def test_arguments_of_odd_types_are_refused(positive: Ablation, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected a folder as a text or a Path .* found None"):
        positive.save(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"expected a list of formats .* found 'png'; write \['png'\]"):
        positive.save(tmp_path / "x", formats="png")
    with pytest.raises(UsageError, match="expected top as a whole number from 0 on, found -1"):
        positive.save(tmp_path / "x", top=-1)
    assert not (tmp_path / "x").exists()
    with pytest.raises(UsageError, match=r"expected top as a whole number from 0 on, found 1\.5"):
        positive.report(top=1.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="expected a width of 20 columns or more, found 3"):
        positive.report(3)


def test_figures_by_name(signed: Ablation) -> None:
    assert signed.figures == ("heads", "map", "curve", "gradient")
    titles: list[Any] = [signed.figure(name).texts[0].get_text() for name in signed.figures]
    assert [title.split(":")[0] for title in titles][1] == "GPT2LMHeadModel"
    assert heads_figure(plan_heads(signed, 1), Look()).axes
    assert curve_figure(plan_curve(signed), Look()).axes
