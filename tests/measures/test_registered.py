"""A statistic, a pattern, a baseline, in one file each: in tables, documents, maps, the page, and over a corpus."""

import csv
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertModel

import attnviz
from attnviz.figures.page import format_number
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.measures.guesses import GUESSES
from attnviz.measures.rows import ON_CONTENT, AttentionRows, Statistic
from attnviz.present.view import ViewOptions
from tests.support.corpora import sentences
from tests.support.drawn import drawing_of
from tests.support.hand_made import hand_made
from tests.support.printed import rows_in
from tests.support.tolerances import SUMS_32

TEXT = "the cat ran . the dog saw the house ! i was away"
pytestmark = pytest.mark.usefixtures("fresh_plugins")


def effective_keys(rows: AttentionRows) -> torch.Tensor:
    return 1 / rows.pattern.square().sum(-1)


def register_statistic() -> None:
    """The effective number of keys, 1 / ΣA², from 1 to the number of keys."""
    words = "effective number of keys", "mean number of {unit}s among which attention is spread"
    attnviz.register(Statistic("effective_keys", *words, effective_keys, unit="{unit}s", bounded=False, column="Keys"))


def sentence_start(text: Any) -> torch.Tensor:
    """The first token of the query's sentence; sentences end with . ! or ?"""
    firsts, first = [], 0
    for position, label in enumerate(text.labels):
        firsts.append(first)
        if label in (".", "!", "?"):
            first = position + 1
    starts = torch.tensor(firsts)[text.first : text.last, None]
    return starts == torch.arange(text.n)


