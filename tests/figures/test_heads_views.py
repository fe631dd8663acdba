"""What the overview and the heatmaps of a text show and say."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Text

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.views import DRAWINGS
from attnviz.errors import UsageError
from attnviz.figures.head_grid import HeadGridPlan, head_grid_figure
from attnviz.figures.heatmap import HeatmapPlan
from attnviz.figures.style import Style, figure_bytes
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.present.view import ViewOptions
from tests.support.drawn import HOSTILE
from tests.support.hand_made import LABELS, by_design, hand_made, uniform_pattern
from tests.support.stored import PROFILE


def plans(analysis: Analysis, view: str, **choices: Any) -> list[Any]:
    named = DRAWINGS[view]
    return list(named.plans(analysis, ViewOptions(**choices)))


def overview(analysis: Analysis, **choices: Any) -> HeadGridPlan:
    (plan,) = plans(analysis, "overview", **choices)
    return plan


def heatmap(analysis: Analysis, head: str = "L0H0", **choices: Any) -> HeatmapPlan:
    (plan,) = plans(analysis, "heads", select=(head,), **choices)
    return plan


def test_heatmaps_come_in_the_models_order_with_label_and_evidence():
    of = plans(hand_made(), "heads")
    assert [(plan.stem, plan.title, plan.evidence) for plan in of] == [
        ("heads/L00H00", "L0H0  previous-token?", "previous-token 1.00 · uniform attention 0.19 · n = 3"),
        ("heads/L00H01", "L0H1  broad?", "entropy 1.00 of that of uniform attention · n = 4"),
        ("heads/L01H00", "L1H0  sink?", "sink 1.00 · uniform attention 0.33 · n = 4"),
        ("heads/L01H01", "L1H1  current-token?", "current-token 0.73 · uniform attention 0.25 · n = 4"),
    ]
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


EVIDENCE: list[tuple[Any, str, str]] = [
    (
        lambda: hand_made(patterns=TWO_AWAY[None, None]),
        "heterogeneous?",
        "no positional pattern above uniform attention",
    ),
    (
        lambda: hand_made(patterns=(0.6 * TWO_AWAY + 0.4 * BEFORE)[None, None]),
        "heterogeneous?",
        "nearest: previous-token 0.33 · uniform attention 0.19 · n = 3",
    ),
    (
        lambda: hand_made(labels=("[CLS]", "[SEP]"), special=(0, 1), patterns=by_design(2)[:1, :1]),
        "too short",
        "n = 0: no label below 3",
    ),
    (amod, "syntactic:amod", "amod (dep → head) 1.00 · offset +1: 0.50 · n = 12"),
    (  # "x a b c d a b c y": three tokens have a copy
        lambda: hand_made(
            labels="xabcdabcy", special=(), causal=True, patterns=torch.eye(9)[[0, 0, 0, 0, 0, 2, 3, 4, 4]][None, None]
        ),
        "induction?",
        "induction 0.75 (1.00 where a token repeats) · uniform attention 0.06 · n = 3",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("analysis", "label", "evidence"), EVIDENCE)
def test_a_label_stands_with_the_evidence_that_it_rests_on(analysis: Any, label: str, evidence: str):
    plan = heatmap(analysis())
    assert (plan.title, plan.evidence) == (f"L0H0  {label}", evidence)


def test_a_role_over_the_corpus_stands_beside_the_label_and_never_in_its_place():
    result, plain = hand_made(profile=PROFILE, parse=NO_OBJECT), hand_made(parse=NO_OBJECT)
    assert [head.label for head in result.heads] == [head.label for head in plain.heads]
    plan, alone = heatmap(result, "L0H1"), heatmap(plain, "L0H1")
    assert plan.title == alone.title == "L0H1  broad?"
    role = "over the corpus nsubj dep→head, score 0.70, baseline 0.40, n = 200"
    assert plan.evidence == f"{alone.evidence} · {role}"
    assert plan.caption.endswith(f"; {role}, measured on a.conllu, 1,234 texts; b.tsv, 7 texts.")
    assert "; label on this text: broad? (" in plan.caption
    assert "; the question mark: an indication only; " in plan.caption
    grid = overview(result)
    cells = {str(cell.id): cell for cell in grid.cells}
    shown = {head: cell.right and (cell.right[0].name, cell.right[1][0], cell.right[2]) for head, cell in cells.items()}
    assert shown == {
        "L0H0": ("positional", "previous-token", True),
        "L0H1": ("syntactic", "nsubj", True),  # which the text has
        "L1H0": None,
        "L1H1": ("coreference", "coreference (corpus)", False),
    }
    assert "the role over a corpus (a.conllu, 1,234 texts; b.tsv, 7 texts; a stored profile)" in grid.caption
    texts = [text.get_text() for text in head_grid_figure(grid, Style()).findobj(Text)]
    assert "nsubj" in texts
    assert any("Right of an id" in text for text in texts)
    absent = overview(hand_made(profile=PROFILE, parse=replace(NO_OBJECT, arcs=(Arc(0, 1, "det"),))))
    assert absent.cells[1].right is not None
    assert (absent.cells[1].right[1][0], absent.cells[1].right[2]) == ("nsubj (corpus)", False)


def test_of_few_tokens_labels_are_grey_and_questions():
    few, many = hand_made(), hand_made(labels=["[CLS]", *map(str, range(11)), "[SEP]"], special=(0, 12))
    for result, certain in ((few, False), (many, True)):
        cell = overview(result).cells[0]
        assert (cell.beside, cell.muted) == (("previous-token", False) if certain else ("previous-token?", True))


def test_the_overview_shows_every_selected_head_with_its_label():
    result = hand_made(pair="and\nthen")
    plan = overview(result, select=("L1",))
    assert plan.title == "by-hand: 2 of 4 heads"
    assert overview(result).title == "by-hand: 2 layers × 2 heads"
    assert plan.notes[0] == r"“the cat ran away” / “and\nthen” (6 tokens)"
    assert [(str(cell.id), cell.beside, cell.family and cell.family.name) for cell in plan.cells] == [
        ("L1H0", "sink?", "sink"),
        ("L1H1", "current-token?", "positional"),
    ]
    np.testing.assert_array_equal(plan.cells[0].values, by_design(6)[1, 0].numpy())


def test_captions_say_model_text_scale_and_what_is_shown():
    result = hand_made(pair="and then")
    scale = "colours from 0 to 1, the same for every head"
    words = heatmap(hand_made(words=True))
    assert words.notes[0] == "by-hand on “the cat ran away” (6 words)"
    assert "of by-hand on “the cat ran away”: row = word that attends, column = word attended to" in words.caption
    assert scale in words.caption
    assert overview(result).caption.startswith("Attention of all 4 heads of by-hand on “the cat ran away” and “and th")
    assert scale in overview(result).caption
    log = Style(scale="log")
    for plan in (heatmap(result, style=log), overview(result, style=log)):
        assert "logarithmic colours from 0.0001 to 1" in plan.caption
        assert plan.bar == "attention weight (log scale)"
    assert "Attention of 2 of 4 heads of" in overview(result, select=("L1",)).caption
    one = hand_made(labels=["a"], special=(), causal=True, patterns=uniform_pattern(1)[None, None])
    assert "; label on this text: too short (n = 0" in heatmap(one).caption
    assert "“the cat ran away” (1 token), one row per layer" in overview(one).caption
    assert "\n" not in heatmap(hand_made(text="a\nb\x1b[31m", name="bad\nname")).caption


def test_a_head_with_its_own_scale_has_its_largest_weight_in_the_strongest_colour():
    result = hand_made(patterns=(torch.eye(6) * 0.7 + uniform_pattern(6) * 0.3)[None, None])
    style = Style(scale="per-head")
    plan, grid = heatmap(result, style=style), overview(result, style=style)
    assert plan.norm(plan.values.max()) == pytest.approx(1)
    assert grid.cells[0].values.max() == 1
    assert plan.evidence.endswith("· largest weight 0.75")
    assert "from 0 to the head's largest weight, 0.75" in plan.caption
    assert "from 0 to the largest weight of each head" in grid.caption
    assert plan.bar == grid.bar == "share of the head’s largest weight (own scales)"
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
    assert "; each cell is the largest of 2 × 2 weights (pooled for drawing only);" in plan.caption
    assert "; each cell is the largest of 10 × 10 weights" in grid.caption
    assert "written into the cells" not in plan.caption
    assert any(note.endswith("token is named.") for note in plan.notes)


def test_special_tokens_can_be_left_out_and_rows_are_renormalised():
    plan, grid = heatmap(hand_made(), "L0H1", drop_special=True), overview(hand_made(), drop_special=True)
    np.testing.assert_allclose(plan.values, np.full((4, 4), 0.25), rtol=1e-6)
    assert plan.labels.texts == LABELS[1:-1]
    for each in (plan, grid):
        assert "; special tokens dropped, rows renormalised" in each.caption
        assert "Special tokens dropped, rows renormalised." in each.notes
    causal = hand_made(labels="abc", special=(), causal=True, patterns=by_design(3, True))
    assert "; first token dropped, rows renormalised" in heatmap(causal, drop_special=True).caption
    with pytest.raises(UsageError, match="leaves nothing of this text to draw: its only token is special or the first"):
        heatmap(hand_made(labels="a", special=(), causal=True, patterns=by_design(1, True)), drop_special=True)


@pytest.mark.parametrize("name", list(DRAWINGS))
def test_hostile_texts_labels_and_names_are_drawn_without_crash_or_warning(name: str):
    labels, hostile, style = (
        ["[CLS]", *(label or "x" for label in HOSTILE)],
        " ".join(HOSTILE),
        Style("dark", width=3.3),
    )
    n = len(labels)
    arcs = tuple(Arc(place, place + 1, HOSTILE[place]) for place in range(n - 2))
    parse = Parse(tuple(Word(label, (place,)) for place, label in enumerate(labels) if place), arcs, hostile)
    result = hand_made(
        labels=labels, special=(0,), patterns=by_design(n), name=hostile, text=hostile, pair=hostile, parse=parse
    )
    segments = (None, *(int(place > n / 2) for place in range(1, n)))
    result = replace(result, tokens=replace(result.tokens, segments=segments))
    view = DRAWINGS[name]
    for plan in plans(result, name, select=("L0H1",), style=style):
        assert not re.search(r"[\x00-\x1f]", plan.caption)
        figure_bytes(view.figure(plan, style, True), "svg", style)
    assert overview(hand_made(name="bad\x1b[31m")).title == r"bad\x1b[31m: 2 layers × 2 heads"
