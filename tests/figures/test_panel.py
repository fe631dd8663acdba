"""Figures for papers: chosen heads side by side, panel letters, and pictures without title and notes."""

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from attnviz.commands.heads.views import DRAWINGS, MOST_HEADS
from attnviz.errors import UsageError
from attnviz.figures.style import Style
from attnviz.present.view import ViewOptions
from tests.support.drawn import nothing_over_the_edge
from tests.support.hand_made import by_design, hand_made

LETTERED = Style(bare=True, panel="a")

PANEL = DRAWINGS["panel"]


def plan_of(analysis: Any, *select: str, **choices: Any) -> Any:
    (plan,) = PANEL.plans(analysis, ViewOptions(select=select, **choices))
    return plan


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def test_chosen_heads_stand_side_by_side_with_their_weights():
    analysis = hand_made()
    plan = plan_of(analysis, "L1H1", "L0H1")
    (_, tiles) = plan.groups[0]
    assert [tile.name.split()[0] for tile in tiles] == ["L0H1", "L1H1"]
    for tile, (layer, head) in zip(tiles, ((0, 1), (1, 1)), strict=True):
        np.testing.assert_allclose(tile.values, analysis.layer_patterns(layer)[head].numpy(), atol=1e-6)
    assert plan.title.endswith(": 2 heads")
    assert "heads L0H1 (" in plan.caption
    own = plan_of(analysis, "L0H1", style=Style(scale="per-head"))
    assert own.groups[0][1][0].values.max() == pytest.approx(1)


def test_of_many_heads_the_clearest_are_shown_and_the_title_says_how_many():
    many = hand_made(patterns=torch.cat([by_design(6)] * 8))
    plan = plan_of(many)
    kept = {tile.name.split()[0] for tile in plan.groups[0][1]}
    assert len(kept) == MOST_HEADS < len(many.heads)
    assert plan.title.endswith(f"{MOST_HEADS} of {len(many.heads)} heads, the clearest")
    left_out = [head.rank_key for head in many.heads if str(head.id) not in kept]
    assert max(left_out) <= min(head.rank_key for head in many.heads if str(head.id) in kept)


@pytest.mark.parametrize(("width", "theme"), [(None, "light"), (3.3, "dark"), (6.75, "light")])
def test_a_panel_has_its_letter_and_keeps_its_width(width: float | None, theme: str):
    figure = hand_made().figure("panel", Style(theme, width=width, panel="b"), select=["L0H1", "L1H1"])
    assert nothing_over_the_edge(figure)
    assert words(figure)[0].startswith("b  ")
    if width is not None:
        assert figure.get_figwidth() == pytest.approx(width)


@pytest.mark.parametrize("name", ["overview", "heads", "lines", "map", "mean", "panel"])
def test_a_bare_figure_has_its_letter_and_no_other_words_above(name: str):
    analysis = hand_made()
    full, lettered = (analysis.figure(name, style) for style in (Style(width=5), Style(width=5, bare=True, panel="a")))
    bare = analysis.figure(name, Style(width=5, bare=True))
    assert len(words(full)) > 1
    assert words(lettered) == ["a"]
    assert words(bare) == []
    assert bare.get_figheight() < lettered.get_figheight() < full.get_figheight()


@pytest.mark.parametrize("file_format", ["png", "svg"])
def test_the_fast_files_of_heads_are_bare_too(tmp_path: Any, file_format: str):
    hand_made().save(tmp_path, figures=["heads"], formats=[file_format], select=["L0H1"], style=LETTERED)
    full = tmp_path / "full"
    hand_made().save(full, figures=["heads"], formats=[file_format], select=["L0H1"], style=Style())
    path = f"heads/L00H01.{file_format}"
    if file_format == "png":
        assert plt.imread(tmp_path / path).shape[0] < plt.imread(full / path).shape[0]
    else:
        assert ">a</text>" in (tmp_path / path).read_text()
        assert "the cat ran away" not in (tmp_path / path).read_text()
        assert "the cat ran away" in (full / path).read_text()


@pytest.mark.parametrize("panel", ["abcd", "a)", 3])
def test_a_panel_letter_is_a_letter(panel: Any):
    with pytest.raises(UsageError, match="expected a panel letter such as a or B1"):
        Style(panel=panel)


def test_on_a_callers_axes_a_bare_heatmap_has_no_title():
    figure = Figure()
    full, bare = figure.subplots(1, 2)
    for ax, style in ((full, Style()), (bare, Style(bare=True))):
        hand_made().draw("heads", ax, style, select="L0H1")
    assert full.get_title("left")
    assert not bare.get_title("left")
