"""Checkpoints with a head for sequence classification: read, ablated by class, and their decision taken apart."""

import copy
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax

import attnviz
from attnviz.commands.ablate.inputs import CLASS, LABELLED, STATES
from attnviz.errors import CorpusError, UsageError, VerificationError
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.models.opening import open_checkpoint
from attnviz.trace import direct_effects as decisions
from attnviz.trace.direct_effects import NOT_LINEAR
from tests.support.ablations import TEXTS, output_map, without
from tests.support.classifiers import CARRIER, KINDS, LABELS, hand_built_classifier, sharp_classifier
from tests.support.models import save_checkpoint
from tests.support.tolerances import SHARP_32, SHARP_64, SUMS_32

GIVEN = ["good", "bad", "so-so", "bad"]
FEW = {"curve": False, "gradient": False}


@torch.no_grad()
def own_logits(model: Any, tokenizer: Any, text: str) -> torch.Tensor:
    """[n_classes], by transformers alone."""
    logits: torch.Tensor = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits[0]
    return logits.double()


@pytest.mark.draws
@pytest.mark.parametrize("kind", KINDS)
def test_the_head_gives_the_models_own_logits(kind, tmp_path):
    model, tokenizer = sharp_classifier(kind)
    stored, _ = open_checkpoint(save_checkpoint(model, tokenizer, tmp_path), device="cpu")
    for checkpoint in (stored, open_checkpoint(model, tokenizer)[0]):
        assert checkpoint.classifier is not None
        assert checkpoint.classifier.labels == tuple(LABELS.values())
        assert checkpoint.language_head is None
        tokens = checkpoint.tokenize(TEXTS[0])
        with torch.no_grad():
            states = checkpoint.model(**tokens.model_inputs(checkpoint.device))[0][0]
            logits = checkpoint.classifier.head(states[checkpoint.classifier.position(tokens.ids)])
        torch.testing.assert_close(logits.double(), own_logits(model, tokenizer, TEXTS[0]), rtol=SUMS_32, atol=SUMS_32)


def test_a_text_that_ends_with_padding_is_read_before_it():
    checkpoint, _ = open_checkpoint(*sharp_classifier("gpt2"))
    assert checkpoint.classifier is not None
    assert checkpoint.classifier.position([5, 6, 0, 0]) == 1
    assert checkpoint.classifier.position([0, 0]) == 0


@pytest.mark.parametrize("changes", [{"num_labels": 1}, {"problem_type": "multi_label_classification"}])
def test_outputs_that_are_no_classes_are_not_taken_for_classes(changes):
    model, tokenizer = sharp_classifier("bert", **{"id2label": None, **changes})
    result = attnviz.ablate(TEXTS, model, tokenizer=tokenizer, **FEW)
    assert result.kind == STATES
    with pytest.raises(UsageError, match="not classes"):
        attnviz.ablate(TEXTS, model, tokenizer=tokenizer, label=0, **FEW)
    with pytest.raises(UsageError, match="not classes"):
        attnviz.head_outputs(TEXTS[0], model, tokenizer=tokenizer, answer=0)
    assert attnviz.head_outputs(TEXTS[0], model, tokenizer=tokenizer).effects is None


def test_a_head_without_its_weights_is_none(tmp_path):
    from safetensors.torch import load_file, save_file

    for lost, kind in (("bert.pooler.dense.weight", "bert"), ("score.weight", "gpt2")):
        folder = save_checkpoint(*sharp_classifier(kind), tmp_path / kind)
        weights = load_file(folder / "model.safetensors")
        del weights[lost]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        assert open_checkpoint(folder, device="cpu")[0].classifier is None


