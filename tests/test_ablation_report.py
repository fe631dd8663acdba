"""What an ablation says, from its numbers: verdicts by stated thresholds, sentences, tables and documents."""

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


NOTHING, DRAWN = a_set(0, 0, -1, 1), a_set(2.0, 0.5, 0.1, 0.9)


@pytest.fixture(scope="module")
def made_up(plain: Ablation) -> Ablation:
    """Numbers by hand around a real model: 12 heads, three layers of different verdicts, and a curve."""
    values = [(0.5, 0.4, 0.6)] * 5 + [(0.01, -0.01, 0.03)] * 4 + [(-0.1, -0.2, -0.05)] * 3
    heads = tuple(
        HeadEffect(id, rank, estimate(*value), 0.5 / rank, 0.25)
        for rank, (id, value) in enumerate(zip(all_heads(3, 4), values, strict=True), start=1)
    )
    layers = a_set(4.0, 2.0, 1.5, 2.5, 0), a_set(0.6, 0.5, -0.1, 0.2, 1), a_set(0.1, 0.5, -0.6, -0.2, 2)
    least = {1: a_set(-0.1, -0.1, -0.2, 0.0), 3: a_set(0.0, -0.3, -0.1, 0.1), 6: a_set(0.9, 0.3, 0.5, 1.1)}
    points = tuple(CurvePoint(removed, effect, DRAWN) for removed, effect in [*least.items(), (12, layers[0])])
    order = tuple(head.id for head in reversed(heads))
    return replace(
        plain, n_texts=40, n_positions=500, clean_loss=3.25, heads=heads, layers=layers,
        curve=Curve(order, order, points),
    )  # fmt: skip


def of_one(effect: SetEffect) -> Curve:
    return Curve((), (), (CurvePoint(1, effect, effect),))


OTHER_LAYERS = a_set(1.0, 2.0, -1.5, -0.5, 0), a_set(-1.0, 0.2, -1.5, -0.5, 1), a_set(1.1, 1.0, 0.1, 0.2, 2)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, ["at most 0.500 nats/token [0.400, 0.600] (L0H0), and 0.0100 for the middle one of 12",
              "5 raise the loss and 3 lower it", "is seen in 1 of 3 layers", "in L0 (2×); less", "in L2 (0.2×); what",
              "The 3 least important heads can go together", "(4) give 0.900 together, and 0.300 summed",
              "As many in a random order give 2.000."]),
        ({"layers": OTHER_LAYERS}, ["in no layer", "about as much in L2 (1.1×)", "that can be told from zero in L1."]),
        ({"layers": (), "together": a_set(4.0, 2.0, 1.5, 2.5, None)},
         ["The selected heads (4) give 4.000 together, and 2.000 summed over one at a time (difference 2.000"]),
        ({"layers": (), "together": a_set(0.5, -0.2, 0.1, 0.9, None)}, ["so the others stood in for each."]),
        ({"curve": of_one(DRAWN)}, ["Already the least important head is missed."]),
        ({"curve": of_one(NOTHING)}, ["The least important head can go before"]),
    ],
    ids=["as it is", "other layers", "a set", "a set of idle heads", "every head counts", "one head is free"],
)  # fmt: skip
def test_sentences_follow_from_the_numbers(made_up: Ablation, changes: dict[str, Any], parts: list[str]) -> None:
    text = compensation_text(replace(made_up, **changes))
    assert [part for part in parts if part not in text] == []


