"""Checkpoints with a head for classes of tokens: their logits taken apart, beside plain hooks."""

from pathlib import Path
from typing import Any

import pytest
import torch

import attnviz
from attnviz.commands.ablate.inputs import STATES
from attnviz.errors import UsageError, VerificationError
from attnviz.models.opening import open_checkpoint
from attnviz.trace.direct_effects import NOT_LINEAR
from tests.support.classifiers import CARRIER, LABELS, LLAMAS, hand_built_classifier, sharp_classifier
from tests.support.models import save_checkpoint
from tests.support.relatives import KINDS as NEAREST
from tests.support.tolerances import SHARP_32, SUMS_32, SUMS_64

TOKENS = "ForTokenClassification"
TEXT = "the cat that i saw ran away"
KINDS = ("bert", *NEAREST, "modernbert", "esm", "bloom", "falcon", "gpt2", *LLAMAS)


@torch.no_grad()
def own_logits(model: Any, tokenizer: Any, *texts: str) -> torch.Tensor:
    """[n, n_classes], by transformers alone."""
    logits: torch.Tensor = model(**tokenizer(*texts, return_tensors="pt")).logits[0]
    return logits.double()


@pytest.mark.draws
@pytest.mark.parametrize("kind", KINDS)
def test_all_parts_sum_to_the_logits_of_a_token(kind: str, tmp_path: Path) -> None:
    model, tokenizer = sharp_classifier(kind, TOKENS)
    stored = save_checkpoint(model, tokenizer, tmp_path)
    logits = own_logits(model, tokenizer, TEXT)
    for given in ({"model": stored, "device": "cpu"}, {"model": model, "tokenizer": tokenizer}):
        result = attnviz.head_outputs(TEXT, token=3, **given).effects
        assert result is not None
        assert (result.position, len(result.classes), result.actual) == (3, 3, None)
        assert result.predicted.text == LABELS[int(logits[3].argmax())]
        first, second = logits[3].topk(2).indices.tolist()
        parts = sum(result.heads.values()) + sum(part.direct_effect for part in result.parts)
        assert parts == pytest.approx(float(logits[3, first] - logits[3, second]), abs=SUMS_32)
        assert [each.logit for each in result.classes] == pytest.approx(logits[3].tolist(), abs=SUMS_32)
        assert result.linear == (kind != "modernbert")
        assert result.linear != any(part.name.endswith(NOT_LINEAR) for part in result.parts)


@torch.no_grad()
def by_hooks(model: Any, tokenizer: Any, layer: int, head: int, position: int) -> torch.Tensor:
    """What a head adds to each logit: what it writes into BERT's last residuals, through layer norms by hand."""
    kept: dict[Any, torch.Tensor] = {}
    bert, hooks = model.bert, []
    for number, block in enumerate(bert.encoder.layer):
        for at, norm in enumerate((block.attention.output.LayerNorm, block.output.LayerNorm)):
            hooks.append(
                norm.register_forward_hook(lambda _, given, __, key=(number, at): kept.update({key: given[0]}))
            )
        hooks.append(block.attention.output.dense.register_forward_hook(
            lambda _, given, __, key=number: kept.update({key: given[0]})
        ))  # fmt: skip
    model(**tokenizer(TEXT, return_tensors="pt"))
    for hook in hooks:
        hook.remove()
    width = model.config.hidden_size // model.config.num_attention_heads
    rows = slice(head * width, (head + 1) * width)
    written = bert.encoder.layer[layer].attention.output.dense.weight[:, rows] @ kept[layer][0, position, rows]
    for number in range(layer, model.config.num_hidden_layers):
        block = bert.encoder.layer[number]
        for at, norm in enumerate((block.attention.output.LayerNorm, block.output.LayerNorm)):
            deviation = (kept[number, at][0, position].var(unbiased=False) + norm.eps).sqrt()
            written = norm.weight * (written - written.mean()) / deviation
    return model.classifier.weight @ written