@pytest.mark.draws
@pytest.mark.parametrize("method", ["zero", "mean"])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_every_head_is_removed_as_by_transformers(kind, method, tmp_path):
    model, tokenizer = sharp_classifier(kind)
    table = tmp_path / "t.tsv"
    table.write_text("".join(f"{text}\t{label}\n" for text, label in zip(TEXTS, GIVEN, strict=True)))
    labelled = attnviz.ablate(table, model, tokenizer=tokenizer, method=method, **FEW)
    free = attnviz.ablate(TEXTS, model, tokenizer=tokenizer, method=method, **FEW)
    classes = torch.tensor([list(LABELS.values()).index(label) for label in GIVEN])

    def predicted(model: Any) -> torch.Tensor:
        return log_softmax(torch.stack([own_logits(model, tokenizer, text) for text in TEXTS]), -1)

    def loss(predicted: torch.Tensor) -> float:
        return -float(predicted.gather(1, classes[:, None]).mean())

    def margin(predicted: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        rows = zip(predicted, of.tolist(), strict=True)
        return torch.stack(
            [row[label] - max(value for i, value in enumerate(row) if i != label) for row, label in rows]
        )

    whole = predicted(model)
    assert (labelled.kind, free.kind) == (LABELLED, CLASS)
    assert labelled.clean_loss == pytest.approx(loss(whole), abs=SUMS_32)
    assert labelled.clean_accuracy == (whole.argmax(-1) == classes).double().mean()
    assert (free.clean_loss, free.clean_accuracy) == (None, None)
    for layer in range(3):
        for head in range(4):
            less = predicted(without(model, tokenizer, [(layer, head)], method))
            divergence = float((whole.exp() * (whole - less)).sum(-1).mean())
            of_labels, of_classes = (result.head(HeadId(layer, head)).damage for result in (labelled, free))
            assert of_labels["loss"].value == pytest.approx(loss(less) - loss(whole), abs=SUMS_32)
            assert of_labels["kl"].value == pytest.approx(divergence, abs=SUMS_32)
            assert of_classes["kl"].value == pytest.approx(divergence, abs=SUMS_32)
            for damage, of in ((of_labels, classes), (of_classes, whole.argmax(-1))):
                fall = margin(whole, of) - margin(less, of)
                assert damage["margin"].value == pytest.approx(float(fall.mean()), abs=SUMS_32)
            assert of_classes["changed"].value == (less.argmax(-1) != whole.argmax(-1)).double().mean()


@pytest.mark.parametrize("with_labels", [True, False])
@pytest.mark.parametrize("scale", [1, 100])
def test_where_losses_are_near_zero_heads_are_ordered_by_the_margin(scale, with_labels, tmp_path):
    """Logits times 100 make the same decisions, so surely that losses hardly change."""
    model, tokenizer = sharp_classifier("bert")
    with torch.no_grad():
        model.classifier.weight *= scale
        model.classifier.bias *= scale
    logits = torch.stack([own_logits(model, tokenizer, text) for text in TEXTS])
    decided = logits.argmax(-1).tolist()
    table = tmp_path / "t.tsv"
    table.write_text("".join(f"{text}\t{at}\n" for text, at in zip(TEXTS, decided, strict=True)))
    texts: Any = table if with_labels else TEXTS
    saturated = float((-logits.log_softmax(-1).amax(-1) < 0.05).double().mean())
    results = {
        name: attnviz.ablate(texts, model, tokenizer=tokenizer, method="zero", order_by=name, gradient=False)
        for name in (None, "margin", "kl")
    }
    assert (saturated > 0.5) == (scale == 100)
    default = results[None]
    assert default.saturated == saturated
    assert default.options["order_by"] == ("margin" if scale == 100 else "loss" if with_labels else "kl")
    assert default.document()["measured"]["importance"] == default.metrics[0].name == default.options["order_by"]
    for result in results.values():
        effects = [head.damage[result.options["order_by"]].value for head in result.heads]
        assert effects == sorted(effects, reverse=True)
        assert result.curve is not None
        assert result.curve.order == tuple(head.id for head in reversed(result.heads))
    assert ("--order-by" in default.report()) == (scale == 100)
    assert "--order-by" not in results["kl"].report()


def test_heads_are_ordered_by_a_metric_that_the_model_has():
    model, tokenizer = sharp_classifier("bert")
    with pytest.raises(UsageError, match="kl, changed, margin"):
        attnviz.ablate(TEXTS, model, tokenizer=tokenizer, order_by="loss", **FEW)


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
    assert effects is not None
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
    assert result.clean_loss == pytest.approx(float(sum(losses)) / len(losses), abs=SUMS_32)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("the cat\tgood\none two\tgreat\n", "t.tsv:2"),
        ("the cat\t3\n", "no class '3'"),
        ("the cat\t\n", "t.tsv:1"),
        ("the cat\tgood\none\ttwo\tbad\n", "t.tsv:2"),
        ("text\tlabel\nthe cat\tgood\none two\t\n", "t.tsv:3.*label"),
        ("text\tlabel\n", "is empty"),
    ],
)
def test_tables_that_cannot_be_read(table, message, tmp_path):
    (tmp_path / "t.tsv").write_text(table)
    model, tokenizer = sharp_classifier("bert")
    with pytest.raises(CorpusError, match=message):
        attnviz.ablate(tmp_path / "t.tsv", model, tokenizer=tokenizer, **FEW)


@pytest.mark.parametrize("kind", KINDS)
def test_all_parts_sum_to_the_difference_of_the_logits(kind):
    model, tokenizer = sharp_classifier(kind)
    model = model.double() if kind not in ("llama", "gemma2") else model  # whose frequencies would be rounded
    logits = own_logits(model, tokenizer, TEXTS[0])
    result = attnviz.head_outputs(TEXTS[0], model, tokenizer=tokenizer).effects
    assert result is not None
    first, second = logits.topk(2).indices.tolist()
    assert (result.predicted, result.answer) == (result.classes[first], result.classes[first])
    assert result.foil.id == second
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


@pytest.mark.parametrize("named", [True, [1], 1.0])
def test_what_is_neither_a_name_nor_a_number_is_no_class(named):
    model, tokenizer = sharp_classifier("bert", id2label={0: "[1]", 1: "True", 2: "1.0"}, label2id=None)
    classifier = from_loaded(model, tokenizer).classifier
    assert classifier is not None
    with pytest.raises(UsageError):
        classifier.number(named)


def test_classes_are_chosen_by_name_or_number():
    model, tokenizer = sharp_classifier("gpt2")

    def of(**classes: Any) -> Any:
        return attnviz.head_outputs(TEXTS[1], model, tokenizer=tokenizer, **classes).effects

    one, other = of(answer="bad", foil="Good"), of(answer=1, foil="0")
    assert (one.answer.text, one.foil.text) == (other.foil.text, other.answer.text) == ("bad", "good")
    assert [*one.heads.values()] == pytest.approx([-value for value in other.heads.values()], abs=SUMS_32)
    best, second, last = sorted(one.classes, key=lambda each: -each.logit)
    assert (of().answer, of().foil) == (best, second)
    assert (of(foil=best.text).answer, of(answer=last.id).foil) == (second, best)


def test_wrong_parts_do_not_pass(monkeypatch):
    model, tokenizer = sharp_classifier("bert")
    linearised, parts_at = decisions._linearised, decisions.parts_at
    for of, name, wrong in (
        (
            decisions,
            "parts_at",
            lambda *given: [part if at == 0 else 1.1 * part for at, part in enumerate(parts_at(*given))],
        ),
        (decisions, "_linearised", lambda *given: (1.1 * linearised(*given)[0], linearised(*given)[1])),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(of, name, wrong)
            with pytest.raises(VerificationError, match="sum to"):
                attnviz.head_outputs(TEXTS[0], model, tokenizer=tokenizer)
