"""What an ablation says, from its numbers: verdicts by stated thresholds, the paragraph, tables and documents."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnviz.commands.ablate.effects import Curve, CurvePoint, Estimate, HeadEffect, SetEffect
from attnviz.commands.ablate.inputs import MASKED, NEXT, STATES
from attnviz.commands.ablate.measure import Ablation
from attnviz.commands.ablate.report import REPORT, amount, compensation_text, interval, source_line
from attnviz.model.head_ids import HeadId, all_heads
from tests.ablations import TEXTS, measured
from tests.corpora import sentences


def estimate(value: float, low: float | None = None, high: float | None = None) -> dict[str, Estimate]:
    """The same for both metrics of a model that predicts."""
    return dict.fromkeys(("loss", "kl"), Estimate(value, low, high))


def a_set(together: float, singles: float, low: float | None, high: float | None, layer: int | None = 0) -> SetEffect:
    heads = tuple(HeadId(layer or 0, head) for head in range(4))
    damage = estimate(together) if low is None else estimate(together, together - 0.05, together + 0.05)
    return SetEffect(heads, layer, damage, estimate(singles, low, high), estimate(together - singles, low, high))


@pytest.mark.parametrize(
    ("together", "singles", "low", "high", "expected"),
    [
        (1.0, 0.5, 0.1, 0.9, "compensated"),
        (1.25, 1.0, 0.1, 0.4, "compensated"),
        (1.24, 1.0, 0.1, 0.4, "additive"),
        (0.5, -0.1, 0.1, 0.9, "compensated"),  # one at a time they even help
        (0.5, 1.0, -0.9, -0.1, "overlapping"),
        (0.81, 1.0, -0.9, -0.1, "additive"),
        (2.0, 1.0, -0.1, 2.1, "undecided"),
        (-0.1, -0.3, 0.1, 0.3, "no cost"),
        (0.04, -0.3, 0.1, 0.4, "no cost"),  # its own interval has zero in it
        (0.0, 0.2, -0.3, -0.1, "no cost"),
        (2.0, 1.0, None, None, None),
    ],
)
def test_verdicts(together: float, singles: float, low: float | None, high: float | None, expected: str | None) -> None:
    effect = a_set(together, singles, low, high)
    assert effect.verdict("loss") == expected
    assert effect.ratio("loss") == (together / singles if together > 0 and singles > 0 else None)


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (0.00001234, "1.2e-05"), (-0.0004, "-4.0e-04"), (0.01234, "0.0123"), (0.5, "0.500"), (12.0, "12.000")],
)
def test_amounts(value: float, written: str) -> None:
    assert amount(value) == written
    assert interval(Estimate(1, None, None)) == ""
    assert interval(Estimate(1, value, 0.01)) == f"[{written}, 0.0100]"


@pytest.fixture(scope="module")
def plain() -> Ablation:
    return measured(NEXT, TEXTS, curve=True, gradient=True)


@pytest.fixture(scope="module")
def made_up(plain: Ablation) -> Ablation:
    """Numbers by hand around a real model: 12 heads, three layers of different verdicts, and a curve."""
    values = [(0.5, 0.4, 0.6)] * 5 + [(0.01, -0.01, 0.03)] * 4 + [(-0.1, -0.2, -0.05)] * 3
    heads = tuple(
        HeadEffect(id, rank, estimate(*value), 0.5 / rank, 0.25)
        for rank, (id, value) in enumerate(zip(all_heads(3, 4), values, strict=True), start=1)
    )
    layers = a_set(4.0, 2.0, 1.5, 2.5, 0), a_set(0.6, 0.5, -0.1, 0.2, 1), a_set(0.1, 0.5, -0.6, -0.2, 2)
    points = (
        CurvePoint(1, a_set(-0.1, -0.1, -0.2, 0.0), a_set(0.5, 0.5, 0.1, 0.9)),
        CurvePoint(3, a_set(0.0, -0.3, -0.1, 0.1), a_set(0.5, 0.5, 0.1, 0.9)),
        CurvePoint(6, a_set(0.9, 0.3, 0.5, 1.1), a_set(2.0, 0.5, 0.1, 0.9)),
        CurvePoint(12, a_set(4.9, 2.3, 4.5, 5.1), a_set(4.9, 0.5, 0.1, 0.9)),
    )
    order = tuple(head.id for head in reversed(heads))
    return replace(
        plain, n_texts=40, n_positions=500, clean_loss=3.25, heads=heads, layers=layers,
        curve=Curve(order, order, points),
    )  # fmt: skip


def test_the_paragraph_follows_from_the_numbers(made_up: Ablation) -> None:
    text = compensation_text(made_up)
    for part in (
        "a loss increase of at most 0.500 nats/token [0.400, 0.600] (L0H0), and 0.0100 for the middle one of 12.",
        "5 raise the loss and 3 lower it",
        "is seen in 1 of 3 layers:",
        "do more (at least 1.25 times, difference above zero) in L0 (2×); less (at most 0.8 times, difference below "
        "zero) in L2 (0.2×); what cannot be told from the sum in L1 (1.2×).",
        "The 3 least important heads can go together before the loss is clearly higher",
        "half of all heads (4) give 0.900 together, and 0.300 summed over one at a time (difference 0.600 [0.500, ",
        "As many in a random order give 2.000.",
    ):
        assert part in text
    assert made_up.removable == 3


def test_the_paragraph_of_other_numbers(made_up: Ablation) -> None:
    assert made_up.curve is not None
    points, nothing = made_up.curve.points, CurvePoint(1, a_set(0, 0, -1, 1), a_set(0, 0, -1, 1))
    none = (a_set(1.0, 2.0, -1.5, -0.5, 0), a_set(-1.0, 0.2, -1.5, -0.5, 1), a_set(1.1, 1.0, 0.1, 0.2, 2))
    for changes, part in (
        ({"layers": made_up.layers[:1]}, "is seen in every layer: removed"),
        ({"layers": none}, "is seen in no layer: removed"),
        ({"layers": none}, "about as much in L2 (1.1×); less (at most 0.8 times, difference below zero) in L0 (0.5×); "
                           "nothing that can be told from zero in L1."),
        ({"curve": replace(made_up.curve, points=points[2:])}, "Already the least important head is missed."),
        ({"curve": replace(made_up.curve, points=(nothing,))}, "The least important head can go before"),
        ({"layers": (), "together": a_set(4.0, 2.0, 1.5, 2.5, None)},
         "The selected heads (4) give 4.000 together, and 2.000 summed over one at a time (difference 2.000"),
        ({"layers": (), "together": a_set(0.5, -0.2, 0.1, 0.9, None)}, "so the others stood in for each."),
    ):  # fmt: skip
        assert part in compensation_text(replace(made_up, **changes))


def test_few_texts_conclude_nothing(plain: Ablation) -> None:
    text = compensation_text(plain)
    assert "4 texts are too few for intervals (at least 30), so how far the others compensate is not concluded" in text
    assert "The 4 heads of layer 0 give" in text
    assert "compensate for one that fails" not in text
    assert plain.removable is None
    one = compensation_text(measured(NEXT, "the cat ran", select=["L0H0"]))
    assert one.startswith("Removing L0H0 alone gives a loss increase of ")
    assert "1 text is too few" in one
    assert compensation_text(measured(STATES, TEXTS, curve=True)).endswith("some of an excess may be that.")


def test_sources_in_words(plain: Ablation, tmp_path: Path) -> None:
    path = sentences(tmp_path / "s[b].txt", 3)
    one = measured(NEXT, [path, "the [/b] cat"], select=["L0H0"])
    assert source_line(one) == "s[b].txt (3 sentences), “the [/b] cat”"
    assert source_line(plain) == "4 texts"


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables(made_up: Ablation, width: int) -> None:
    report = made_up.report(width, top=3)
    lines = [line.split() for line in report.splitlines()]
    assert max(map(len, report.splitlines())) <= width
    assert "…" not in report
    assert "Heads removed one at a time (3 of 12, the one that matters most first)" in report
    assert "9 more heads left out: --top 0 lists all; ablate.csv has them." in report
    interval = ["[0.400,", "0.600]"]
    assert ["1", "L0H0", "0.500", *interval, "0.500", *interval * (width == 120), "0.500", "0.25"] in lines
    assert ["L0", "4", "4.000", "2.000", "2.00", "2.000", "[1.500,", "2.500]", "compensated"] in lines
    assert ["3", "0", "[-0.0500,", "0.0500]", "-0.300", "0.500"] in lines
    assert "left out" not in made_up.report(width, top=0)


@pytest.mark.parametrize("method", ["mean", "uniform"])
def test_tables_without_gradients_and_curve(method: str) -> None:
    report = measured(MASKED, "the cat ran", method=method).report(80)
    assert "3 tokens, each masked in turn, in 1 text;" in report
    assert {"mean": "its mean over all tokens", "uniform": "attends to all that it may alike"}[method] in report
    for absent in ("Gradient", "More and more", "95 % interval"):
        assert absent not in report


def test_the_document(made_up: Ablation) -> None:
    content = json.loads(json.dumps(made_up.document(["ablate-map.png"]), allow_nan=False))
    assert list(content) == [
        "attnviz", "model", "corpora", "texts", "options", "measured", "verification", "heads", "layers", "together",
        "curve", "gradient", "compensation", "figures",
    ]  # fmt: skip
    assert content["options"] == {"method": "zero", "select": [], "together": False, "limit": None, "seed": 0}
    assert content["measured"] == {
        "kind": "next-token", "importance": "loss", "texts": 40, "tokens": 500, "loss": 3.25,
    }  # fmt: skip
    verification = content["verification"]
    assert (verification["heads_compared"], verification["rows_verified"], len(verification["layers"])) == (12, 4, 3)
    assert content["heads"][0] == {
        "id": "L0H0", "layer": 0, "head": 0, "rank": 1,
        "loss": {"value": 0.5, "interval": [0.4, 0.6]}, "kl": {"value": 0.5, "interval": [0.4, 0.6]},
        "cosine": None, "l2": None, "gradient": 0.5, "gradient_normalised": 0.25,
    }  # fmt: skip
    assert [layer["verdict"] for layer in content["layers"]] == ["compensated", "undecided", "overlapping"]
    assert content["layers"][0]["loss"]["difference"] == {"value": 2.0, "interval": [1.5, 2.5]}
    assert content["curve"]["points"][1]["removed"] == 3
    assert content["curve"]["points"][1]["loss"]["random_order"]["value"] == 0.5
    assert content["compensation"] == {"text": compensation_text(made_up), "removable": 3}
    assert content["gradient"]["of"] == "next-token loss"
    assert set(content["gradient"]["spearman"]) == {"loss", "kl"}
    rows: list[dict[str, Any]] = list(REPORT.rows(content))
    assert len(rows) == 12
    assert [rows[0][name] for name in ("loss", "loss_low", "loss_high", "cosine", "l2_low")] == [0.5, 0.4, 0.6] + [None] * 2  # fmt: skip  # noqa: E501


def test_what_was_not_measured_is_null() -> None:
    content = measured(STATES, "the cat ran", select=["L1"], together=True, gradient=True).document()
    assert content["measured"]["loss"] is content["heads"][0]["loss"] is content["curve"] is None
    assert content["heads"][0]["cosine"]["interval"] is content["together"]["verdict"] is None
    assert (content["layers"], content["together"]["layer"]) == ([], 1)
    assert content["gradient"]["of"] == "4 random projections of the final states"
    bare = measured(NEXT, "the cat ran", select=["L1"])
    assert (bare.heads[0].gradient, bare.heads[0].gradient_normalised) == (None, None)
    assert bare.rank_correlations == {"loss": None, "kl": None}
    assert bare.document()["gradient"] is None
