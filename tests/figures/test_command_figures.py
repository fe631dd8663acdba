"""Figures of ablations, comparisons, outputs and profiles: their numbers reach plans and artists."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import attnviz
from attnviz.commands.ablate import Ablation
from attnviz.commands.compare_pictures import both_axes, root_norm, rounded_up
from attnviz.commands.outputs import HeadOutputs
from attnviz.figures.matrix import Labels, Outline
from attnviz.figures.style import Style
from attnviz.measures.intervals import Estimate
from attnviz.measures.predictions import NEXT, STATES
from attnviz.present.view import ViewOptions
from attnviz.wording import signed
from tests.conftest import SENTENCE
from tests.support.ablations import TEXTS, masked_token_model, measured, next_token_model
from tests.support.classifiers import sharp_classifier
from tests.support.corpora import sentences
from tests.support.drawn import drawing_of
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.profiles import ROLES, corpus, profile, roles_of
from tests.support.results import layer_differences
from tests.support.tolerances import SUMS_32

pytestmark = pytest.mark.draws


def plan_of(command: str, view: str, result: Any, style: Style | None = None, select: str = "") -> Any:
    choices = ViewOptions(style or Style(), select=(select,) if select else (), top=0)
    return next(drawing_of(command, view).plans(result, choices))


# --- ablations


@pytest.fixture(scope="module")
def effects(tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    """GPT-2 on 30 sentences: heads that raise the loss, and heads that lower it, with intervals."""
    path = sentences(tmp_path_factory.mktemp("corpus") / "s.txt", 30)
    return measured(NEXT, path, curve=True)


def test_effects_are_drawn_with_their_intervals(effects: Ablation) -> None:
    figure = effects.figure("heads", top=5)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [str(h.id) for h in effects.heads[:5]]
    for ax, metric in zip(figure.axes, effects.metrics, strict=True):
        damage = [head.damage[metric.name] for head in effects.heads[:5]]
        (drawn,) = ax.containers
        assert list(drawn[0].get_xdata()) == [each.value for each in damage]
        segments = [segment[:, 0].tolist() for segment in drawn[2][0].get_segments()]
        assert np.array(segments) == pytest.approx(np.array([[each.low, each.high] for each in damage]))
        assert ax.get_ylim() == (4.5, -0.5)
    (drawn,) = measured(STATES, TEXTS, curve=True, select=["L0-1"]).figure("heads").axes[0].containers
    assert all(np.ptp(segment[:, 0]) == 0 for segment in drawn[2][0].get_segments())  # of four texts there are none


@pytest.mark.parametrize(("size", "unit", "drawn"), [(2e-3, "nats/token", 2e-3), (2e-8, "10⁻⁹ nats/token", 20.0)])
def test_numbers_too_small_for_an_axis_have_a_power_of_ten_in_their_unit(effects, size, unit, drawn) -> None:
    small = {"loss": Estimate(size, size / 2, 2 * size)}
    heads = tuple(replace(head, damage={**head.damage, **small}) for head in effects.heads)
    ax = replace(effects, heads=heads).figure("heads").axes[0]
    assert ax.get_xlabel().endswith(f"\n({unit})")
    assert np.asarray(ax.containers[0][0].get_xdata()) == pytest.approx(drawn)


def test_the_curve_has_every_point(effects: Ablation) -> None:
    points, ax = effects.curve.points, Figure().add_subplot()
    plan_of("ablate", "curve", effects).draw(ax, Style())
    least, singles, random, _ = ax.lines
    assert np.asarray(least.get_xdata()).tolist() == [point.removed for point in points]
    assert np.asarray(least.get_ydata()).tolist() == [point.least.damage["loss"].value for point in points]
    assert np.asarray(singles.get_ydata()).tolist() == [point.least.singles["loss"].value for point in points]
    assert np.asarray(random.get_ydata()).tolist() == [point.random.damage["loss"].value for point in points]


# --- patching


@pytest.mark.parametrize("by", [None, "position"])
def test_the_map_of_patching_has_every_effect_at_its_place(by: str | None) -> None:
    prompts = {"clean": "one two one", "corrupt": "one two two", "answer": " two", "foil": " one"}
    result = attnviz.patch(**prompts, model="tiny-gpt2", by=by)
    (drawn,) = plan_of("patch", "patch", result).maps
    assert drawn.values.size == len(result.effects)
    for effect in result.effects:
        cell = effect.layer, effect.head
        if by is not None:
            cell = drawn.rows.index(str(effect.id)), effect.position
            assert drawn.columns[effect.position] == effect.token or effect.token is None
        assert drawn.values[cell] == effect.effect


# --- comparisons

TEXT, OTHER = "the cat that i saw ran away", "the dog that i saw ran away"


@cache
def side(text: str) -> Any:
    return attnviz.analyze(text, sharp_bert(), tokenizer=bert_tokenizer(), syntax=False)


@pytest.fixture(scope="module")
def comparison() -> Any:
    return attnviz.compare(side(TEXT), side(OTHER))


@pytest.mark.parametrize(
    ("largest", "end"), [(0.37, 0.4), (0.4, 0.4), (0.401, 0.5), (0.95, 1.0), (1.0, 1.0), (0.0123, 0.02), (0, 1.0)]
)
def test_a_scale_ends_at_a_round_number(largest: float, end: float) -> None:
    assert rounded_up(largest) == end


def test_colours_follow_the_square_root_of_a_difference() -> None:
    norm = root_norm(0.4)
    np.testing.assert_allclose(norm([-0.9, -0.4, -0.1, 0, 0.1, 0.4, 0.9]), [0, 0, 0.25, 0.5, 0.75, 1, 1])
    np.testing.assert_allclose(norm.inverse(norm(0.3)), 0.3)


def test_differences_of_a_head_are_drawn_with_numbers_outline_and_bold_names(comparison: Any) -> None:
    first = comparison.heads[0]
    values = layer_differences(comparison, first.id.layer)[first.id.head]
    plan = plan_of("compare", "differences", comparison, select=str(first.id))
    np.testing.assert_array_equal(plan.values, values)
    assert plan.labels == Labels(comparison.rows.labels, (True, *[False] * 7, True), comparison.rows.differing)
    assert plan.outlines == (Outline((first.largest.query,) * 2, (first.largest.key,) * 2),)
    assert plan.norm.vmax == rounded_up(max(abs(head.largest.difference) for head in comparison.heads))
    ax = comparison.figure("differences", select=first.id).axes[0]
    np.testing.assert_array_equal(ax.images[0].get_array(), values)
    written = {(round(y), round(x)): text.get_text() for text in ax.texts for x, y in [text.get_position()]}
    assert written == {cell: signed(float(value)) for cell, value in np.ndenumerate(values) if abs(value) >= 0.005}
    (outline,) = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    assert outline.get_xy() == (first.largest.key - 0.5, first.largest.query - 0.5)


@pytest.mark.parametrize(("members", "has_words"), [([[0, 1], [2]], True), ([[0], [1, 2]], False)])
def test_the_page_of_a_comparison_has_words_where_both_texts_have_them_of_the_same_tokens(members, has_words) -> None:
    sides = [{"labels": side, "words": {"members": each}} for side, each in (("abc", [[0, 1], [2]]), ("abd", members))]
    assert ["words" in axis for axis in both_axes(*sides)] == [has_words] * 2
    assert len(both_axes({"labels": "abc"}, {"labels": "abc"})) == 1


def test_sides_are_named_by_what_tells_them_apart(comparison: Any) -> None:
    same = attnviz.compare(side(TEXT), side(TEXT))

    def names(first: Any = None, **changes: Any) -> Any:
        second = replace(same.second, checkpoint=replace(same.second.checkpoint, **changes))
        return replace(same, first=first or same.first, second=second).side_names

    one = replace(same.first, checkpoint=replace(same.first.checkpoint, revision="one"))
    assert comparison.side_names == (f"“{TEXT}”", f"“{OTHER}”")
    assert names() == ("BertModel", "BertModel")
    assert names(name="other\x1b") == ("BertModel", "other\\x1b")
    assert names(one, revision="two") == ("BertModel at one", "BertModel at two")
    assert names(model=sharp_bert().to(torch.float64)) == ("BertModel in float32", "BertModel in float64")


# --- what heads write, and what a classifier decides

OWN, SHARED = Style(scale="per-head"), Style(scale="shared")


@pytest.fixture(scope="module")
def outputs() -> HeadOutputs:
    model, tokenizer = masked_token_model()
    return attnviz.head_outputs(SENTENCE, model, tokenizer=tokenizer)


def test_the_tiles_are_weights_times_norms_of_values(outputs: HeadOutputs) -> None:
    plan, figure = plan_of("outputs", "heads", outputs, OWN, "L1H2"), outputs.figure("heads", select="L1H2")
    weights, value_norms, weighted = (tile.values for tile in plan.tiles)
    norms, of_values = outputs.norms("L1H2").numpy(), outputs.value_norms("L1H2").numpy()
    assert np.allclose(weights, outputs.pattern("L1H2"))
    assert np.allclose(weighted, norms / outputs.head("L1H2").largest)
    assert np.allclose(value_norms, of_values / of_values.max())
    assert np.allclose(weights * value_norms / (weights * value_norms).max(), weighted, atol=SUMS_32)
    for ax, tile in zip([ax for ax in figure.axes if ax.images], plan.tiles, strict=True):
        assert np.allclose(ax.images[0].get_array(), tile.values)


def test_a_shared_scale_ends_at_the_largest_of_all_heads_and_one_of_its_own_at_the_heads(outputs: HeadOutputs) -> None:
    plan = plan_of("outputs", "heads", outputs, SHARED, "L1H2")
    assert outputs.largest == max(float(outputs.norms(head.id).max()) for head in outputs.heads)
    assert np.allclose(plan.tiles[2].values, outputs.norms("L1H2").numpy() / outputs.largest)
    for style in (SHARED, OWN):
        cells = plan_of("outputs", "overview", outputs, style).cells
        assert [cell.id for cell in cells] == sorted(head.id for head in outputs.heads)
        for cell in cells:
            head = outputs.head(cell.id)
            largest = outputs.largest if style is SHARED else head.largest
            assert np.allclose(cell.values, outputs.norms(cell.id).numpy() / largest)
            assert cell.beside == f"{100 * head.projection_share:.0f} %".replace("-", "−")


@pytest.mark.parametrize(("n", "scale"), [(40, Normalize), (41, LogNorm)])
def test_the_scale_is_logarithmic_from_41_tokens_on(n: int, scale: Any) -> None:
    result = attnviz.head_outputs("cat " * (n - 2), sharp_bert(max_position_embeddings=41), tokenizer=bert_tokenizer())
    plans = [plan_of("outputs", "heads", result, select="L1H2"), plan_of("outputs", "overview", result)]
    assert {type(plan.norm) for plan in plans} == {scale}
    if scale is LogNorm:
        assert {(plan.norm.vmin, plan.norm.vmax) for plan in plans} == {(1e-4, 1)}


def test_long_texts_are_pooled_by_their_largest() -> None:
    model = sharp_bert(max_position_embeddings=1000, num_hidden_layers=1)
    long = attnviz.head_outputs("the cat saw " * 300, model, tokenizer=bert_tokenizer())
    plan, norms = plan_of("outputs", "heads", long, OWN, "L0H0"), long.norms("L0H0").numpy()
    assert (p := plan.pooled) > 1
    of_values, largest = long.value_norms("L0H0").numpy(), long.head("L0H0").largest
    assert plan.tiles[2].values[3, 5] == pytest.approx(norms[3 * p : 4 * p, 5 * p : 6 * p].max() / largest)
    assert plan.tiles[1].values[0, 5] == pytest.approx(of_values[5 * p : 6 * p].max() / of_values.max())


@pytest.mark.parametrize(
    ("kind", "columns"), [("gpt2", ["b_O", "FFN"]), ("bert", ["b_O", "FFN", "LN"]), ("gemma2", ["FFN"])]
)
def test_the_map_of_effects_has_every_part_of_every_layer_and_adds_up(kind: str, columns: list[str]) -> None:
    model, tokenizer = next_token_model() if kind == "gpt2" else sharp_classifier(kind)
    result = attnviz.head_outputs(TEXTS[0], model, tokenizer=tokenizer)
    (drawn,) = plan_of("outputs", "effects", result).maps
    assert [name for name, _ in drawn.beside] == columns
    rest = [part.direct_effect for part in result.effects.parts if part.layer is None]
    total = np.sum(drawn.values) + sum(np.sum(values) for _, values in drawn.beside) + sum(rest)
    assert total == pytest.approx(result.effects.difference, abs=SUMS_32)
    assert {head: drawn.values[head] for head in result.effects.heads} == result.effects.heads


# --- profiles


def relations_drawn(plan: Any) -> Any:
    """On Axes of a caller's own."""
    ax = Figure(figsize=(7, 6)).add_axes((0.25, 0.2, 0.45, 0.6))
    plan.draw(ax, Style())
    return ax