def test_the_effect_of_a_head_is_what_plain_hooks_give() -> None:
    model, tokenizer = sharp_classifier("bert", TOKENS)
    model.double()
    effects = attnviz.head_outputs(TEXT, model, tokenizer=tokenizer, token="cat", answer="good", foil=0).effects
    assert effects is not None
    assert tokenizer(TEXT).tokens()[effects.position] == "cat"
    for head, value in effects.heads.items():
        added = by_hooks(model, tokenizer, head.layer, head.head, effects.position)
        assert value == pytest.approx(float(added[1] - added[0]), abs=SUMS_64)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_head_that_alone_writes_the_class_is_found(kind: str) -> None:
    model, tokenizer = hand_built_classifier(kind, TOKENS)
    effects = attnviz.head_outputs(TEXT, model, tokenizer=tokenizer, token="cat", answer="good").effects
    assert effects is not None
    assert abs(effects.heads[CARRIER]) == pytest.approx(abs(effects.difference), abs=SHARP_32)
    assert abs(effects.difference) > 0.1
    others = [value for name, value in effects.heads.items() if name != CARRIER]
    assert others == pytest.approx([0.0] * 11, abs=SUMS_32)


def test_by_default_the_last_word_is_read_and_of_a_word_its_first_piece() -> None:
    model, tokenizer = sharp_classifier("bert", TOKENS)
    text = "the unbelievable cat"
    pieces = tokenizer(text).tokens()
    assert pieces[2:5] == ["un", "##believ", "##able"]
    result = attnviz.head_outputs(text, model, tokenizer=tokenizer)
    assert result.effects is not None
    assert result.effects.position == len(pieces) - 2
    assert result.effects_at("unbelievable").position == 2


def test_what_is_not_for_classes_of_tokens_is_refused_and_other_commands_are_as_they_were() -> None:
    model, tokenizer = sharp_classifier("bert", TOKENS)
    assert open_checkpoint(model, tokenizer)[0].classifier is None
    result = attnviz.ablate([TEXT], model, tokenizer=tokenizer, curve=False, gradient=False, select="L1")
    assert result.kind == STATES
    with pytest.raises(UsageError, match="no class 'great'"):
        attnviz.head_outputs(TEXT, model, tokenizer=tokenizer, answer="great")
    model.config.problem_type = "multi_label_classification"
    with pytest.raises(UsageError, match="not classes"):
        attnviz.head_outputs(TEXT, model, tokenizer=tokenizer, answer="good")


def test_a_model_that_returns_other_logits_than_its_head_gives_is_refused() -> None:
    model, tokenizer = sharp_classifier("bert", TOKENS)
    own = model.forward

    def negated(**given: Any) -> Any:
        output = own(**given)
        output.logits = -2 * output.logits
        return output

    model.forward = negated
    with pytest.raises(VerificationError, match="does not give the logits"):
        attnviz.head_outputs(TEXT, model, tokenizer=tokenizer)


SPANS = "ForQuestionAnswering"
QUESTION, CONTEXT = "who ran away ?", "the dog saw the cat and ran away ."
IN_PAIRS = ("bert", *NEAREST, "modernbert", "gpt2")


@pytest.mark.draws
@pytest.mark.parametrize("kind", IN_PAIRS)
def test_all_parts_sum_to_the_logits_of_start_and_end(kind: str, tmp_path: Path) -> None:
    model, tokenizer = sharp_classifier(kind, SPANS, num_labels=2, id2label=None, label2id=None)
    stored = save_checkpoint(model, tokenizer, tmp_path)
    texts = (QUESTION, CONTEXT) if kind != "gpt2" else (f"{QUESTION} {CONTEXT}",)
    with torch.no_grad():
        output = model(
            **tokenizer(*texts, return_tensors="pt", return_token_type_ids=kind in ("bert", "albert", "electra"))
        )
    result = attnviz.head_outputs(*texts[:1], stored, pair=(*texts, None)[1], answer_span="the cat", device="cpu")
    pieces = [result.tokens.labels[each.position] for each in (result.effects, result.end_effects) if each]
    assert [piece.strip("▁Ġ ") for piece in pieces] == ["the", "cat"] or kind in ("roberta", "gpt2")
    for effects, logits in ((result.effects, output.start_logits[0]), (result.end_effects, output.end_logits[0])):
        assert effects is not None
        parts = sum(effects.heads.values()) + sum(part.direct_effect for part in effects.parts)
        assert parts == pytest.approx(float(logits[effects.position]), abs=SUMS_32)
        assert effects.answer.probability == pytest.approx(float(logits.softmax(-1)[effects.position]), abs=SUMS_32)
        assert effects.predicted.id == int(logits.argmax())
        assert effects.foil is None


