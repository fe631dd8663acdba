"""What is claimed of a head: every number is that of its role, in words that claim no more; and the figure of it."""

import io
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

import attnviz
from attnviz import UsageError
from attnviz.commands.heads.claim_view import claim_plan, scores_of
from attnviz.figures.style import figure_bytes
from attnviz.judge.roles import Role, syntax_candidates
from attnviz.judge.rules import REPEATED
from attnviz.measures.relations import RelationCount
from attnviz.models.head_ids import HeadId, select_heads
from attnviz.present.claim import claim, held_against, sentence
from attnviz.profiles.store import profile_of_document
from attnviz.wording import percents
from tests.conftest import needs_minilm
from tests.measures.test_roles import estimate
from tests.support.drawn import drawing_of, texts_of
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.results import TEXT, cards_with_roles, result_of
from tests.support.stored import profile_of, role

OBJ: Any = {"direction": "dependent_to_head", "head": "L2H0"}


def of_objects(**changes: Any) -> Role:
    """As measured on a sample: 119 of 163 objects."""
    found = role("syntactic:obj", 119 / 163, 0.37, **OBJ)
    guesses = {"fixed offset": 0.37, "chance": 0.05, "longest word": 0.2}
    numbers = {"n": 163, "baselines": guesses, "interval": (0.591, 0.838), "untrained": 0.104, "offset": -2}
    return replace(found, **numbers | changes)


def numbers_of(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,.]*", text)]


def test_the_sentence_of_the_issue():
    assert sentence(of_objects(), "all-MiniLM-L6-v2") == (
        "L2H0 of all-MiniLM-L6-v2 finds the verb of 73 % of 163 objects (simultaneous 95 % interval 59–84 %; two words "
        "back 37 %; best untrained head 10 %)"
    )


OF_ATTENTION = {"interval": (0.71, 0.88), "untrained": 0.06, "n": 1234, "baselines": {"uniform attention": 0.12}}


@pytest.mark.parametrize(
    ("name", "changes", "numbers"),
    [
        ("syntactic:obj", {"direction": "head_to_dependent"}, [80, 1234, 95, 71, 88, 12, 6]),
        ("syntactic:obl", {"direction": "dependent_to_head"}, [80, 1234, 95, 71, 88, 12, 6]),
        ("syntactic:foo:bar", {"direction": "dependent_to_head"}, [80, 1234, 95, 71, 88, 12, 6]),
        ("coreference", {"direction": "pronoun_to_name"}, [80, 1234, 95, 71, 88, 12, 6]),
        ("previous-token", {}, [80, 1234, 95, 71, 88, 12, 6]),
        ("offset:-3", {}, [3, 80, 1234, 95, 71, 88, 12, 6]),
        ("induction", {}, [80, 1234, 95, 71, 88, 12, 6]),
        ("retrieval", {}, [80, 1234, 95, 71, 88, 12, 6]),
        ("copying", {}, [80, 1234, 95, 71, 88, 12, 6]),
        ("rare-word", {}, [80, 1234, 95, 71, 88, 12, 6]),
        ("inactive", {}, [0.5, 80, 1234, 95, 71, 88, 12, 6]),
        ("semantic", {}, [0.8, 1234, 95, 0.71, 0.88, 0.12, 0.06]),
        ("previous-token", {"untrained": None}, [80, 1234, 95, 71, 88, 12]),
        ("sink", {"interval": None, "untrained": None}, [80, 1234, 12]),
        ("local", {"interval": None, "untrained": None}, [1, 80, 1234, 12]),
        ("broad", {"interval": None, "untrained": None, "baseline": 1.0, "baselines": {}}, [80, 1234]),
    ],
)
def test_every_number_is_that_of_the_role_and_only_evidence_has_an_interval(name, changes, numbers):
    found = replace(role(name, 0.8, 0.12), **OF_ATTENTION | changes)
    said = sentence(found, "M")
    assert numbers_of(said.removeprefix("L0H0 of M")) == numbers
    assert said.startswith(claim(found, "M"))
    assert ("simultaneous" in said) is (found.interval is not None)
    assert sentence(replace(found, too_few="n = 12, 30 needed"), "M") == ""


@pytest.mark.parametrize(("threshold", "unit"), [(REPEATED.words, "sequence"), ("over 0.5", "token")])
def test_what_is_measured_on_random_tokens_says_so(threshold, unit):
    found = replace(role("previous-token", 0.8, 0.1), threshold=threshold)
    assert f" {unit}s;" in sentence(found, "M")
    assert ("on content" in sentence(found, "M")) is (unit == "token")


