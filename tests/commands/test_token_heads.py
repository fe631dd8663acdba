"""Checkpoints with a head for classes of tokens: their logits taken apart, beside plain hooks."""

from pathlib import Path
from typing import Any

import pytest
import torch

import attnviz
from attnviz.errors import CheckpointError, UsageError, VerificationError
from attnviz.measures.direct_effects import NOT_LINEAR
from attnviz.measures.predictions import STATES
from attnviz.models.opening import open_checkpoint
from tests.support.classifiers import CARRIER, LABELS, LLAMAS, hand_built_classifier, sharp_classifier
from tests.support.families import first_of
from tests.support.models import save_checkpoint
from tests.support.relatives import KINDS as NEAREST
from tests.support.tolerances import SHARP_32, SUMS_32, SUMS_64

TOKENS, SPANS = "ForTokenClassification", "ForQuestionAnswering"
TEXT = "the cat that i saw ran away"
QUESTION, CONTEXT = "who ran away ?", "the dog saw the cat and ran away ."
BARE: dict[str, Any] = {"num_labels": 2, "id2label": None, "label2id": None}
IN_TURN = (*NEAREST, "modernbert", "gpt2")


@torch.no_grad()
def own_output(model: Any, tokenizer: Any, *texts: str, **more: Any) -> Any:
    return model(**tokenizer(*texts, return_tensors="pt", **more))


def sum_of_parts(effects: Any) -> float:
    total: float = sum(effects.heads.values()) + sum(part.direct_effect for part in effects.parts)
    return total


def doors(model: Any, tokenizer: Any, folder: Path) -> tuple[dict[str, Any], ...]:
    """Arguments of the same model as it is stored and in memory."""
    stored = save_checkpoint(model, tokenizer, folder)
    return {"model": stored, "device": "cpu"}, {"model": model, "tokenizer": tokenizer}


@pytest.mark.draws
@pytest.mark.parametrize(
    "kind", first_of(("bert", *IN_TURN, "esm", "bloom", "falcon", *LLAMAS), "bert", "modernbert", "gpt2")
)
def test_all_parts_sum_to_the_logits_of_a_token(kind: str, tmp_path: Path) -> None:
    model, tokenizer = sharp_classifier(kind, TOKENS)
    logits = own_output(model, tokenizer, TEXT).logits[0]
    first, second = logits[3].topk(2).indices.tolist()
    for given in doors(model, tokenizer, tmp_path):
        result = attnviz.head_outputs(TEXT, token=3, **given).effects
        assert result is not None
        assert (result.position, len(result.classes), result.actual) == (3, 3, None)
        assert result.predicted.text == LABELS[first]
        assert sum_of_parts(result) == pytest.approx(float(logits[3, first] - logits[3, second]), abs=SUMS_32)
        assert [each.logit for each in result.classes] == pytest.approx(logits[3].tolist(), abs=SUMS_32)
        assert result.linear == (kind != "modernbert")
        assert result.linear != any(part.name.endswith(NOT_LINEAR) for part in result.parts)


@torch.no_grad()
def by_hooks(model: Any, tokenizer: Any, layer: int, head: int, position: int) -> torch.Tensor:
    """What a head adds to each logit: what it writes into BERT's last residuals, through layer norms by hand."""
    kept: dict[Any, torch.Tensor] = {}
    bert, hooks, modules = model.bert, list[Any](), dict[Any, Any]()
    for number, block in enumerate(bert.encoder.layer):
        for at, norm in enumerate((block.attention.output.LayerNorm, block.output.LayerNorm)):
            modules[number, at] = norm
        modules[number] = block.attention.output.dense
    for key, module in modules.items():
        hooks.append(module.register_forward_hook(lambda _, given, __, key=key: kept.update({key: given[0]})))
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
    with pytest.raises(UsageError, match="'great'"):
        attnviz.head_outputs(TEXT, model, tokenizer=tokenizer, answer="great")
    with pytest.raises(UsageError):
        attnviz.head_outputs(QUESTION, model, tokenizer=tokenizer, pair=CONTEXT, answer_span="the cat")
    model.config.problem_type = "multi_label_classification"
    with pytest.raises(UsageError):
        attnviz.head_outputs(TEXT, model, tokenizer=tokenizer, answer="good")


def test_a_model_that_returns_other_logits_than_its_head_gives_is_refused() -> None:
    model, tokenizer = sharp_classifier("bert", TOKENS)
    own = model.forward

    def negated(**given: Any) -> Any:
        output = own(**given)
        output.logits = -2 * output.logits
        return output

    model.forward = negated
    with pytest.raises(VerificationError, match="logits"):
        attnviz.head_outputs(TEXT, model, tokenizer=tokenizer)