@pytest.fixture
def own_weights(bert_folder) -> Any:
    """From ids to the attention of the model itself, [n_layers, n_heads, n, n]."""
    model = BertModel.from_pretrained(bert_folder, attn_implementation="eager").eval()

    def weights(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return torch.stack(model(torch.tensor([ids]), output_attentions=True).attentions)[:, 0].double()

    return weights


def table_rows(analysis: Any) -> list[list[str]]:
    """The rows of the table of heads, cell by cell."""
    lines = analysis.report(width=300, top=0).splitlines()
    return [line.split() for line in lines if line.split()[:1] in (["L0H0"], ["uniform"])]


def map_plan(analysis: Any, name: str) -> Any:
    (plan,) = drawing_of("heads", "map").plans(analysis, ViewOptions(maps=(name,)))
    return plan


def page_entry(analysis: Any, name: str) -> dict[str, Any]:
    from attnviz.commands.heads.page_view import page_data

    (entry,) = [each for each in page_data(analysis, ViewOptions())["statistics"] if each["key"] == name]
    return entry


def test_a_statistic_is_in_every_table_document_map_and_page(bert_folder, own_weights):
    register_statistic()
    analysis = attnviz.analyze(TEXT, bert_folder, syntax=False)
    document, n = analysis.document(), len(analysis.tokens)
    expected = (1 / own_weights(list(analysis.tokens.ids)).square().sum(-1)).mean(-1)
    found = [head["effective_keys"] for head in document["heads"]]
    assert found == pytest.approx(expected.flatten().tolist(), abs=n * SUMS_32)
    assert document["plugins"] == [{"kind": "statistic", "name": "effective_keys", "origin": "attnviz.register"}]
    rows = csv.DictReader(analysis.table(ViewOptions()).csv().splitlines())
    assert [float(row["effective_keys"]) for row in rows] == pytest.approx(found)
    head, uniform = [row for row in table_rows(analysis) if len(row) > 8]
    assert f"{found[0]:.2f}" in head
    assert uniform[-1] == f"{n:.2f}"
    plan = map_plan(analysis, "effective-keys")
    (head_map,) = plan.maps
    np.testing.assert_allclose(head_map.values.flatten(), found)
    assert (head_map.norm.vmin, head_map.norm.vmax) == (0, pytest.approx(max(n, *found)))
    assert head_map.reference[0] == pytest.approx(n)
    assert "tokens" in head_map.bar
    assert f"give {format_number(n)}" in plan.caption
    entry = page_entry(analysis, "effective_keys")
    assert (entry["values"], entry["uniform"]) == (pytest.approx(found, abs=1e-3), [pytest.approx(n)])


def test_a_statistic_is_taken_before_anything_else_is_imported():
    declared = 'Statistic("mine", "mine", "mine", lambda rows: rows.pattern.amax(-1))'
    program = f"import attnviz\nfrom attnviz.measures.rows import Statistic\nattnviz.register({declared})"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_statistic_is_counted_over_a_corpus(bert_folder, own_weights, tmp_path):
    register_statistic()
    corpus = sentences(tmp_path / "corpus.txt", 12)
    options = {"syntax": False, "control": False, "batch_size": 5, "examples": 0}
    document = attnviz.profile_heads(bert_folder, [corpus], **options).document()
    total, n, uniform = torch.zeros(3, 4), 0, 0
    for line in corpus.read_text().splitlines():
        ids = attnviz.analyze(line, bert_folder, syntax=False).tokens.ids
        total += (1 / own_weights(list(ids)).square().sum(-1)).sum(-1)
        n, uniform = n + len(ids), uniform + len(ids) ** 2
    statistics = document["statistics"]
    np.testing.assert_allclose(statistics["effective_keys"], total / n, rtol=SUMS_32 * 10)
    assert statistics["baseline"]["effective_keys"] == pytest.approx(uniform / n)
    assert [plugin["name"] for plugin in document["plugins"]] == ["effective_keys"]


def test_rows_that_do_not_count_may_be_anything_and_what_no_row_has_is_null():
    def of_content(rows: AttentionRows) -> torch.Tensor:
        return rows.to_content.log()  # minus infinity on sinks alone

    attnviz.register(Statistic("mine", "mine", "ln of the attention on content", of_content, ON_CONTENT, bounded=False))
    weights = torch.tensor([[[1.0, 0, 0], [0.5, 0.5, 0], [1.0, 0, 0]], [[1.0, 0, 0]] * 3])
    drawn = attnviz.draw(weights, ["a", "b", "c"])
    assert [head.statistics["mine"] for head in drawn.heads] == [pytest.approx(math.log(0.5)), None]


def test_a_pattern_of_sentences_is_measured_drawn_and_counted(bert_folder, own_weights, tmp_path):
    attnviz.register("sentence-start", sentence_start)
    analysis = attnviz.analyze(TEXT, bert_folder, syntax=False)
    ids, first = list(analysis.tokens.ids), 0  # of the first sentence, [CLS], a sink
    on, total, even, n_content = torch.zeros(3, 4), torch.zeros(3, 4), 0.0, len(ids) - 2
    weights = own_weights(ids)
    for query, label in list(enumerate(analysis.tokens.labels))[1:-1]:
        on += weights[:, :, query, first] if first else 0
        total += weights[:, :, query, 1:-1].sum(-1)
        even += bool(first) / n_content
        first = query + 1 if label in ".!?" else first
    found = [head["sentence_start"] for head in analysis.document()["heads"]]
    assert found == pytest.approx((on / total).flatten().tolist(), abs=SUMS_32)
    (head_map,) = map_plan(analysis, "sentence_start").maps
    assert (head_map.norm.vmax, head_map.reference[0]) == (1, pytest.approx(even / n_content))
    assert page_entry(analysis, "sentence_start")["uniform"] == [pytest.approx(even / n_content, abs=1e-4)]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"{TEXT}\n{TEXT}\n")
    options = {"syntax": False, "control": False, "examples": 0}
    profile = attnviz.profile_heads(bert_folder, [corpus], **options).document()
    np.testing.assert_allclose(np.ravel(profile["statistics"]["sentence_start"]), found, atol=SUMS_32)
    assert sum(role["role"] == "sentence-start" for role in profile["roles"]) == 12


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"name": "entropy"}, "entropy"),
        ({"name": "local_keys"}, "local_keys"),
        ({"name": "precision"}, "precision"),
        ({"name": "two_back"}, "two_back"),
        ({"value": None}, "function"),
        ({"over": "rows"}, "over"),
        ({"needs": "luck"}, "needs"),
    ],
)
def test_what_is_no_statistic_is_refused(given, word):
    attnviz.register("two-back", lambda text: text.distances == -2)
    declared = {"name": "mine", "title": "mine", "meaning": "mine", "value": effective_keys}
    with pytest.raises(attnviz.UsageError, match=word):
        attnviz.register(Statistic(**declared | given))


