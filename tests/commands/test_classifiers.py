"""Checkpoints with a head for sequence classification: read, ablated by class, and their decision taken apart."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import log_softmax

import attnviz
from attnviz.errors import CorpusError, UsageError, VerificationError
from attnviz.inputs.text import tokenize
from attnviz.measures import direct_effects as decisions
from attnviz.measures.direct_effects import NOT_LINEAR
from attnviz.measures.predictions import CLASS, LABELLED, STATES
from attnviz.models.checkpoint import from_loaded
from attnviz.models.opening import open_checkpoint
from tests.support.ablations import TEXTS, output_map, without
from tests.support.classifiers import CARRIER, KINDS, LABELS, hand_built_classifier, sharp_classifier
from tests.support.models import save_checkpoint
from tests.support.tolerances import SHARP_32, SHARP_64, SUMS_32

GIVEN = ["good", "bad", "so-so", "bad"]
FEW = {"curve": False, "gradient": False}
CLOSE = {"rtol": SUMS_32, "atol": SUMS_32}


def some_for_everyone(*some: str) -> list[Any]:
    """All kinds of classifiers, those not named in the thorough tier."""
    return [kind if kind in some else pytest.param(kind, marks=pytest.mark.thorough) for kind in KINDS]


@torch.no_grad()
def own_logits(model: Any, tokenizer: Any, text: str) -> torch.Tensor:
    """[n_classes], by transformers alone."""
    logits: torch.Tensor = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits[0]
    return logits.double()


@pytest.mark.draws
@pytest.mark.parametrize("kind", some_for_everyone("bert", "gpt2", "modernbert"))
def test_the_head_gives_the_models_own_logits(kind, tmp_path):
    model, tokenizer = sharp_classifier(kind)
    stored, _ = open_checkpoint(save_checkpoint(model, tokenizer, tmp_path), device="cpu")
    for checkpoint in (stored, open_checkpoint(model, tokenizer)[0]):
        assert checkpoint.classifier.labels == tuple(LABELS.values())
        assert checkpoint.language_head is None
        tokens = tokenize(checkpoint, TEXTS[0])
        with torch.no_grad():
            states = checkpoint.model(**tokens.model_inputs(checkpoint.device))[0][0]
            logits = checkpoint.classifier.head(states[checkpoint.classifier.position(tokens.ids)])
        torch.testing.assert_close(logits.double(), own_logits(model, tokenizer, TEXTS[0]), rtol=SUMS_32, atol=SUMS_32)


@pytest.mark.parametrize("kind", some_for_everyone("bert", "gpt2"))
def test_heads_and_compare_tell_what_a_classifier_decides_from_the_verified_pass(kind):
    model, tokenizer = sharp_classifier(kind)
    options: dict[str, Any] = {"tokenizer": tokenizer, "syntax": False}
    passes = list[Any]()
    embeddings = model.get_input_embeddings().register_forward_hook(lambda *_: passes.append(None))
    attnviz.analyze(TEXTS[0], model.base_model, **options)
    without_head = len(passes)
    analysis = attnviz.analyze(TEXTS[0], model, **options)
    embeddings.remove()
    assert len(passes) == 2 * without_head
    own = own_logits(model, tokenizer, TEXTS[0])
    torch.testing.assert_close(torch.tensor(analysis.decision.logits, dtype=torch.float64), own, **CLOSE)
    label = LABELS[int(own.argmax())]
    assert (analysis.decision.label, analysis.decision.right) == (label, None)
    decided = analysis.decision._asdict()
    assert analysis.document()["decision"] == decided | {"logits": list(decided["logits"])}
    assert label in analysis.report()
    other = copy.deepcopy(model)
    last = from_loaded(other, tokenizer).classifier.head[-1]
    with torch.no_grad():
        last.weight[int(own.argmax())] *= -1
    comparison = attnviz.compare(analysis, attnviz.analyze(TEXTS[0], other, **options))
    assert comparison.document()["flips"] == (own_logits(other, tokenizer, TEXTS[0]).argmax() != own.argmax())
    assert comparison.decisions == (analysis.decision, comparison.second.decision)
    several = attnviz.analyze_each(TEXTS[:2], model, labels=[label] * 2, **options)
    assert [text.decision.right for text in several.texts] == [
        LABELS[int(own_logits(model, tokenizer, text).argmax())] == label for text in TEXTS[:2]
    ]
    with pytest.raises(UsageError):
        attnviz.analyze_each(TEXTS[:2], model, labels=["good", "none of them"], **options)


def test_a_decision_that_the_whole_model_does_not_make_is_not_told():
    model, tokenizer = sharp_classifier("bert")
    model.register_forward_hook(lambda _, __, output: replace(output, logits=output.logits + 1))
    with pytest.raises(VerificationError):
        attnviz.analyze(TEXTS[0], model, tokenizer=tokenizer, syntax=False)


def test_a_text_that_ends_with_padding_is_read_before_it():
    classifier = from_loaded(*sharp_classifier("gpt2")).classifier
    assert [classifier.position(ids) for ids in ([5, 6, 0, 0], [0, 0])] == [1, 0]


@pytest.mark.parametrize("changes", [{"num_labels": 1}, {"problem_type": "multi_label_classification"}])
def test_outputs_that_are_no_classes_are_not_taken_for_classes(changes):
    model, tokenizer = sharp_classifier("bert", **{"id2label": None, **changes})
    assert attnviz.ablate(TEXTS, model, tokenizer=tokenizer, **FEW).kind == STATES
    with pytest.raises(UsageError, match="classes"):
        attnviz.ablate(TEXTS, model, tokenizer=tokenizer, label=0, **FEW)
    with pytest.raises(UsageError, match="classes"):
        attnviz.head_outputs(TEXTS[0], model, tokenizer=tokenizer, answer=0)
    assert attnviz.head_outputs(TEXTS[0], model, tokenizer=tokenizer).effects is None


@pytest.mark.parametrize(("lost", "kind"), [("bert.pooler.dense.weight", "bert"), ("score.weight", "gpt2")])
def test_a_head_without_its_weights_is_none(lost, kind, tmp_path):
    file = save_checkpoint(*sharp_classifier(kind), tmp_path) / "model.safetensors"
    weights = load_file(file)
    del weights[lost]
    save_file(weights, file, metadata={"format": "pt"})
    assert open_checkpoint(tmp_path, device="cpu")[0].classifier is None


@pytest.mark.draws
@pytest.mark.parametrize(("kind", "method"), [("bert", "mean"), ("gpt2", "zero")])
def test_every_head_is_removed_as_by_transformers(kind, method, tmp_path):
    model, tokenizer = sharp_classifier(kind)
    table = tmp_path / "t.tsv"
    table.write_text("".join(f"{text}\t{label}\n" for text, label in zip(TEXTS, GIVEN, strict=True)))
    labelled, free = (
        attnviz.ablate(texts, model, tokenizer=tokenizer, method=method, **FEW) for texts in (table, TEXTS)
    )
    classes = torch.tensor([list(LABELS.values()).index(label) for label in GIVEN])

    def predicted(model):
        return log_softmax(torch.stack([own_logits(model, tokenizer, text) for text in TEXTS]), -1)

    def loss(predicted):
        return -float(predicted.gather(1, classes[:, None]).mean())

    def margin(predicted, of):
        others = predicted.scatter(1, of[:, None], -torch.inf).amax(1)
        return float((predicted.gather(1, of[:, None])[:, 0] - others).mean())

    whole = predicted(model)
    decided = whole.argmax(-1)
    assert (labelled.kind, free.kind) == (LABELLED, CLASS)
    assert labelled.clean["loss"] == pytest.approx(loss(whole), abs=SUMS_32)
    assert labelled.clean["accuracy"] == (decided == classes).double().mean()
    assert set(free.clean) == {"margin", "share_saturated"}
    for result, right in ((labelled, (decided == classes).tolist()), (free, [None] * len(TEXTS))):
        said = result.document()["decisions"]
        assert [entry["label"] for entry in said] == [list(LABELS.values())[number] for number in decided]
        assert [entry["right"] for entry in said] == right
        expected = torch.stack([own_logits(model, tokenizer, text) for text in TEXTS])
        torch.testing.assert_close(torch.tensor([entry["logits"] for entry in said]).double(), expected, **CLOSE)
    for head in free.heads:
        less = predicted(without(model, tokenizer, [head.id], method))
        divergence = float((whole.exp() * (whole - less)).sum(-1).mean())
        of_labels, of_classes = labelled.head(head.id).damage, head.damage
        assert of_labels["loss"].value == pytest.approx(loss(less) - loss(whole), abs=SUMS_32)
        for damage, of in ((of_labels, classes), (of_classes, decided)):
            assert damage["kl"].value == pytest.approx(divergence, abs=SUMS_32)
            assert damage["margin"].value == pytest.approx(margin(whole, of) - margin(less, of), abs=SUMS_32)
        assert of_classes["changed"].value == (less.argmax(-1) != decided).double().mean()


@pytest.mark.parametrize(("scale", "with_labels"), [(1, True), (1, False), (100, True)])
def test_where_losses_are_near_zero_heads_are_ordered_by_the_margin(scale, with_labels, tmp_path):
    """Logits times 100 make the same decisions, so surely that losses hardly change."""
    model, tokenizer = sharp_classifier("bert")
    with torch.no_grad():
        model.classifier.weight *= scale
        model.classifier.bias *= scale
    logits = torch.stack([own_logits(model, tokenizer, text) for text in TEXTS])
    table = tmp_path / "t.tsv"
    rows = zip(TEXTS, logits.argmax(-1).tolist(), strict=True)
    table.write_text("".join(f"{text}\t{decided}\n" for text, decided in rows))
    texts: Any = table if with_labels else TEXTS
    default, by_margin, by_kl = (
        attnviz.ablate(texts, model, tokenizer=tokenizer, method="zero", order_by=name, gradient=False)
        for name in (None, "margin", "kl")
    )
    assert default.clean["share_saturated"] == float((-logits.log_softmax(-1).amax(-1) < 0.05).double().mean())
    assert (default.clean["share_saturated"] > 0.5) == (scale == 100)
    assert default.options["order_by"] == ("margin" if scale == 100 else "loss" if with_labels else "kl")
    assert default.document()["measured"]["importance"] == default.metrics[0].name == default.options["order_by"]
    for result in (default, by_margin, by_kl):
        effects = [head.damage[result.options["order_by"]].value for head in result.heads]
        assert effects == sorted(effects, reverse=True)
        assert result.curve.order == tuple(head.id for head in reversed(result.heads))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_head_that_carries_the_class_is_found(kind):
    model, tokenizer = hand_built_classifier(kind)
    result = attnviz.ablate(TEXTS, model, tokenizer=tokenizer, method="zero", curve=False)
    assert result.heads[0].id == CARRIER
    whole = torch.stack([own_logits(model, tokenizer, text) for text in TEXTS]).log_softmax(-1)
    undecided = (whole.exp() * (whole + torch.tensor(2.0).log())).sum(-1).mean()  # without it both are as probable
    assert result.heads[0].damage["kl"].value == pytest.approx(float(undecided), rel=SHARP_32)
    assert result.heads[1].damage["kl"].value < undecided / 20
    effects = attnviz.head_outputs(TEXTS[0], model, tokenizer=tokenizer, answer="good").effects
    assert abs(effects.difference) > 0.1
    others = [value for name, value in effects.heads.items() if name != CARRIER]
    assert others == pytest.approx([0.0] * 11, abs=SUMS_32)


@pytest.mark.parametrize("label", [None, "bad"])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_gradient_is_that_of_the_loss_of_the_labelled_class_or_of_the_one_decided_for(kind, label):
    model, tokenizer = sharp_classifier(kind)
    model.double()
    result = attnviz.ablate(TEXTS, model, tokenizer=tokenizer, label=label, select="L1H2", curve=False)
    decided = [int(own_logits(model, tokenizer, text).argmax()) for text in TEXTS]
    step, losses = 1e-4, []
    for scale in (1 - step, 1 + step):
        edited = copy.deepcopy(model)
        output_map(edited, 1)[0].data[16:24] *= scale
        of_texts = [own_logits(edited, tokenizer, text).log_softmax(-1) for text in TEXTS]
        losses.append(torch.stack([-each[0 if label else at] for each, at in zip(of_texts, decided, strict=True)]))
    slope = (losses[1] - losses[0]) / (2 * step)
    assert result.heads[0].gradient == pytest.approx(float(slope.abs().mean()), rel=SHARP_32)


@pytest.mark.parametrize(
    ("table", "labels"),
    [
        ("the cat\tgood\none two\tBAD\n", [1, 0]),
        ("Label\tid\tSentence\n2\ta\tthe cat\n\n 0\tb\tone two\n", [2, 0]),
        ("text\tlabel\nthe cat\tso-so\n", [2]),
    ],
)
def test_labels_are_names_or_numbers_in_tables_with_a_header_or_without(table, labels, tmp_path):
    (tmp_path / "t.tsv").write_text(table)
    model, tokenizer = sharp_classifier("bert")
    result = attnviz.ablate(tmp_path / "t.tsv", model, tokenizer=tokenizer, select="L0H0", **FEW)
    texts = [text.text for text in result.sources.texts]
    assert texts == ["the cat", "one two"][: len(labels)]
    losses = [-own_logits(model, tokenizer, text).log_softmax(-1)[at] for text, at in zip(texts, labels, strict=True)]
    assert result.clean["loss"] == pytest.approx(float(sum(losses)) / len(losses), abs=SUMS_32)


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ("the cat\tgood\none two\tgreat\n", "t.tsv:2"),
        ("the cat\t3\n", "t.tsv:1: .*'3'"),
        ("the cat\t\n", "t.tsv:1"),
        ("the cat\tgood\none\ttwo\tbad\n", "t.tsv:2"),
        ("text\tlabel\nthe cat\tgood\none two\t\n", "t.tsv:3.*label"),
        ("text\tlabel\n", "t.tsv"),
    ],
)
def test_tables_that_cannot_be_read(table, place, tmp_path):
    (tmp_path / "t.tsv").write_text(table)
    model, tokenizer = sharp_classifier("bert")
    with pytest.raises(CorpusError, match=place):
        attnviz.ablate(tmp_path / "t.tsv", model, tokenizer=tokenizer, **FEW)


@pytest.mark.parametrize("kind", some_for_everyone("bert", "gpt2", "llama", "distilbert"))
def test_all_parts_sum_to_the_difference_of_the_logits(kind):
    model, tokenizer = sharp_classifier(kind)
    model = model.double() if kind not in ("llama", "gemma2") else model  # whose frequencies would be rounded
    logits = own_logits(model, tokenizer, TEXTS[0])
    result = attnviz.head_outputs(TEXTS[0], model, tokenizer=tokenizer).effects
    first, second = logits.topk(2).indices.tolist()
    assert (result.predicted, result.answer, result.foil.id) == (result.classes[first], result.classes[first], second)
    in_float32 = ("llama", "gemma2", "modernbert", "opt", "opt-350m")  # at least the softmax
    tolerance = SUMS_32 if kind in in_float32 else SHARP_64
    assert result.difference == pytest.approx(float(logits[first] - logits[second]), abs=tolerance)
    assert [each.logit for each in result.classes] == pytest.approx(logits.tolist(), abs=tolerance)
    assert [each.probability for each in result.classes] == pytest.approx(logits.softmax(-1).tolist(), abs=tolerance)
    parts = sum(result.heads.values()) + sum(part.direct_effect for part in result.parts)
    assert parts == pytest.approx(result.difference, abs=tolerance)
    assert len(result.heads) == model.config.num_hidden_layers * model.config.num_attention_heads
    decoders = ("gpt2", "opt", "opt-350m", "llama", "gemma2", "gpt_neo", "gptj", "bloom", "falcon", "falcon-40b")
    assert result.linear == (kind in decoders)
    left = [part.direct_effect for part in result.parts if part.name.endswith(NOT_LINEAR)]
    assert len(left) == (not result.linear)
    assert (kind != "distilbert") or left[0] == pytest.approx(0, abs=tolerance)  # ReLU: linear where units stay on


def test_classes_are_chosen_by_name_or_number():
    model, tokenizer = sharp_classifier("gpt2")

    def of(**classes):
        return attnviz.head_outputs(TEXTS[1], model, tokenizer=tokenizer, **classes).effects

    one, other = of(answer="bad", foil="Good"), of(answer=1, foil="0")
    assert (one.answer.text, one.foil.text) == (other.foil.text, other.answer.text) == ("bad", "good")
    assert [*one.heads.values()] == pytest.approx([-value for value in other.heads.values()], abs=SUMS_32)
    best, second, last = sorted(one.classes, key=lambda each: -each.logit)
    assert (of().answer, of().foil) == (best, second)
    assert (of(foil=best.text).answer, of(answer=last.id).foil) == (second, best)
    classifier = from_loaded(
        *sharp_classifier("bert", id2label={0: "[1]", 1: "True", 2: "1.0"}, label2id=None)
    ).classifier
    for neither in (True, [1], 1.0):
        with pytest.raises(UsageError):
            classifier.number(neither)


def test_wrong_parts_do_not_pass(monkeypatch):
    model, tokenizer = sharp_classifier("bert")
    parts_at = decisions.parts_at

    def wrong(*given):
        first, *others = parts_at(*given)
        return [first, *(1.1 * part for part in others)]

    monkeypatch.setattr(decisions, "parts_at", wrong)
    with pytest.raises(VerificationError):
        attnviz.head_outputs(TEXTS[0], model, tokenizer=tokenizer)
