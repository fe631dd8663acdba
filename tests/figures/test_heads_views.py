"""What the overview and the heatmaps of a text show and say."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attnviz.commands.heads.analysis import Analysis
from attnviz.errors import UsageError
from attnviz.figures.families import ABBREVIATIONS
from attnviz.figures.head_grid import HeadGridPlan, head_grid_figure
from attnviz.figures.heatmap import HeatmapPlan, heatmap_figure
from attnviz.figures.style import Style
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of, texts_of
from tests.support.hand_made import LABELS, by_design, hand_made, uniform_pattern
from tests.support.stored import PROFILE, profile_of, role


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


@pytest.mark.parametrize(("analysis", "label", "evidence"), EVIDENCE)
def test_a_label_stands_with_the_evidence_that_it_rests_on(analysis: Any, label: str, evidence: list[str]):
    plan = heatmap(analysis())
    assert plan.title == f"L0H0 · {label}"
    assert [part for part in evidence if part not in plan.evidence] == []


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


def test_all_pictures_name_a_head_alike_by_its_label_and_its_role():
    spread = torch.zeros(6, 6)
    spread[:, [1, 3, 4]] = 1 / 3  # no pattern that has a name
    result = hand_made(
        patterns=torch.stack([spread, torch.eye(6)])[None],
        profile=profile_of({head: [role("coreference", 0.7, 0.4)] for head in ("L0H0", "L0H1")}),
    )
    names = ["L0H0 · coreference (corpus)", "L0H1 · current-token? · coreference (corpus)"]
    assert list(plans(result, "lines")[0].heads) == names
    assert [block.name for block in plans(result, "text")[0].blocks] == names
    assert [plan.title for plan in plans(result, "heads")] == names


def test_of_few_tokens_labels_are_grey_and_questions():
    few, many = hand_made(), hand_made(labels=["[CLS]", *map(str, range(11)), "[SEP]"], special=(0, 12))
    for result, certain in ((few, False), (many, True)):
        cell = overview(result).cells[0]
        assert (cell.beside, cell.muted) == (("previous-token", False) if certain else ("previous-token?", True))


@pytest.mark.parametrize("view", ["overview", "heads", "lines"])
def test_the_scale_of_a_single_head_is_compared_with_no_other(view: str):
    for scale in ("shared", "log"):
        of_one, of_two = (
            plans(hand_made(), view, select=heads, style=Style(scale=scale))[0]
            for heads in (["L0H1"], ["L0H0", "L0H1"])
        )
        assert ("same for every head" in of_one.caption, "same for every head" in of_two.caption) == (
            False,
            scale == "shared" or view == "lines",
        )
        assert "every head" not in getattr(of_one, "bar", "")


def test_the_overview_shows_every_selected_head_with_its_label():
    plan = overview(hand_made(), select=("L1",))
    assert "2 of 4 heads" in plan.title
    assert [(str(cell.id), cell.beside, cell.family and cell.family.name) for cell in plan.cells] == [
        ("L1H0", "sink?", "sink"),
        ("L1H1", "current-token?", "positional"),
    ]
    np.testing.assert_array_equal(plan.cells[0].values, by_design(6)[1, 0].numpy())


@pytest.mark.parametrize("scale", ["shared", "log"])
@pytest.mark.parametrize("view", [heatmap, overview])
def test_captions_say_model_text_unit_and_scale(view: Any, scale: str):
    plan = view(hand_made(pair="and\nthen\x1b[31m", name="bad\nname", words=True), style=Style(scale=scale))
    for said in (r"bad\nname", "“the cat ran away”", r"“and\nthen\x1b[31m”", "6 words"):
        assert said in plan.caption + " ".join(plan.notes)
    assert ("logarithmic colours from 0.0001" in plan.caption) == ("log scale" in plan.bar) == (scale == "log")
    assert not re.search(r"[\x00-\x1f]", plan.caption)


@pytest.mark.parametrize("width", [None, 2.0, 3.3])
def test_a_caption_speaks_of_numbers_where_the_picture_has_them(width: float | None):
    style = Style(width=width)
    for n in (6, 14, 18, 23, 26):
        plan = heatmap(
            hand_made(patterns=uniform_pattern(n)[None, None], labels=["[CLS]", *"a" * (n - 1)]), style=style
        )
        numbers = heatmap_figure(plan, style).axes[0].texts
        assert ("are written in the cells" in plan.caption) == bool(numbers)


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


@pytest.mark.parametrize(("name", "short"), ABBREVIATIONS.items())
def test_an_abbreviation_stands_in_its_name(name: str, short: str):
    assert short in name
    assert len(short) <= 5
