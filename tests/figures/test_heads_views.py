"""What the overview and the heatmaps of a text show and say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnviz.commands.heads import views
from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.summary import heads_to_look_at
from attnviz.errors import UsageError
from attnviz.figures.head_grid import HeadGridPlan
from attnviz.figures.heatmap import HeatmapPlan
from attnviz.figures.style import Style
from attnviz.language.syntax import Arc
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of
from tests.support.hand_made import LABELS, PARSE, by_design, hand_made, uniform_pattern
from tests.support.stored import PROFILE
from tests.support.tolerances import SUMS_32


def plans(analysis: Analysis, view: str, **choices: Any) -> list[Any]:
    named = drawing_of("heads", view)
    return list(named.plans(analysis, ViewOptions(**choices)))


def overview(analysis: Analysis, **choices: Any) -> HeadGridPlan:
    (plan,) = plans(analysis, "overview", **choices)
    return plan


def heatmap(analysis: Analysis, head: str = "L0H0", **choices: Any) -> HeatmapPlan:
    (plan,) = plans(analysis, "heads", select=(head,), **choices)
    return plan


def test_heatmaps_come_in_the_models_order_with_their_labels():
    of = plans(hand_made(), "heads")
    assert [plan.stem for plan in of] == ["heads/L00H00", "heads/L00H01", "heads/L01H00", "heads/L01H01"]
    for plan, pattern in zip(of, by_design(6).reshape(4, 6, 6), strict=True):
        np.testing.assert_array_equal(plan.values, pattern.numpy())
        assert plan.labels.texts == LABELS
        assert plan.labels.muted == (True, False, False, False, False, True)


def test_of_a_model_of_many_heads_those_to_look_at_get_a_heatmap_unless_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    analysis = hand_made(patterns=by_design(6)[:1].repeat(1, 4, 1, 1))
    counts = []
    for most in (8, 7):
        monkeypatch.setattr(views, "MOST_DRAWN", most)
        for figures in (None, ["heads"]):
            written = analysis.save(tmp_path, figures=figures)["figures"]
            counts.append(sum(name.startswith("heads/") for name in written))
    assert (counts[0], counts[1], counts[3]) == (8, 8, 8)
    assert counts[2] == len(heads_to_look_at(analysis.heads)) < 8


def test_a_role_over_the_corpus_stands_beside_the_label_and_never_in_its_place():
    result, plain = hand_made(profile=PROFILE, parse=PARSE), hand_made(parse=PARSE)
    assert [head.label for head in result.heads] == [head.label for head in plain.heads]
    plan, alone = heatmap(result, "L0H1"), heatmap(plain, "L0H1")
    assert "0.70" in plan.evidence.removeprefix(alone.evidence)
    assert ("a.conllu" in plan.caption, "b.tsv" in plan.caption) == (True, False)  # what measured this role alone
    right = [cell.right and (cell.right[0].name, cell.right[1][0], cell.right[2]) for cell in overview(result).cells]
    coreference = ("coreference", "coreference (not looked for)", None)
    assert right == [("local", "previous-token", True), ("syntactic", "nsubj", True), None, coreference]
    for parse, shown, filled in (
        (replace(PARSE, arcs=(Arc(0, 1, "det"),)), "nsubj (not here)", False),
        (None, "nsubj (not parsed)", None),
    ):
        beside = overview(hand_made(profile=PROFILE, parse=parse)).cells[1].right
        assert beside is not None
        assert (beside[1][0], beside[2]) == (shown, filled)


def test_the_overview_shows_every_selected_head_with_its_label():
    plan = overview(hand_made(), select=("L1",))
    shown = [(str(cell.id), cell.family and cell.family.name) for cell in plan.cells]
    assert shown == [("L1H0", "sink"), ("L1H1", "local")]
    np.testing.assert_array_equal(plan.cells[0].values, by_design(6)[1, 0].numpy())


def test_a_head_with_its_own_scale_has_its_largest_weight_in_the_strongest_colour():
    result = hand_made(patterns=(torch.eye(6) * 0.7 + uniform_pattern(6) * 0.3)[None, None])
    style = Style(scale="per-head")
    plan, grid = heatmap(result, style=style), overview(result, style=style)
    assert plan.norm(plan.values.max()) == pytest.approx(1)
    assert grid.cells[0].values.max() == 1
    assert (plan.bar_norm.vmin, plan.bar_norm.vmax) == (0, 1)


def test_a_long_text_is_pooled_and_its_largest_weights_stay():
    n = 1100
    pattern = uniform_pattern(n)
    pattern[701, 401] = 0.9
    result = hand_made(labels=[str(i) for i in range(n)], special=(), patterns=pattern[None, None])
    plan, grid = heatmap(result), overview(result)
    assert plan.pooled == 2
    assert plan.values.shape == (550, 550)
    assert plan.values[350, 200] == grid.cells[0].values[70, 40] == pytest.approx(0.9)


def test_special_tokens_can_be_left_out_and_rows_are_renormalised():
    plan, grid = heatmap(hand_made(), "L0H1", drop_special=True), overview(hand_made(), drop_special=True)
    np.testing.assert_allclose(plan.values, np.full((4, 4), 0.25), rtol=SUMS_32)
    assert plan.labels.texts == LABELS[1:-1]
    np.testing.assert_allclose(grid.cells[1].values, plan.values, rtol=SUMS_32)
    with pytest.raises(UsageError, match="special"):
        heatmap(hand_made(labels="a", special=(), causal=True, patterns=by_design(1, True)), drop_special=True)
