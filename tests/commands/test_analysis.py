"""The whole chain: its numbers against an independent computation, and what analyze() refuses."""

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import attnviz
from attnviz import analyze
from attnviz.analysis.result import Analysis
from attnviz.errors import CheckpointError, ParserError, TextError, UsageError
from attnviz.language.parsers import load_parser
from attnviz.language.universal import to_universal
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.models.sources import find_checkpoint
from attnviz.profiles.store import store_profile
from tests.conftest import SENTENCE, needs_minilm, needs_parser
from tests.support import independent
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.stored import document_for
from tests.support.tolerances import SHARP_32

MODELS = {"bert": (sharp_bert, bert_tokenizer), "gpt2": (sharp_gpt2, gpt2_tokenizer)}
HOSTILE = "Don't\n\npanic: the café's naïve 😀 owner can't re-open (yet)."


def test_threads_share_a_model_and_get_what_they_would_alone():
    shared = [from_loaded(MODELS[kind][0](), MODELS[kind][1]()) for kind in ("bert", "gpt2", "bert")]
    texts = [SENTENCE, "a a saw a", "the dog ran away"]
    tasks = [(text, checkpoint) for text in texts for checkpoint in shared] * 2
    alone = [attnviz.head_outputs(*task).document() for task in tasks]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda task: attnviz.head_outputs(*task).document(), tasks))
    assert together == alone


@pytest.mark.thorough
def test_reports_and_documents_do_not_wait_for_a_measurement_but_pictures_do():
    model = from_loaded(sharp_bert(), bert_tokenizer())
    found, running, go_on = attnviz.analyze(SENTENCE, model), Event(), Event()
    alone = found.report(), found.document()

    def wait(*_):
        running.set()
        assert go_on.wait(60)

    with ThreadPoolExecutor(4) as pool:
        measuring = pool.submit(attnviz.analyze, "the dog ran", model, progress=wait)
        assert running.wait(60)
        try:
            assert pool.submit(lambda: (found.report(), found.document())).result(60) == alone
            waiting = [pool.submit(found.figure, "overview"), pool.submit(found.pattern, "L0H0")]
            assert not wait_for(waiting, 1, FIRST_COMPLETED).done
        finally:
            go_on.set()
        assert all(each.result(60) is not None for each in (*waiting, measuring))


def assert_numbers(analysis: Analysis, model: Any, tokenizer: Any, **options: Any) -> None:
    """Every scalar and baseline of the document equals the independent one, null for null."""
    document = analysis.document()
    expected = list(independent.heads(model, tokenizer, analysis.text, analysis.pair, **options))
    assert len(document["heads"]) == len(expected) == model.config.num_hidden_layers * model.config.num_attention_heads
    for found, (layer, head, numbers) in zip(document["heads"], expected, strict=True):
        assert (found["id"], found["layer"], found["head"]) == (f"L{layer}H{head}", layer, head)
        scalars, shares = ({name: of[name] for name in independent.SCALARS} for of in (found, numbers))
        assert scalars == pytest.approx(shares, abs=SHARP_32)
        ours, theirs = ({name: of["baseline"][name] for name in independent.SHARES} for of in (found, numbers))
        assert ours == pytest.approx(theirs, abs=SHARP_32)


@pytest.mark.parametrize("words", [False, True], ids=["tokens", "words"])
@pytest.mark.parametrize(
    ("name", "text", "pair"),
    [
        ("bert", SENTENCE, None),
        ("gpt2", SENTENCE, None),
        ("bert", "The unbelievableness of the dogs!", None),
        ("gpt2", "a", None),
        ("bert", "[MASK] saw [SEP] qqq", None),
        ("bert", "the unable cat ran", "A dog saw it."),
    ],
)
def test_the_numbers_equal_an_independent_computation(name, text, pair, words):
    model, tokenizer = (make() for make in MODELS[name])
    found = analyze(text, model=model, tokenizer=tokenizer, pair=pair, words=words, syntax=False)
    assert_numbers(found, model, tokenizer, words=words)


@needs_minilm
def test_the_numbers_of_a_real_model_equal_an_independent_computation():
    folder, pair = find_checkpoint("minilm", None).folder, "Who can't re-open it?"
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert_numbers(analyze(HOSTILE, model="minilm", pair=pair, syntax=False), model, tokenizer)


@needs_parser
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("text", [SENTENCE, "The unbelievableness of the dogs was that they can't see it!"])
def test_accuracies_by_relation_equal_an_independent_computation(name, text):
    model, tokenizer = (make() for make in MODELS[name])
    sink = independent.sink_flags(model, tokenizer, text, None)
    truth = independent.relations(load_parser(), tokenizer, text, None, sink, to_universal)
    patterns = independent.attentions(model, tokenizer, text, None)
    assert truth["arcs"]
    for head in analyze(text, model=model, tokenizer=tokenizer).document()["heads"]:
        found = {pattern["name"]: pattern for pattern in head["patterns"] if pattern["kind"] == "syntactic"}
        assert found.keys() == truth["arcs"].keys()
        merged = independent.merge(patterns[head["layer"], head["head"]], truth["words"])
        for relation, arcs in truth["arcs"].items():
            scores = independent.accuracies(merged, arcs)
            baselines = independent.guesses(merged, truth["words"], arcs, name == "gpt2")
            margins = {each: round(scores[each] - max(baselines[each].values()), 6) for each in scores}
            ours = found[relation]
            assert ours["n"] == len(arcs)
            assert ours["baselines"] == pytest.approx(baselines[ours["direction"]])
            assert ours["baseline"] == pytest.approx(max(ours["baselines"].values()))
            assert ours["score"] == pytest.approx(scores[ours["direction"]])
            assert margins[ours["direction"]] == max(margins.values())
            assert ours["passed"] == (max(margins.values()) >= 0.1 and ours["n"] >= 3)
            at_offset = sum(head - dependent == ours["offset"] for dependent, head in arcs)
            assert at_offset / len(arcs) == pytest.approx(ours["baselines"]["fixed offset"])


