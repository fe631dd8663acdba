"""Cards: every sentence against the commands that measure it, and what a card of nothing says."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel
from typer.testing import CliRunner

import attnviz
from attnviz import HeadId, TextError, UsageError
from attnviz.cli.program import app
from attnviz.commands.ablate.effects import Estimate
from attnviz.commands.card.measure import Card
from attnviz.commands.card.views import CARD
from attnviz.commands.card.wording import (
    COMPOSES,
    DOES,
    RESTS,
    WITHOUT,
    WRITES,
    in_words,
    paragraphs,
    standings,
    unmeasured,
)
from attnviz.figures.style import figure_bytes
from attnviz.models.wording import amount, percent, rounded, signed
from attnviz.present.documents import markdown_text
from attnviz.present.report import spec_of
from attnviz.present.view import ViewOptions
from attnviz.profiles.store import StoredCorpus, StoredRole
from tests.conftest import needs_minilm
from tests.support.corpora import examples as gap_table
from tests.support.corpora import sentences as corpus_of
from tests.support.corpora import treebank
from tests.support.models import (
    CAUSAL_KNOWN_HEADS,
    bert_tokenizer,
    gpt2_config,
    gpt2_tokenizer,
    known_bert,
    known_gpt2,
    save_checkpoint,
)
from tests.support.results import result_of
from tests.support.stored import role

REPEATED = "one two three four five one two three four five"


def markdown(card: attnviz.Card | attnviz.Cards) -> str:
    spec = spec_of(card.command).text
    assert spec is not None
    return spec[1](card)


def ranked(value: Any, values: list[Any]) -> str:
    """``(2nd highest of 8)``, by a count of its own."""
    place = sorted(values, reverse=True).index(value) + 1
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place, "th")
    return f"({place}{ending} highest of {len(values)})"


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
    role, *others = profile.passed_roles()[id]
    assert (role.role, role.untrained is not None) == ("previous-token", True)
    assert profile.head_distances is not None
    far = sorted((float(each), at) for at, each in enumerate(profile.head_distances[0]) if at)
    near = far[:3]
    heads = attnviz.analyze(card.text, model, syntax=False, **options).heads
    values = {name: [head.statistics[name] for head in heads] for name in ("sink", "distance", "entropy")}
    share = attnviz.head_outputs(card.text, model, **options).head(id).projection_share
    effect = attnviz.ablate(corpus, model, select="L0H0", curve=False, gradient=False, **options).head(id)
    pairs = [pair for pair in attnviz.circuits(model, **options).pairs(["L0H0"]) if pair.writer == id]
    cosine = effect.damage["cosine"]
    said = paragraphs(card)
    assert [*said] == [DOES, RESTS, WRITES, COMPOSES, WITHOUT]
    low, high = (percent(end).removesuffix(" %") for end in role.interval)
    listed = ", ".join(f"L{at // 4}H{at % 4} ({rounded(distance)})" for distance, at in near)
    assert [each.role for each in others] == ["local"]
    assert said[DOES] == (
        f"Over texts.txt (120 texts), L0H0 of {checkpoint.short_name} gives {percent(role.score)} of its attention on "
        f"content to the previous token (previous-token; n = {role.n:,}; interval {low}–{high} %; uniform attention: "
        f"{percent(role.baseline)}; "
        f"untrained: {percent(role.untrained)} at most). It gives {percent(others[0].score)} of its attention on "
        f"content to tokens at most 1 away (local; uniform attention: {percent(others[0].baseline)}). Its patterns are "
        f"most like those of {listed}; in brackets the Jensen-Shannon divergence in nats, whose median over the other "
        f"heads is {rounded(median(distance for distance, _ in far))}."
    )
    assert said[RESTS] == (
        f"On “{card.text}” (9 tokens): sink share {rounded(values['sink'][0])} "
        f"{ranked(values['sink'][0], values['sink'])}; distance {rounded(values['distance'][0])} tokens "
        f"{ranked(values['distance'][0], values['distance'])}; entropy {rounded(values['entropy'][0])} nats "
        f"{ranked(values['entropy'][0], values['entropy'])}."
    )
    adds = "of what its layer's attention adds to the stream on this text (an even share: 25 %)."
    assert said[WRITES] == f"{percent(share)} {adds}"
    assert said[COMPOSES] == (
        f"By its weights it is read by {pairs[0].id} most ({pairs[0].kind} composition {rounded(pairs[0].score)}, "
        f"{rounded(pairs[0].deviations, 0)} SD above random rotations)."
    )
    assert said[WITHOUT] == (
        f"With its mean output in its place, on 120 texts the final states move by a cosine distance of "
        f"{amount(cosine.value)} (95 % interval {amount(cosine.low or 0)} to {amount(cosine.high or 0)})."
    )
    of_repeats, others = "roles on repeated random tokens, such as induction", "effects of the other heads, to compare"
    lacking = unmeasured(card)
    of_role = "what the tokens of its role lose without it"
    assert [*lacking] == [of_repeats, "promoted tokens, copying", of_role, others]
    assert lacking[of_role] == "only relations and repeats have such tokens"
    assert re.fullmatch(r"attnviz card L0H0 \S*texts.txt .*--ablate --no-syntax --repeats", lacking[of_repeats])
    assert re.fullmatch(r"attnviz ablate \S*texts.txt .*", lacking[others])
    of_names = unmeasured(replace(card, corpus=Path("names.tsv")))
    assert of_names[of_repeats].startswith("attnviz card L0H0 CORPUS.conllu ")
    for layer, of_layer in enumerate(CAUSAL_KNOWN_HEADS):  # and all other heads by what they were built for
        for number, name in enumerate(of_layer):
            other = replace(card, head=HeadId(layer, number), ablation=None)
            if name != "induction":  # which takes repeats
                assert name in {each.role for each in other.roles}, name
                assert f" {name} |" in markdown(other)


def test_cards_of_induction_heads_say_induction_their_partner_and_what_repeats_lose_without_them() -> None:
    cards = attnviz.cards(REPEATED, "tiny-gpt2", repeats=True, ablate=True, device="cpu")
    loss = attnviz.ablate(model="tiny-gpt2", repeats=True, select="L1", curve=False, gradient=False, device="cpu")
    of_induction = [card for card in cards.cards if any(role.role == "induction" for role in card.roles)]
    assert {*map(str, (card.head for card in of_induction))} >= {"L1H0", "L1H1", "L1H2", "L1H3"}
    for card in of_induction:
        said = paragraphs(card)
        assert re.search(r"gives \d+ % of its attention on repeated random tokens to the token after", said[DOES])
        assert "(induction; n = 32; interval" in said[DOES]
        assert "it reads L0H2 most (key composition" in said[COMPOSES]
        (role,) = loss.head(card.head).roles
        rises, before, more = (each["loss"] for each in (role.queries, role.others, role.difference))
        assert before.value < 0 < rises.value
        assert said[WITHOUT].endswith(
            f"On the second copy of random tokens the loss rises by {amount(rises.value)} nats/token, on the first "
            f"it falls by {amount(-before.value)}; the difference is {amount(more.value)} (95 % interval "
            f"{amount(more.low or 0)} to {amount(more.high or 0)}), so they depend on it more."
        )
    card = cards.card("L1H0")
    assert card.circuits is not None
    promoted = card.outputs.promoted("L1H0").promoted[0]
    written = paragraphs(card)[WRITES]
    assert f"At ‘five’ #9 it raises most the logits of “{promoted.text}” {signed(promoted.logit)}" in written
    assert f"Copying by its weights: {signed(card.circuits.head('L1H0').copying)} (from −1 to 1; random" in written
    assert card.ablation is not None
    without = card.ablation.head("L1H0").damage["loss"].value
    assert (
        f"on 1 text the loss {'falls' if without < 0 else 'rises'} by {amount(abs(without))} nats"
        in paragraphs(card)[WITHOUT]
    )
    assert ", too few texts for an interval." in paragraphs(card)[WITHOUT]
    text = markdown(card)
    assert all(f"**{heading}.** {markdown_text(said)}" in text for heading, said in paragraphs(card).items())
    assert (
        "Not measured: roles in sentences (attnviz card L1H0 CORPUS.conllu --model tiny-gpt2 --repeats --ablate);"
        in text
    )
    previous = next(card for card in cards.cards if str(card.head) == "L0H2")
    assert "previous-token" in paragraphs(previous)[DOES]
    assert previous.on_repeats is None  # its role is not one on repeats


@needs_minilm
def test_objects_need_not_need_the_head_that_tracks_them(tmp_path: Path) -> None:
    pytest.importorskip("conllu", reason="needs the extra profile")
    trees = treebank(tmp_path / "trees.conllu", 40)
    card = attnviz.card("L2H0", trees, "minilm", ablate=True, device="cpu", circuits=False)
    stored = attnviz.card("L2H0", model="minilm", device="cpu", circuits=False)
    assert card.profile is not None
    assert {corpus.name for corpus in card.profile.corpora} == {"trees.conllu", "gap-development.tsv"}  # both are kept
    card = replace(card, profile=stored.profile)  # random trees show no role, but say what is removed where
    relation = attnviz.ablate(trees, "minilm", select="L2H0", role="obj", curve=False, gradient=False, device="cpu")
    (head,) = relation.heads
    role = next(each for each in head.roles if each.direction == "dependent_to_head")
    number = {name: role.__dict__[name]["cosine"] for name in ("queries", "others", "difference")}
    said = paragraphs(replace(card, ablation=relation))[WITHOUT]
    assert (
        f" On the {role.n} tokens of obj dep→head there the final states move by a cosine distance of "
        f"{amount(number['queries'].value)}, on the nearest other words they move by "
        f"{amount(number['others'].value)}; the "
        f"difference is {amount(number['difference'].value)} (95 % interval"
    ) in said
    assert "head→dep" not in said  # the direction of the role alone
    of = stored.shown_examples
    assert of is not None
    assert (of.role, len(of.best), len(of.failures)) == ("syntactic:obj", 3, 3)
    assert stored.text in {example.text for example in stored.examples[0].best}
    text, shown = markdown(stored), stored.report(width=200)
    for example in (*of.best, *of.failures):
        weight = f"{example.weight:.2f}"
        assert weight in shown
        assert re.search(rf"^- {'hit' if example.hit else 'failure'}, weight {weight}: .*\\\[", text, re.MULTILINE)
    assert "CC BY-SA 4.0" in text


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
        said = paragraphs(other)
        assert ("as untrained heads' is" if other.roles else "passes no role") in said[DOES]
        assert not re.search(r"\b(attends|gives|reads|read by)\b", " ".join(said.values()))


ROLES = [
    (
        "syntactic:obj",
        "dependent_to_head",
        "attends from object to verb in 81 % of 200 instances (obj dep→head; interval",
    ),
    ("syntactic:obj:x", None, "finds obj:x in 81 % of 200 instances"),
    ("coreference", "pronoun_to_name", "attends between a pronoun and the name that it means in 81 % of 200 instances"),
    ("offset:-3", None, "gives 81 % of its attention on content to the token 3 before (offset:-3; n = 200; interval"),
    ("offset:+2", None, "to the token 2 after (offset:+2"),
    (
        "sink",
        None,
        "gives 81 % of its attention to sinks: special tokens, or the first (sink; n = 200; interval 76–86 %",
    ),
    ("semantic", None, "words similar in meaning: mean cosine 0.81 (semantic; n = 200; interval 0.76–0.86; uniform"),
    ("copying", None, "raises the logit of the token that it attends to in 81 % of cases (copying"),
    ("inactive", None, "writes next to nothing at 81 % of tokens (inactive; n = 200; interval 76–86 %)"),
    (
        "retrieval",
        None,
        "in 81 % of repeats of random tokens (retrieval; n = 200; interval 76–86 %; a random token: 20 %",
    ),
]


@pytest.mark.parametrize(("name", "direction", "words"), ROLES, ids=[each[0] for each in ROLES])
def test_every_kind_of_role_has_its_words(name: str, direction: str | None, words: str) -> None:
    role = StoredRole(name, 0.81, 0.2, 200, (0.76, 0.86), True, direction)
    assert words in in_words(role)
    assert in_words(role, briefly=True).partition(" (")[0] == in_words(role).partition(" (")[0].replace("200 ", "")
    assert "untrained: 12 % at most" in in_words(replace(role, untrained=0.12)) or name == "semantic"


def test_all_cards_have_an_index_and_are_those_of_single_heads(tmp_path: Path) -> None:
    result = result_of("card.all")
    content = result.save(tmp_path, figures=["card", "page"], formats=["png"])
    assert content["figures"] == ["cards/L02H01.png", "cards/L01H00.png", "cards.html"]
    text = (tmp_path / "cards.md").read_text(encoding="utf-8")
    index = [re.match(r"- \[(\w+)\]\(#(\w+)\) (.*)", line) for line in text.splitlines() if line.startswith("- [")]
    assert [(line[1], line[2]) for line in index if line] == [("L2H1", "l2h1"), ("L1H0", "l1h0")]
    assert all(f"\n## {card.head}\n" in text for card in result.cards)
    for card in result.cards:
        assert in_words(card.roles[0], briefly=True) in text
        assert markdown(card).partition("\n")[2].strip() in text
        alone = card.document()
        (entry,) = [each for each in content["cards"] if each["head"] == str(card.head)]
        assert entry == {key: alone[key] for key in entry}
    assert "What it does by its clearest role" in result.report()
    with pytest.raises(UsageError, match="L0H0 has no card here; 2 other heads can be asked for"):
        result.card("L0H0")
    assert result.card("L1H0") is result.cards[1]


@needs_minilm
def test_a_vector_file_of_a_card_is_the_same_each_time() -> None:
    card = attnviz.card("L2H8", "The cat ran away and ate the fish.", "minilm", circuits=False, device="cpu")
    assert len({figure_bytes(card.figure(), "svg") for _ in range(3)}) == 1


def test_the_name_of_a_model_is_no_markup(tmp_path: Path) -> None:
    folder = save_checkpoint(known_gpt2(), gpt2_tokenizer(), tmp_path / "a_*b*")
    card = attnviz.card("L0H0", "the cat ran", str(folder), syntax=False, device="cpu")
    assert markdown(card).startswith("# L0H0 of a\\_\\*b\\*\n")
    assert markdown(attnviz.cards("the cat ran", card.checkpoint, select="L0H0")).startswith("# Heads of a\\_\\*b\\*\n")


@needs_minilm
def test_every_head_with_a_role_has_a_card() -> None:
    stored = attnviz.analyze("the cat ran", "minilm", syntax=False, device="cpu").profile
    assert stored is not None
    cards = attnviz.cards(REPEATED, "minilm", circuits=False, syntax=False, device="cpu").cards
    assert [card.head for card in cards] == sorted(
        head for head in stored.roles if {role.role for role in stored.of(head)} - {"broad"}
    )
    assert len({id(card.analysis) for card in cards}) == 1  # one text is read once


def data_of(card: Any) -> dict[str, Any]:
    page = card.page()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_of_a_card_has_its_words_roles_and_sentences_beside_all_heads() -> None:
    card = result_of("card")
    data = data_of(card)
    assert (data["command"], data["start"]["head"], len(data["heads"])) == ("card", "L2H1", 12)
    (own,) = [head for head in data["heads"] if "words" in head]
    assert own["id"] == "L2H1"
    assert dict(own["words"]) == paragraphs(card) | {"Not measured": own["words"][-1][1]}
    (table,) = data["tables"]
    assert [row[1] for row in table["rows"]] == ["previous-token", "induction", "nsubj"]
    (of,) = data["examples"]
    assert [(each["hit"], each["weight"]) for each in of["examples"]] == [(True, 0.8), (False, 0.6)]
    asked = {"repeats": True, "limit": 9, "circuits": False, "ablate": True, "syntax": True}
    typed = ["--repeats", "--limit", "9", "--no-circuits", "--ablate"]
    line = data_of(replace(card, options=asked, corpus=None))["command_line"]
    assert (line["texts"], line["options"][-5:]) == ([card.text], typed)
    assert data_of(replace(card, corpus=Path("a.conllu")))["command_line"]["texts"] == ["a.conllu"]


def test_the_page_of_all_cards_has_each_on_its_own_text() -> None:
    first, second = result_of("card.all").cards
    other = attnviz.card("L1H0", "he was in the house", first.checkpoint, syntax=False)
    other = replace(other, profile=second.profile)
    data = data_of(replace(result_of("card.all"), cards=(first, other)))
    assert [head["id"] for head in data["heads"]] == ["L2H1", "L1H0"]
    for head, card in zip(data["heads"], (first, other), strict=True):
        (place,) = head["patterns"]
        pattern = data["patterns"][place]
        assert data["axes"][pattern["rows"]]["labels"] == list(card.tokens.labels)
        assert pattern["rows"] == pattern["columns"]
        assert head["label"] == "previous-token"
        assert dict(head["words"])[DOES] == paragraphs(card)[DOES]
    assert data["command_line"]["texts"] == [first.text]
    own = replace(first, texts=("all",))  # no text was given: each head has an example of its own
    assert data_of(replace(result_of("card.all"), cards=(own, other)))["command_line"]["texts"] == []
    assert [column["values"] for column in data["statistics"]] == [[0.9, 0.9], [0.1, 0.1], [3, 3]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"head": "L9H9", "source": REPEATED}, "has no head L9H9|layers 0 to"),
        ({"head": "L0H0"}, "no example of L0H0 is known: expected a TEXT"),
        ({"head": "L0H0", "source": Path("none.conllu")}, "none.conllu"),
        ({"head": "L0H0", "source": Path("gap.tsv"), "ablate": True}, "heads are removed on sentences"),
        ({"source": REPEATED}, "there is no stored profile of this model: expected a CORPUS"),
        ({"ablate": True}, "expected --ablate with a TEXT or a CORPUS"),
        ({"head": "L0H0", "source": " "}, "the text is empty or blank"),
        ({"head": "L0H0", "source": REPEATED, "limit": 3}, r"--limit \(limit=...\) is for the sentences"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    given: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gap_table(tmp_path / "gap.tsv", 5)
    with pytest.raises(attnviz.AttnvizError, match=message):
        (attnviz.card if "head" in given else attnviz.cards)(**given, model="tiny-gpt2", device="cpu")
    assert issubclass(UsageError, attnviz.AttnvizError)


def test_without_any_role_there_are_no_cards(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = GPT2LMHeadModel(gpt2_config(n_layer=1)).eval()
    corpus = corpus_of(tmp_path / "texts.txt", 20)
    with pytest.raises(
        UsageError,
        match=r"no head passes a role other than broad over texts.txt, 20 texts: expected one by its id, without --all",
    ):
        attnviz.cards(corpus, model, tokenizer=gpt2_tokenizer(), circuits=False, syntax=False)


def test_the_verdict_on_a_role_is_by_the_first_metric() -> None:
    card = result_of("card")
    (effect, *others), metrics = card.ablation.heads, card.ablation.metrics
    (role, *_) = [each for each in effect.roles if each.direction == "dependent_to_head"]
    more, less, none = Estimate(0.25, 0.125, 0.5), Estimate(-0.25, -0.5, -0.125), Estimate(0.25, -0.5, 0.5)
    said = {
        ("more", more, more): "is 0.250 (95 % interval 0.125 to 0.500), so they depend on it more.",
        ("less", less, less): "is −0.250 (95 % interval −0.500 to −0.125), so they depend on it less.",
        ("no difference shown", none, none): "so it is not shown that they depend on it more.",
        (None, Estimate(0.25, None, None), Estimate(0.25, None, None)): "is 0.250, too few texts for an interval.",
    }  # fmt: skip
    for (verdict, *differences), ending in said.items():
        named = dict(zip((metric.name for metric in metrics), differences, strict=True))
        changed = replace(role, verdict=verdict, difference=named)
        ablation = replace(card.ablation, heads=(replace(effect, roles=(changed,)), *others))
        written = paragraphs(replace(card, ablation=ablation, on_repeats=None, head=effect.id))[WITHOUT]
        assert written.endswith(ending), written


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("times", "colours"), [(1, "attention weight, 0 to 1"), (8, "attention weight (log scale)")])
def test_a_long_text_has_logarithmic_colours(times: int, colours: str, tmp_path: Path) -> None:
    words = ["card", "L1H0", f"{REPEATED} " * times, "-m", "tiny-gpt2", "-d", "cpu", "-o", str(tmp_path), "--no-syntax"]
    done = CliRunner().invoke(app, [*words, "--no-circuits"])
    assert done.exit_code == 0, done.output
    assert f"Colours: {colours}" in (tmp_path / "captions.md").read_text(encoding="utf-8")


def test_heads_are_named_in_any_way_and_each_once(tmp_path: Path) -> None:
    options: Any = {"model": "tiny-gpt2", "circuits": False, "syntax": False, "device": "cpu"}
    for select in ("L1H0", ["L1H0", HeadId(1, 0), "1.0"]):
        (card,) = attnviz.cards(REPEATED, select=select, **options).cards
        assert card.head == HeadId(1, 0)
    too_long = "one two " * 300
    with pytest.raises(TextError, match="--truncate"):
        attnviz.card("L1H0", too_long, **options)
    said: list[str] = []
    cut = attnviz.card("L1H0", too_long, truncate=True, ablate=True, warn=said.append, **options)
    assert len(cut.tokens.labels) == cut.checkpoint.config.n_positions
    assert cut.ablation is not None
    assert cut.ablation.n_cut == 1
    assert "on 1 text (1 cut to the model's length) the loss" in paragraphs(cut)[WITHOUT]
    n_tokens = len(cut.checkpoint.tokenizer(too_long).input_ids)
    assert unmeasured(cut)[f"the last {n_tokens - len(cut.tokens)} tokens of the text"] == "cut by --truncate"
    assert not standings(attnviz.card("L1H0", "one", **options))[1:]  # of one token only the sink share differs


def test_a_pattern_is_on_the_first_text_of_a_corpus_that_can_be_read(tmp_path: Path) -> None:
    corpus = tmp_path / "texts.txt"
    corpus.write_text("the cat " * 400 + "\nthe dog ran\n" + "it was he\n" * 3, encoding="utf-8")
    card = attnviz.card("L0H0", corpus, "tiny-gpt2", circuits=False, syntax=False, device="cpu")
    assert card.text == "the dog ran"
    said: list[str] = []
    options: Any = {"circuits": False, "syntax": False, "device": "cpu", "warn": said.append, "limit": 3}
    card = attnviz.card("L0H0", corpus, "tiny-gpt2", ablate=True, truncate=True, dtype="float64", **options)
    assert card.ablation is not None
    assert (card.ablation.n_texts, card.ablation.n_cut) == (2, 0)  # as the profile is
    assert len(said) == 1
    others = unmeasured(card)["effects of the other heads, to compare"]
    assert others == f"attnviz ablate {corpus} --model tiny-gpt2 --limit 3 --dtype float64"


def test_examples_are_of_roles_that_pass_and_have_their_licence_on_the_page() -> None:
    card = result_of("card")
    assert card.shown_examples.role == "syntactic:nsubj"
    failed = tuple(replace(each, passed=each.relation is None) for each in card.profile.roles[card.head])
    other = replace(card, profile=replace(card.profile, roles={card.head: failed}))
    assert other.examples
    assert other.shown_examples is None
    assert "Sentences of" not in markdown(other)
    licensed = replace(card, profile=replace(card.profile, licences={"a.conllu": "the licence of a.conllu"}))
    assert "a.conllu: the licence of a.conllu." in data_of(licensed)["notes"]
    cards = data_of(replace(result_of("card.all"), cards=(licensed,)))
    assert cards["notes"][-1] == "a.conllu: the licence of a.conllu."
    assert cards["notes"][0].startswith("A head's label is its clearest role over the corpus")


def test_no_head_is_removed_on_repeats_in_a_model_that_reads_both_copies() -> None:
    options: Any = {"circuits": False, "syntax": False, "tokenizer": bert_tokenizer()}
    card = attnviz.card("L1H0", REPEATED, known_bert(), repeats=True, ablate=True, **options)
    assert "induction" in {role.role for role in card.roles}
    assert card.on_repeats is None
    assert "random tokens" not in paragraphs(card)[WITHOUT]


@needs_minilm
def test_what_a_corpus_leaves_of_a_stored_profile_is_still_measured(tmp_path: Path) -> None:
    options: Any = {"circuits": False, "syntax": False}
    corpus = corpus_of(tmp_path / "texts.txt", 12)
    stored = attnviz.analyze("the cat ran", "minilm", syntax=False, device="cpu").profile
    assert stored is not None
    assert {*stored.parts} == {"statistics", "syntax", "coreference", "repeats"}
    none = next(f"L{layer}H{head}" for layer in range(6) for head in range(12) if not stored.of(HeadId(layer, head)))
    card = attnviz.card(none, corpus, "minilm", device="cpu", **options)
    assert not any("random tokens" in what for what in unmeasured(card))
    assert "texts.txt, 12 texts" in card.profile.measured_on
    table = gap_table(tmp_path / "gap.tsv", 40)
    bare: Any = {"tokenizer": bert_tokenizer(), **options}
    only_names = attnviz.card("L0H0", table, known_bert(), **bare)
    assert {*only_names.profile.parts} == {"coreference"}
    assert "roles in sentences" in unmeasured(only_names)
    few = attnviz.card("L0H0", corpus, known_bert(), **bare)
    passing = "passes no role (100 texts are enough for every role)."
    names = StoredCorpus("gap.tsv", 1799)  # of which there are enough, but for other roles
    several = replace(few.profile, roles={}, corpora=(*few.profile.corpora, names))
    assert passing in paragraphs(replace(few, profile=several))[DOES]
    assert "roles in sentences" not in unmeasured(few)


@needs_minilm
@pytest.mark.parametrize("words", [["2.8", "the cat ran"], ["--all", "the cat ran"], ["l2h8"]])
def test_the_same_command_again_goes_to_the_same_folder(words: list[str], tmp_path: Path) -> None:
    line = ["card", *words, "--no-circuits", "--no-syntax", "--figures", "none", "--device", "cpu", "-o", str(tmp_path)]
    for _ in range(2):
        done = CliRunner().invoke(app, line)
        assert done.exit_code == 0, done.output


def test_what_falls_has_the_interval_of_the_fall_and_the_other_metric_where_no_effect_is_shown() -> None:
    card = attnviz.card("L1H0", REPEATED, "tiny-gpt2", ablate=True, syntax=False, device="cpu")
    assert card.ablation is not None
    (effect,) = card.ablation.heads
    said = {
        (-0.25, -0.5, 0.125): "falls by 0.250 nats/token (95 % interval −0.125 to 0.500), so no effect on the loss is "
        "shown. By KL divergence it is 0.125 nats/token (95 % interval 0.0625 to 0.250).",
        (-0.25, -0.5, -0.125): "falls by 0.250 nats/token (95 % interval 0.125 to 0.500).",
        (0.25, 0.125, 0.5): "rises by 0.250 nats/token (95 % interval 0.125 to 0.500).",
    }  # fmt: skip
    for loss, ending in said.items():
        damage = {"loss": Estimate(*loss), "kl": Estimate(0.125, 0.0625, 0.25)}
        ablation = replace(card.ablation, heads=(replace(effect, damage=damage),))
        assert paragraphs(replace(card, ablation=ablation))[WITHOUT].endswith(f"the loss {ending}")


def test_a_card_says_what_the_numbers_of_its_own_roles_are() -> None:
    card = result_of("card")
    kept = {name: (role(name, 0.9, 0.1),) for name in ("broad", "previous-token")}
    (of,) = card.examples
    broad = replace(card, profile=replace(
        card.profile, roles={card.head: kept["broad"]}, examples=(replace(of, role="broad", direction=None),)
    ))  # fmt: skip
    plain = replace(card, profile=replace(card.profile, roles={card.head: kept["previous-token"]}))
    for each, instances, spread in ((card, True, False), (broad, False, True), (plain, False, False)):
        caption = each.document(["card.png"])["figures"] and next(iter(CARD.plans(each, ViewOptions()))).caption
        for text in (markdown(each), caption, each.report()):
            words = " ".join(text.split())
            assert ("An instance counts where" in words) == instances
            assert ("attention spread most" in words) == spread
    assert not any("untrained copy" in markdown(each) for each in (card, broad, plain))
    plan = next(iter(CARD.plans(replace(plain, text="the cat ran"), ViewOptions())))
    assert "on a hit of nsubj dep→head, a role that it does not pass, “the cat" in plan.feet[0]


def test_heads_that_are_all_alike_have_no_nearest_ones() -> None:
    card = result_of("card")
    assert "most like those of" in paragraphs(card)[DOES]
    assert "most like" not in paragraphs(replace(card, nearest=((HeadId(0, 0), 0.001), (HeadId(0, 1), 0.002))))[DOES]


def test_each_role_names_its_own_corpus_and_commands_the_models_dtype() -> None:
    card = result_of("card")
    roles = {
        card.head: tuple(replace(role(name, 0.9, 0.1), untrained=None) for name in ("induction", "copying", "local"))
    }
    profile = replace(card.profile, roles=roles)
    said = paragraphs(replace(card, profile=profile))[DOES]
    assert said.startswith(
        f"L2H1 of {card.checkpoint.short_name} gives 90 % of its attention on repeated random tokens"
    )
    assert ". Over a.conllu (1,234 texts), it raises the logit" in said
    assert said.count("Over a.conllu") == 1
    asked = unmeasured(replace(card, ablation=None, circuits=None))
    assert asked["composition"].startswith("attnviz circuits")  # a model without a language head copies nothing
    assert " --dtype " not in asked["what happens without it"]
    double = attnviz.card("L1H0", REPEATED, "tiny-gpt2", dtype="float64", circuits=False, syntax=False, device="cpu")
    assert " --dtype float64 --ablate" in unmeasured(double)["what happens without it"]
    branch = replace(card.checkpoint, revision="a-branch")
    assert (
        " --revision a-branch" in unmeasured(replace(card, checkpoint=branch))["effects of the other heads, to compare"]
    )


def test_pictures_of_other_options_do_not_stay(tmp_path: Path) -> None:
    card = result_of("card")
    card.save(tmp_path, figures=["page"])
    replace(card, options=card.options | {"limit": 3}).save(tmp_path, figures=[])
    assert not (tmp_path / "card.html").exists()
    assert (tmp_path / "card.md").exists()