@pytest.mark.parametrize("value", [lambda rows: rows.pattern, lambda rows: rows.nothing, lambda _: 3])
def test_a_statistic_that_fails_is_named(value):
    attnviz.register(Statistic("mine", "mine", "mine", value))
    with pytest.raises(attnviz.UsageError, match="mine"):
        attnviz.draw(torch.eye(3)[None], ["a", "b", "c"])
    attnviz.unregister("mine")
    assert "mine" not in attnviz.draw(torch.eye(3)[None], ["a", "b", "c"]).heads[0].statistics


@pytest.fixture
def second_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more baseline of relations: every word guesses the second word of its sentence."""
    monkeypatch.setitem(GUESSES, "second word", lambda visible, pieces: torch.ones_like(pieces))


@pytest.mark.usefixtures("second_word")
def test_a_guess_is_a_baseline_of_the_relations_of_a_text():
    """Of two objects one has the second word as its head: half, from there, and none from the other end."""
    words, arcs = "the saw cat dog ran a".split(), ((2, 1, "obj"), (5, 4, "obj"), (0, 1, "det"))
    labels = ["[CLS]", *words, "[SEP]"]
    parse = Parse(
        tuple(Word(word, (place,)) for place, word in enumerate(words, 1)), tuple(Arc(*arc) for arc in arcs), ""
    )
    pattern = torch.eye(len(labels))
    pattern[3], pattern[6] = pattern[2], pattern[5]  # both objects attend to their verbs
    analysis = hand_made(labels=labels, special=(0, 7), patterns=pattern[None, None], parse=parse, text=" ".join(words))
    (head,) = analysis.document()["heads"]
    (found,) = [each for each in head["patterns"] if each["name"] == "obj"]
    assert (found["direction"], found["score"]) == ("dependent_to_head", 1)
    assert found["baselines"]["second word"] == 0.5


@pytest.mark.usefixtures("second_word")
def test_a_guess_is_a_baseline_of_the_relations_of_a_corpus(bert_folder, tmp_path):
    """In every sentence the second word is the head of all others, so that the guess is always right."""
    pytest.importorskip("conllu", reason="needs the extra profile")
    lines = []
    for words in ("the cat saw the dog", "a dog ran away", "i saw the house and the cat"):
        for place, word in enumerate(words.split(), 1):
            head, relation = (0, "root") if place == 2 else (2, "obj")
            lines.append(f"{place}\t{word}\t_\t_\t_\t_\t{head}\t{relation}\t_\t_")
        lines.append("")
    corpus = tmp_path / "trees.conllu"
    corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    profile = attnviz.profile_heads(bert_folder, [corpus], control=False, examples=0)
    (relation,) = [each for each in profile.document()["syntax"]["relations"] if each["relation"] == "obj"]
    guesses = relation["baselines"]["second word"]
    assert np.unique(guesses["dependent_to_head"]).tolist() == [1]
    assert np.unique(guesses["head_to_dependent"]).tolist() == [0]
    role = profile.role(profile.roles[0].id, "syntactic:obj", "dependent_to_head")
    assert role is not None
    assert (role.baseline, role.baselines["second word"]) == (1, 1)
    (row,) = rows_in(profile.tables(ViewOptions(top=0, verbose=True)), "Relations (")
    assert (row["Relation"], row["Baseline"]) == ("obj dep→head", "second word: 1.00")
