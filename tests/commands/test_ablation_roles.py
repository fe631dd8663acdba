"""Heads removed, on the tokens of a role beside matched ones: against edited weights and trees read by hand."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import attnviz
from attnviz.errors import TextError, UsageError
from attnviz.inputs.text import tokenize
from attnviz.measures.bootstrap import text_weights
from attnviz.measures.intervals import SAMPLES, of_ratios
from attnviz.measures.predictions import MASKED, NEXT, STATES
from attnviz.models.checkpoint import from_loaded
from attnviz.run.generate import generate_greedily
from tests.support.ablations import KINDS, _text_effects, without
from tests.support.corpora import treebank
from tests.support.encoder_decoders import SOURCE, sharp, unigram_tokenizer
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.results import TEXT
from tests.support.tolerances import SUMS_64


def word_trees(path: Path, n_sentences: int) -> tuple[Path, list[list[tuple[str, int, str]]]]:
    """A treebank of words that are one token each; of each form, head from 0 on (-1 for the root) and relation."""
    pytest.importorskip("conllu", reason="needs the extra profile")
    text = re.sub(r"(?m)^1\t\w+", "1\tthe", treebank(path, n_sentences).read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    rows = [[line.split("\t") for line in sentence.split("\n")] for sentence in text.strip().split("\n\n")]
    return path, [[(row[1], int(row[6]) - 1, row[7]) for row in of_sentence] for of_sentence in rows]


def by_hand(kind: str, trees: list[list[tuple[str, int, str]]], direction: str, effects: Any) -> list[Any]:
    """Of every text the effects on queries and on their matches."""
    sides = []
    for words, of_token in zip(trees, effects, strict=True):
        first = 1 if kind == STATES else 0  # [CLS]; what is masked in turn begins at the first word
        measured = range(len(words) - (kind == NEXT))
        objects = [(i, head) for i, (_, head, relation) in enumerate(words) if relation == "obj" and head >= 0]
        ends = objects if direction == "dependent_to_head" else [(head, i) for i, head in objects]
        seen = {query for query, key in ends if 0 < key < query or kind != NEXT}  # the first token is a sink
        queries = sorted(seen & set(measured))
        others = [i for i in measured if i not in queries and not (kind == NEXT and i == 0)]
        pairs = [(query, sorted(others, key=lambda i, q=query: (abs(i - q), i))[0]) for query in queries if others]
        sides.append([[of_token[first + at].tolist() for at in side] for side in zip(*pairs, strict=True)] or [[], []])
    return sides


def measured_and_by_hand(kind: str, path: Path, n_sentences: int) -> tuple[Any, dict[str, Any]]:
    """L1H2 removed on the tokens of obj, and by direction what edited weights do there."""
    (model, tokenizer), (path, trees) = KINDS[kind](), word_trees(path, n_sentences)
    model.double()
    result = attnviz.ablate(path, model, tokenizer=tokenizer, role="obj", select="L1H2", method="zero", curve=False)
    edited = without(model, tokenizer, [(1, 2)])
    effects = [_text_effects(model, edited, tokenizer, " ".join(form for form, *_ in words)) for words in trees]
    roles = {role.direction: role for role in result.heads[0].roles}
    return roles, {direction: by_hand(kind, trees, direction, effects) for direction in roles}


@pytest.mark.draws
@pytest.mark.parametrize("kind", [NEXT, STATES, pytest.param(MASKED, marks=pytest.mark.thorough)])
def test_the_effects_are_those_of_edited_weights_on_words_found_by_hand(kind, tmp_path):
    roles, effects = measured_and_by_hand(kind, tmp_path / "trees.conllu", 28)
    assert {*roles} == {"dependent_to_head", "head_to_dependent"}
    for direction, role in roles.items():
        for side, found in enumerate((role.queries, role.others)):
            expected = np.concatenate([np.array(text[side]).reshape(-1, 2) for text in effects[direction]])
            assert role.n == len(expected) > 8
            assert [each.value for each in found.values()] == pytest.approx(expected.mean(0), abs=SUMS_64)
        for name, difference in role.difference.items():
            assert difference.value == pytest.approx(role.queries[name].value - role.others[name].value)
            assert difference.low is None  # 28 texts are too few


@pytest.mark.draws
def test_intervals_of_differences_are_those_of_ratios_over_texts_and_hold_together(tmp_path):
    roles, effects = measured_and_by_hand(NEXT, tmp_path / "trees.conllu", 120)
    sides = [[[np.sum([row[0] for row in side]) for side in text] for text in effects[each]] for each in roles]
    counts = [[len(text[0]) for text in effects[each]] for each in roles]
    sums, counts = torch.tensor(np.array(sides)).movedim(0, 1), torch.tensor(counts, dtype=torch.float64).T
    expected = of_ratios(sums[..., 0] - sums[..., 1], counts, text_weights(0, range(120), SAMPLES))
    for number, role in enumerate(roles.values()):
        found = role.difference["loss"]
        assert found.value == pytest.approx(float(expected.estimates[number]))
        assert (found.low, found.high) == pytest.approx(expected.interval(number), abs=SUMS_64)


def test_relations_that_were_cut_off_are_not_measured(tmp_path):
    pytest.importorskip("conllu", reason="needs the extra profile")
    (model, tokenizer), counts = KINDS[NEXT](), []
    clause = [("the", 1, "det"), ("cat", 1, "nsubj"), ("saw", -4, "conj"), ("it", -1, "obj")]
    for clauses in (10, 15):  # 40 tokens, as many as the model reads, and 60
        path, rows = tmp_path / f"{clauses}.conllu", []
        for number, (word, head, relation) in enumerate(clause * clauses, 1):
            rows.append(f"{number}\t{word}\t_\tX\t_\t_\t{max(0, number + head)}\t{relation}\t_\t_")
        path.write_text("\n".join(rows) + "\n\n")
        cut = attnviz.ablate(path, model, tokenizer=tokenizer, truncate=True, role="obj", select="L1H2", curve=False)
        counts.append((cut.n_cut, [role.n for role in cut.heads[0].roles]))
    assert counts[0][1] == counts[1][1]
    assert [n_cut for n_cut, _ in counts] == [0, 1]


def test_on_repeats_the_second_copy_stands_beside_the_first():
    model, tokenizer = KINDS[NEXT](n_positions=40)
    model.double()
    options = {"tokenizer": tokenizer, "repeats": True, "select": "L1H2", "method": "zero", "curve": False}
    result = attnviz.ablate((), model, **options)
    assert all(len(text.ids) == 40 and text.ids[:20] == text.ids[20:] for text in result.sources.texts)
    edited, effects = without(model, tokenizer, [(1, 2)]), []
    with torch.no_grad():
        for text in result.sources.texts:
            ids = torch.tensor([text.ids])
            losses = [cross_entropy(each(ids).logits[0, :-1], ids[0, 1:], reduction="none") for each in (edited, model)]
            effects.append(losses[0] - losses[1])
    found, (role,) = torch.stack(effects), result.heads[0].roles
    assert (role.role, role.direction, role.n) == ("repeated tokens", None, 32 * 19)
    assert role.queries["loss"].value == pytest.approx(float(found[:, 20:].mean()), abs=SUMS_64)
    assert role.others["loss"].value == pytest.approx(float(found[:, :19].mean()), abs=SUMS_64)
    assert result.heads[0].damage["loss"].value == pytest.approx(float(found.mean()), abs=SUMS_64)


@pytest.mark.draws
@pytest.mark.thorough
def test_induction_heads_of_tiny_gpt2_are_needed_where_tokens_repeat_and_others_are_not():
    heads = ["L1", "L0H2", "L3H1", "L3H2"]
    result = attnviz.ablate(repeats=True, model="tiny-gpt2", device="cpu", curve=False, gradient=False, select=heads)
    sides = {str(head.id): head.roles[0].difference["loss"].side for head in result.heads}
    needed = [f"L1H{head}" for head in range(4)] + ["L0H2"]  # induction heads read the previous-token head
    assert [sides[head] for head in (*needed, "L3H1", "L3H2")] == [1] * 5 + [0] * 2


def test_a_role_of_few_of_many_texts_has_no_interval_and_none_without_any(tmp_path):
    pytest.importorskip("conllu", reason="needs the extra profile")
    trees = treebank(tmp_path / "trees.conllu", 40)
    trees.write_text(trees.read_text().replace("\tobj\t", "\tdet\t").replace("\tdet\t", "\tobj\t", 1))
    options = {"tokenizer": bert_tokenizer(), "select": "L0H1", "curve": False, "gradient": False}
    rare, *others = attnviz.ablate(trees, sharp_bert(), role=["obj", "det"], **options).heads[0].roles
    assert (rare.role, rare.n, rare.texts, rare.verdict) == ("syntactic:obj", 1, 1, None)
    assert all(each.low is None for each in (*rare.queries.values(), *rare.difference.values()))
    assert all(each.texts >= 30 and each.verdict for each in others if each.role == "syntactic:det")
    with pytest.raises(TextError, match="iobj"):
        attnviz.ablate(trees, sharp_bert(), role="iobj", **options)


def test_roles_are_of_texts_with_a_parse(monkeypatch):
    monkeypatch.setattr("attnviz.language.parsers.importlib.util.find_spec", lambda *_: None)
    with pytest.raises(UsageError, match="syntax"):
        attnviz.ablate(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), role="obj")
    with pytest.raises(UsageError):  # nothing to measure on
        attnviz.ablate(model=sharp_bert(), tokenizer=bert_tokenizer())


def test_a_sentence_after_which_a_model_writes_nothing_is_left_out_of_a_corpus(tmp_path):
    lines, said, tokenizer = [SOURCE, "the dog ran", "the cat saw the house"], list[str](), unigram_tokenizer()
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(lines), encoding="utf-8")
    model = sharp("t5", len(tokenizer))
    given: Any = {"tokenizer": tokenizer, "select": "E0H0", "curve": False, "gradient": False, "max_new_tokens": 1}
    whole = from_loaded(model, tokenizer)
    begins = [generate_greedily(whole, tokenize(whole, line), 1).ids[0] for line in lines]
    assert begins[2] not in begins[:2]
    rows, weight = [begins[2], tokenizer.eos_token_id], model.lm_head.weight.detach().clone()
    weight[rows] = weight[rows[::-1]]
    model.lm_head.weight = torch.nn.Parameter(weight)  # what it wrote after the third one is now the end
    assert attnviz.ablate(corpus, model, **given, warn=said.append).n_texts == 2
    assert [line.startswith(f"{corpus}:3: ") for line in said] == [True]
    for source, without_words in ((lines[2], model), (corpus, sharp("bart", len(tokenizer)).model)):
        with pytest.raises(TextError):  # not left out, text by text
            attnviz.ablate(source, without_words, **given)
