"""``attnviz compare --corpus`` and ``attnviz.compare_corpus``: heads of two models over many texts."""

import copy
import json
import math
import re
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import attnviz
from attnviz.cli.program import app
from attnviz.commands import compare_corpus as measure
from attnviz.commands.compare_roles import roles_headline
from attnviz.judge.roles import BestHeads
from attnviz.measures import tallies
from attnviz.measures.bootstrap import text_weights
from attnviz.measures.differences import LARGEST_DISTANCE
from attnviz.measures.estimates import t_quantile
from attnviz.measures.intervals import SAMPLES
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.present.published import score_and_baseline
from attnviz.present.view import ViewOptions
from attnviz.run.corpus import SampledAttention
from attnviz.run.processes import Process
from tests.support import independent
from tests.support.classifiers import hand_built_classifier, sharp_classifier
from tests.support.corpora import examples, sentences, treebank
from tests.support.encoder_decoders import SOURCE, sharp, unigram_tokenizer
from tests.support.long_runs import close, gathered_here, interrupting
from tests.support.models import (
    LOOKS_AT,
    bert_tokenizer,
    gpt2_tokenizer,
    hand_built_bert,
    hand_built_gpt2,
    save_checkpoint,
    sharp_bert,
    sharp_gpt2,
)
from tests.support.printed import rows_in
from tests.support.stored import role as role_of
from tests.support.tolerances import SHARP_32, SUMS_32

N_TEXTS = 32


