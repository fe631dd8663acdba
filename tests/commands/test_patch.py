"""patch: the output of a head on one prompt in the run of another, beside plain hooks on transformers' own models."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import kl_div
from transformers import BertForMaskedLM

import attnviz
from attnviz.commands.ablate.effects import PassVerifier
from attnviz.errors import AttnvizError, CorpusError, TextError, UsageError, VerificationError
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.models.opening import open_checkpoint
from attnviz.trace.removal import Replacement, removed_heads, resume, run_and_keep, running
from tests.support import models
from tests.support.ablations import copying_gpt2, next_token_model
from tests.support.classifiers import sharp_classifier
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.tolerances import SHARP_32, SHARP_64, SUMS_32, SUMS_64

Paired = tuple[str, str, str, str]
"""Clean and corrupt prompt, answer and foil."""


def tiny_gpt2() -> tuple[Any, Any, Any]:
    checkpoint, _ = open_checkpoint("tiny-gpt2", device="cpu", dtype="float64")
    model: Any = checkpoint.whole
    return model, checkpoint.tokenizer, [block.attn.c_proj for block in model.transformer.h]


def llama() -> tuple[Any, Any, Any]:
    model = sharp_llama().double()
    return model, sentencepiece_tokenizer(), [layer.self_attn.o_proj for layer in model.model.layers]


def bert() -> tuple[Any, Any, Any]:
    model = sharp_bert(model_class=BertForMaskedLM).double()
    return model, bert_tokenizer(), [layer.attention.output.dense for layer in model.bert.encoder.layer]


def classifier() -> tuple[Any, Any, Any]:
    model, tokenizer = sharp_classifier("bert")
    return model.double(), tokenizer, [layer.attention.output.dense for layer in model.bert.encoder.layer]


KINDS: dict[str, tuple[Callable[[], tuple[Any, Any, Any]], Paired]] = {
    "tiny-gpt2": (
        tiny_gpt2, ("one two three four five one two three", "one two three five four one two three", " four", " five")
    ),
    "llama": (llama, ("the cat ran to the", "the dog ran to the", "house", "dog")),
    "bert": (bert, ("the cat [MASK] away", "the dog [MASK] away", "ran", "saw")),
    "classifier": (classifier, ("the cat ran away", "the dog ran away", "good", "bad")),
}  # fmt: skip


def log_probabilities(kind: str, model: Any, tokenizer: Any, text: str) -> torch.Tensor:
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits[0]
    ids = inputs["input_ids"][0].tolist()
    at = ids.index(tokenizer.mask_token_id) if kind == "bert" else -1
    return (logits if kind == "classifier" else logits[at]).log_softmax(-1)


def id_of(kind: str, model: Any, tokenizer: Any, name: str) -> int:
    if kind == "classifier":
        return int(model.config.label2id[name])
    return int(tokenizer(name, add_special_tokens=False)["input_ids"][0])


@pytest.mark.draws
@pytest.mark.parametrize("metric", ["logit_difference", "loss", "kl"])
@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize("kind", KINDS)
def test_effects_are_those_of_a_plain_hook(
    kind: str, direction: str, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every head, in float64, at all tokens and at two."""
    monkeypatch.setattr("attnviz.commands.patch.measure._LEAST", 0.0)  # untrained models hardly tell prompts apart
    make, (clean, corrupt, answer, foil) = KINDS[kind]
    model, tokenizer, outputs = make()
    right, wrong = (id_of(kind, model, tokenizer, name) for name in (answer, foil))
    reference = log_probabilities(kind, model, tokenizer, clean)

    def measured(found: torch.Tensor) -> float:
        if metric == "kl":
            return float(kl_div(found, reference, reduction="sum", log_target=True))
        return float(-found[right] if metric == "loss" else found[right] - found[wrong])

    into, source = (corrupt, clean) if direction == "denoise" else (clean, corrupt)
    saved: dict[int, torch.Tensor] = {}
    hooks = [
        module.register_forward_pre_hook(lambda _, given, layer=layer: saved.update({layer: given[0].clone()}))
        for layer, module in enumerate(outputs)
    ]
    log_probabilities(kind, model, tokenizer, source)
    for hook in hooks:
        hook.remove()
    unpatched, whole = (measured(log_probabilities(kind, model, tokenizer, text)) for text in (into, source))
    d_head = saved[0].shape[2] // model.config.num_attention_heads
    prompts: dict[str, Any] = {"corrupt": corrupt, "answer": answer, "foil": foil}
    for at, tokens in (([], slice(None)), (["#1", "last"], [1, saved[0].shape[1] - 1])):
        result = attnviz.patch(clean, model, tokenizer=tokenizer, **prompts, direction=direction, metric=metric, at=at)
        if not at:
            pair = (unpatched, whole) if direction == "noise" else (whole, unpatched)
            assert (result.clean, result.corrupt) == pytest.approx(pair, abs=SHARP_64)
        for head in result.heads:
            where = slice(d_head * head.id.head, d_head * (head.id.head + 1))

            def patched(_: Any, given: Any, layer: int = head.id.layer, where: slice = where, at: Any = tokens) -> Any:
                values = given[0].clone()
                values[:, at, where] = saved[layer][:, at, where]
                return (values,)

            hook = outputs[head.id.layer].register_forward_pre_hook(patched)
            found = measured(log_probabilities(kind, model, tokenizer, into))
            hook.remove()
            assert head.effect == pytest.approx((found - unpatched) / (whole - unpatched), abs=SUMS_32), head.id


