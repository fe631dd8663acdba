"""Removing heads: against edited weights run by transformers alone, and models whose heads are known."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from attnviz.commands.ablate import Ablation, ablate
from attnviz.errors import AttnvizError, CorpusError, TextError, UsageError, VerificationError
from attnviz.inputs.sources import read_sources
from attnviz.measures.bootstrap import text_weights
from attnviz.measures.intervals import SAMPLES, Estimate, of_ratios
from attnviz.measures.predictions import CLASS, MASKED, NEXT, STATES, model_inputs
from attnviz.measures.removals import Curve, CurvePoint, SetEffect
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId, all_heads
from attnviz.reference import attention
from attnviz.run import edit
from attnviz.run.passes import input_batches
from tests.support import ablations
from tests.support.ablations import KINDS, TEXTS, effects_of, measured, next_token_model, predictions, without
from tests.support.classifiers import sharp_classifier
from tests.support.corpora import examples, sentences, treebank
from tests.support.tolerances import SUMS_32, SUMS_64


@cache
def small(kind: str, method: str = "zero") -> Ablation:
    """In float64, where sums of small differences are exact enough to compare closely."""
    model, tokenizer = KINDS[kind]()
    return ablate(TEXTS, model.double(), tokenizer=tokenizer, method=method)


def inputs_of(checkpoint: Any, kind: str, times: int = 1) -> Any:
    return model_inputs(checkpoint, read_sources(TEXTS * times, None).texts, kind, False, print)[0]


def same_numbers(found: Ablation, expected: Ablation) -> None:
    for head in expected.heads:
        again = found.head(head.id)
        for name, value in head.damage.items():
            assert again.damage[name].value == pytest.approx(value.value, abs=SUMS_32)
        assert again.gradient == pytest.approx(head.gradient, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (NEXT, "zero"),
        (MASKED, "mean"),
        (STATES, "uniform"),
        pytest.param(NEXT, "uniform", marks=pytest.mark.thorough),
        pytest.param(NEXT, "mean", marks=pytest.mark.thorough),
        pytest.param(MASKED, "uniform", marks=pytest.mark.thorough),
        pytest.param(STATES, "zero", marks=pytest.mark.thorough),
    ],
)
def test_each_head_removed_does_what_edited_weights_do(kind, method):
    (model, tokenizer), result = KINDS[kind](), small(kind, method)
    model.double()
    assert result.kind == kind
    if kind != STATES:
        losses = [cross_entropy(*predictions(model, tokenizer, text), reduction="none") for text in TEXTS]
        assert result.clean["loss"] == pytest.approx(torch.cat(losses).mean().item(), abs=SUMS_32)
    assert {head.id for head in result.heads} == set(all_heads(3, 4))
    for head in result.heads:
        expected = effects_of(model, without(model, tokenizer, [head.id], method), tokenizer)
        ours = [head.damage[metric.name].value for metric in result.metrics]
        assert ours == pytest.approx(expected, abs=SUMS_64)
        assert max(map(abs, ours)) > 1e-4  # else all would agree whatever was removed


@pytest.mark.parametrize(("kind", "method"), [(NEXT, "mean"), (MASKED, "uniform"), (STATES, "zero")])
def test_a_set_over_layers_does_what_edited_weights_do(kind, method):
    model, tokenizer = KINDS[kind]()
    heads = (HeadId(0, 1), HeadId(1, 0), HeadId(1, 3), HeadId(2, 2))
    result = ablate(TEXTS, model, tokenizer=tokenizer, method=method, select=["L0H1,L1H0,L1H3,L2H2"], together=True)
    assert (result.layers, result.curve, result.together.heads) == ((), None, heads)
    name = result.metrics[0].name
    expected = effects_of(model, without(model, tokenizer, heads, method), tokenizer)
    assert [value.value for value in result.together.damage.values()] == pytest.approx(expected, abs=SUMS_32)
    singles = sum(head.damage[name].value for head in result.heads)
    assert result.together.singles[name].value == pytest.approx(singles)
    assert result.together.excess[name].value == pytest.approx(expected[0] - singles, abs=SUMS_32)


def test_layers_together_and_the_curve_do_what_edited_weights_do():
    (model, tokenizer), result = next_token_model(), small(NEXT)
    assert [layer.heads for layer in result.layers] == [
        tuple(HeadId(layer, head) for head in range(4)) for layer in range(3)
    ]
    curve = result.curve
    assert [point.removed for point in curve.points] == [1, 2, 3, 5, 6, 8, 9, 11, 12]
    assert list(curve.order) == [head.id for head in reversed(result.heads)]
    assert sorted(curve.random_order) == all_heads(3, 4)
    for point in curve.points:
        assert set(point.least.heads) == set(curve.order[: point.removed])
        assert set(point.random.heads) == set(curve.random_order[: point.removed])
    for each in [*result.layers, *(each for point in curve.points for each in (point.least, point.random))]:
        expected = effects_of(model, without(model, tokenizer, each.heads), tokenizer)
        assert [value.value for value in each.damage.values()] == pytest.approx(expected, abs=SUMS_32)
    first = curve.points[0].least
    assert first.damage == first.singles == result.heads[-1].damage


@pytest.mark.parametrize(("kind", "method"), [("gpt2", "zero"), ("bert", "uniform")])
def test_the_load_bearing_head_comes_first(kind, method):
    pairs = [("cat", "one"), ("saw", "two"), ("dog", "the")]
    if kind == "gpt2":
        (model, tokenizer), texts = ablations.copying_gpt2(), [f" {first} {second}" * 12 for first, second in pairs]
    else:
        (model, tokenizer), texts = ablations.copying_bert(pairs), [" ".join(pair * 6) for pair in pairs]
    result = ablate(texts, model, tokenizer=tokenizer, method=method, curve=False)
    assert result.clean["loss"] < 1
    first, *idle = result.heads
    assert first.id == HeadId(0, 0)
    assert first.damage["loss"].value > 0.3
    assert max(abs(head.damage["loss"].value) for head in idle) < 0.02


@pytest.mark.parametrize("kind", [NEXT, pytest.param(MASKED, marks=pytest.mark.thorough)])
def test_neither_padding_nor_order_changes_anything(kind):
    model, tokenizer = KINDS[kind]()
    for texts, batch_size in ((TEXTS, 1), (TEXTS[::-1], 3)):
        other = ablate(texts, model, tokenizer=tokenizer, curve=False, batch_size=batch_size)
        assert other.clean["loss"] == pytest.approx(small(kind).clean["loss"], abs=SUMS_32)
        same_numbers(other, small(kind, "mean"))


@pytest.mark.parametrize(("kind", "dtype"), [(NEXT, torch.bfloat16), (MASKED, torch.float16)])
def test_narrow_formats(kind, dtype):
    model, tokenizer = KINDS[kind](initializer_range=0.01)
    options = {"tokenizer": tokenizer, "method": "mean", "curve": False, "gradient": False, "select": ["L1"]}
    wide, narrow = (ablate(TEXTS, model.to(each), **options) for each in (torch.float32, dtype))
    for head in wide.heads:
        expected, found = (each.head(head.id).damage["kl"].value for each in (wide, narrow))
        assert found == pytest.approx(expected, rel=0.3, abs=0.1)


def test_long_inputs_and_large_vocabularies_make_small_batches():
    checkpoint = from_loaded(*next_token_model())

    def sizes(times: int, batch_size: int) -> list[int]:
        batches = [*input_batches(checkpoint, inputs_of(checkpoint, NEXT, times), batch_size)]
        assert all(batch.batch.valid.numel() <= 4096 for batch in batches)
        return sorted(len(batch.inputs) for batch in batches)

    assert sizes(4, 16) == [4, 12]  # three words, and more
    assert len(sizes(400, 1600)) > 2
    checkpoint.config.vocab_size = 2**26  # a row of logits fills a batch
    assert sizes(4, 16) == [1] * 16


def test_intervals_are_those_of_ratios_of_sums_over_texts(tmp_path):
    model, tokenizer = next_token_model()
    path, options = sentences(tmp_path / "s.txt", 30), {"method": "zero", "select": ["L1H0-1"], "curve": False}
    result, other = (ablate(path, model, tokenizer=tokenizer, seed=seed, **options) for seed in (3, 4))
    lines = path.read_text().splitlines()
    counts = torch.tensor([[len(tokenizer(line)["input_ids"]) - 1.0] for line in lines], dtype=torch.float64)
    edited = [without(model, tokenizer, [head.id], "zero") for head in result.heads]
    means = torch.tensor([[effects_of(model, each, tokenizer, [line])[0] for each in edited] for line in lines])
    expected = of_ratios(means * counts, counts, text_weights(3, range(30), SAMPLES))
    for number, head in enumerate(result.heads):
        value, (low, high) = head.damage["loss"], expected.interval(number)
        assert [value.low, value.high] == pytest.approx([low, high], abs=1e-4 * (high - low) + SUMS_32)
        assert value.low < value.value < value.high
        assert value.side == (1 if value.low > 0 else -1 if value.high < 0 else 0)
        assert other.head(head.id).damage["loss"].low != value.low


def test_what_is_verified_is_reported_and_an_interruption_leaves_no_hooks(tmp_path):
    model, tokenizer = next_token_model()
    verified = ablate(TEXTS, model, tokenizer=tokenizer, curve=False).verified
    assert (verified.attention.heads_compared, verified.n_inputs, verified.tolerance) == (12, 4, 1e-4)
    assert max(verified.values_error, verified.resumed_error) < SUMS_32
    path = sentences(tmp_path / "s.txt", 41)
    sampled = ablate(path, model, tokenizer=tokenizer, batch_size=1, select=["L0H0"], curve=False)
    assert sampled.verified.n_inputs == 10  # of 41 batches the first eight, the 21st and the 41st

    def stop(what, done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ablate(TEXTS, model, tokenizer=tokenizer, progress=stop, batch_size=1)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.is_grad_enabled()


def _left_out(run: Any) -> Any:
    return lambda kept, layer, hidden, *copies: hidden if layer == 1 else run(kept, layer, hidden, *copies)


def _swapped(run: Any) -> Any:
    """Heads 0 and 1 swapped in what is to be removed of a layer."""

    def swapped(*given: Any) -> Any:
        kept = run(*given)
        kept.values[1, "z"] = kept.values[1, "z"][:, :, [1, 0, 2, 3]]
        return kept

    return swapped


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (attention, "attention_scores", lambda _: lambda q, k, scale: q @ k.transpose(-1, -2)),
        (edit.KeptPass, "run_block", _left_out),
        (edit, "run_and_keep", _swapped),
    ],
    ids=["pattern", "layer left out", "heads swapped"],
)
def test_what_does_not_reproduce_the_model_stops_it(monkeypatch, owner, name, wrong):
    model, tokenizer = next_token_model()
    monkeypatch.setattr(owner, name, wrong(getattr(owner, name)))
    with pytest.raises(VerificationError):
        ablate(TEXTS, model, tokenizer=tokenizer)


def test_files_are_corpora_and_all_else_texts(tmp_path):
    trees, lines = treebank(tmp_path / "t.conllu", 3), sentences(tmp_path / "s.txt", 4)
    sources = read_sources([str(trees), "the cat ran", lines], 2)
    assert [(corpus.path.name, read) for corpus, read in sources.corpora] == [("t.conllu", 2), ("s.txt", 2)]
    assert sources.given == ("the cat ran",)
    assert [text.number for text in sources.texts] == [0, 1, 2, 3, 4]
    assert sources.texts[2].text == "the cat ran"
    names_of_no_file = ("the cat " * 400, "a\0b")
    assert read_sources(names_of_no_file, None).given == names_of_no_file


@pytest.mark.parametrize(
    ("given", "error", "name"),
    [
        ([], UsageError, None),
        (["  "], TextError, None),
        (["nowhere.txt"], CorpusError, "nowhere"),
        ([Path("gap.tsv")], CorpusError, "GAP"),
        ([Path("a.tsv")], CorpusError, "a.tsv"),
        (["a.txt", "b.txt"], UsageError, "b.txt"),
        ([Path()], CorpusError, "folder"),
    ],
)
def test_what_is_neither_a_text_nor_a_corpus(given, error, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("a.tsv", "a.txt", "b.txt"):
        Path(file).write_text("the cat ran\n")
    examples(Path("gap.tsv"), 0)
    with pytest.raises(error, match=name):
        read_sources(given, None)


def test_sentences_that_cannot_be_measured_are_left_out(tmp_path):
    path, said = tmp_path / "s.txt", list[str]()
    path.write_text("the cat ran away\na\n" + "the cat ran away " * 30 + "\nhe saw it\n")
    assert measured(NEXT, path, warn=said.append, select=["L0H0"], method="mean").n_texts == 2
    assert [line.startswith(f"{path}:{number}: ") for line, number in zip(said, (3, 2), strict=True)] == [True, True]
    path.write_text("a\na\n")
    with pytest.raises(TextError, match="--truncate"):
        measured(NEXT, path)


@pytest.mark.parametrize("kind", [NEXT, STATES])
def test_a_text_that_is_too_long_is_measured_as_far_as_the_model_reads(kind, tmp_path):
    limit, said = 40 - 2 * (kind != NEXT), list[str]()  # [CLS] and [SEP]
    words = "the cat that i saw ran away and the dog ran to the house".split() * 9
    (tmp_path / "s.txt").write_text(f"{' '.join(words)}\nhe saw it\n")
    options: dict[str, Any] = {"select": ["L1"], "method": "mean", "gradient": True}
    cut = measured(kind, tmp_path / "s.txt", truncate=True, warn=said.append, **options)
    same_numbers(cut, measured(kind, [" ".join(words[:limit]), "he saw it"], **options))
    assert (cut.n_texts, cut.n_cut, cut.document()["measured"]["texts_cut"], said) == (2, 1, 1, [])


def test_a_bert_whose_tokenizer_has_no_mask_is_measured_by_its_states():
    model, tokenizer = KINDS[MASKED]()
    tokenizer.mask_token = None
    result = ablate(TEXTS, model, tokenizer=tokenizer, select=["L0H0"], curve=False)
    assert (result.kind, result.clean) == (STATES, {})


TREES, REPEATS, PAIR = {"role": "obj"}, {"repeats": True}, {"answer": " away", "foil": " house"}


@pytest.mark.parametrize(
    ("kind", "options", "error", "word"),
    [
        (NEXT, {"method": "median"}, UsageError, "'median'"),
        (NEXT, {"select": ["L9"]}, UsageError, "layer 9"),
        (NEXT, {"select": 3}, UsageError, "3"),
        (NEXT, {"select": ["L0H1"], "together": True}, UsageError, "L0H1"),
        (NEXT, {"texts": "the cat ran away " * 30}, TextError, "40"),
        (NEXT, {"texts": "a"}, TextError, "token"),
        (MASKED, {"texts": "[MASK]"}, TextError, "mask"),
        (NEXT, {"role": "objj"}, UsageError, "obj"),
        (NEXT, {"role": 3}, UsageError, "3"),
        (NEXT, TREES | REPEATS | {"texts": ()}, UsageError, "--repeats"),
        (NEXT, REPEATS, UsageError, "repeats"),
        (NEXT, REPEATS | {"texts": (), "limit": 3}, UsageError, "repeats"),
        (STATES, REPEATS | {"texts": ()}, UsageError, "--repeats"),
        (CLASS, TREES, UsageError, "--role"),
        (CLASS, {"order_by": "loss"}, UsageError, "loss"),
        (NEXT, {"answer": " away"}, UsageError, "--answer"),
        (NEXT, {"foil": " away"}, UsageError, "--foil"),
        (NEXT, {"answer": " away", "foil": " away"}, UsageError, "two"),
        (NEXT, {"answer": " away", "foil": " unbelievable"}, AttnvizError, "unbelievable"),
        (NEXT, PAIR | {"label": "x"}, UsageError, "--label"),
        (NEXT, PAIR | TREES, UsageError, "--role"),
        (MASKED, {"texts": "the cat ran", "answer": "ran", "foil": "saw"}, TextError, r"\[MASK\]"),
        (CLASS, {"answer": "good", "foil": "worst"}, AttnvizError, "worst"),
        (STATES, {"answer": "ran", "foil": "saw"}, UsageError, "logits"),
    ],
)
def test_what_cannot_be_measured(kind, options, error, word):
    model, tokenizer = sharp_classifier("bert") if kind == CLASS else KINDS[kind]()
    with pytest.raises(error, match=word) as raised:
        ablate(**{"texts": TEXTS, "model": model, "tokenizer": tokenizer, **options})
    assert "\n" not in str(raised.value)


def a_set(value: float, low: float, high: float) -> SetEffect:
    effect = dict.fromkeys(("loss", "kl"), Estimate(value, low, high))
    return SetEffect((HeadId(0, 0),), effect, effect, effect)


def test_how_many_heads_can_go_follows_from_the_curve():
    plain = measured(NEXT, TEXTS, curve=True, gradient=True)
    assert plain.removable is None  # four texts have no intervals
    nothing, harm = a_set(0.0, -0.1, 0.1), a_set(2.0, 1.5, 2.5)
    for removed, removable in (
        ({1: harm}, 0),
        ({1: nothing, 12: harm}, 1),
        ({1: a_set(-0.1, -0.2, -0.05), 3: nothing, 6: harm, 12: harm}, 3),
    ):
        points = tuple(CurvePoint(count, effect, harm) for count, effect in removed.items())
        result = replace(plain, heads=(replace(plain.heads[0], damage=harm.damage),), curve=Curve((), (), points))
        assert result.removable == removable
    content = result.document()
    assert content["removable"] == 3
    assert content["heads"][0]["gradient"] == plain.heads[0].gradient
    assert content["heads"][0]["loss"] == {"value": 2.0, "interval": [1.5, 2.5]}
    assert content["curve"]["points"][2]["removed"] == 6
    assert content["curve"]["points"][1]["loss"]["least_important"]["interval"] == [-0.1, 0.1]
    assert content["curve"]["points"][1]["loss"]["random_order"]["value"] == 2.0


@pytest.mark.parametrize(("kind", "of"), [(NEXT, "loss"), (STATES, "projections")])
def test_gradients_are_named_and_left_out_where_they_are_not_wanted(kind, of):
    with_gradients, without_any = (
        measured(kind, "the cat ran", select=["L1"], gradient=each) for each in (True, False)
    )
    assert of in with_gradients.document()["gradient_of"]
    assert without_any.document()["gradient_of"] is without_any.heads[0].gradient is None
    assert "Gradient" not in without_any.report()
