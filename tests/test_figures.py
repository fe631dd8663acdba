"""Plans of figures: what will be drawn, before anything is drawn."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnviz.commands.heads.analysis import analyze
from attnviz.commands.heads.findings import without_sinks
from attnviz.errors import UsageError
from attnviz.figures.colours import LEVELS, colour_levels, colour_map, colour_table, magnified
from attnviz.figures.fonts import text_width
from attnviz.figures.heatmaps import HeatmapPlan, heatmap_plans, max_pool, names_note, plan_heatmap
from attnviz.figures.look import Look
from attnviz.figures.overviews import model_overview_plan, plan_overview
from attnviz.model.head_ids import HeadId
from attnviz.model.wording import counted, ordinal, quoted
from attnviz.patterns.syntax import Arc, Parse, Word
from tests.hand_made import LABELS, by_design, hand_made
from tests.stored import PROFILE


def plan_of(n, label="w", **changes):
    settings = {"quiet": [False] * n, "title": "L0H0  local", **changes}
    return plan_heatmap(np.eye(n, dtype=np.float32), [f"{label}{i}" for i in range(n)], **settings)


def grid_of(heads, n=10, label="local"):
    pattern = np.eye(n, dtype=np.float32)
    return plan_overview(((HeadId(*head), label, pattern) for head in heads), title="model")


def test_the_values_of_a_small_plan_are_the_pattern_itself():
    pattern = np.arange(16, dtype=np.float32).reshape(4, 4) / 16
    plan = plan_heatmap(pattern, list("abcd"), quiet=[True, False, False, True], title="t", evidence="e", unit="word")
    np.testing.assert_array_equal(plan.values, pattern)
    assert (plan.labels, plan.quiet) == (tuple("abcd"), (True, False, False, True))
    assert (plan.title, plan.evidence, plan.unit, plan.pooled, plan.vmax) == ("t", "e", "word", 1, 1.0)


def test_labels_are_cut_at_twenty_characters_and_no_earlier():
    plan = plan_heatmap(np.eye(2, dtype=np.float32), ["a" * 20, "b" * 21], quiet=[False] * 2, title="t")
    assert plan.labels == ("a" * 20, "b" * 19 + "…")


@pytest.mark.parametrize(("n", "cell", "every"), [(1, 44, 1), (9, 44, 1), (60, 16, 1), (300, 3, 5), (512, 2, 7)])
def test_cells_are_whole_pixels_and_labels_thin_out(n, cell, every):
    plan = plan_of(n)
    assert (plan.cell, plan.size) == (cell, cell * n)
    assert plan.ticks == range(0, n, every)


@pytest.mark.parametrize("n", [1, 2, 9, 21, 22, 60, 73, 74, 75, 120, 300, 511, 512, 1024])
def test_labels_never_stand_closer_than_thirteen_pixels(n):
    plan = plan_of(n)
    assert isinstance(plan.cell, int)
    assert plan.cell >= 1
    assert plan.ticks.step * plan.cell >= 13
    assert plan.size <= 1440
    assert plan.font_size * 150 / 72 <= plan.ticks.step * plan.cell  # the letters fit between two ticks


@pytest.mark.parametrize(("n", "size"), [(1, 9.0), (9, 9.0), (60, 6.144), (512, 5.5)])
def test_letters_shrink_with_the_cells_but_stay_readable(n, size):
    assert plan_of(n).font_size == pytest.approx(size)


def test_a_pattern_too_large_to_draw_is_pooled_and_its_maxima_stay():
    n = 1025
    pattern = np.zeros((n, n), dtype=np.float32)
    pattern[3, 7] = 0.9
    pattern[1024, 0] = 0.5
    pattern[1024, 1024] = 0.25
    plan = plan_heatmap(pattern, [str(i) for i in range(n)], quiet=[i == 2 for i in range(n)], title="t")
    assert plan.pooled == 2
    assert plan.values.shape == (513, 513)
    assert (plan.values[1, 3], plan.values[512, 0], plan.values[512, 512]) == (
        np.float32(0.9),
        np.float32(0.5),
        np.float32(0.25),
    )
    assert plan.values.astype(float).sum() == pytest.approx(1.65)
    assert plan.labels[:3] == ("0", "2", "4")
    assert plan.labels[-1] == "1024"
    assert plan.quiet[:3] == (False, True, False)


def test_1024_tokens_are_drawn_one_by_one():
    assert plan_of(1024).pooled == 1


def test_pooling_keeps_the_largest_of_every_block_and_pads_with_nothing():
    pattern = np.arange(25, dtype=np.float32).reshape(5, 5)
    np.testing.assert_array_equal(max_pool(pattern, 2), [[6, 8, 9], [16, 18, 19], [21, 23, 24]])
    np.testing.assert_array_equal(max_pool(pattern, 5), [[24]])
    assert max_pool(pattern, 1) is pattern
    assert max_pool(pattern, 2).dtype == np.float32


@pytest.mark.parametrize(
    ("shape", "labels", "quiet"),
    [((3, 4), 3, 3), ((4, 3), 4, 4), ((3, 3), 2, 3), ((3, 3), 4, 3), ((3, 3), 3, 2), ((3,), 3, 3), ((1, 3, 3), 1, 1)],
)
def test_shapes_that_do_not_fit_are_refused(shape, labels, quiet):
    with pytest.raises(ValueError, match=r"pattern must have shape \(n, n\) with n labels\. Got \("):
        plan_heatmap(np.zeros(shape, np.float32), ["x"] * labels, quiet=[False] * quiet, title="t")


def test_an_overview_has_a_row_a_layer_and_a_column_a_head():
    plan = grid_of([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)])
    assert plan.size == 120
    assert plan.image.shape == (3 * (120 + 44) + 28, 2 * (120 + 14), 3)  # 28 for the legend
    assert plan.cells[3] == (HeadId(1, 1), "local", 135, 202)
    assert plan.layers == ((0, 38), (1, 202), (2, 366))


def test_a_selection_of_heads_takes_only_the_rows_and_columns_that_it_needs():
    plan = grid_of([(2, 8), (5, 1), (5, 11)])
    assert [(str(head), left, top) for head, _, left, top in plan.cells] == [
        ("L2H8", 135, 38),
        ("L5H1", 1, 202),
        ("L5H11", 269, 202),
    ]
    assert plan.layers == ((2, 38), (5, 202))
    empty = plan.image[38:158, 1:121]  # layer 2 has no head in the first column
    assert (empty == 255).all()


def test_every_pattern_of_an_overview_is_drawn_exactly_inside_a_frame_of_one_pixel():
    pattern = np.zeros((10, 10), np.float32)
    pattern[0, 2] = 1.0
    plan = plan_overview([(HeadId(0, 0), "local", pattern)], title="t")
    square = plan.image[38:158, 1:121]
    np.testing.assert_array_equal(square, colour_table()[magnified(colour_levels(pattern), 12)])
    assert (square[:12, 24:36] == colour_table()[-1]).all()
    assert (square[24:36, :12] == 255).all()
    frame = [plan.image[37, 0:122], plan.image[158, 0:122], plan.image[37:159, 0], plan.image[37:159, 121]]
    assert all((side == 154).all() for side in frame)
    assert (plan.image[:37] == 255).all()  # room for the id and the label


@pytest.mark.parametrize(
    ("n", "size", "pooled"), [(1, 120, 1), (9, 117, 1), (120, 120, 1), (121, 61, 2), (300, 100, 3)]
)
def test_overview_squares_are_whole_pixels_a_cell_and_pooled_above_120(n, size, pooled):
    plan = grid_of([(0, 0)], n)
    assert (plan.size, len(plan.notes)) == (size, 1 if pooled == 1 else 2)
    if pooled > 1:
        note = f"Each pixel is the largest of {pooled} × {pooled} weights (pooled for drawing only)."
        assert plan.notes[1] == note
    diagonal = plan.image[38 : 38 + size, 1 : 1 + size].diagonal()
    assert diagonal.T.tolist() == [colour_table()[-1].tolist()] * size


def test_the_columns_of_an_overview_leave_room_for_the_longest_label():
    plan = grid_of([(0, 0), (0, 1)], 121)
    assert plan.cells[1][2] - plan.cells[0][2] == 104 + 14


def test_an_overview_says_how_to_read_it_after_its_other_notes():
    plan = plan_overview([(HeadId(0, 0), "x", np.eye(3, dtype=np.float32))], title="t", notes=["first"], unit="word")
    assert plan.notes == (
        "first",
        "In each square rows attend to columns (3 words); white is 0, dark blue 1, the same for every head.",
    )


def test_a_legend_too_wide_for_one_row_goes_on_in_the_next():
    labels = ["previous-token", "local", "long-range", "syntactic:nsubj", "induction", "sink", "broad", "heterogeneous"]
    pattern = np.eye(4, dtype=np.float32)
    heads = [(HeadId(0, place), label, pattern) for place, label in enumerate(labels)]
    narrow, wide = (plan_overview(heads, title="t", look=Look(width=width)) for width in (2.5, None))
    assert [entry.name for entry in narrow.legend] == [
        "positional", "local", "long-range", "syntactic", "repeats", "sink", "broad", "heterogeneous"
    ]  # fmt: skip
    assert len({entry.middle for entry in narrow.legend}) > 1
    assert len({entry.middle for entry in wide.legend}) == 1
    assert max(entry.middle for entry in narrow.legend) < len(narrow.image)


@pytest.mark.parametrize(("n", "pooled"), [(9, 1), (60, 1), (448, 5)])
def test_a_narrow_overview_uses_its_room(n, pooled):
    heads = ((HeadId(0, head), "sink", np.eye(n, dtype=np.float32)) for head in range(12))
    plan = plan_overview(heads, title="t", look=Look(width=3.3))
    assert plan.pooled == pooled
    assert 0.7 * plan.pitch < plan.size < plan.pitch
    for _, _, left, top in plan.cells:
        diagonal = plan.image[top : top + plan.size, left : left + plan.size].diagonal()
        assert (colour_table()[-1] == diagonal.T).all()


@pytest.mark.parametrize("columns", [2, 12, 16, 25])
def test_a_narrow_overview_names_no_more_columns_than_fit(columns):
    heads = [(HeadId(0, head), "sink", np.eye(9, dtype=np.float32)) for head in range(columns)]
    plan = plan_overview(heads, title="t", look=Look(width=2.0 if columns < 20 else 2.6))
    if columns == 2:
        assert plan.columns == ()
        return
    named, middles = zip(*plan.columns, strict=True)
    assert named == tuple(range(0, columns, named[1]))
    room = np.diff(middles).min()
    assert room > text_width(f"H{columns - 1}", 5.5, plan.dpi, "bold")
    assert middles[1] == plan.cells[named[1]][2] + plan.size // 2
    assert min(top for _, _, _, top in plan.cells) < plan.pixels(32)  # no room is kept for ids above the squares


def test_a_width_too_small_for_the_heads_is_refused_with_the_least():
    heads = [(HeadId(0, head), "sink", np.eye(9, dtype=np.float32)) for head in range(25)]
    least = r"expected a width of at least 2\.6 inches for an overview with 25 heads in a row, found 2: choose"
    with pytest.raises(UsageError, match=least):
        plan_overview(heads, title="t", look=Look(width=2.0))
    assert plan_overview(heads, title="t", look=Look(width=2.6)).size > 0


@pytest.mark.parametrize(("n", "shown"), [(0, "0 tokens"), (1, "1 token"), (9, "9 tokens")])
def test_one_is_not_counted_as_many(n, shown):
    assert counted(n, "token") == shown
    plan = plan_overview([(HeadId(0, 0), "x", np.eye(max(n, 1), dtype=np.float32))], title="t")
    assert n == 0 or f"columns ({shown})" in plan.notes[-1]


@pytest.mark.parametrize(("number", "shown"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (11, "11th"), (22, "22nd")])
def test_ordinals(number, shown):
    assert ordinal(number) == shown
    assert names_note(number, "word") == ("" if number == 1 else f"Every {shown} word is named.")


def test_a_heatmap_knows_its_model_and_text():
    found = hand_made(pair="and\nthen")
    assert next(heatmap_plans(found, found.heads)).subject == r"by-hand · “the cat ran away” / “and\nthen”"


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (Look(theme="dark"), "black is 0, light blue 1, the same for every head."),
        (Look(scale="per-head"), "white is 0, dark blue the largest weight of each head."),
        (Look(scale="log"), "white is 0.0001 or less, dark blue 1, log scale, the same for every head."),
    ],
)
def test_an_overview_says_which_scale_it_shows(look, words):
    plan = plan_overview([(HeadId(0, 0), "x", np.eye(3, dtype=np.float32) / 2)], title="t", look=look)
    assert " ".join(plan.notes).endswith(words)
    _, _, left, top = plan.cells[0]
    strongest = {"shared": 88, "per-head": 175, "log": round(175 * (1 - np.log10(2) / 4))}[look.scale]
    assert plan.image[top, left].tolist() == colour_table(look.theme)[strongest].tolist()


def test_a_column_of_text_has_room_for_nine_cells_and_pools_a_thousand():
    look = Look(width=3.3)
    few, many = plan_of(9, look=look), plan_of(1000, look=look)
    assert few.dpi == many.dpi == 300
    assert few.number_size is not None
    assert few.size / 300 > 1.8
    assert many.pooled == 2
    assert many.size / 300 < 3.3
    assert many.ticks.step * many.cell >= 26


def test_without_sinks_plans_hold_what_is_left_renormalised_and_say_so():
    analysis = hand_made()
    shown = without_sinks(analysis)
    plans = list(heatmap_plans(shown, shown.heads))
    assert plans[0].labels == LABELS[1:5]
    assert (plans[0].dropped, plans[0].notes) == ("special tokens dropped, rows renormalised", ())
    for plan, pattern in zip(plans, by_design(6).reshape(4, 6, 6)[:, 1:5, 1:5].numpy(), strict=True):
        totals = pattern.sum(-1, keepdims=True)
        expected = np.divide(pattern, totals, out=np.zeros_like(pattern), where=totals > 0)
        np.testing.assert_allclose(plan.values, expected, atol=1e-6)
        assert plan.evidence in [other.evidence for other in heatmap_plans(analysis, analysis.heads)]
    overview = model_overview_plan(shown, shown.heads)
    assert overview.title == "by-hand: 2 layers × 2 heads (special tokens dropped, rows renormalised)"
    assert "(4 tokens)" in overview.notes[-1]
    assert shown.head("L0H0").statistics == analysis.head("L0H0").statistics


def test_dropping_names_the_first_token_of_a_causal_model_and_refuses_to_drop_all():
    causal = hand_made(labels="abcd", special=(), causal=True)
    assert without_sinks(causal).dropped == "first token dropped, rows renormalised"
    assert len(without_sinks(causal).units) == 3
    nothing = hand_made(labels=("[CLS]", "[SEP]"), special=(0, 1), patterns=by_design(2)[:1, :1])
    with pytest.raises(UsageError, match="leaves nothing of this text to draw: its 2 tokens are all special"):
        without_sinks(nothing)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "“plain”"),
        ("a\nb\tc\x1b[31m\x00", r"“a\nb\tc\x1b[31m\x00”"),
        ("\u202eright to left\u200b", r"“\u202eright to left\u200b”"),
        ("x" * 90, "“" + "x" * 90 + "”"),
        ("x" * 91, "“" + "x" * 89 + "…”"),
        ("$\\frac$ [/b]", "“$\\frac$ [/b]”"),
        ("שלום cat", "“\u2067שלום cat\u2069”"),
        ("cat שלום", "“\u2066cat שלום\u2069”"),
    ],
)
def test_quoted_texts_hold_nothing_invisible_and_are_cut(text, shown):
    assert quoted(text) == shown


def test_a_models_heatmaps_are_planned_in_order_with_label_and_evidence():
    analysis = hand_made()
    plans = list(heatmap_plans(analysis, analysis.heads))
    assert [plan.title for plan in plans] == [
        "L0H0  previous-token",
        "L0H1  broad",
        "L1H0  sink",
        "L1H1  current-token",
    ]
    assert [plan.evidence for plan in plans] == [
        "previous-token 1.00 · uniform attention 0.19 · n = 3",
        "broad 1.00 · uniform attention 1.00 · n = 6",
        "sink 1.00 · uniform attention 0.33 · n = 4",
        "current-token 0.73 · uniform attention 0.25 · n = 4",
    ]
    for plan, pattern in zip(plans, by_design(6).reshape(4, 6, 6), strict=True):
        np.testing.assert_array_equal(plan.values, pattern.numpy())
        assert plan.labels == LABELS
        assert plan.quiet == (True, False, False, False, False, True)


def test_a_heterogeneous_head_below_all_baselines_has_no_nearest_pattern():
    two_away = torch.eye(6)[[0, 3, 4, 1, 2, 5]]
    analysis = hand_made(patterns=two_away[None, None])
    plan = next(heatmap_plans(analysis, analysis.heads))
    assert plan.title == "L0H0  heterogeneous"
    assert plan.evidence == "no positional pattern above uniform attention"


def test_a_heterogeneous_head_shows_the_nearest_positional_pattern():
    two_away, before = torch.eye(6)[[0, 3, 4, 1, 2, 5]], torch.eye(6)[[0, 0, 1, 2, 3, 4]]
    analysis = hand_made(patterns=(0.6 * two_away + 0.4 * before)[None, None])
    plan = next(heatmap_plans(analysis, analysis.heads))
    assert plan.title == "L0H0  heterogeneous"
    assert plan.evidence == "nearest: previous-token 0.33 · uniform attention 0.19 · n = 3"


def test_a_text_that_measures_nothing_says_so_instead_of_a_number():
    analysis = hand_made(labels=("[CLS]", "[SEP]"), special=(0, 1), patterns=by_design(2)[:1, :1])
    plan = next(heatmap_plans(analysis, analysis.heads))
    assert (plan.title, plan.evidence) == ("L0H0  not measurable", "not measurable on this text")


def test_a_syntactic_label_shows_its_direction_offset_and_n():
    words = tuple(Word(str(i), (i + 1,)) for i in range(12))
    arcs = tuple(Arc(i, i - 1 if i % 2 else i + 1, "amod") for i in range(12))
    pattern = np.zeros((14, 14), np.float32)
    pattern[0, 0] = pattern[13, 13] = 1
    for arc in arcs:
        pattern[arc.dependent + 1, arc.head + 1] = 1
    labels = ["[CLS]", *map(str, range(12)), "[SEP]"]
    parse = Parse(words, arcs, "by hand")
    analysis = hand_made(labels=labels, special=(0, 13), patterns=torch.tensor(pattern)[None, None], parse=parse)
    plan = next(heatmap_plans(analysis, analysis.heads))
    assert plan.title == "L0H0  syntactic:amod"
    assert plan.evidence == "amod (dep → head) 1.00 · offset +1: 0.50 · n = 12"


def test_the_evidence_of_a_label_from_a_profile_names_the_profile():
    analysis = hand_made(profile=PROFILE)
    (plan,) = heatmap_plans(analysis, analysis.select(["L0H1"]))
    assert plan.title == "L0H1  syntactic:nsubj"
    assert plan.evidence == "nsubj (dep → head) 0.70 · profile's best offset: 0.40 · n = 200"


def test_the_evidence_of_an_induction_head_names_what_its_label_rests_on():
    pattern = torch.eye(9)[[0, 0, 0, 0, 0, 2, 3, 4, 0]]  # "x a b c d a b c y": three tokens have a copy
    analysis = hand_made(labels="xabcdabcy", special=(), causal=True, patterns=pattern[None, None])
    plan = next(heatmap_plans(analysis, analysis.heads))
    assert plan.title == "L0H0  induction"
    assert plan.evidence == "induction 1.00 (1.00 where a token repeats) · uniform attention 0.06 · n = 3"


def test_the_overview_of_a_model_names_model_text_and_pair():
    analysis = hand_made(pair="and\nthen")
    plan = model_overview_plan(analysis, analysis.select(["L1"]))
    assert plan.title == "by-hand: 2 of 4 heads"
    assert model_overview_plan(analysis, analysis.heads).title == "by-hand: 2 layers × 2 heads"
    assert plan.notes[:2] == ("“the cat ran away”", r"“and\nthen”")
    assert [(str(head), label) for head, label, _, _ in plan.cells] == [("L1H0", "sink"), ("L1H1", "current-token")]


def test_an_overview_says_which_labels_are_those_of_a_profile():
    said = "Syntactic labels are those of the model’s stored profile."
    found = hand_made(profile=PROFILE)
    assert said in " ".join(model_overview_plan(found, found.heads).notes)
    assert said not in " ".join(model_overview_plan(found, found.select(["L0H0"])).notes)
    plain = hand_made()
    assert said not in " ".join(model_overview_plan(plain, plain.heads).notes)


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        (["heterogeneous"], "heterogeneous"),
        (["not measurable"] * 2, "not measurable"),
        (["not measurable", "heterogeneous"], "heterogeneous or not measurable"),
    ],
)
def test_the_legend_calls_heads_without_a_role_by_their_labels(labels, name):
    heads = [(HeadId(0, head), label, np.eye(3, dtype=np.float32)) for head, label in enumerate(labels)]
    assert [entry.name for entry in plan_overview(heads, title="t").legend] == [name]


LONG_EVIDENCE = [
    "induction 0.53 (0.60 where a token repeats) · uniform attention 0.06 · n = 4",
    "duplicate-token 0.53 (0.60 where a token repeats) · uniform attention 0.06 · n = 123",
    "nearest: previous-token 0.33 · uniform attention 0.19 · n = 123",
    "acl:relcl (dep → head) 0.70 · profile's best offset: 0.40 · n = 1200",
    "no positional pattern above uniform attention",
]


@pytest.mark.parametrize("evidence", LONG_EVIDENCE)
@pytest.mark.parametrize(("width", "lines"), [(None, 1), (2.0, 2), (3.3, 2), (4.0, 1)])
def test_score_baseline_and_n_are_never_cut(evidence, width, lines):
    size, room = (7.5, 576) if width is None else (6.5, width * 300 - 48)
    shown = plan_of(9, evidence=evidence, look=Look(width=width)).evidence_lines(size, room, lines)
    assert len(shown) == lines
    together = " ".join(shown)
    assert "…" not in together
    assert re.findall(r"[\d.]+", together) == re.findall(r"[\d.]+", evidence)
    assert plan_of(9, evidence=evidence).evidence_lines(size, 5000, 1) == [evidence]


def test_the_title_names_only_the_last_part_of_a_folder(bert_folder):
    analysis = analyze("the cat ran", model=bert_folder)
    assert str(bert_folder) == analysis.checkpoint.name
    assert model_overview_plan(analysis, analysis.heads).title.startswith(f"{bert_folder.name}: 3 layers")


def test_control_characters_in_a_models_name_are_escaped_in_the_title():
    analysis = hand_made(name="bad\x1b[31m")
    assert model_overview_plan(analysis, analysis.heads).title == r"bad\x1b[31m: 2 layers × 2 heads"


def test_merged_words_are_planned_as_words():
    analysis = hand_made(words=True)
    assert next(heatmap_plans(analysis, analysis.heads)).unit == "word"
    assert "(6 words)" in model_overview_plan(analysis, analysis.heads).notes[-1]


def test_the_colour_scale_runs_from_white_to_dark_and_never_back():
    table = colour_table().astype(int)
    assert table.shape == (LEVELS, 3)
    assert table[0].tolist() == [255, 255, 255]
    assert (np.diff(table.sum(1)) < 0).all()
    assert table[-1].tolist() == [8, 48, 107]
    np.testing.assert_array_equal((np.array(colour_map().colors) * 255).round(), table)


def test_weights_outside_the_scale_take_its_ends():
    values = np.array([[-0.1, 0.0, 0.5, 1.0, 1.1]], np.float32)
    assert colour_levels(values).tolist() == [[0, 0, 88, 175, 175]]
    assert colour_levels(values, 0.5).tolist() == [[0, 0, 175, 175, 175]]


def test_plans_cannot_be_changed_by_accident():
    plan = plan_of(2)
    with pytest.raises(AttributeError):
        plan.title = "other"
    assert isinstance(replace(plan, title="other"), HeatmapPlan)