def with_other_head(model: Any) -> Any:
    """The model with the queries of L1H2 negated."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.encoder.layer[1].attention.self.query.weight[16:24] *= -1
    return other


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return sentences(tmp_path_factory.mktemp("corpus") / "texts.txt", N_TEXTS)


@pytest.fixture(scope="module")
def bert():
    return from_loaded(sharp_bert(), bert_tokenizer())


@pytest.fixture(scope="module")
def tuned():
    return from_loaded(with_other_head(sharp_bert()), bert_tokenizer())


@pytest.fixture(scope="module")
def result(bert, tuned, corpus):
    return attnviz.compare_corpus(bert, tuned, corpus, syntax=False)


def test_the_head_that_was_changed_comes_first_and_alone_in_its_layer(result):
    assert result.heads[0].id == HeadId(1, 2)
    assert all(head.distance == 0 for head in result.heads if head.id.layer < 2 and head.id != HeadId(1, 2))
    assert all(head.distance > 0 for head in result.select("L2"))  # they read what layer 1 gives
    assert [head.interval for head in result.select("L0")] == [None] * 4


@pytest.mark.draws
def test_the_distance_is_the_mean_of_those_of_the_texts_and_its_interval_a_plain_bootstrap(bert, tuned, corpus, result):
    moved, of_texts = ["L1H2", *(f"L2H{head}" for head in range(4))], []  # the others are as they were
    for line in corpus.read_text(encoding="utf-8").splitlines():
        compared = attnviz.compare(*(attnviz.analyze(line, model, syntax=False) for model in (bert, tuned)))
        of_texts.append([compared.head(each).distance for each in moved])
    distances, head = np.array(of_texts), result.head("L1H2")
    means, error = distances.mean(0), distances.std(0, ddof=1) / N_TEXTS**0.5
    assert head.distance == pytest.approx(means[0], rel=SUMS_32)
    largest = []
    for weights in text_weights(0, range(N_TEXTS), SAMPLES)[1:].int():
        drawn = np.repeat(distances, weights, axis=0)
        t = (drawn.mean(0) - means) / (drawn.std(0, ddof=1) / len(drawn) ** 0.5)
        largest.append(np.abs(t).max())
    half = sorted(largest)[-50] * error[0]
    assert head.interval == pytest.approx((means[0] - half, means[0] + half), rel=1e-4)


def test_heads_that_share_no_key_reach_the_largest_distance(tmp_path):
    corpus = sentences(tmp_path / "texts.txt", 5)
    to_first, to_second = ([[lambda _, key=key: [key]] * 2] for key in (0, 1))
    a, b = (from_loaded(hand_built_bert(layers), bert_tokenizer()) for layers in (to_first, to_second))
    apart = attnviz.compare_corpus(a, b, corpus, syntax=False)
    assert apart.largest == pytest.approx(LARGEST_DISTANCE)
    assert apart.heads[0].distance == pytest.approx(apart.largest, rel=1e-3)
    to_itself, back = [[lambda query: [query]] * 2], [[lambda query: [query - 1]] * 2]
    a, b = (from_loaded(hand_built_gpt2(layers, 64), gpt2_tokenizer()) for layers in (to_itself, back))
    apart = attnviz.compare_corpus(a, b, corpus, syntax=False)
    n = [len(gpt2_tokenizer()(line)["input_ids"]) for line in corpus.read_text(encoding="utf-8").splitlines()]
    possible = np.mean([math.sqrt(math.log(2) * (each - 1) / each) for each in n])
    assert apart.largest == pytest.approx(possible)  # the first token sees itself alone
    assert apart.heads[0].distance == pytest.approx(possible, rel=1e-3)


def test_roles_that_changed_are_told(tmp_path):
    corpus = sentences(tmp_path / "texts.txt", 110)
    names = ("previous-token", "next-token"), ("next-token", "next-token")
    layers = [[[LOOKS_AT[name] for name in of_model]] for of_model in names]
    a, b = (from_loaded(hand_built_bert(each), bert_tokenizer()) for each in layers)
    turned = attnviz.compare_corpus(a, b, corpus, syntax=False)
    head, same = turned.head("L0H0"), turned.head("L0H1")
    assert (head.before.role, head.after.role) == names[0]
    assert (head.role_changed, same.role_changed) == (True, False)
    assert turned.document()["heads"][0]["role_before"]["name"] == "previous-token"


def test_of_encoder_decoders_the_encoders_are_compared(tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text(f"{SOURCE}\na dog ran away\n" * 4, encoding="utf-8")
    models = [from_loaded(sharp("t5", seed=seed), unigram_tokenizer()) for seed in (0, 1)]
    found = attnviz.compare_corpus(*models, corpus, syntax=False)
    assert {str(head.id) for head in found.heads} == {f"E{layer}H{head}" for layer in range(2) for head in range(4)}
    assert found.document()["heads"][0]["stack"] == "encoder"


def test_a_treebank_needs_no_parser_and_few_texts_decide_nothing(bert, tuned, trees, whole):
    assert (whole.texts, whole.left_out, whole.parser) == (40, 2, None)
    few = attnviz.compare_corpus(bert, tuned, trees, limit=30)
    assert ({head.interval for head in few.heads}, few.judged) == ({None}, False)


def test_models_and_files_that_cannot_be_compared_are_refused(bert, corpus, tmp_path):
    tokenizer = bert_tokenizer()
    tokenizer.backend_tokenizer.normalizer = None  # reads a capital letter as another token
    cased = from_loaded(sharp_bert(), tokenizer)
    capital = tmp_path / "capital.txt"
    capital.write_text("the cat\nThe cat\n", encoding="utf-8")
    for other, read, error, word in (
        (cased, capital, attnviz.TextError, "capital.txt:2: "),
        (bert, examples(tmp_path / "gap.tsv", 3), attnviz.CorpusError, "gap"),
        (bert, None, attnviz.UsageError, None),
        (bert, np.ones(3), attnviz.TextError, None),
    ):
        with pytest.raises(error, match=word):
            attnviz.compare_corpus(bert, other, read, syntax=False)


def numbers(found: attnviz.CorpusComparison) -> dict[str, Any]:
    """Of all heads, by id, and of the run; without what was verified, which is a sample of the batches."""
    document = found.document()
    heads = {head["id"]: {**head, "rank": None} for head in document["heads"]}
    return {"corpora": document["corpora"], "largest_possible": document["largest_possible"], "heads": heads}


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """A treebank with a sentence that is too long for the models, and one that is too short to count."""
    path = treebank(tmp_path_factory.mktemp("trees") / "trees.conllu", 40)
    long = "".join(f"{n}\tcat\t_\t_\t_\t_\t{n - 1}\tdep\t_\t_\n" for n in range(1, 46))
    path.write_text(f"{long}\n1\ta\t_\t_\t_\t_\t0\troot\t_\t_\n\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole(bert, tuned, trees):
    return attnviz.compare_corpus(bert, tuned, trees, batch_size=8)


@pytest.mark.draws
@pytest.mark.usefixtures("saved_at_once")
def test_an_interrupted_run_goes_on_to_the_same_numbers(bert, tuned, trees, whole, tmp_path, monkeypatch):
    verified: list[int] = []
    options: dict[str, Any] = {"batch_size": 8, "unfinished": tmp_path / "u", "warn": lambda _: None}
    for after in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            attnviz.compare_corpus(bert, tuned, trees, **options, progress=interrupting(after, signal.SIGINT))
    read = SampledAttention.run

    def counted(run, batch, visit):
        verified.append(len(batch.items))
        return read(run, batch, visit)

    monkeypatch.setattr(SampledAttention, "run", counted)
    found = attnviz.compare_corpus(bert, tuned, trees, **options)
    assert sum(verified) == 2 * 8  # of two models: what is left of 40 texts after 1 and 3 batches
    close(numbers(found), numbers(whole), SHARP_32)
    assert found.texts_verified == 24  # the first batch of each of three runs
    with pytest.raises(attnviz.OutputError, match="seed"):
        attnviz.compare_corpus(bert, tuned, trees, seed=1, unfinished=tmp_path / "u")


def test_processes_change_nothing(bert, tuned, trees, whole, monkeypatch):
    states = gathered_here(monkeypatch)
    monkeypatch.setattr(measure, "joined_processes", lambda _: nullcontext())
    for rank in (2, 1, 0):
        monkeypatch.setattr(measure, "this_process", lambda rank=rank: Process(rank, 3))
        found = attnviz.compare_corpus(bert, tuned, trees, batch_size=4)
        assert (found is None) == (rank > 0)
    assert [sum(len(each["numbers"]) for each in state["measured"]) for state in states] == [14, 14, 14]
    close(numbers(found), numbers(whole), SHARP_32)


@pytest.fixture
def run(tmp_path, monkeypatch, corpus, bert_folder):
    monkeypatch.chdir(tmp_path)
    save_checkpoint(with_other_head(sharp_bert()), bert_tokenizer(), tmp_path.parent / "fine-tuned")

    def invoke(*options: str, models: int = 2) -> Result:
        folders = [word for folder in (bert_folder, "../fine-tuned")[:models] for word in ("-m", str(folder))]
        return CliRunner().invoke(app, ["compare", *folders, "--corpus", str(corpus), "--no-syntax", *options])

    return invoke


@pytest.mark.draws
@pytest.mark.usefixtures("saved_at_once", "undrawn")
def test_the_command_goes_on_where_it_was_interrupted(run, monkeypatch, result):
    read, stop = SampledAttention.run, interrupting(3, signal.SIGINT)
    with monkeypatch.context() as patched:  # in the second batch of the first model
        patched.setattr(SampledAttention, "run", lambda *of: (stop(), read(*of)))
        assert run("--batch-size", "8").exit_code == 130
    (unfinished,) = Path("attnviz-out").glob("compare-tiny-bert-fine-tuned/*.unfinished")
    assert run("--batch-size", "8").exit_code == 0
    assert not unfinished.exists()
    (file,) = Path("attnviz-out").glob("compare-tiny-bert-fine-tuned/texts-*/compare-corpus.json")
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["corpora"][0]["texts"] == N_TEXTS
    assert content["heads"][0]["interval"] == pytest.approx(result.heads[0].interval, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "models", "word"),
    [(["a text"], 2, "both"), ([], 1, "two"), (["--words"], 2, "--words"), (["--figures", "page"], 2, "'page'")],
)
def test_wrong_usage_is_one_line(run, options, models, word):
    done = run(*options, models=models)
    assert done.exit_code == 2
    assert word in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(Path.cwd().iterdir())


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """A BERT and a GPT-2, and a treebank."""
    folder = tmp_path_factory.mktemp("unlike")
    bert, gpt2 = sharp_bert(), sharp_gpt2(n_positions=200, n_layer=2)
    return (bert, bert_tokenizer()), (gpt2, gpt2_tokenizer()), treebank(folder / "trees.conllu", 80)


@pytest.fixture(scope="module")
def by_role(unlike):
    a, b, trees = unlike
    return attnviz.compare_corpus(from_loaded(*a), from_loaded(*b), trees)


def content_pieces(model: Any, tokenizer: Any, words: list[str]) -> list[list[int]]:
    """The positions of each word's tokens, without special ones and GPT-2's first."""
    offsets = tokenizer(" ".join(words), return_offsets_mapping=True)["offset_mapping"]
    first, start, pieces = int(model.config.model_type == "gpt2"), 0, []
    for word in words:
        end = start + len(word)
        pieces.append([i for i, (low, high) in enumerate(offsets) if i >= first and low < end and high > start])
        start = end + 1
    return pieces


def plain_hits(model: Any, tokenizer: Any, words: list[str], arcs: list[tuple[int, int]]) -> Any:
    """How often each head finds the other end, [n_directions, n_layers, n_heads]."""
    pieces = content_pieces(model, tokenizer, words)
    layers = independent.attentions(model, tokenizer, " ".join(words), None)
    hits = np.zeros((2, *np.shape(layers)[:2]))
    for at in np.ndindex(*hits.shape[1:]):
        for dependent, head in arcs:
            for way, (query, key) in enumerate([(dependent, head), (head, dependent)]):
                onto = {
                    word: np.mean([sum(layers[at][q, k] for k in pieces[word]) for q in pieces[query]])
                    for word in range(len(words))
                    if word != query and pieces[word]
                }
                best = max(onto, key=onto.__getitem__, default=-1)
                hits[(way, *at)] += best == key and onto[best] > 0
    return hits


@pytest.mark.draws
@pytest.mark.parametrize("relation", ["nsubj", "obj"])
def test_the_best_heads_of_unlike_models_and_their_difference_are_those_of_plain_loops(unlike, by_role, relation):
    *models, trees = unlike
    n, hits = [], [[], []]
    for sentence in trees.read_text(encoding="utf-8").strip().split("\n\n"):
        rows = [line.split("\t") for line in sentence.splitlines()]
        words = [row[1] for row in rows]
        content = [content_pieces(*model, words) for model in models]
        arcs = [(int(row[0]) - 1, int(row[6]) - 1) for row in rows if row[7] == relation]
        arcs = [arc for arc in arcs if all(pieces[end] for pieces in content for end in arc)]  # of both models
        n.append(len(arcs))
        for side, model in zip(hits, models, strict=True):
            side.append(plain_hits(*model, words, arcs))
    weights = text_weights(0, range(len(n))).numpy()
    (row,) = [row for row in by_role.roles if row.role == f"syntactic:{relation}"]
    samples = []
    for of_side, role in zip(hits, (row.a, row.b), strict=True):
        scores = np.einsum("rt,t...->r...", weights, np.array(of_side)) / (weights @ n)[:, None, None, None]
        way, layer, head = np.unravel_index(scores[0].argmax(), scores[0].shape)
        assert (role.direction, *role.id) == (("dependent_to_head", "head_to_dependent")[way], layer, head)
        assert (role.n, role.score) == (sum(n), pytest.approx(scores[0].max()))
        samples.append(scores[:, way, layer, head])
    moved, texts = samples[1] - samples[0], np.count_nonzero(n)
    n_pairs = np.size(hits[0][0]) * np.size(hits[1][0])
    t = t_quantile(1 - 0.05 / n_pairs / 2, 1 / (1 / (texts - 1) + 1 / (len(moved) - 2)))
    middle = moved[0] * texts / (texts + 2)  # Agresti and Min 2005, of sentences
    half = t * math.hypot(moved[1:].std(ddof=1) * texts, 1) / (texts + 2)
    assert row.difference == pytest.approx(moved[0])
    assert row.interval == pytest.approx((middle - half, middle + half), rel=1e-6)


def test_models_change_places_and_differences_their_sign(unlike, by_role):
    a, b, trees = unlike
    other = attnviz.compare_corpus(from_loaded(*b), from_loaded(*a), trees)
    turned = {row.role: row for row in other.roles}
    assert turned.keys() == {row.role for row in by_role.roles}
    assert "next-token" not in turned  # a causal model sees none
    for row in by_role.roles:
        back = turned[row.role]
        assert (back.a.id, back.b.id) == (row.b.id, row.a.id)
        assert back.difference == pytest.approx(-row.difference)
        assert (back.interval is None) == (row.interval is None)
        if row.interval is not None:
            assert back.interval == pytest.approx((-row.interval[1], -row.interval[0]))


def test_a_guess_of_1_is_shown_and_no_head_is_better_than_it(by_role):
    """Every determiner stands before its noun in some texts; broad alone has no guess."""
    det = BestHeads(
        "syntactic:det", role_of("syntactic:det", 1.0, 1.0), role_of("syntactic:det", 0.2, 1.0), (-0.9, -0.7)
    )
    result = replace(by_role, roles=(det,))
    (row,) = rows_in(result.tables(ViewOptions()), "Best heads")
    assert row["Score (guess)"] == "0.20 (1.00)"
    assert re.findall(r"for (\d+)", roles_headline(result)) == ["0", "0"]
    assert score_and_baseline(role_of("broad", 0.9, 1.0)) == (0.9, None)


def test_a_head_that_rests_on_sinks_is_not_the_best_for_what_is_left(tmp_path, monkeypatch):
    corpus = sentences(tmp_path / "texts.txt", 8)
    layers = [
        [[lambda query: [0 if query % 4 else query - 1], LOOKS_AT["next-token"]]],
        [[LOOKS_AT["previous-token"]] * 3],
    ]
    models = [from_loaded(hand_built_bert(each), bert_tokenizer()) for each in layers]
    for most, head, score in ((0.9, "L0H0", 1), (0.5, "L0H1", 0)):
        monkeypatch.setattr(tallies, "SINK_ONLY", most)
        roles = attnviz.compare_corpus(*models, corpus, syntax=False).roles
        (row,) = [row for row in roles if row.role == "previous-token"]
        assert (str(row.a.id), row.a.score) == (head, pytest.approx(score, abs=1e-3))
        assert row.b.score == pytest.approx(1, abs=1e-3)


def test_a_text_that_one_of_unlike_models_cannot_read_is_left_out_of_both(tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text(f"the cat ran\n{'cat ' * 30}\na dog saw it\n", encoding="utf-8")
    told: list[str] = []
    models = from_loaded(sharp_bert(), bert_tokenizer()), from_loaded(sharp_gpt2(n_positions=20), gpt2_tokenizer())
    found = attnviz.compare_corpus(*models, corpus, syntax=False, warn=told.append)
    assert (found.texts, found.left_out, len(told)) == (2, 1, 1)


def test_the_command_compares_unlike_models_and_refuses_a_selection_of_heads(unlike, tmp_path, monkeypatch):
    *models, trees = unlike
    monkeypatch.chdir(tmp_path)
    folders = [str(save_checkpoint(*model, tmp_path / name)) for name, model in zip("ab", models, strict=True)]
    words = ["compare", "-m", folders[0], "-m", folders[1], "--corpus", str(trees), "--out", "out", "--table", "tex"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    names = {path.name for path in Path("out").iterdir()}
    assert {"compare-roles.json", "compare-roles.csv", "compare-roles.tex", "compare-roles.png"} <= names
    assert CliRunner().invoke(app, [*words, "--select", "L0H0"]).exit_code == 2
    assert CliRunner().invoke(app, [*words, "--label-column", "label"]).exit_code == 2


@pytest.fixture(scope="module")
def classifiers():
    """A classifier, and one with another threshold, in which the queries of L1H0 are negated, too."""
    model, tokenizer = hand_built_classifier("bert")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.bert.encoder.layer[1].attention.self.query.weight[:8] *= -1
        other.classifier.bias[0] += 2.78
    return (model, tokenizer), (other, tokenizer)


@torch.no_grad()
def own_classes(model: Any, tokenizer: Any, texts: list[str]) -> list[str]:
    """By transformers alone."""
    logits = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    return [model.config.id2label[int(of_text.argmax())] for of_text in logits]


@pytest.mark.usefixtures("saved_at_once")
def test_flips_accuracy_and_heads_on_flipped_texts_are_those_of_plain_loops(classifiers, tmp_path):
    texts = sentences(tmp_path / "t.txt", 90).read_text(encoding="utf-8").splitlines()
    labels = ["bad" if number % 3 else "good" for number in range(len(texts))]
    table = tmp_path / "t.csv"
    table.write_text("words,class\n" + "".join(f"{text},{label}\n" for text, label in zip(texts, labels, strict=True)))
    a, b = (from_loaded(*each) for each in classifiers)
    columns = {"text_column": "words", "label_column": "class"}
    found = attnviz.compare_corpus(a, b, table, syntax=False, **columns)
    decided = [own_classes(*each, texts) for each in classifiers]
    flips = [one != other for one, other in zip(*decided, strict=True)]
    assert 30 < sum(flips) < 60
    assert [(flip.text, flip.a, flip.b, flip.label) for flip in found.flips] == [
        row for row, flip in zip(zip(texts, *decided, labels, strict=True), flips, strict=True) if flip
    ]
    assert found.flips[0].line == flips.index(True) + 2  # after the header
    right = [np.mean([one == label for one, label in zip(side, labels, strict=True)]) for side in decided]
    assert found.document()["accuracy"] == {"a": right[0], "b": right[1], "n": 90}
    sides = [[attnviz.analyze(text, model, syntax=False) for text in texts] for model in (a, b)]
    distances = [attnviz.compare(*pair).head("L1H0").distance for pair in zip(*sides, strict=True)]
    head = found.head("L1H0")
    for group, flipped in ((head.on_flips, True), (head.on_others, False)):
        own = [distance for distance, flip in zip(distances, flips, strict=True) if flip == flipped]
        assert group.distance == pytest.approx(np.mean(own), rel=SHARP_32)
        assert group.interval is not None
    again: dict[str, Any] = {**columns, "batch_size": 16, "unfinished": tmp_path / "u", "warn": lambda _: None}
    with pytest.raises(KeyboardInterrupt):
        attnviz.compare_corpus(a, b, table, syntax=False, **again, progress=interrupting(2, signal.SIGINT))
    resumed = attnviz.compare_corpus(a, b, table, syntax=False, **again)
    assert (resumed.flips, resumed.accuracy) == (found.flips, found.accuracy)
    whole = (head.on_flips.distance * sum(flips) + head.on_others.distance * (90 - sum(flips))) / 90
    assert head.distance == pytest.approx(whole)


def test_classes_that_differ_are_not_compared_and_labels_need_classes(bert, tuned, classifiers, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("text,label\nthe cat,bad\na dog,good\n")
    one, _ = (from_loaded(*each) for each in classifiers)
    three = from_loaded(*sharp_classifier("bert"))
    alike = attnviz.compare_corpus(one, one, table, syntax=False)
    assert (alike.flips, alike.accuracy["n"]) == ([], 2)
    assert alike.heads[0].on_flips is None
    apart = attnviz.compare_corpus(one, three, table, syntax=False)
    assert (apart.decisions, "so-so" in apart.reading_notes[-1]) == (None, True)
    of_gpt2 = attnviz.compare_corpus(one, from_loaded(*hand_built_classifier("gpt2")), table, syntax=False)
    assert (type(of_gpt2), of_gpt2.accuracy["n"]) == (attnviz.RoleComparison, 2)
    for pair in ((one, three), (bert, tuned)):
        with pytest.raises(attnviz.UsageError, match="label"):
            attnviz.compare_corpus(*pair, table, label_column="label", syntax=False)
    table.write_text("text,label\nthe cat,bad\na dog,ugly\n")
    with pytest.raises(attnviz.CorpusError, match="ugly"):
        attnviz.compare_corpus(one, one, table, syntax=False)


def test_on_one_text_both_decisions_are_told(classifiers):
    text = "the cat saw a dog"
    sides = [attnviz.analyze(text, from_loaded(*each), syntax=False) for each in classifiers]
    found = attnviz.compare(*sides)
    assert [decision.label for decision in found.decisions] == [own_classes(*each, [text])[0] for each in classifiers]
    assert found.document()["decisions"][0]["probability"] == found.decisions[0].probability