@pytest.mark.parametrize("kind", ["llama", "bloom", "falcon"])
def test_decoders_have_start_and_end_too(kind: str, tmp_path: Path) -> None:
    model, tokenizer = sharp_classifier(kind, SPANS, num_labels=2, id2label=None, label2id=None)
    with torch.no_grad():
        output = model(**tokenizer(CONTEXT, return_tensors="pt"))
    for given in (
        {"model": save_checkpoint(model, tokenizer, tmp_path), "device": "cpu"},
        {"model": model, "tokenizer": tokenizer},
    ):
        result = attnviz.head_outputs(CONTEXT, answer_span="#2-#4", **given)
        for effects, logits in ((result.effects, output.start_logits[0]), (result.end_effects, output.end_logits[0])):
            assert effects is not None
            parts = sum(effects.heads.values()) + sum(part.direct_effect for part in effects.parts)
            assert parts == pytest.approx(float(logits[effects.position]), abs=SUMS_32)


def test_both_classes_of_a_next_sentence_are_divided(tmp_path: Path) -> None:
    task = "ForNextSentencePrediction"
    model, tokenizer = sharp_classifier("bert", task, num_labels=2, id2label=None, label2id=None)
    with torch.no_grad():
        model.cls.seq_relationship.weight.mul_(20)
        logits = model(**tokenizer(QUESTION, CONTEXT, return_tensors="pt", return_token_type_ids=True)).logits[0]
    stored = save_checkpoint(model, tokenizer, tmp_path)
    for given in ({"model": stored, "device": "cpu"}, {"model": model, "tokenizer": tokenizer}):
        effects = attnviz.head_outputs(QUESTION, pair=CONTEXT, answer="next sentence", **given).effects
        assert effects is not None
        assert (effects.position, [each.text for each in effects.classes]) == (0, ["next sentence", "random sentence"])
        parts = sum(effects.heads.values()) + sum(part.direct_effect for part in effects.parts)
        assert parts == pytest.approx(float(logits[0] - logits[1]), abs=SUMS_32)


def test_by_default_the_best_answer_in_the_context_is_divided() -> None:
    model, tokenizer = sharp_classifier("bert", SPANS, num_labels=2, id2label=None, label2id=None)
    with torch.no_grad():
        output = model(**tokenizer(QUESTION, CONTEXT, return_tensors="pt"))
    start, end = output.start_logits[0], output.end_logits[0]
    first, last = len(tokenizer(QUESTION).input_ids), len(start) - 1
    _, *best = max((float(start[s] + end[e]), s, e) for s in range(first, last) for e in range(s, last))
    result = attnviz.head_outputs(QUESTION, model, tokenizer=tokenizer, pair=CONTEXT)
    assert [each.position for each in (result.effects, result.end_effects) if each] == best


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"answer": "start"}, "answer-span"),
        ({"token": 3}, "answer-span"),
        ({"answer_span": "house"}, "no “house”"),
        ({"answer_span": "the"}, "2 times"),
        ({"answer_span": "last"}, r"expected TEXT, TEXT#2 .*, #10-#40 .* or a special token"),
        ({"answer_span": "#90"}, "positions"),
        ({"answer_span": ""}, "empty"),
        ({"answer_span": "#0-#1"}, "context"),
        ({"answer_span": "#4-#6"}, "context"),
    ],
)
def test_answers_that_are_no_stretch_of_the_context_are_refused(given: dict[str, Any], word: str) -> None:
    model, tokenizer = sharp_classifier("bert", SPANS, num_labels=2, id2label=None, label2id=None)
    with pytest.raises(UsageError, match=word):
        attnviz.head_outputs(QUESTION, model, tokenizer=tokenizer, pair=CONTEXT, **given)


def test_an_answer_span_is_for_question_answering_alone() -> None:
    model, tokenizer = sharp_classifier("bert", TOKENS)
    with pytest.raises(UsageError, match="token classification"):
        attnviz.head_outputs(QUESTION, model, tokenizer=tokenizer, pair=CONTEXT, answer_span="the cat")


def test_a_head_that_is_not_divided_is_named(tmp_path: Path) -> None:
    stored = save_checkpoint(*sharp_classifier("bert", "ForMultipleChoice"), tmp_path)
    result = attnviz.head_outputs(QUESTION, stored, pair=CONTEXT, device="cpu")
    assert result.effects is None
    assert "BertForMultipleChoice" in result.no_effects