@pytest.mark.draws
@pytest.mark.parametrize("kind", first_of(("bert", *IN_TURN, "llama", "bloom", "falcon"), "bert", "gpt2"))
def test_all_parts_sum_to_the_logits_of_start_and_end(kind: str, tmp_path: Path) -> None:
    model, tokenizer = sharp_classifier(kind, SPANS, **BARE)
    in_pairs = kind not in ("gpt2", "llama", "bloom", "falcon")
    texts = (QUESTION, CONTEXT) if in_pairs else (f"{QUESTION} {CONTEXT}",)
    more = {"return_token_type_ids": kind in ("bert", "albert", "electra")} if in_pairs else {}
    output = own_output(model, tokenizer, *texts, **more)
    span = "the cat" if kind in ("bert", *IN_TURN) else "#2-#4"
    for given in doors(model, tokenizer, tmp_path)[: 1 if in_pairs else 2]:
        result = attnviz.head_outputs(texts[0], pair=texts[1] if in_pairs else None, answer_span=span, **given)
        pieces = [result.tokens.labels[each.position] for each in (result.effects, result.end_effects) if each]
        assert [piece.strip("▁Ġ ") for piece in pieces] == ["the", "cat"] or not in_pairs or kind == "roberta"
        for effects, logits in ((result.effects, output.start_logits[0]), (result.end_effects, output.end_logits[0])):
            assert effects is not None
            assert sum_of_parts(effects) == pytest.approx(float(logits[effects.position]), abs=SUMS_32)
            probability = float(logits.softmax(-1)[effects.position])
            assert effects.answer.probability == pytest.approx(probability, abs=SUMS_32)
            assert effects.predicted.id == int(logits.argmax())
            assert effects.foil is None


def test_both_classes_of_a_next_sentence_are_divided(tmp_path: Path) -> None:
    model, tokenizer = sharp_classifier("bert", "ForNextSentencePrediction", **BARE)
    with torch.no_grad():
        model.cls.seq_relationship.weight.mul_(20)
    logits = own_output(model, tokenizer, QUESTION, CONTEXT, return_token_type_ids=True).logits[0]
    for given in doors(model, tokenizer, tmp_path):
        effects = attnviz.head_outputs(QUESTION, pair=CONTEXT, answer="next sentence", **given).effects
        assert effects is not None
        assert (effects.position, [each.text for each in effects.classes]) == (0, ["next sentence", "random sentence"])
        assert sum_of_parts(effects) == pytest.approx(float(logits[0] - logits[1]), abs=SUMS_32)


def test_by_default_the_best_answer_in_the_context_is_divided() -> None:
    model, tokenizer = sharp_classifier("bert", SPANS, **BARE)
    output = own_output(model, tokenizer, QUESTION, CONTEXT)
    start, end = output.start_logits[0], output.end_logits[0]
    first, last = len(tokenizer(QUESTION).input_ids), len(start) - 1
    _, *best = max((float(start[s] + end[e]), s, e) for s in range(first, last) for e in range(s, last))
    result = attnviz.head_outputs(QUESTION, model, tokenizer=tokenizer, pair=CONTEXT)
    assert [each.position for each in (result.effects, result.end_effects) if each] == best


@pytest.mark.parametrize(
    "given",
    [{"answer": "start"}, {"token": 3}, *({"answer_span": each} for each in ("house", "the", "last", "#90", "")),
     {"answer_span": "#0-#1"}, {"answer_span": "#4-#6"}],
)  # fmt: skip
def test_answers_that_are_no_stretch_of_the_context_are_refused(given: dict[str, Any]) -> None:
    model, tokenizer = sharp_classifier("bert", SPANS, **BARE)
    with pytest.raises(UsageError):
        attnviz.head_outputs(QUESTION, model, tokenizer=tokenizer, pair=CONTEXT, **given)


def test_a_head_for_answers_of_three_numbers_is_refused() -> None:
    model, tokenizer = sharp_classifier("bert", SPANS, **{**BARE, "num_labels": 3})
    with pytest.raises(CheckpointError, match="num_labels"):
        attnviz.head_outputs(QUESTION, model, tokenizer=tokenizer, pair=CONTEXT)


def test_a_head_that_is_not_divided_is_named(tmp_path: Path) -> None:
    stored = save_checkpoint(*sharp_classifier("bert", "ForMultipleChoice"), tmp_path)
    result = attnviz.head_outputs(QUESTION, stored, pair=CONTEXT, device="cpu")
    assert result.effects is None
    assert "BertForMultipleChoice" in result.no_effects
