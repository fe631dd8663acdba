"""What the overview and the heatmaps of a text show and say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attnviz.commands.heads.analysis import Analysis
from attnviz.errors import UsageError
from attnviz.figures.head_grid import HeadGridPlan, head_grid_figure
from attnviz.figures.heatmap import HeatmapPlan
from attnviz.figures.style import Style
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of, texts_of
from tests.support.hand_made import LABELS, by_design, hand_made, uniform_pattern
from tests.support.stored import PROFILE


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
    assert [(plan.stem, plan.title.split()[2]) for plan in of] == [
        ("heads/L00H00", "previous-token?"), ("heads/L00H01", "broad?"),
        ("heads/L01H00", "sink?"), ("heads/L01H01", "current-token?"),
    ]  # fmt: skip
    for plan, pattern in zip(of, by_design(6).reshape(4, 6, 6), strict=True):
        np.testing.assert_array_equal(plan.values, pattern.numpy())
        assert plan.labels.texts == LABELS
        assert plan.labels.muted == (True, False, False, False, False, True)


NO_OBJECT = Parse((Word("the", (1,)), Word("cat", (2,)), Word("ran", (3,))), (Arc(1, 2, "nsubj"),), "by hand")
TWO_AWAY, BEFORE = torch.eye(6)[[0, 3, 4, 1, 2, 5]], torch.eye(6)[[0, 0, 1, 2, 3, 4]]
AMOD = tuple(Arc(i, i - 1 if i % 2 else i + 1, "amod") for i in range(12))


def amod() -> Analysis:
    pattern = torch.zeros(14, 14)
    pattern[0, 0] = pattern[13, 13] = 1
    for arc in AMOD:
        pattern[arc.dependent + 1, arc.head + 1] = 1
    parse = Parse(tuple(Word(str(i), (i + 1,)) for i in range(12)), AMOD, "by hand")
    return hand_made(
        labels=["[CLS]", *map(str, range(12)), "[SEP]"], special=(0, 13), patterns=pattern[None, None], parse=parse
    )


EVIDENCE: list[tuple[Any, str, list[str]]] = [
    (hand_made, "previous-token?", ["1.00", "uniform attention 0.19", "n = 3"]),
    (lambda: hand_made(patterns=TWO_AWAY[None, None]), "unnamed?", ["no positional pattern"]),
    (
        lambda: hand_made(patterns=(0.6 * TWO_AWAY + 0.4 * BEFORE)[None, None]),
        "unnamed?",
        ["previous-token 0.33", "uniform attention 0.19", "n = 3"],
    ),
    (
        lambda: hand_made(labels=("[CLS]", "[SEP]"), special=(0, 1), patterns=by_design(2)[:1, :1]),
        "too short",
        ["n = 0"],
    ),
    (amod, "syntactic:amod", ["dep → head", "1.00", "offset +1: 0.50", "n = 12"]),
    (  # "x a b c d a b c y": three tokens have a copy
        lambda: hand_made(
            labels="xabcdabcy", special=(), causal=True, patterns=torch.eye(9)[[0, 0, 0, 0, 0, 2, 3, 4, 4]][None, None]
        ),
        "induction?",
        ["0.75", "1.00 where a token repeats", "uniform attention 0.06", "n = 3"],
    ),
]


def test_a_role_over_the_corpus_stands_beside_the_label_and_never_in_its_place():
    result, plain = hand_made(profile=PROFILE, parse=NO_OBJECT), hand_made(parse=NO_OBJECT)
    assert [head.label for head in result.heads] == [head.label for head in plain.heads]
    plan, alone = heatmap(result, "L0H1"), heatmap(plain, "L0H1")
    assert (plan.title, alone.title) == ("L0H1 · broad? · nsubj (corpus)", "L0H1 · broad?")
    added = plan.evidence.removeprefix(alone.evidence)
    assert "nsubj dep→head, score 0.70, baseline 0.40, n = 200" in added
    assert "a.conllu, 1,234 texts" in plan.caption
    grid = overview(result)
    cells = {str(cell.id): cell for cell in grid.cells}
    shown = {head: cell.right and (cell.right[0].name, cell.right[1][0], cell.right[2]) for head, cell in cells.items()}
    assert shown == {
        "L0H0": ("positional", "previous-token", True),
        "L0H1": ("syntactic", "nsubj", True),  # which the text has
        "L1H0": None,
        "L1H1": ("coreference", "coreference (not looked for)", None),
    }
    assert "a.conllu, 1,234 texts" in grid.caption
    assert "nsubj" in texts_of(head_grid_figure(grid, Style()))
    absent = overview(hand_made(profile=PROFILE, parse=replace(NO_OBJECT, arcs=(Arc(0, 1, "det"),))))
    assert absent.cells[1].right is not None
    assert (absent.cells[1].right[1][0], absent.cells[1].right[2]) == ("nsubj (not here)", False)
    unknown = overview(hand_made(profile=PROFILE, parse=None))
    assert unknown.cells[1].right is not None
    assert (unknown.cells[1].right[1][0], unknown.cells[1].right[2]) == ("nsubj (not parsed)", None)
    (ax, *_) = head_grid_figure(unknown, Style()).axes
    assert [line.get_fillstyle() for line in ax.lines].count("left") == 2  # nsubj and coreference


def test_the_overview_shows_every_selected_head_with_its_label():
    plan = overview(hand_made(), select=("L1",))
    assert "2 of 4 heads" in plan.title
    assert [(str(cell.id), cell.beside, cell.family and cell.family.name) for cell in plan.cells] == [
        ("L1H0", "sink?", "sink"),
        ("L1H1", "current-token?", "positional"),
    ]
    np.testing.assert_array_equal(plan.cells[0].values, by_design(6)[1, 0].numpy())


def test_a_head_with_its_own_scale_has_its_largest_weight_in_the_strongest_colour():
    result = hand_made(patterns=(torch.eye(6) * 0.7 + uniform_pattern(6) * 0.3)[None, None])
    style = Style(scale="per-head")
    plan, grid = heatmap(result, style=style), overview(result, style=style)
    assert plan.norm(plan.values.max()) == pytest.approx(1)
    assert grid.cells[0].values.max() == 1
    assert "0.75" in plan.evidence
    assert "0.75" in plan.caption
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
    assert "2 × 2 weights" in plan.caption
    assert "10 × 10 weights" in grid.caption


def test_special_tokens_can_be_left_out_and_rows_are_renormalised():
    plan, grid = heatmap(hand_made(), "L0H1", drop_special=True), overview(hand_made(), drop_special=True)
    np.testing.assert_allclose(plan.values, np.full((4, 4), 0.25), rtol=1e-6)
    assert plan.labels.texts == LABELS[1:-1]
    for each in (plan, grid):
        assert "special tokens dropped, rows renormalised" in each.caption
    causal = hand_made(labels="abc", special=(), causal=True, patterns=by_design(3, True))
    assert "first token dropped" in heatmap(causal, drop_special=True).caption
    with pytest.raises(UsageError, match="leaves nothing of this text to draw: its only token is special or the first"):
        heatmap(hand_made(labels="a", special=(), causal=True, patterns=by_design(1, True)), drop_special=True)
