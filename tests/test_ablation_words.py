"""What an ablation says, from its numbers: verdicts by stated thresholds, the paragraph, tables and documents."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from attnviz.commands.ablate.compensation import (
    ADDITIVE,
    COMPENSATED,
    NO_COST,
    OVERLAPPING,
    UNDECIDED,
    amount,
    compensation_text,
    ratio_of,
    removable,
    source_line,
    span,
    verdict_of,
)
from attnviz.commands.ablate.measure import Ablation, ablate
from attnviz.commands.ablate.metrics import MEASURES
from attnviz.commands.ablate.report import ABLATE, ablation_csv
from attnviz.commands.ablate.results import Curve, CurvePoint, Estimate, HeadDamage, SetDamage
from attnviz.model.head_ids import HeadId, all_heads
from tests.ablations import TEXTS, masked_token_model, next_token_model, states_model
from tests.corpora import sentences

LOSS = MEASURES["loss"]


def estimate(value: float, low: float | None = None, high: float | None = None) -> dict[str, Estimate]:
    """The same for both measures of a model that predicts."""
    return dict.fromkeys(("loss", "kl"), Estimate(value, low, high))


def a_set(together: float, singles: float, low: float | None, high: float | None, layer: int | None = 0) -> SetDamage:
    heads = tuple(HeadId(layer or 0, head) for head in range(4))
    damage = estimate(together) if low is None else estimate(together, together - 0.05, together + 0.05)
    return SetDamage(heads, layer, damage, estimate(singles, low, high), estimate(together - singles, low, high))


@pytest.mark.parametrize(
    ("together", "singles", "low", "high", "expected"),
    [
        (1.0, 0.5, 0.1, 0.9, COMPENSATED),
        (1.25, 1.0, 0.1, 0.4, COMPENSATED),
        (1.24, 1.0, 0.1, 0.4, ADDITIVE),
        (0.5, -0.1, 0.1, 0.9, COMPENSATED),  # one at a time they even help
        (0.5, 1.0, -0.9, -0.1, OVERLAPPING),
        (0.81, 1.0, -0.9, -0.1, ADDITIVE),
        (2.0, 1.0, -0.1, 2.1, UNDECIDED),
        (-0.1, -0.3, 0.1, 0.3, NO_COST),
        (0.04, -0.3, 0.1, 0.4, NO_COST),  # its own interval has zero in it
        (0.0, 0.2, -0.3, -0.1, NO_COST),
        (2.0, 1.0, None, None, None),
    ],
)
def test_verdicts(together: float, singles: float, low: float | None, high: float | None, expected: str | None) -> None:
    assert verdict_of(a_set(together, singles, low, high), LOSS) == expected


def test_ratios() -> None:
    assert ratio_of(a_set(1.0, 0.5, None, None), LOSS) == 2
    assert ratio_of(a_set(1.0, 0.0, None, None), LOSS) is None
    assert ratio_of(a_set(-1.0, 0.5, None, None), LOSS) is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.00001234, "1.2e-05"), (-0.0004, "-4.0e-04"), (0.01234, "0.0123"), (0.5, "0.500"), (12.0, "12.000")],
)
def test_amounts(value: float, shown: str) -> None:
    assert amount(value) == shown


def test_spans() -> None:
    assert span(Estimate(1, None, None)) == ""
    assert span(Estimate(1, 0.5, 0.01)) == "[0.500, 0.0100]"


@pytest.fixture(scope="module")
def measured() -> Ablation:
    model, tokenizer = next_token_model()
    return ablate(TEXTS, model, tokenizer=tokenizer)


@pytest.fixture
def made_up(measured: Ablation) -> Ablation:
    """Numbers by hand around a real model: 12 heads, three layers of each verdict but two, and a curve."""
    values = [(0.5, 0.4, 0.6)] * 5 + [(0.01, -0.01, 0.03)] * 4 + [(-0.1, -0.2, -0.05)] * 3
    heads = [
        HeadDamage(id, rank, estimate(*value), 0.5 / rank, 0.25)
        for rank, (id, value) in enumerate(zip(all_heads(3, 4), values, strict=True), start=1)
    ]
    layers = [
        a_set(4.0, 2.0, 1.5, 2.5, 0),
        a_set(0.6, 0.5, -0.1, 0.2, 1),
        a_set(0.1, 0.5, -0.6, -0.2, 2),
    ]
    points = [
        CurvePoint(1, a_set(-0.1, -0.1, -0.2, 0.0), a_set(0.5, 0.5, 0.1, 0.9)),
        CurvePoint(3, a_set(0.0, -0.3, -0.1, 0.1), a_set(0.5, 0.5, 0.1, 0.9)),
        CurvePoint(6, a_set(0.9, 0.3, 0.5, 1.1), a_set(2.0, 0.5, 0.1, 0.9)),
        CurvePoint(12, a_set(4.9, 2.3, 4.5, 5.1), a_set(4.9, 0.5, 0.1, 0.9)),
    ]
    order = tuple(head.id for head in reversed(heads))
    curve = Curve(order, order, tuple(points))
    return Ablation(
        measured.checkpoint, measured.sources, measured.options, measured.kind, (40, 500), 3.25, measured.checked,
        heads, layers, None, curve,
    )  # fmt: skip


def test_the_paragraph_follows_from_the_numbers(made_up: Ablation) -> None:
    assert compensation_text(made_up) == (
        "Removing one head at a time gives a loss increase of at most 0.500 nats/token [0.400, 0.600] (L0H0), and "
        "0.0100 for the middle one of 12. 5 raise the loss and 3 lower it (95 % interval on that side of zero, of each "
        "head by itself); for 4 it is not decided. That other heads of a layer compensate for one that fails is seen "
        "in 1 of 3 layers: removed together, against the sum of one at a time, they do more (at least 1.25 times, "
        "difference above zero) in L0 (2×); less (at most 0.8 times, difference below zero) in L2 (0.2×); what cannot "
        "be told from the sum in L1 (1.2×). The 3 least important heads can go together before the loss is clearly "
        "higher (in the steps of the curve). The less important half of all heads (4) give 0.900 together, and 0.300 "
        "summed over one at a time (difference 0.600 [0.500, 1.100]): more than the sum, so the others made up for "
        "some of what each single removal took away. As many in a random order give 2.000."
    )
    assert removable(made_up) == 3


def test_no_or_every_layer(made_up: Ablation) -> None:
    made_up.layers = (a_set(4.0, 2.0, 1.5, 2.5, 0),)
    assert "is seen in every layer: removed" in compensation_text(made_up)
    made_up.layers = (a_set(1.0, 2.0, -1.5, -0.5, 0), a_set(-1.0, 0.2, -1.5, -0.5, 1), a_set(1.1, 1.0, 0.1, 0.2, 2))
    text = compensation_text(made_up)
    assert "is seen in no layer: removed" in text
    assert (
        "about as much in L2 (1.1×); less (at most 0.8 times, difference below zero) in L0 (0.5×); "
        "nothing that can be told from zero in L1." in text
    )
    points = made_up.curve.points if made_up.curve else ()
    assert made_up.curve is not None
    made_up.curve = Curve(made_up.curve.order, made_up.curve.order, (points[2], points[3]))
    assert removable(made_up) == 0
    assert "Already the least important head is missed." in compensation_text(made_up)
    made_up.curve = Curve(
        made_up.curve.order, made_up.curve.order, (CurvePoint(1, a_set(0, 0, -1, 1), a_set(0, 0, -1, 1)),)
    )
    assert "The least important head can go before" in compensation_text(made_up)


def test_few_texts_conclude_nothing(measured: Ablation) -> None:
    text = compensation_text(measured)
    assert "4 texts are too few for intervals (at least 30), so how far the others compensate is not concluded" in text
    assert "The 4 heads of layer 0 give" in text
    assert "compensate for one that fails" not in text
    assert removable(measured) is None


def test_a_set_and_one_head_in_words() -> None:
    model, tokenizer = next_token_model()
    pair = ablate("the cat ran", model, tokenizer=tokenizer, select=["L0H0,L2H1"], together=True)
    assert "1 text is too few" in compensation_text(pair)
    assert "The selected heads give" in compensation_text(pair)
    one = ablate("the cat ran", model, tokenizer=tokenizer, select=["L0H0"])
    assert compensation_text(one).startswith("Removing L0H0 alone gives a loss increase of ")


def test_a_set_with_intervals_gets_its_word(made_up: Ablation) -> None:
    made_up.layers, made_up.curve, made_up.together = (), None, a_set(4.0, 2.0, 1.5, 2.5, None)
    text = compensation_text(made_up)
    assert "The selected heads (4) give 4.000 together, and 2.000 summed over one at a time (difference 2.000" in text
    assert text.endswith("more than the sum, so the others made up for some of what each single removal took away.")
    made_up.together = a_set(0.5, -0.2, 0.1, 0.9, None)
    assert compensation_text(made_up).endswith("one at a time they cost nothing, so the others stood in for each.")


def test_states_come_with_a_warning() -> None:
    model, tokenizer = states_model()
    found = ablate(TEXTS, model, tokenizer=tokenizer)
    assert compensation_text(found).endswith("some of an excess may be that.")
    assert removable(found) is None


def test_sources_in_words(tmp_path: Path) -> None:
    model, tokenizer = next_token_model()
    path = sentences(tmp_path / "s[b].txt", 3)
    one = ablate([path, "the [/b] cat"], model, tokenizer=tokenizer, select=["L0H0"])
    assert source_line(one) == "s[b].txt (3 sentences), “the [/b] cat”"
    many = ablate(TEXTS, model, tokenizer=tokenizer, select=["L0H0"])
    assert source_line(many) == "4 texts"


# --- tables -------------------------------------------------------------------------------------------------------


def test_the_tables_fit(made_up: Ablation) -> None:
    for width in (80, 120):
        report = made_up.report(width, top=3)
        assert max(map(len, report.splitlines())) <= width
        assert "…" not in report
        assert "Heads removed one at a time (3 of 12, the one that matters most first)" in report
        assert "9 more heads are left out: --top 0 lists all; ablate.csv has them." in report
        assert report.count("95 % interval") == (3 if width == 80 else 4) + 1  # and in the paragraph
    assert "more heads are left out" not in made_up.report(80, top=0)
    assert "1 more head is left out" in made_up.report(80, top=11)


def test_rows_of_the_tables(made_up: Ablation) -> None:
    lines = [line.split() for line in made_up.report(120, top=3).splitlines()]
    assert ["1", "L0H0", "0.500", "[0.400,", "0.600]", "0.500", "[0.400,", "0.600]", "0.500", "0.25"] in lines
    assert ["L0", "4", "4.000", "2.000", "2.00", "2.000", "[1.500,", "2.500]", "compensated"] in lines
    assert ["3", "0", "[-0.0500,", "0.0500]", "-0.300", "0.500"] in lines


def test_tables_of_what_was_verified(measured: Ablation) -> None:
    report = " ".join(measured.report(80).split())
    assert "Verified 12 heads in 3 layers of GPT2LMHeadModel on 4 inputs (float32, cpu): weights within" in report
    assert "resumed passes reproduce the model's final hidden states to" in report
    assert "Spearman's rank correlation with it: loss increase" in report
    assert "A removed head gives zeros (b_O stays)." in report


@pytest.mark.parametrize("method", ["mean", "uniform"])
def test_tables_without_gradients_and_curve(method: str) -> None:
    model, tokenizer = masked_token_model()
    found = ablate("the cat ran", model, tokenizer=tokenizer, method=method, curve=False, gradient=False)
    report = found.report(80)
    assert "Gradient" not in report
    assert "More and more" not in report
    assert "3 tokens, each masked in turn, in 1 text;" in report
    assert {"mean": "its mean over all tokens", "uniform": "attends to all that it may alike"}[method] in report
    assert "95 % interval" not in report


# --- documents ----------------------------------------------------------------------------------------------------


def test_the_document(made_up: Ablation) -> None:
    content = json.loads(json.dumps(made_up.document(["ablate-map.png"]), allow_nan=False))
    assert list(content) == [
        "attnviz", "model", "corpora", "texts", "options", "measured", "verification", "heads", "layers", "together",
        "curve", "gradient", "compensation", "figures",
    ]  # fmt: skip
    assert content["texts"] == TEXTS
    assert content["options"] == {"method": "zero", "select": [], "together": False, "limit": None, "seed": 0}
    assert content["measured"] == {
        "kind": "next-token", "importance": "loss", "texts": 40, "tokens": 500, "loss": 3.25,
    }  # fmt: skip
    verification = content["verification"]
    assert verification["passed"] is True
    assert (verification["heads_compared"], verification["rows_verified"], len(verification["layers"])) == (12, 4, 3)
    assert set(verification) >= {"values_error", "resumed_error", "pattern_tolerance", "output_tolerance"}
    assert content["heads"][0] == {
        "id": "L0H0", "layer": 0, "head": 0, "rank": 1,
        "loss": {"value": 0.5, "interval": [0.4, 0.6]}, "kl": {"value": 0.5, "interval": [0.4, 0.6]},
        "cosine": None, "l2": None, "gradient": 0.5, "gradient_normalised": 0.25,
    }  # fmt: skip
    assert [layer["verdict"] for layer in content["layers"]] == [COMPENSATED, UNDECIDED, OVERLAPPING]
    assert content["layers"][0]["loss"]["difference"] == {"value": 2.0, "interval": [1.5, 2.5]}
    assert content["layers"][0]["heads"] == ["L0H0", "L0H1", "L0H2", "L0H3"]
    assert content["curve"]["points"][1]["removed"] == 3
    assert content["curve"]["points"][1]["loss"]["random_order"]["value"] == 0.5
    assert content["compensation"] == {"text": compensation_text(made_up), "removable": 3}
    assert content["gradient"]["of"] == "next-token loss"
    assert set(content["gradient"]["spearman"]) == {"loss", "kl"}


def test_what_was_not_measured_is_null() -> None:
    model, tokenizer = states_model()
    content = ablate("the cat ran", model, tokenizer=tokenizer, select=["L1"], together=True).document()
    assert content["measured"]["loss"] is None
    assert content["heads"][0]["loss"] is None
    assert content["heads"][0]["cosine"]["interval"] is None
    assert content["curve"] is None
    assert content["layers"] == []
    assert content["together"]["layer"] == 1
    assert content["together"]["verdict"] is None
    assert content["gradient"]["of"] == "4 random projections of the final states"


def test_the_csv(made_up: Ablation) -> None:
    rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(ablation_csv(made_up.document()))))
    assert len(rows) == 12
    assert rows[0]["id"] == "L0H0"
    assert [rows[0][name] for name in ("loss", "loss_low", "loss_high", "cosine", "l2_low")] == [
        "0.5",
        "0.4",
        "0.6",
        "",
        "",
    ]


def test_names_of_files() -> None:
    for name in ("ablate-map.png", "ablate-curve.svg", "ablate-heads.pdf", "ablate-gradient.png", "captions.md"):
        assert ABLATE.owns(name)
    assert not ABLATE.owns("ablate-other.png")
    assert ABLATE.folders == ()