def test_few_texts_conclude_nothing(plain: Ablation) -> None:
    text = compensation_text(plain)
    assert "4 texts are too few for intervals (at least 30), so how far the others compensate is not concluded" in text
    assert "The 4 heads of layer 0 give" in text
    assert "compensate for one that fails" not in text
    assert plain.removable is None
    one = compensation_text(measured(NEXT, "the cat ran", select=["L0H0"]))
    assert one.startswith("Removing L0H0 alone gives a loss increase of ")
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
    assert "9 more heads left out: --top 0 lists all; ablate.csv has them." in report
    interval = ["[0.400,", "0.600]"]
    assert ["1", "L0H0", "0.500", *interval, "0.500", *interval * (width == 120), "0.500", "0.25"] in lines
    assert ["L0", "4", "4.000", "2.000", "2.00", "2.000", "[1.500,", "2.500]", "compensated"] in lines
    assert ["3", "0", "[-0.0500,", "0.0500]", "-0.300", "2.000"] in lines
    assert "left out" not in made_up.report(width, top=0)


@pytest.mark.parametrize(("method", "words"), [("mean", "its mean over all"), ("uniform", "to all that it may alike")])
def test_tables_without_gradients_and_curve(method: str, words: str) -> None:
    report = measured(MASKED, "the cat ran", method=method).report(80)
    assert "3 tokens, each masked in turn, in 1 text;" in report
    assert words in report
    assert [absent for absent in ("Gradient", "More and more", "95 % interval") if absent in report] == []


def test_the_document(made_up: Ablation) -> None:
    content = json.loads(json.dumps(made_up.document(["ablate-map.png"]), allow_nan=False))
    assert content["options"] == {
        "method": "zero", "select": [], "together": False, "limit": None, "seed": 0, "curve": True, "gradient": True,
    }  # fmt: skip
    assert (content["measured"]["kind"], content["measured"]["importance"]) == ("next-token", "loss")
    assert (content["verification"]["heads_compared"], content["verification"]["rows_verified"]) == (12, 4)
    assert content["heads"][0]["loss"] == {"value": 0.5, "interval": [0.4, 0.6]}
    assert [layer["verdict"] for layer in content["layers"]] == ["compensated", "undecided", "overlapping"]
    assert content["layers"][0]["loss"]["difference"] == {"value": 2.0, "interval": [1.5, 2.5]}
    assert content["curve"]["points"][1]["removed"] == 3
    assert content["curve"]["points"][1]["loss"]["random_order"]["value"] == 2.0
    assert content["compensation"] == {"text": compensation_text(made_up), "removable": 3}
    assert (content["gradient"]["of"], set(content["gradient"]["spearman"])) == ("next-token loss", {"loss", "kl"})
    rows: list[dict[str, Any]] = list(REPORT.rows(content))
    assert len(rows) == 12
    assert [rows[0][name] for name in ("loss", "loss_low", "loss_high", "cosine", "l2_low")] == [
        0.5,
        0.4,
        0.6,
        None,
        None,
    ]


def test_what_was_not_measured_is_null() -> None:
    content = measured(STATES, "the cat ran", select=["L1"], together=True, gradient=True).document()
    assert content["measured"]["loss"] is content["heads"][0]["loss"] is content["curve"] is None
    assert content["heads"][0]["cosine"]["interval"] is content["together"]["verdict"] is None
    assert (content["layers"], content["together"]["layer"]) == ([], 1)
    assert content["gradient"]["of"] == "4 random projections of the final states"
    bare = measured(NEXT, "the cat ran", select=["L1"])
    assert (bare.heads[0].gradient, bare.heads[0].gradient_normalised) == (None, None)
    assert bare.document()["gradient"] is None


@pytest.mark.parametrize(("without", "stale"), [("gradient", "ablate-gradient.png"), ("curve", "ablate-curve.png")])
def test_a_rerun_without_a_measurement_removes_its_figure(tmp_path: Path, without: str, stale: str) -> None:
    options = {"curve": True, "gradient": True}
    measured(NEXT, "the cat ran", **options).save(tmp_path)
    assert (tmp_path / stale).exists()
    again = measured(NEXT, "the cat ran", **options).save(tmp_path, figures=[])
    assert stale in again["files"]  # the same again
    assert stale not in measured(NEXT, "the cat ran", **options | {without: False}).save(tmp_path)["files"]
    assert not (tmp_path / stale).exists()