SPANNED: dict[str, tuple[str, list[str], tuple[list[int], list[int]]]] = {
    "tiny-gpt2": (
        "six one two three five four one two three",
        ["swap= four five", "swap= five four", "end=one two three#2"],
        ([3, 4, 5, 6, 7], [5, 6, 7, 8, 9]),
    ),
    "llama": (
        "the dog saw the cat ran to the",
        ["animal=cat", "animal=dog", "went=ran to"],
        ([2, 3, 4, 5], [2, 6, 7, 8]),
    ),
    "bert": ("the dog saw the cat [MASK] away", ["animal=cat", "animal=dog", "gap=[MASK]"], ([2, 3], [2, 6])),
    "classifier": ("the dog saw the cat ran away", ["animal=cat", "animal=dog", "how=away"], ([2, 4], [2, 7])),
}


@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize("kind", SPANNED)
def test_spans_of_prompts_of_other_lengths_are_those_of_a_plain_hook(
    kind: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnviz.commands.patch.measure._LEAST", 0.0)
    make, (clean, _, answer, foil) = KINDS[kind]
    corrupt, spans, positions = SPANNED[kind]
    model, tokenizer, outputs = make()
    right, wrong = (id_of(kind, model, tokenizer, name) for name in (answer, foil))

    def measured(text: str) -> float:
        found = log_probabilities(kind, model, tokenizer, text)
        return float(found[right] - found[wrong])

    into, source, to, of = corrupt, clean, *positions[::-1]
    if direction == "noise":
        into, source, to, of = clean, corrupt, *positions
    saved: dict[int, torch.Tensor] = {}
    hooks = [
        module.register_forward_pre_hook(lambda _, given, layer=layer: saved.update({layer: given[0].clone()}))
        for layer, module in enumerate(outputs)
    ]
    whole = measured(source)
    for hook in hooks:
        hook.remove()
    unpatched = measured(into)
    d_head = saved[0].shape[2] // model.config.num_attention_heads
    prompts: dict[str, Any] = {"corrupt": corrupt, "answer": answer, "foil": foil, "direction": direction}
    result = attnviz.patch(clean, model, tokenizer=tokenizer, **prompts, spans=spans)
    assert (result.clean, result.corrupt) == pytest.approx((measured(clean), measured(corrupt)), abs=SHARP_64)
    assert max(abs(head.effect) for head in result.heads) > 1e-3
    for head in result.heads:

        def patched(_: Any, given: Any, head: HeadId = head.id) -> Any:
            values = given[0].clone()
            where = slice(d_head * head.head, d_head * (head.head + 1))
            values[:, to, where] = saved[head.layer][:, of, where]
            return (values,)

        hook = outputs[head.id.layer].register_forward_pre_hook(patched)
        expected = (measured(into) - unpatched) / (whole - unpatched)
        hook.remove()
        assert head.effect == pytest.approx(expected, abs=SUMS_32), head.id


SPAN_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"spans": "cat ran"}, "NAME=TEXT"),
    ({"spans": "animal=cat"}, "the corrupt prompt: .*“cat”.*twice"),
    ({"spans": ["animal=cat", "animal=dog#2"]}, r"1 time; name one: dog#1\.$"),
    ({"spans": ["animal=cat", "animal=big dog"]}, "found 1 .* and 4"),
    ({"spans": ["animal=cat", "animal=dog", "animal=ran"]}, "3 times"),
    ({"spans": ["animal=cat", "animal=dog", "all=cat ran", "all=dog ran"]}, "clean prompt; name stretches apart"),
    ({"spans": "verb=ran", "at": "last", "receiver": "logits"}, "--at .* and --to"),
    ({"spans": "verb=ran", "self_repair": True}, "--self-repair"),
]


