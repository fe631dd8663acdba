"""Cards: every number against the commands that measure it, and what a card of nothing says."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

import attnviz
from attnviz import HeadId, TextError, UsageError
from attnviz.commands.card import Card
from attnviz.commands.card_result import ablation_table, cell_text, exchange_table, not_measured, role_table
from attnviz.present.view import ViewOptions
from tests.conftest import needs_minilm
from tests.support.corpora import examples as gap_table
from tests.support.corpora import sentences as corpus_of
from tests.support.drawn import drawing_of
from tests.support.models import CAUSAL_KNOWN_HEADS, gpt2_config, gpt2_tokenizer, known_gpt2
from tests.support.results import cards_with_roles, result_of

REPEATED = "one two three four five one two three four five"
ON_CPU: Any = {"circuits": False, "syntax": False, "device": "cpu"}


def exchanges(card: Card) -> dict[Any, tuple[Any, ...]]:
    return {what: tuple(values) for what, *values in exchange_table(card).rows}


@pytest.mark.draws
def test_every_number_on_a_hand_built_model_is_what_the_commands_measure(tmp_path, monkeypatch):
    profiles: list[attnviz.Profile] = []

    def spied(*args, **options):
        profiles.append(attnviz.profile_heads(*args, **options))
        return profiles[-1]

    monkeypatch.setattr("attnviz.commands.card.profile_heads", spied)
    corpus, model, options = corpus_of(tmp_path / "texts.txt", 101), known_gpt2(), {"tokenizer": gpt2_tokenizer()}
    card = attnviz.card("L0H0", corpus, model, ablate=True, syntax=False, **options)
    id = HeadId(0, 0)
    (profile,) = profiles
    passed = profile.roles_by_head()[id]
    assert role_table(card).rows == [
        (each.role, each.score, each.baseline, each.interval, each.untrained, each.n) for each in passed
    ]
    assert [each.role for each in passed] == ["previous-token", "local"]
    assert passed[0].untrained is not None
    far = sorted((float(each), at) for at, each in enumerate(profile.head_distances[0]) if at)
    said = exchanges(card)
    names, nearest, middle = said["nearest patterns"]
    assert names == ", ".join(f"L{at // 4}H{at % 4}" for _, at in far[:3])
    assert nearest == pytest.approx(far[0][0])
    assert cell_text(median(distance for distance, _ in far)) in middle
    share = attnviz.head_outputs(card.text, model, **options).head(id).projection_share
    assert said["share of layer"] == ("", share, "uniform 0.25")
    pair = next(pair for pair in attnviz.circuits(model, **options).pairs(["L0H0"]) if pair.writer == id)
    assert said["is read by"] == (f"{pair.id} ({pair.kind})", pair.score, f"+{pair.deviations:.0f} SD")
    assert "reads" not in said  # nothing is before the first layer
    effect = attnviz.ablate(corpus, model, select="L0H0", curve=False, **options).head(id).damage["cosine"]
    assert ablation_table(card).rows == [("101 texts", effect.value, (effect.low, effect.high), None)]
    for layer, of_layer in enumerate(CAUSAL_KNOWN_HEADS):  # and all other heads by what they were built for
        for number, name in enumerate(of_layer):
            if name != "induction":  # which takes repeats
                other = replace(card, head=HeadId(layer, number), ablation=None)
                assert name in {row[0] for row in role_table(other).rows}
    assert len(not_measured(card)) == 4


@pytest.mark.thorough
def test_cards_of_induction_heads_have_their_partner_and_what_repeats_lose_without_them():
    heads = ["L0H2", *(f"L1H{head}" for head in range(4))]
    cards = attnviz.cards(REPEATED, "tiny-gpt2", select=heads, repeats=True, ablate=True, device="cpu")
    of_induction = [card for card in cards.cards if any(each.role == "induction" for each in card.roles)]
    assert {*map(str, (card.head for card in of_induction))} >= {"L1H0", "L1H1", "L1H2", "L1H3"}
    for card in of_induction:
        (of_head,) = card.on_repeats.head(card.head).roles
        assert of_head.others["loss"].value < 0 < of_head.queries["loss"].value
        assert exchanges(card)["reads"][0] == "L0H2 (key)"
        assert ablation_table(card).rows[-1][3] == "more"
    card = cards.card("L1H0")
    promoted = card.outputs.promoted("L1H0").promoted
    said = exchanges(card)
    assert said["raises logits"][1] == promoted[0].logit
    assert all(each.text in said["raises logits"][0] for each in promoted[:3])
    assert said["copying"][1] == card.circuits.head("L1H0").copying
    assert cards.card("L0H2").on_repeats is None  # its role is not one on repeats


@pytest.mark.parametrize("turned", [False, True])
def test_tokens_of_its_role_stand_beside_their_matches_and_copies_without_the_head(turned):
    card = result_of("card")
    head = card.ablation.head(card.head)
    of_relation = next(each for each in head.roles if each.direction == "dependent_to_head")
    (on_repeats,) = card.on_repeats.head(card.head).roles
    expected = [head.damage["cosine"].value]
    for effect, metric in ((of_relation, "cosine"), (on_repeats, "loss")):
        expected += [each[metric].value for each in (effect.queries, effect.others, effect.difference)]
    if turned:
        card = replace(card, ablation=replace(card.ablation, heads=(replace(head, roles=head.roles[::-1]),)))
    rows = ablation_table(card).rows
    assert [row[1] for row in rows] == expected
    assert f"({of_relation.n})" in rows[1][0]


def test_cards_of_an_untrained_model_claim_nothing(tmp_path):
    torch.manual_seed(3)
    options: Any = {"tokenizer": gpt2_tokenizer(), "syntax": False}
    model = GPT2LMHeadModel(gpt2_config()).eval()
    corpus = corpus_of(tmp_path / "texts.txt", 120)
    card = attnviz.card("L0H0", corpus, model, repeats=True, **options)
    few = attnviz.card("L0H0", corpus, model, limit=3, circuits=False, **options)
    assert few.text == corpus.read_text().splitlines()[0]  # no role passes, so there is no example
    for head in card.analysis.heads:
        other = replace(card, head=head.id)
        assert {each.role for each in other.roles} <= {"broad"}
        assert not {"reads", "is read by"} & {*exchanges(other)}
    one_layer = GPT2LMHeadModel(gpt2_config(n_layer=1)).eval()
    with pytest.raises(UsageError, match="--all"):
        attnviz.cards(corpus, one_layer, circuits=False, limit=20, **options)


def test_numbers_have_the_digits_that_matter():
    values: list[Any] = [1234, 0.0312, -0.00314, 1.4e-5, 0.756, 12.3, 0.0, (0.71, 0.88), (-0.18, 0.1)]
    assert [*map(cell_text, values)] == (
        ["1,234", "0.031", "−0.0031", "1.4e-05", "0.76", "12", "0.00", "0.71–0.88", "−0.18 to 0.10"]
    )


def test_all_cards_have_an_index_and_are_those_of_single_heads(tmp_path):
    result = cards_with_roles()
    content = result.save(tmp_path, figures=["card"], formats=["png"])
    assert content["figures"] == ["cards/L02H01.png", "cards/L01H00.png"]
    for card, entry in zip(result.cards, content["cards"], strict=True):
        assert [entry] == card.document()["cards"]
    ids = [line.split()[0] for line in (tmp_path / "card.csv").read_text().replace(",", " ").splitlines()]
    assert ids == ["id", *["L2H1"] * 3, *["L1H0"] * 3]
    with pytest.raises(UsageError, match="L0H0"):
        result.card("L0H0")
    assert result.card("L1H0") is result.cards[1]
    with pytest.raises(UsageError):
        result.page()


def test_the_picture_of_a_card_has_its_tables():
    card = result_of("card")
    (plan,) = drawing_of("card", "card").plans(card, ViewOptions())
    of_roles = plan.tables[0]
    assert of_roles.columns[0] == ["role", *(row[0] for row in role_table(card).rows)]
    assert [(table.n_rows, table.is_text[:2]) for table in plan.tables] == [
        (3, [True, False]),
        (len(exchange_table(card).rows[:6]), [True, True]),
        (6, [True, False]),
    ]


def data_of(card: Any) -> dict[str, Any]:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', card.page(), re.DOTALL)[1])


def test_the_page_of_a_card_has_its_tables_beside_all_heads():
    card = result_of("card")
    data = data_of(card)
    assert (data["command"], data["start"]["head"], len(data["heads"])) == ("card", "L2H1", 12)
    assert [head["id"] for head in data["heads"] if "words" in head] == ["L2H1"]
    of_roles, _, without = data["tables"]
    assert [row[1] for row in of_roles["rows"]] == ["previous-token", "induction", "nsubj dep→head"]
    assert without["rows"][0][2] == pytest.approx(ablation_table(card).rows[0][1], abs=0.001)
    (of,) = data["examples"]
    assert [(each["hit"], each["weight"]) for each in of["examples"]] == [(True, 0.8), (False, 0.6)]
    asked = {"repeats": True, "limit": 9, "circuits": False, "ablate": True, "syntax": True}
    line = data_of(replace(card, options=asked, corpus=None))["command_line"]
    assert line["options"][-5:] == ["--repeats", "--limit", "9", "--no-circuits", "--ablate"]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"head": "L9H9", "source": REPEATED}, "L9H9"),
        ({"head": "L0H0"}, "L0H0"),
        ({"head": "L0H0", "source": Path("none.conllu")}, "none.conllu"),
        ({"head": "L0H0", "source": Path("gap.tsv"), "ablate": True}, "sentences"),
        ({"source": REPEATED}, "profile"),
        ({"ablate": True}, "--ablate"),
        ({"head": "L0H0", "source": " "}, "blank"),
        ({"head": "L0H0", "source": REPEATED, "limit": 3}, "--limit"),
        ({"head": "L0H0", "source": "one two " * 300}, "--truncate"),
    ],
)
def test_what_cannot_be_shown_is_refused(given, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gap_table(tmp_path / "gap.tsv", 5)
    with pytest.raises((UsageError, TextError, attnviz.AttnvizError), match=word):
        (attnviz.card if "head" in given else attnviz.cards)(**given, model="tiny-gpt2", device="cpu")


def test_a_pattern_is_on_the_first_text_of_a_corpus_that_can_be_read(tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text("the cat " * 400 + "\nthe dog ran\n" + "it was he\n" * 3, encoding="utf-8")
    said: list[str] = []
    options: Any = {**ON_CPU, "warn": said.append, "limit": 3}
    card = attnviz.card("L0H0", corpus, "tiny-gpt2", ablate=True, truncate=True, **options)
    assert card.text == "the dog ran"
    assert (card.ablation.n_texts, card.ablation.n_cut) == (2, 0)  # as the profile is
    assert len(said) == 1


def test_examples_are_of_roles_that_pass_and_have_their_licence():
    card = result_of("card")
    assert card.shown_examples.role == "syntactic:nsubj"
    failed = tuple(replace(each, holds=each.relation is None) for each in card.profile.roles[card.head])
    other = replace(card, profile=replace(card.profile, roles={card.head: failed}))
    assert other.examples
    assert other.shown_examples is None
    licences = {"examples": {"licences": {"a.conllu": "the licence of a.conllu"}}}
    licensed = replace(card, profile=replace(card.profile, document=licences))
    assert any("the licence of a.conllu" in note for note in data_of(licensed)["notes"])


@pytest.mark.draws
@pytest.mark.thorough
@needs_minilm
def test_what_a_corpus_leaves_of_a_stored_profile_is_still_there(tmp_path):
    stored = attnviz.analyze("the cat ran", "minilm", syntax=False, device="cpu").profile
    cards = attnviz.cards(REPEATED, "minilm", **ON_CPU)
    clear = sorted(head for head in stored.roles if {role.role for role in stored.of(head)} - {"broad"})
    assert [card.head for card in cards.cards] == clear
    card = attnviz.card("L0H0", corpus_of(tmp_path / "texts.txt", 12), "minilm", **ON_CPU)
    assert not any("random tokens" in what for what in not_measured(card))
    assert card.profile.origin["corpora"][0] == {"name": "texts.txt", "sentences": 12}
    of_relations, stored_ones = (
        [each for roles in of.roles.values() for each in roles if each.relation] for of in (card.profile, stored)
    )
    assert sorted(map(repr, of_relations)) == sorted(map(repr, stored_ones))
    example = attnviz.card("L2H0", model="minilm", device="cpu", circuits=False)
    shown = example.shown_examples
    assert (shown.role, len(shown.best), len(shown.failures)) == ("syntactic:obj", 3, 3)
    assert example.text in {each.text for each in example.examples[0].best}
