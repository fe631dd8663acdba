"""What an ablation says, from its numbers: sentences, tables and documents."""

import csv
import io
import json
from dataclasses import replace

import pytest

from attnviz.commands.ablate.effects import Curve, CurvePoint, Estimate, HeadEffect, SetEffect
from attnviz.commands.ablate.inputs import NEXT, STATES
from attnviz.commands.ablate.measure import Ablation
from attnviz.commands.ablate.report import SPEC, conclusion, interval
from attnviz.models.head_ids import HeadId, all_heads
from attnviz.models.wording import amount
from tests.support.ablations import TEXTS, measured


def estimate(value: float, low: float | None = None, high: float | None = None) -> dict[str, Estimate]:
    """The same for both metrics of a model that predicts."""
    return dict.fromkeys(("loss", "kl"), Estimate(value, low, high))


def a_set(together: float, singles: float, low: float | None, high: float | None, layer: int | None = 0) -> SetEffect:
    heads = tuple(HeadId(layer or 0, head) for head in range(4))
    excess = estimate(together - singles, low, high)
    damage = estimate(together) if low is None else estimate(together, together - 0.05, together + 0.05)
    return SetEffect(heads, layer, damage, estimate(singles, low, high), excess)


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (0.00001234, "1.2e-05"), (-0.0004, "−4.0e-04"), (0.01234, "0.0123"), (0.5, "0.500"), (12.0, "12.000")],
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
    """Numbers by hand around a real model: 12 heads, three layers with other differences, and a curve."""
    values = [(0.5, 0.4, 0.6)] * 5 + [(0.01, -0.01, 0.03)] * 4 + [(-0.1, -0.2, -0.05)] * 3
    heads = tuple(
        HeadEffect(id, rank, estimate(*value), gradient=0.25)
        for rank, (id, value) in enumerate(zip(all_heads(3, 4), values, strict=True), start=1)
    )
    layers = (
        a_set(4.0, 2.0, 1.5, 2.5, 0),
        a_set(0.75, 0.5, -0.1, 0.4, 1),
        a_set(0.1, 0.5, -0.6, -0.2, 2),
    )
    least = {1: a_set(-0.1, -0.1, -0.2, 0.0), 3: a_set(0.0, -0.3, -0.1, 0.1), 6: a_set(0.9, 0.3, 0.5, 1.1)}
    points = tuple(CurvePoint(removed, effect, DRAWN) for removed, effect in [*least.items(), (12, layers[0])])
    order = tuple(head.id for head in reversed(heads))
    return replace(
        plain, n_texts=40, n_positions=500, clean_loss=3.25, heads=heads, layers=layers,
        curve=Curve(order, order, points),
    )  # fmt: skip


def of_one(effect: SetEffect) -> Curve:
    return Curve((), (), (CurvePoint(1, effect, effect),))


def test_how_many_heads_can_go_follows_from_the_curve(made_up: Ablation, plain: Ablation) -> None:
    assert "3 heads, the least important, can go" in conclusion(made_up)
    assert [replace(made_up, curve=of_one(effect)).removable for effect in (DRAWN, NOTHING)] == [0, 1]
    assert "4 texts are too few for intervals" in conclusion(plain)
    assert plain.removable is None


@pytest.mark.parametrize("width", [60, 120])
def test_the_tables(made_up: Ablation, width: int) -> None:
    report = made_up.report(width, top=3)
    rows = [line.split() for line in report.splitlines()]
    (head,) = (row for row in rows if row[:2] == ["1", "L0H0"])
    (layer,) = (row for row in rows if row[:2] == ["L0", "4.000"])
    assert (head[2], head[-1]) == ("0.500", "0.250")
    assert layer[2] == "2.000"
    assert "[0.400," in head
    assert "[1.500," in layer
    assert "9 more heads left out" in report
    assert "left out" not in made_up.report(width, top=0)


def test_the_document(made_up: Ablation) -> None:
    content = json.loads(json.dumps(made_up.document(["ablate-heads.png"]), allow_nan=False))
    assert (content["options"]["method"], content["options"]["curve"]) == ("mean", True)
    assert (content["measured"]["kind"], content["measured"]["importance"]) == ("next-token", "loss")
    assert (content["verification"]["heads_compared"], content["verification"]["rows_verified"]) == (12, 4)
    assert content["heads"][0]["loss"] == {"value": 0.5, "interval": [0.4, 0.6]}
    assert content["layers"][0]["loss"]["difference"] == {"value": 2.0, "interval": [1.5, 2.5]}
    assert content["curve"]["points"][1]["removed"] == 3
    assert content["curve"]["points"][1]["loss"]["random_order"]["value"] == 2.0
    assert content["removable"] == 3
    assert (content["gradient_of"], content["heads"][0]["gradient"]) == ("next-token loss", 0.25)
    rows = list(csv.DictReader(io.StringIO(SPEC.csv(content))))
    assert len(rows) == 12
    values = [rows[0][name] for name in ("loss", "loss_low", "loss_high", "cosine", "l2_low", "gradient")]
    assert values == ["0.5", "0.4", "0.6", "", "", "0.25"]


def test_without_gradients_there_is_no_column_of_them() -> None:
    result = measured(STATES, "the cat ran", select=["L1"], curve=True, gradient=False)
    assert "Gradient" not in result.report()
    assert result.document()["gradient_of"] is result.heads[0].gradient is None
    assert (
        "random projections" in measured(STATES, "the cat ran", select=["L1"], gradient=True).document()["gradient_of"]
    )