@pytest.mark.parametrize("name", MODELS)
def test_a_pattern_is_the_models_own_attention(name):
    model, tokenizer = (make() for make in MODELS[name])
    found = analyze(SENTENCE, model=model, tokenizer=tokenizer, syntax=False)
    own = independent.attentions(model, tokenizer, SENTENCE, None)
    assert np.abs(found.pattern("L1H2").numpy() - own[1, 2]).max() < SHARP_32
    assert np.abs(found.layer_patterns(0).numpy() - own[0]).max() < SHARP_32
    for head, pattern in found.patterns(found.select(["L0H1", "L2"])):
        assert np.abs(pattern.numpy() - own[head.id.layer, head.id.head]).max() < SHARP_32
    assert [head for head, _ in found.patterns()] == list(found.heads)


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("float64", SHARP_32), ("bfloat16", 0.5), pytest.param("float16", 0.1, marks=pytest.mark.thorough)],
)
def test_other_number_formats_run_and_say_so(bert_folder, found, dtype, precision):
    other = analyze(SENTENCE, model=bert_folder, dtype=dtype, syntax=False)
    assert other.document()["model"]["dtype"] == dtype
    assert found.document()["model"]["dtype"] == "float32"
    assert other.verification.heads_compared == 12
    assert other.pattern("L0H0").dtype == (torch.float64 if dtype == "float64" else torch.float32)
    for ours, theirs in zip(other.heads, found.heads, strict=True):
        assert ours.statistics["entropy"] == pytest.approx(theirs.statistics["entropy"], abs=precision)


@pytest.fixture(scope="module")
def found():
    return analyze(SENTENCE, model=sharp_bert(), tokenizer=bert_tokenizer(), syntax=False)


def test_heads_are_selected_in_the_models_order_and_found_by_either_name(found):
    assert [head["id"] for head in found.document(select=["L2H3", "L0H1"])["heads"]] == ["L0H1", "L2H3"]
    assert [str(head.id) for head in found.select(["L*H2"])] == ["L0H2", "L1H2", "L2H2"]
    assert (len(found.select(["L0-1"])), len(found.select()), len(found.document()["heads"])) == (8, 12, 12)
    assert found.select("L1") == found.select(["L1"])
    assert found.select(HeadId(1, 2)) == [found.head("L1H2")]
    assert found.document(select="L1H2") == found.document(select=["L1H2"])
    assert found.head("L2H1") is found.head("2.1") is found.head(HeadId(2, 1))


def test_without_a_parser_the_rest_is_measured(monkeypatch, found):
    monkeypatch.setattr("attnviz.language.parsers.importlib.util.find_spec", lambda *_: None)
    bare = analyze(SENTENCE, model=sharp_bert(), tokenizer=bert_tokenizer())
    assert bare.parse is None
    assert "attnviz[syntax]" in bare.syntax_note
    assert bare.document()["heads"] == found.document()["heads"]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(
        ({"model": sharp_bert(), "tokenizer": bert_tokenizer(), option: "cpu"}, UsageError, option)
        for option in ("device", "dtype", "revision")
    ),
    ({"model": sharp_bert()}, CheckpointError, "tokenizer"),
    ({"tokenizer": bert_tokenizer()}, UsageError, "tokenizer"),
    ({"parser": "no_such_pipeline"}, ParserError, "no_such_pipeline"),
    ({"text": "the cat saw " * 20}, TextError, "40"),
    ({"pair": "the dog"}, TextError, "pair"),
    ({"model": 5}, UsageError, "int"),
    ({"device": 3}, UsageError, "3"),
    ({"generate": True}, UsageError, "True"),
]


@pytest.mark.parametrize(("given", "error", "word"), REFUSED)
def test_what_cannot_be_analysed(gpt2_folder, given, error, word):
    with pytest.raises(error, match=word):
        analyze(**{"text": SENTENCE, "model": gpt2_folder, **given})


ODD_CALLS: list[tuple[str | None, Any]] = [
    (None, lambda found: found.verified.model_output(0)),
    (None, lambda found: found.save("out", select=[])),
    ("L3", lambda found: found.select(["L3"])),
    ("L0H4", lambda found: found.document(select=["L0H4"])),
    ("L0H4", lambda found: found.pattern("L0H4")),
    ("token", lambda found: found.figure("lines", select="L1H1", token=2.5)),
    ("nonsense", lambda found: found.figure("map", maps=["nonsense"])),
    ("relations", lambda found: found.save("out", figures=["relations"])),
]


@pytest.mark.parametrize(("name", "call"), ODD_CALLS)
def test_what_a_result_does_not_have_is_refused_and_nothing_is_written(found, tmp_path, monkeypatch, name, call):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=name):
        call(found)
    assert not list(tmp_path.iterdir())


def test_a_profile_that_cannot_be_used_is_a_warning_at_the_callers_line(bert_folder):
    role = {"id": "L1H2", "role": "syntactic:nsubj", "direction": "dependent_to_head"}
    path, _ = store_profile(document_for(bert_folder, [role]), "2026-11-22")
    path.write_text("{")
    with pytest.warns(UserWarning, match="damaged") as caught:
        found = analyze(SENTENCE, model=bert_folder, syntax=False)
    assert found.profile is None
    assert [warning.filename for warning in caught] == [__file__]
    told: list[str] = []
    analyze(SENTENCE, model=bert_folder, syntax=False, warn=told.append)
    assert len(told) == 1