@pytest.mark.parametrize(("options", "word"), SPAN_ERRORS, ids=str)
def test_spans_that_do_not_align_are_refused(options: dict[str, Any], word: str) -> None:
    model, tokenizer = next_token_model()
    with pytest.raises(UsageError, match=word) as raised:
        attnviz.patch("the cat ran", model, tokenizer=tokenizer, corrupt="the big dog ran", **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
def test_all_heads_and_the_embeddings_of_the_other_prompt_are_its_run(kind: str) -> None:
    make, (clean, corrupt, *_) = KINDS[kind]
    model, tokenizer, _ = make()
    checkpoint = from_loaded(model, tokenizer)
    inputs = [checkpoint.tokenize(text).model_inputs(checkpoint.device) for text in (clean, corrupt)]
    with running(checkpoint):
        source, into = (run_and_keep(checkpoint, each) for each in inputs)
        every = frozenset(
            HeadId(layer, head) for layer in checkpoint.layers for head in range(checkpoint.n_heads_of(layer))
        )
        replacement = Replacement("patch", values=source.o_proj)
        for embeddings, same in ((source, True), (into, False)):
            begun = replace(into, calls={**into.calls, 0: embeddings.calls[0]})
            with removed_heads(checkpoint, [every], replacement, inputs[0]["attention_mask"]):
                final = resume(checkpoint, begun, 0)
            assert torch.allclose(final, source.final, atol=SUMS_64, rtol=0) == same


def test_both_prompts_are_verified_and_what_does_not_verify_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    make, (clean, corrupt, *_) = KINDS["tiny-gpt2"]
    model, tokenizer, _ = make()
    verify, seen = PassVerifier.verify, []

    def spoiled(self: Any, inputs: Any, kept: Any, resumed: bool) -> None:
        seen.append(inputs.inputs[0].item.source.text)
        if len(seen) > 1:
            kept.o_proj[1][0, 2] += 0.1
        verify(self, inputs, kept, resumed)

    assert attnviz.patch(clean, model, tokenizer=tokenizer, corrupt=corrupt).verified.n_inputs == 2
    monkeypatch.setattr(PassVerifier, "verify", spoiled)
    with pytest.raises(VerificationError, match="L1H"):
        attnviz.patch(clean, model, tokenizer=tokenizer, corrupt=corrupt)
    assert set(seen) == {clean, corrupt}


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_the_head_that_alone_decides_carries_all(direction: str) -> None:
    model, tokenizer = copying_gpt2()  # it predicts the token before the last one, by L0H0
    prompts = {"clean": "the cat ran", "corrupt": "the dog ran", "answer": " cat", "foil": " dog"}
    result = attnviz.patch(model=model, tokenizer=tokenizer, direction=direction, **prompts)
    assert result.clean > 1
    assert result.corrupt < -1
    assert str(result.heads[0].id) == "L0H0"
    assert result.heads[0].effect == pytest.approx(1, abs=0.05)
    assert max(abs(head.effect) for head in result.heads[1:]) < 0.05


WORDS = [word for word in models.WORDS[:30] if word not in ("the", "in")]


def table(folder: Path, n: int = 40) -> tuple[Path, list[dict[str, str]]]:
    """Pairs of two lengths; of one length a single pair."""
    rows = []
    for number in range(n):
        one, other = (WORDS[(number * step + step) % len(WORDS)] for step in (1, 3))
        last = WORDS[(number * 7 + 7 + number // len(WORDS)) % len(WORDS)]  # no pair twice
        start = "the " if number else "in the "
        other = "i" if one == other else other
        rows.append(
            {
                "clean": f"{start}{one} {last}",
                "corrupt": f"{start}{other} {last}",
                "answer": f" {one}",
                "foil": f" {other}",
            }
        )
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path, rows


@pytest.mark.draws
def test_of_many_pairs_effects_are_of_the_mean_with_intervals_and_a_control(tmp_path: Path) -> None:
    model, tokenizer = copying_gpt2()
    path, rows = table(tmp_path)
    result = attnviz.patch(path, model, tokenizer=tokenizer, batch_size=7)
    alone = [attnviz.patch(**row, model=model, tokenizer=tokenizer, select="L0H0") for row in rows]
    clean, corrupt = (sum(getattr(each, side) for each in alone) / len(rows) for side in ("clean", "corrupt"))
    assert (result.clean, result.corrupt) == pytest.approx((clean, corrupt), abs=1e-3)
    moved = sum(each.heads[0].effect * (each.clean - each.corrupt) for each in alone) / len(rows)
    carrier = result.head("L0H0")
    assert carrier.effect == pytest.approx(moved / (clean - corrupt), abs=SHARP_32)
    assert carrier.interval is not None
    assert carrier.interval[0] < carrier.effect < carrier.interval[1]
    assert [str(head.id) for head in result.heads if head.excludes_zero and abs(head.effect) > 0.1] == ["L0H0"]
    assert carrier.unrelated is not None
    assert carrier.unrelated < 0.75 * carrier.effect  # another prompt's token takes the foil away, and no more
    assert result.n_unrelated == len(rows) - 1  # none has as many tokens as the first
    (only,) = attnviz.patch(path, model, tokenizer=tokenizer, select="L0H0").heads
    assert only.interval is not None
    low, high = carrier.interval
    assert only.interval[1] - only.interval[0] < 0.9 * (high - low)  # corrected for one head, not for all
    path.write_text("\n".join(json.dumps(row | {"note": "x"}) for row in rows))
    first = attnviz.patch(path, model, tokenizer=tokenizer, limit=9)
    assert "columns not read: note" in first.report()
    assert first.heads[0].interval is None
    assert len(first.pairs) == 9


def test_where_no_head_can_be_named_it_is_said_how_many_pairs_it_takes(tmp_path: Path) -> None:
    path, rows = table(tmp_path)
    model, tokenizer = copying_gpt2()
    result = attnviz.patch(path, model, tokenizer=tokenizer, select="L1")
    assert not any(head.excludes_zero for head in result.heads)
    known = [(head.effect, head.interval) for head in result.heads if head.interval is not None]
    narrower = min((high - low) / 2 / abs(effect) for effect, (low, high) in known)
    assert f"about {math.ceil(len(rows) * narrower**2):,} pairs" in result.report()
    whole = attnviz.patch(path, model, tokenizer=tokenizer)
    assert whole.head("L0H3").interval is None  # it never moves the prediction by more than rounding
    assert "Too few" not in whole.report()


def test_no_head_is_said_to_need_more_pairs_where_none_can_have_an_effect(tmp_path: Path) -> None:
    """The first token is the same in both prompts of all pairs but one."""
    path, rows = table(tmp_path)
    path.write_text("\n".join(map(json.dumps, rows[1:])))
    model, tokenizer = copying_gpt2()
    report = attnviz.patch(path, model, tokenizer=tokenizer, at="#0").report()
    assert "No head has an effect" in report
    assert "Too few" not in report


def test_batches_and_copies_change_nothing_but_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = next_token_model()
    path, rows = table(tmp_path, 12)
    path.write_text("\n".join(json.dumps({side: row[side] for side in ("clean", "corrupt")}) for row in rows))
    found = attnviz.patch(path, model.double(), tokenizer=tokenizer)
    assert (found.metric, found.clean) == ("kl", 0)
    monkeypatch.setattr("attnviz.commands.ablate.effects._AT_ONCE", 1)
    one = attnviz.patch(path, model, tokenizer=tokenizer, batch_size=1)
    for head in found.heads:
        assert one.head(head.id).effect == pytest.approx(head.effect, abs=SHARP_64)
        assert one.head(head.id).unrelated == pytest.approx(head.unrelated, abs=SHARP_64)


def test_the_control_is_of_pairs_with_another_prompt_alone(tmp_path: Path) -> None:
    path, rows = table(tmp_path, 3)
    model, tokenizer = copying_gpt2()
    found = {}
    for name, some in {"same": [rows[1], rows[1]], "all": rows, "without": rows[1:]}.items():
        path.write_text("\n".join(map(json.dumps, some)))
        found[name] = attnviz.patch(path, model, tokenizer=tokenizer)
    assert (found["same"].n_unrelated, found["same"].heads[0].unrelated) == (0, None)
    assert found["all"].n_unrelated == found["without"].n_unrelated == 2
    assert found["all"].head("L0H0").unrelated == pytest.approx(found["without"].head("L0H0").unrelated, abs=SHARP_32)


def test_a_card_shows_the_effect_of_its_head_in_a_run_of_the_same_model(tmp_path: Path) -> None:
    _, (clean, corrupt, answer, foil) = KINDS["tiny-gpt2"]
    result = attnviz.patch(clean, "tiny-gpt2", corrupt=corrupt, answer=answer, foil=foil, device="cpu")
    result.save(tmp_path / "run", figures=[])
    file = tmp_path / "run" / "patch.json"
    plain: dict[str, Any] = {"circuits": False, "syntax": False, "patch": file}
    card = attnviz.card("L1H1", clean, "tiny-gpt2", **plain, device="cpu")
    assert card.patched is not None
    assert card.patched["effect"] == result.head("L1H1").effect
    assert re.search(rf"carries +denoise, 1 pair +{result.head('L1H1').effect:.2f}", card.report())
    model, tokenizer = next_token_model()
    with pytest.raises(UsageError, match="other weights"):
        attnviz.card("L1H1", "the cat", model, tokenizer=tokenizer, **plain)
    for content in ("{}", "[]", "no JSON"):
        file.write_text(content)
        with pytest.raises(UsageError, match=r"patch\.json"):
            attnviz.card("L1H1", clean, "tiny-gpt2", **plain, device="cpu")


HEADER = "clean,corrupt,answer,foil\n"
BAD: list[tuple[str, type[AttnvizError], str]] = [
    ("", CorpusError, "empty"),
    ("clean,answer\na,b\n", CorpusError, "corrupt"),
    ("clean,corrupt,answer,label\nthe cat,the dog, cat,good\n", CorpusError, "'label'"),
    (HEADER + "the cat,the dog, cat, dog\nthe cat,, cat, dog\n", CorpusError, r"pairs.csv:3: .*'corrupt'"),
    (HEADER + "the cat,the dog, cat,\n", CorpusError, r"pairs.csv:2: .*'foil'"),
    (HEADER + "the cat,the dog, cat, zzzq\n", CorpusError, r"pairs.csv:2: .*foil"),
    (HEADER + "the cat,the dog ran, cat, dog\n", CorpusError, r"pairs.csv:2: .*“ran”"),
    ("clean,corrupt,foil\nthe cat,the dog, dog\n", UsageError, "answer"),
    ("clean,corrupt,label\nthe cat,the dog,good\n", UsageError, "classification"),
]


@pytest.mark.parametrize(("content", "kind", "word"), BAD)
def test_a_bad_table_is_one_line_with_row_and_column(
    content: str, kind: type[AttnvizError], word: str, tmp_path: Path
) -> None:
    (tmp_path / "pairs.csv").write_text(content)
    model, tokenizer = next_token_model()
    with pytest.raises(kind, match=word) as raised:
        attnviz.patch(tmp_path / "pairs.csv", model, tokenizer=tokenizer)
    assert "\n" not in str(raised.value)


def test_prompts_that_do_not_align_name_the_first_word_of_other_tokens() -> None:
    model, tokenizer = next_token_model()
    for corrupt, named in (
        ("the zebra cat ran", "“house” \\(1 token\\).*“zebra” \\([2-9]"),
        ("the house cat", "“ran” .*its end"),
    ):
        with pytest.raises(TextError, match=f"{named}.*--span"):
            attnviz.patch("the house cat ran", model, tokenizer=tokenizer, corrupt=corrupt)
    with pytest.raises(TextError, match="positions; shorten it"):
        attnviz.patch("the cat " * 300, model, tokenizer=tokenizer, corrupt="the dog " * 300)
    masked = sharp_bert(model_class=BertForMaskedLM)
    with pytest.raises(TextError, match="mask"):
        attnviz.patch("the [MASK] ran", masked, tokenizer=bert_tokenizer(), corrupt="[MASK] cat ran")


def test_the_place_of_a_row_is_named_once_and_its_hint_is_of_the_table(tmp_path: Path) -> None:
    path, model = tmp_path / "pairs.csv", sharp_bert(model_class=BertForMaskedLM)
    path.write_text("clean,corrupt\nthe cat ran,the dog ran\n")
    with pytest.raises(CorpusError) as raised:
        attnviz.patch(path, model, tokenizer=bert_tokenizer())
    assert str(raised.value).count(str(path)) == 1
    classes, tokenizer = sharp_classifier("bert")
    path.write_text("clean,corrupt,label\nthe cat ran,the dog ran,worst\n")
    with pytest.raises(CorpusError) as raised:
        attnviz.patch(path, classes, tokenizer=tokenizer)
    assert "columns" not in str(raised.value)


def test_a_table_of_pairs_has_no_spans(tmp_path: Path) -> None:
    model, tokenizer = next_token_model()
    with pytest.raises(UsageError, match=r"--span .*without a table"):
        attnviz.patch(table(tmp_path)[0], model, tokenizer=tokenizer, spans="verb=ran")


def test_prompts_with_equal_predictions_are_refused_with_both_numbers_before_any_head_is_patched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, tokenizer = copying_gpt2()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    monkeypatch.setattr("attnviz.commands.patch.measure.run_and_keep", None)
    with pytest.raises(UsageError, match=r"(\d) logits on the clean and \1 on the corrupt"):
        attnviz.patch("the cat ran", model, tokenizer=tokenizer, corrupt="the dog ran", answer=" cat", foil=" dog")
    (tmp_path / "pairs.csv").write_text("clean,corrupt\nthe cat ran,the dog ran\n")
    with pytest.raises(UsageError, match="columns answer and foil") as raised:
        attnviz.patch(tmp_path / "pairs.csv", model, tokenizer=tokenizer)
    assert "--answer" not in str(raised.value)


@pytest.mark.parametrize("foil", [" dog", None])
def test_too_small_a_difference_is_refused_with_its_size_and_the_limit(foil: str | None) -> None:
    """Of a difference of logits, and of a loss."""
    model, tokenizer = copying_gpt2()
    prompts = {"corrupt": "the dog ran", "answer": " cat", "foil": foil}
    whole = attnviz.patch("the cat ran", model, tokenizer=tokenizer, **prompts)
    with torch.no_grad():
        model.lm_head.weight *= 5e-4 / abs(whole.clean - whole.corrupt)
    with pytest.raises(UsageError) as refused:
        attnviz.patch("the cat ran", model, tokenizer=tokenizer, **prompts)
    *_, difference, least = map(float, re.findall(r"\d+\.\d+(?:e-\d+)?", str(refused.value)))
    assert 0 < difference < least < 0.01


def test_equal_prompts_are_refused_and_equal_pairs_count_once(tmp_path: Path) -> None:
    path, rows = table(tmp_path)
    model, tokenizer = copying_gpt2()
    path.write_text("\n".join(map(json.dumps, rows[1:2] * 40)))
    copies = attnviz.patch(path, model, tokenizer=tokenizer)
    assert (copies.worse, copies.heads[0].interval) == (None, None)
    assert "1 pair: a first look" in copies.report()
    path.write_text("\n".join(map(json.dumps, [rows[1], rows[2] | {"corrupt": rows[2]["clean"]}])))
    with pytest.raises(CorpusError, match=r"jsonl:2: .* same tokens"):
        attnviz.patch(path, model, tokenizer=tokenizer)


def test_nothing_is_claimed_where_the_corrupt_prompts_are_no_worse(tmp_path: Path) -> None:
    """Of a model that answers the other way round each head's effect is the same, and stands for nothing."""
    path, rows = table(tmp_path)
    model, tokenizer = copying_gpt2()
    right = attnviz.patch(path, model, tokenizer=tokenizer)
    assert right.worse is not None
    assert right.worse[0] > 0
    assert "L0H0" in [str(head.id) for head in right.heads if head.beats_unrelated]
    path.write_text("\n".join(json.dumps(row | {"answer": row["foil"], "foil": row["answer"]}) for row in rows))
    wrong = attnviz.patch(path, model, tokenizer=tokenizer)
    assert wrong.worse is not None
    assert wrong.worse[1] < 0
    assert wrong.head("L0H0").effect == pytest.approx(right.head("L0H0").effect, abs=SHARP_32)
    assert not any(head.interval or head.beats_unrelated for head in wrong.heads)
    assert "No intervals" in wrong.report()


def test_classes_of_a_table_and_a_label_in_the_place_of_an_answer(tmp_path: Path) -> None:
    model, tokenizer, _ = classifier()
    clean, corrupt, answer, foil = KINDS["classifier"][1]
    found = attnviz.patch(clean, model, tokenizer=tokenizer, corrupt=corrupt, answer=answer)
    assert found.metric == "loss"
    labelled = attnviz.patch(clean, model, tokenizer=tokenizer, corrupt=corrupt, label=answer)
    (tmp_path / "pairs.csv").write_text(f"clean,corrupt,label\n{clean},{corrupt},{answer}\n")
    of_table = attnviz.patch(tmp_path / "pairs.csv", model, tokenizer=tokenizer)
    for other in (labelled, of_table):
        assert [head.effect for head in other.heads] == [head.effect for head in found.heads]
    with pytest.raises(UsageError, match="one of them"):
        attnviz.patch(clean, model, tokenizer=tokenizer, corrupt=corrupt, label=answer, answer=foil)
