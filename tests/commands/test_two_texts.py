"""``heads`` with an encoder-decoder: three kinds of attention in ids, statistics, documents, tables and figures."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import attnviz
from attnviz import analyze
from attnviz.errors import ArchitectureError, TextError, UsageError
from attnviz.inputs.prompt import merge_subwords, shifted_right
from attnviz.inputs.text import tokenize
from attnviz.judge.verdicts import judge, label_of
from attnviz.measures.statistics import TextContext
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId, LayerId, Stack, head_named, select_heads
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of
from tests.support.encoder_decoders import SOURCE, TARGET, saved_marian, sharp, unigram_tokenizer
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.recorded import whole_pattern
from tests.support.verified import context_of, measure, verified

STACKS = (Stack("E", "encoder", 0, 3, 4), Stack("D", "decoder", 3, 2, 2), Stack("X", "cross-attention", 5, 2, 2))


@pytest.fixture(scope="module")
def checkpoint() -> Any:
    tokenizer = unigram_tokenizer()
    return from_loaded(sharp("t5", len(tokenizer)), tokenizer)


@pytest.fixture(scope="module")
def found(checkpoint) -> Any:
    return analyze(SOURCE, checkpoint, target=TARGET, syntax=False)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [("x0.1", "X0H1"), ("X", "X0H0 X0H1 X1H0 X1H1"), ("E1-2H3", "E1H3 E2H3"), ("E1-E2H3", "E1H3 E2H3"),
     ("X*H1", "X0H1 X1H1"), ("X1,E0H0", "E0H0 X1H0 X1H1"), ("E0H1-2", "E0H1 E0H2")],
)  # fmt: skip
def test_a_selection_names_the_kind(selection, expected):
    assert [str(head) for head in select_heads(selection, STACKS)] == expected.split()


def test_a_head_of_a_stack_has_the_place_of_its_layer_and_its_own_name():
    head = head_named("X1H0", STACKS)
    assert (head.layer, str(head), head.file_stem, str(HeadId(6, 0))) == (6, "X1H0", "X01H00", "L6H0")
    assert head_named(head, STACKS) == head
    layer = pickle.loads(pickle.dumps(STACKS[2].layer(1)))
    assert (type(layer), layer, str(layer)) == (LayerId, 6, "X1")
    for given in ("L0H1", "X", (0, 1), "E0"):
        with pytest.raises(UsageError, match="X0H0"):
            head_named(given, STACKS)


def test_the_decoder_reads_the_target_one_later(checkpoint):
    whole = tokenize(checkpoint, TARGET, target=True)
    read = shifted_right(whole, 0, "<pad>")
    assert (read.labels[0], read.labels[1:]) == ("<pad>", whole.labels[:-1])
    assert (whole.labels[-1], len(read)) == ("</s>", len(whole))
    assert read.sinks == {0}
    assert merge_subwords(read, words=True).labels == ("<pad>", *TARGET.split())


def between(queries: Any, keys: Any) -> TextContext:
    return TextContext(context_of(queries).units, False, None, context_of(keys).units)


@pytest.mark.parametrize(
    ("pattern", "distance"),
    [(torch.eye(5)[[0, 2, 4]], 0), (torch.eye(5)[[4, 2, 0]], (1 + 0 + 1) / 3), (torch.eye(5)[[0, 0, 0]], 0.5),
     (torch.full((3, 5), 0.2), (0.5 + 0 + 0.5) / 3)],
)  # fmt: skip
def test_diagonality_is_one_minus_the_mean_distance_from_the_diagonal(pattern, distance):
    context = between([False] * 3, [False] * 5)
    assert measure(verified(pattern), context)["diagonality"] == [pytest.approx(1 - distance)]
    assert context.uniform["diagonality"] == pytest.approx(2 / 3)


def test_special_tokens_of_both_texts_are_left_out_of_diagonality():
    context = between([True, False, False], [False, False, True])
    pattern = torch.tensor([[0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [0.0, 0.1, 0.9]])
    statistics = measure(verified(pattern), context)
    entropy = (np.log(2) - 0.1 * np.log(0.1) - 0.9 * np.log(0.9)) / 3
    expected = {"diagonality": 1.0, "sink": 0.7, "confidence_non_sink": 1.0, "entropy": entropy}
    assert {name: statistics[name] for name in expected} == {name: [pytest.approx(n)] for name, n in expected.items()}
    assert (context.uniform["sink"], context.uniform["entropy"]) == pytest.approx((1 / 3, np.log(3)))
    one = between([True, False], [False, False])
    assert measure(verified(torch.full((2, 2), 0.5)), one)["diagonality"] == [one.uniform["diagonality"]] == [None]
    for name in ("distance", "distance_non_sink", "previous", "next", "local", "long_range", "induction"):
        assert statistics[name] == [None]


@pytest.mark.parametrize(
    ("pattern", "label"),
    [(torch.eye(12), "diagonal"), (torch.eye(12).flip(0), "unnamed"), (torch.full((12, 12), 1 / 12), "broad")],
)
def test_a_head_along_the_diagonal_is_labelled_so(pattern, label):
    context = between([False] * 12, [False] * 12)
    statistics = {name: values[0] for name, values in measure(verified(pattern), context).items()}
    verdicts = judge(statistics, context, [], HeadId(0, 0))
    assert [verdict.name for verdict in verdicts] == ["diagonal", "sink", "broad"]
    assert label_of(verdicts, context.n_non_sink).name == label


def test_every_part_has_its_own_texts_and_patterns(found):
    encoder, decoder, cross = found.parts
    n, m = len(found.tokens), len(found.target.tokens)
    assert [len(part.heads) for part in found.parts] == [8, 12, 12]
    assert [part.pattern(part.heads[0].id).shape for part in found.parts] == [(n, n), (m, m), (m, n)]
    assert (decoder.units.labels[0], cross.keys.labels[-1]) == ("<pad>", "</s>")
    assert (encoder.figure_context.texts, cross.figure_context.sizes) == ((SOURCE,), (f"{n} tokens", f"{m} tokens"))
    own = whole_pattern(found.verified, found.head("X1H2").id.layer)[0, 2]
    torch.testing.assert_close(found.pattern("X1H2"), own)
    assert found.head("X1H2").alignment == tuple(own.argmax(-1).tolist())


def test_the_document_tells_kinds_targets_and_alignments(found):
    document = json.loads(json.dumps(found.document()))
    assert (document["target"], document["target_generated"]) == (TARGET, False)
    assert [token["text"] for token in document["target_tokens"]] == list(found.target.tokens.labels)
    assert document["model"]["stacks"][2] == {"name": "cross-attention", "letter": "X", "n_layers": 3, "n_heads": 4}
    by_id = {head["id"]: head for head in document["heads"]}
    assert (by_id["X2H1"]["stack"], by_id["X2H1"]["layer"], by_id["X2H1"]["head"]) == ("cross-attention", 2, 1)
    assert by_id["X2H1"]["diagonality"] == pytest.approx(found.head("X2H1").statistics["diagonality"])
    assert by_id["X2H1"]["previous"] is by_id["D2H1"]["diagonality"] is by_id["D2H1"]["alignment"] is None


def test_a_target_that_is_too_long_is_refused_or_cut_and_what_is_cut_of_it_is_told():
    tokenizer = unigram_tokenizer()
    short = from_loaded(sharp("bart", len(tokenizer), max_position_embeddings=10), tokenizer)
    with pytest.raises(TextError, match="target"):
        analyze("the cat", short, target=TARGET, syntax=False)
    cut = analyze("the cat", short, target=TARGET, truncate=True, syntax=False)
    assert len(tokenize(short, "the cat")) <= 10
    assert cut.document()["target_tokens_cut_off"] == len(tokenizer(TARGET).input_ids) - 10


def test_a_target_needs_a_decoder_and_a_pair_a_tokenizer_that_parts_it(checkpoint):
    bert = {"model": sharp_bert(), "tokenizer": bert_tokenizer()}
    unparted = from_loaded(checkpoint.model, unigram_tokenizer(pairs=False))
    refused: list[dict[str, Any]] = [
        {**bert, "target": "the dog"},
        {**bert, "max_new_tokens": 3},
        {"model": checkpoint, "target": TARGET, "max_new_tokens": 3},
        {"model": unparted, "pair": "the dog"},
        {"model": checkpoint, "target": ""},
        {"model": checkpoint, "target": TARGET, "pair": " "},
    ]
    for given in refused:
        with pytest.raises(TextError):
            analyze(SOURCE, **given)
    with pytest.raises(ArchitectureError):
        attnviz.explain(SOURCE, checkpoint)


def test_a_pair_is_joined_as_the_tokenizer_does(checkpoint, found):
    two = analyze(SOURCE, checkpoint, pair="a dog ran away", target=TARGET, syntax=False)
    assert two.tokens.labels[: len(found.tokens)] == found.tokens.labels
    texts = [part.figure_context.texts for part in two.parts]
    assert texts == [(SOURCE, "a dog ran away"), (TARGET,), (SOURCE, "a dog ran away", TARGET)]


def test_a_target_of_one_token_leaves_the_start_token_alone(checkpoint):
    found = analyze(SOURCE, checkpoint, max_new_tokens=1, syntax=False)
    assert len(found.target.tokens) == 1
    text = drawing_of("heads", "text").plans(found, ViewOptions())
    assert [plan.stem for plan in text] == ["text-encoder", "text-cross-attention"]
    assert found.page()
    with pytest.raises(UsageError):
        found.figure("mean", select="X", drop_special=True)


def test_marians_two_models_tell_words_and_labels(tmp_path):
    pytest.importorskip("sentencepiece")
    result = analyze(f"{SOURCE} ☃.", str(saved_marian(tmp_path / "marian")), target=TARGET, words=True)
    assert result.units.labels[:3] == ("the", "cats", "saw")
    assert result.parts[-1].units.labels == ("<pad>", *TARGET.split())
    assert "<unk>" in "".join(result.tokens.labels)
    assert result.verification.heads_compared == 30