@given(st.lists(st.floats(0, 1, width=16), min_size=1, max_size=3))
@example([0.9996])
@example([0.0, 0.0004])
@example([0.74, 0.736, 0.744])
@example([1.0])
def test_no_share_reads_as_all_or_none_or_as_another_one(shares):
    written = percents(shares)
    assert [float(text) for text in written] == pytest.approx([100 * share for share in shares], abs=0.501)
    for share, text in zip(shares, written, strict=True):
        assert (float(text) == 0) is (share == 0)
        assert (float(text) == 100) is (share == 1)
    assert len({*written}) == len({*shares})
    assert all("." not in text for text in percents([round(share, 2) for share in shares]))


def test_the_best_guess_is_named_and_an_offset_that_is_not_known_has_no_number():
    guesses = {"fixed offset": 0.2, "longest word": 0.37}
    assert held_against(of_objects(baselines=guesses))[0] == ("the longest word", 0.37)
    for offset, words in ((-1, "the previous word"), (3, "three words ahead"), (-12, "12 words back")):
        assert held_against(of_objects(offset=offset))[0][0] == words
    assert not numbers_of(held_against(of_objects(offset=None))[0][0])


def test_an_offset_is_that_of_the_roles_own_direction():
    """A head that is two words before its dependent: it looks two back, the other way round two ahead."""
    for direction in (0, 1):
        scores: list[Any] = [[[0.1]], [[0.1]]]
        scores[direction] = [[0.9]]
        count = RelationCount("obj", -2, estimate(scores, {"fixed offset": 0.3}))
        (candidate,) = syntax_candidates([count])
        (found,) = candidate.roles()
        assert (found.direction, found.offset) == (("dependent_to_head", -2), ("head_to_dependent", 2))[direction]


def test_documents_have_the_sentence_and_stored_roles_the_offset():
    profile = result_of("profile")
    document = profile.document()
    stored = profile_of_document(document)
    assert any(entry["sentence"] for entry in document["roles"])
    for entry, found in zip(document["roles"], profile.roles, strict=True):
        assert entry["sentence"] == (sentence(found, "tiny-gpt2") if found.holds else None)
        (read,) = [each for each in stored.roles[found.id] if each.role == found.role]
        assert read.offset == found.offset == entry["offset"]
        assert sentence(read, "m") == sentence(found, "m")
    offsets = {each.relation: each.offset for each in profile.relations}
    of_relations = [found for found in profile.roles if found.relation]
    assert of_relations
    assert all(abs(found.offset) == abs(offsets[found.relation]) for found in of_relations)
    card = result_of("card")
    said = card.document()["cards"][0]["sentence"]
    assert said == sentence(card.roles[0], card.checkpoint.full_name)
    assert said in " ".join(card.report(200).split())
    few = replace(card.roles[0], holds=False, too_few="n = 12, 30 needed")
    without = replace(card, profile=profile_of({str(card.head): [few]}))
    assert without.document()["cards"][0]["sentence"] is None
    assert few.too_few in without.report()


@needs_minilm
def test_check_has_the_sentence_of_a_role_and_prints_it_where_the_claim_holds(tmp_path):
    file = tmp_path / "claims.toml"
    claims = [("L2H0", "at_least = 0.6"), ("L2H0", "at_most = 0.5")]
    text = "\n".join(f'[[claim]]\nhead = "{head}"\nrole = "obj"\n{bound}\n' for head, bound in claims)
    file.write_text(f'model = "minilm"\n{text}', encoding="utf-8")
    found = attnviz.check(file, device="cpu")
    holds, fails = (entry["sentence"] for entry in found.document()["claims"])
    assert holds == fails
    assert "two words back" in holds
    assert found.report(200).count(holds) == 1


# --- the figure


def figure_of(plan: Any, **style: Any) -> Any:
    return plan.figure(attnviz.figures.Style(**style))


@pytest.mark.draws
def test_the_figure_has_the_numbers_of_the_role_and_the_caption_has_all_of_them():
    card = result_of("card")
    (plan,) = drawing_of("card", "claim").plans(card, None)
    first = card.roles[0]
    assert plan.caption.startswith(sentence(first, card.checkpoint.full_name))
    assert plan.title == claim(first, card.checkpoint.full_name)
    assert [bar.value for bar in plan.bars] == [first.score, *(score for _, score in held_against(first))]
    assert plan.bars[0].interval == first.interval
    assert plan.removed[0].value == card.ablation.head(card.head).damage["cosine"].value
    figure = card.figure("claim")
    assert figure.get_figwidth() == pytest.approx(3.3)
    drawn = [text for text in texts_of(figure) if "%" in text or "weight" in text]
    assert drawn
    for text in [*drawn, *(bar.written for bar in plan.removed)]:
        for number in numbers_of(text):
            assert number in {*numbers_of(plan.caption), 100}
    (dots,) = figure.axes[0].collections
    assert dots.get_sizes()[-1] == dots.get_sizes().max()
    assert [tuple(place) for place in dots.get_offsets()][-1] == (card.head.head, card.head.layer)
    assert len(dots.get_offsets()) == 12
    (dots,) = figure_of(replace(plan, dots=((0, 0, 0.2), (1, 0, -0.3), (3, 2, 0.8)))).axes[0].collections
    small, none, large = dots.get_sizes()
    assert large == pytest.approx(4 * small)
    assert none < small / 4