def test_the_map_of_roles_shows_the_clearest_and_counts_the_others() -> None:
    (drawn,) = plan_of("profile", "roles", profile()).maps
    assert drawn.texts == (("prev", "sink", ""), ("nsubj\n+1", "", "coref\n+2"))
    assert np.isnan(drawn.values).tolist() == [[False, False, True], [False, True, False]]


@pytest.mark.parametrize(
    ("gold", "name", "named"),
    [
        (True, "sink", ["trees.conllu", "plain.txt"]),
        (True, "syntactic:nsubj", ["trees.conllu"]),
        (False, "syntactic:nsubj", ["plain.txt"]),
        (True, "coreference", ["names.tsv"]),
        (True, "induction", ["32 × 50 random tokens"]),
    ],
)
def test_what_a_role_rests_on_is_named_and_nothing_else(gold: bool, name: str, named: list[str]) -> None:
    corpora = (corpus("trees.conllu", "conllu"), corpus("plain.txt", "txt"), corpus("names.tsv", "gap"))
    source = profile(roles_of(name, [0.9] * 6), corpora=corpora, gold=gold).source(name)
    every = ("trees.conllu", "plain.txt", "names.tsv", "32 × 50 random tokens")
    assert [part for part in every if part in source] == named


def test_relations_are_counted_where_any_head_passes_of_those_that_were_tested() -> None:
    """Of nsubj the best head fails and another passes; acl:relcl can be decided, obl has too few cases."""
    few = {"too_few": "n = 9, 30 needed", "holds": False}
    roles = [
        *(replace(each, holds=each.id.head == 2) for each in ROLES if each.role == "syntactic:nsubj"),
        *(replace(each, holds=False, refuted=False) for each in ROLES if each.role == "syntactic:acl:relcl"),
        *(replace(each, **few) for each in ROLES if each.role == "syntactic:obl"),
    ]
    plan = plan_of("profile", "relations", profile(roles))
    assert "1 of 2 relations" in plan.title
    beside = relations_drawn(plan).child_axes[0].get_yticklabels()
    named = {row.relation: text.get_text() for row, text in zip(plan.rows, beside, strict=True)}
    assert "cannot be decided" in named["acl:relcl"]
    assert few["too_few"] in named["obl"]


def test_relations_come_by_gain_and_are_drawn_with_interval_threshold_baseline_and_score() -> None:
    plan = plan_of("profile", "relations", profile())
    best = [(row.relation, str(row.verdict.id)) for row in plan.rows]
    assert best == [("nsubj", "L1H0"), ("acl:relcl", "L1H0"), ("obl", "L1H0")]
    assert [row.verdict.margin for row in plan.rows] == pytest.approx([0.4, 0.15, 0.05])
    gains, intervals, needed, scores, offset = relations_drawn(plan).collections
    for i, row in enumerate(plan.rows):
        assert gains.get_segments()[i].tolist() == [[row.verdict.baseline, i], [row.verdict.score, i]]
        ends = [row.verdict.baseline + end for end in row.verdict.difference]  # of what the verdict rests on
        assert intervals.get_segments()[i][:, 0].tolist() == ends
        assert needed.get_segments()[i][:, 0] == pytest.approx([row.verdict.baseline + 0.1] * 2)
        assert scores.get_offsets()[i].tolist() == [row.verdict.score, i]
        assert offset.get_offsets()[i].tolist() == [row.verdict.baseline, i]
    passing, _, failing = (to_hex(colour) for colour in scores.get_facecolors())
    assert passing != failing
