"""Cards: every sentence against the commands that measure it, and what a card of nothing says."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

import attnviz
from attnviz import HeadId, UsageError
from attnviz.commands.card.measure import Card
from attnviz.commands.card.wording import sentences, unmeasured
from attnviz.models.wording import amount, percent, rounded, signed, span
from attnviz.present.report import spec_of
from tests.support.corpora import sentences as corpus_of
from tests.support.models import CAUSAL_KNOWN_HEADS, gpt2_config, gpt2_tokenizer, known_gpt2

REPEATED = "one two three four five one two three four five"


def markdown(card: Card) -> str:
    spec = spec_of("card").text
    assert spec is not None
    return spec[1](card)


def ranked(value: Any, values: list[Any]) -> str:
    """``0.31 (2nd of 8)``, by a count of its own."""
    place = sorted(values, reverse=True).index(value) + 1
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place, "th")
    return f"({place}{ending} of {len(values)})"


def test_every_sentence_on_a_hand_built_model_is_what_the_commands_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles: list[attnviz.Profile] = []

    def spied(*args: Any, **options: Any) -> attnviz.Profile:
        profiles.append(attnviz.profile_heads(*args, **options))  # type: ignore[arg-type]
        return profiles[-1]

    monkeypatch.setattr("attnviz.commands.card.measure.profile_heads", spied)
    corpus, model, options = corpus_of(tmp_path / "texts.txt", 120), known_gpt2(), {"tokenizer": gpt2_tokenizer()}
    card = attnviz.card("L0H0", corpus, model, ablate=True, syntax=False, **options)
    checkpoint, id = card.checkpoint, HeadId(0, 0)
    (profile,) = profiles
    role = profile.passed_roles()[id][0]
    assert (role.role, role.untrained is not None) == ("previous-token", True)
    assert profile.head_distances is not None
    near = sorted((float(each), at) for at, each in enumerate(profile.head_distances[0]) if at)[:3]
    heads = attnviz.analyze(card.text, model, syntax=False, **options).heads
    values = {name: [head.statistics[name] for head in heads] for name in ("sink", "distance", "entropy")}
    share = attnviz.head_outputs(card.text, model, **options).head(id).projection_share
    effect = attnviz.ablate(corpus, model, select="L0H0", curve=False, gradient=False, **options).head(id)
    pairs = [pair for pair in attnviz.circuits(model, **options).pairs(["L0H0"]) if pair.writer == id]
    cosine = effect.damage["cosine"]
    told = list(sentences(card))
    assert told[0].startswith(
        f"L0H0 of {checkpoint.short_name} gives {percent(role.score)} of its attention on content to the previous "
        f"token (previous-token, n = {role.n:,}; interval {span(role.interval)}; uniform attention: "
        f"{percent(role.baseline)}; untrained: {rounded(role.untrained)} at most)"
    )
    listed = ", ".join(f"L{at // 4}H{at % 4} ({rounded(distance)})" for distance, at in near)
    assert told[1] == f"Its patterns are most like those of {listed}: Jensen-Shannon divergence in nats, at most 0.69."
    assert told[2] == (
        f"On “{card.text}”, by rank among the heads: sink share {rounded(values['sink'][0])} "
        f"{ranked(values['sink'][0], values['sink'])}; distance {rounded(values['distance'][0])} tokens "
        f"{ranked(values['distance'][0], values['distance'])}; entropy {rounded(values['entropy'][0])} nats "
        f"{ranked(values['entropy'][0], values['entropy'])}."
    )
    assert told[3] == f"It makes {percent(share)} of what its layer's attention adds to the stream there."
    assert told[4] == (
        f"By its weights it is read by {pairs[0].id} most ({pairs[0].kind} composition {rounded(pairs[0].score)}, "
        f"{rounded(pairs[0].deviations, 0)} SD above random rotations)."
    )
    assert told[5] == (
        f"Without it: cosine distance {amount(cosine.value)} (1 − cos) on 120 texts (95 % interval "
        f"{amount(cosine.low or 0)} to {amount(cosine.high or 0)})."
    )
    assert len(told) == 6
    assert [*unmeasured(card)] == ["roles on repeats", "promoted tokens"]
    for layer, of_layer in enumerate(CAUSAL_KNOWN_HEADS):  # and all other heads by what they were built for
        for number, name in enumerate(of_layer):
            other = replace(card, head=HeadId(layer, number), ablation=None)
            if name != "induction":  # which takes repeats
                assert name in {each.role for each in other.roles}, name
                assert f" {name} |" in markdown(other)


def test_cards_of_induction_heads_say_induction_their_partner_and_what_they_write() -> None:
    card = attnviz.card("L1H0", REPEATED, "tiny-gpt2", repeats=True, ablate=True, device="cpu")
    outputs, circuits = card.outputs, card.circuits
    assert card.profile is not None
    assert circuits is not None
    assert card.ablation is not None
    heads = [head for head in card.profile.roles if any(role.role == "induction" for role in card.profile.of(head))]
    assert HeadId(1, 0) in heads
    for head in heads:
        told = " ".join(sentences(replace(card, head=head, ablation=None)))
        assert re.search(r"gives \d+ % of its attention at tokens with a copy before them to the token after", told)
        assert "(induction, n = 32" in told
        assert "it reads L0H2 most (key composition" in told
    told = " ".join(sentences(card))
    promoted = outputs.promoted("L1H0").promoted[0]
    assert f"At ‘five’ #9 it raises most the logits of “{promoted.text}” {signed(promoted.logit)}" in told
    assert f"Copying by its weights: {signed(circuits.head('L1H0').copying or 0)} (random" in told
    loss = card.ablation.head("L1H0").damage["loss"]
    assert f"loss increase {amount(loss.value)} (nats/token) on 1 text, too few for an interval." in told
    text = markdown(card)
    assert all(sentence in text for sentence in sentences(card))
    assert "Not measured: roles in sentences (attnviz card L1H0 CORPUS -m tiny-gpt2); nearest heads (" in text
    assert [role["role"] for role in card.document()["roles"]] == [role.role for role in card.roles]


def test_cards_of_an_untrained_model_claim_nothing(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = GPT2LMHeadModel(gpt2_config()).eval()
    corpus = corpus_of(tmp_path / "texts.txt", 120)
    card: Card = attnviz.card("L0H0", corpus, model, tokenizer=gpt2_tokenizer(), repeats=True, syntax=False)
    few = attnviz.card("L0H0", corpus, model, tokenizer=gpt2_tokenizer(), limit=3, circuits=False, syntax=False)
    assert few.text == corpus.read_text().splitlines()[0]  # no role passes, so there is no example
    for head in card.analysis.heads:
        other = replace(card, head=head.id)
        assert {role.role for role in other.roles} <= {"broad"}
        told = list(sentences(other))
        assert ("as untrained heads are, too" if other.roles else "passes no role over") in told[0]
        assert not any(word in " ".join(told) for word in ("attends", "gives", "reads", "is read by"))


@pytest.mark.parametrize(
    ("head", "source", "message"),
    [
        ("L9H9", REPEATED, "has no head L9H9|layers 0 to"),
        ("L0H0", None, "no example of L0H0 is known: expected a TEXT"),
        ("L0H0", Path("none.conllu"), "none.conllu"),
    ],
)
def test_what_cannot_be_shown_is_refused(head: str, source: Any, message: str) -> None:
    with pytest.raises(attnviz.AttnvizError, match=message):
        attnviz.card(head, source, "tiny-gpt2", device="cpu")
    assert issubclass(UsageError, attnviz.AttnvizError)