@pytest.mark.draws
@pytest.mark.parametrize("spoil", ["examples", "interval"])
def test_a_part_that_is_not_known_is_left_out(spoil):
    card = result_of("card")
    profile = replace(card.profile, examples=())
    bare = replace(card.roles[0], interval=None, role="sink") if spoil == "interval" else card.roles[0]
    plan = claim_plan(profile, card.checkpoint, bare, "claim")
    assert (plan.strips, plan.removed) == ((), ())
    assert len(figure_of(plan).axes) == 2
    assert "no example" in plan.caption


@pytest.mark.draws
def test_a_name_that_is_too_long_is_wrapped_and_the_end_of_the_scale_stays_inside():
    card = result_of("card")
    plan = claim_plan(card.profile, card.checkpoint, card.roles[0], "claim")
    long = replace(plan, bars=tuple(bar._replace(name="the best untrained head of them all") for bar in plan.bars))
    figure = figure_of(long, width="3in")
    scores = figure.axes[1]
    drawn = [text.get_text() for text in scores.texts if text.get_position()[0] == 0]
    assert " ".join(drawn) == " ".join(bar.name for bar in long.bars)
    figure.draw_without_rendering()
    assert scores.get_xticklabels()[-1].get_window_extent().x1 <= scores.get_window_extent().x1 + 1
    picture = Image.open(io.BytesIO(figure_bytes(figure_of(plan), "png")))
    assert picture.width == pytest.approx(3.3 * 300, abs=2)


def test_dots_are_the_scores_of_all_heads_where_the_profile_has_them():
    profile = result_of("profile")
    stored = profile_of_document(profile.document())
    names, heads = {each.role for each in profile.roles}, select_heads((), profile.checkpoint.kinds)
    assert {"previous-token", "sink", "induction", "semantic", "broad"} <= names
    for found in profile.roles[:: len(profile.roles) // 40]:
        scores = scores_of(stored, heads, found)
        assert scores[found.id] == found.score
        assert len(scores) == 16 or found.role.startswith("offset")
    previous = profile.role(HeadId(0, 2), "previous-token")
    shipped = replace(stored, roles={previous.id: (previous,)})
    expected = profile.statistics.results()["previous"]
    scores = scores_of(shipped, heads, previous)
    assert [scores[HeadId(*at)] for at in np.ndindex(4, 4)] == pytest.approx(expected.flatten().tolist())
    without = replace(shipped, document={})
    assert scores_of(without, heads, previous) == {previous.id: previous.score}
    assert "1 of 16 " in claim_plan(without, profile.checkpoint, previous, "claim").caption


@pytest.mark.draws
def test_heads_draws_what_card_draws_for_the_role_that_was_asked_for(tmp_path):
    profile = cards_with_roles().cards[0].profile
    analysis = attnviz.analyze(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), syntax=False)
    with pytest.raises(UsageError, match="attnviz profile"):
        analysis.figure("claim")
    heads = tuple(replace(head, roles=profile.of(head.id)) for head in analysis.heads)
    known = replace(analysis, heads=heads, profile=profile)
    plans = drawing_of("heads", "claim").plans
    choices = attnviz.present.view.ViewOptions(select=("L2H1",))
    (plan,) = plans(known, choices)
    (of_card,) = drawing_of("card", "claim").plans(replace(result_of("card"), ablation=None, on_repeats=None), choices)
    assert plan == of_card
    named = [each.title for each in plans(known, replace(choices, select=("nsubj",)))]
    assert len(named) == 2
    assert all("subjects" in title for title in named)
    with pytest.raises(UsageError, match="L0H0"):
        known.figure("claim", select="L0H0")
    content = known.save(tmp_path, figures=["claim"], formats=["pdf", "svg"], select=["L2H1", "L1H0"])
    assert content["figures"] == ["claims/L01H00.pdf", "claims/L01H00.svg", "claims/L02H01.pdf", "claims/L02H01.svg"]
    assert json.loads((tmp_path / "heads.json").read_text())["figures"] == content["figures"]
    with pytest.raises(UsageError, match="attnviz profile"):
        replace(result_of("card"), profile=None).figure("claim")
