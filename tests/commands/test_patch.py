"""patch: the output of a head on one prompt in the run of another, beside plain hooks on transformers' own models."""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import kl_div

import attnviz
from attnviz.errors import AttnvizError, CorpusError, TextError, UsageError, VerificationError
from attnviz.models.head_ids import HeadId
from attnviz.run.passes import Passes
from tests.support import models
from tests.support.ablations import copying_gpt2, masked_token_model, next_token_model
from tests.support.classifiers import sharp_classifier
from tests.support.llamas import needs_smollm2
from tests.support.tolerances import SHARP_32, SHARP_64, SUMS_32

PROMPTS = {
    "gpt2": ("the cat ran to the", "the dog ran to the", " house", " dog"),
    "bert": ("the cat [MASK] away", "the dog [MASK] away", "ran", "saw"),
    "classifier": ("the cat ran away", "the dog ran away", "good", "bad"),
}
"""Clean and corrupt prompt, answer and foil."""


@cache
@torch.no_grad()
def made(kind: str) -> tuple[Any, Any, list[Any]]:
    """A model in float64 whose heads tell prompts apart, its tokenizer and its maps W_O."""
    if kind == "gpt2":
        model, tokenizer = next_token_model()
        return model.double(), tokenizer, [block.attn.c_proj for block in model.transformer.h]
    model, tokenizer = masked_token_model() if kind == "bert" else sharp_classifier("bert")
    outputs = [layer.attention.output.dense for layer in model.bert.encoder.layer]
    if kind == "classifier":
        model.classifier.weight.mul_(30)
    return model.double(), tokenizer, outputs


class Hooked:
    """Transformers' own model, whose W_O are given what they had for another text."""

    def __init__(self, kind: str, metric: str = "logit_difference") -> None:
        self.model, self.tokenizer, self.outputs = made(kind)
        self.metric, (clean, _, *labels) = metric, PROMPTS[kind]
        ids = self.model.config.label2id if kind == "classifier" else self.tokenizer.get_vocab()
        self.answer, self.foil = (ids[label.replace(" ", "Ġ")] for label in labels)
        self.reference = self._log_probabilities(clean)

    @torch.no_grad()
    def _log_probabilities(self, text: str) -> torch.Tensor:
        inputs = self.tokenizer(text, return_tensors="pt")
        logits = self.model(**inputs).logits[0]
        if logits.dim() == 2:
            ids = inputs["input_ids"][0].tolist()
            logits = logits[ids.index(self.tokenizer.mask_token_id) if "[MASK]" in text else -1]
        return logits.log_softmax(-1)

    def measured(self, text: str) -> float:
        found = self._log_probabilities(text)
        if self.metric == "kl":
            return float(kl_div(found, self.reference, reduction="sum", log_target=True))
        return float(-found[self.answer] if self.metric == "loss" else found[self.answer] - found[self.foil])

    def effects(self, into: str, source: str, to: Sequence[int], of: Sequence[int]) -> dict[HeadId, float]:
        """Of what each head gives at the tokens ``of`` of the source, in the other text at ``to``."""
        kept: dict[int, torch.Tensor] = {}
        hooks = [
            module.register_forward_pre_hook(lambda _, given, layer=layer: kept.update({layer: given[0].clone()}))
            for layer, module in enumerate(self.outputs)
        ]
        whole = self.measured(source)
        for hook in hooks:
            hook.remove()
        n_heads, unpatched, found = self.model.config.num_attention_heads, self.measured(into), {}
        for layer, module in enumerate(self.outputs):
            for head in range(n_heads):

                def patched(_: Any, given: Any, layer: int = layer, head: int = head) -> Any:
                    values, d_head = given[0].clone(), given[0].shape[2] // n_heads
                    where = slice(d_head * head, d_head * (head + 1))
                    values[:, to, where] = kept[layer][:, of, where]
                    return (values,)

                hook = module.register_forward_pre_hook(patched)
                found[HeadId(layer, head)] = (self.measured(into) - unpatched) / (whole - unpatched)
                hook.remove()
        assert max(map(abs, found.values())) > 1e-3
        return found


def effects_of(result: attnviz.Patching) -> dict[HeadId, float]:
    return {head.id: head.effect for head in result.heads}


@pytest.mark.draws
@pytest.mark.parametrize(
    ("kind", "direction", "metric"),
    [
        *(("gpt2", direction, metric) for direction in ("denoise", "noise") for metric in ("loss", "kl")),
        ("gpt2", "denoise", "logit_difference"),
        ("bert", "noise", "logit_difference"),
        ("classifier", "denoise", "logit_difference"),
        ("classifier", "noise", "loss"),
    ],
)
def test_effects_are_those_of_a_plain_hook(kind: str, direction: str, metric: str) -> None:
    """Of every head, at all tokens and at two."""
    clean, corrupt, answer, foil = PROMPTS[kind]
    hooked = Hooked(kind, metric)
    into, source = (corrupt, clean) if direction == "denoise" else (clean, corrupt)
    prompts: dict[str, Any] = {"corrupt": corrupt, "answer": answer, "foil": foil, "tokenizer": hooked.tokenizer}
    n = len(hooked.tokenizer(clean)["input_ids"])
    for at, positions in (([], range(n)), (["#1", "last"], [1, n - 1])):
        result = attnviz.patch(clean, hooked.model, **prompts, direction=direction, metric=metric, at=at)
        assert result.clean == pytest.approx(hooked.measured(clean), abs=SHARP_64)
        assert result.corrupt == pytest.approx(hooked.measured(corrupt), abs=SHARP_64)
        expected = hooked.effects(into, source, positions, positions)
        assert effects_of(result) == pytest.approx(expected, abs=SUMS_32)


SPANNED: dict[str, tuple[str, str, list[str], list[int], list[int]]] = {
    "gpt2": ("denoise", "the dog saw the cat ran to the", ["on=cat", "on=dog", "to=ran to"], [1, 2, 3], [1, 5, 6]),
    "bert": ("denoise", "the dog saw the cat [MASK] away", ["on=cat", "on=dog", "gap=[MASK]"], [2, 3], [2, 6]),
    "classifier": ("noise", "the dog saw the cat ran away", ["on=cat", "on=dog", "how=away"], [2, 4], [2, 7]),
}


@pytest.mark.parametrize("kind", SPANNED)
def test_spans_of_prompts_of_other_lengths_are_those_of_a_plain_hook(kind: str) -> None:
    clean, _, answer, foil = PROMPTS[kind]
    direction, corrupt, spans, of_clean, of_corrupt = SPANNED[kind]
    hooked = Hooked(kind)
    prompts: dict[str, Any] = {"corrupt": corrupt, "answer": answer, "foil": foil, "tokenizer": hooked.tokenizer}
    result = attnviz.patch(clean, hooked.model, **prompts, direction=direction, spans=spans)
    if direction == "denoise":
        expected = hooked.effects(corrupt, clean, of_corrupt, of_clean)
    else:
        expected = hooked.effects(clean, corrupt, of_clean, of_corrupt)
    assert effects_of(result) == pytest.approx(expected, abs=SUMS_32)


def test_both_prompts_are_verified_and_what_does_not_verify_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clean, corrupt, *_ = PROMPTS["gpt2"]
    model, tokenizer, _ = made("gpt2")
    verify, seen = Passes.verify, []

    def spoiled(self: Any, inputs: Any, kept: Any, resumed: bool) -> None:
        seen.append(inputs.inputs[0].item.source.text)
        if len(seen) > 1:
            kept.values[1, "z"][0, 2] += 0.1
        verify(self, inputs, kept, resumed)

    assert attnviz.patch(clean, model, tokenizer=tokenizer, corrupt=corrupt).verified.n_inputs == 2
    monkeypatch.setattr(Passes, "verify", spoiled)
    with pytest.raises(VerificationError, match="L1H"):
        attnviz.patch(clean, model, tokenizer=tokenizer, corrupt=corrupt)
    assert set(seen) == {clean, corrupt}


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_the_head_that_alone_decides_carries_all(direction: str) -> None:
    model, tokenizer = copying()  # it predicts the token before the last one, by L0H0
    prompts = {"clean": "the cat ran", "corrupt": "the dog ran", "answer": " cat", "foil": " dog"}
    result = attnviz.patch(model=model, tokenizer=tokenizer, direction=direction, **prompts)
    assert result.clean > 1
    assert result.corrupt < -1
    assert str(result.heads[0].id) == "L0H0"
    assert result.heads[0].effect == pytest.approx(1, abs=0.05)
    assert max(abs(head.effect) for head in result.heads[1:]) < 0.05


# --- tables of pairs

WORDS = [word for word in models.WORDS[:30] if word not in ("the", "in")]


def pairs(n: int = 40) -> list[dict[str, str]]:
    """Pairs of two lengths; of one length a single pair."""
    rows = []
    for number in range(n):
        one, other = (WORDS[(number * step + step) % len(WORDS)] for step in (1, 3))
        last = WORDS[(number * 7 + 7 + number // len(WORDS)) % len(WORDS)]  # no pair twice
        start = "the " if number else "in the "
        other = "i" if one == other else other
        prompts = {"clean": f"{start}{one} {last}", "corrupt": f"{start}{other} {last}"}
        rows.append({**prompts, "answer": f" {one}", "foil": f" {other}"})
    return rows


def written(folder: Path, rows: Sequence[dict[str, str]]) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


copying = cache(copying_gpt2)


def patched(folder: Path, rows: Sequence[dict[str, str]], **options: Any) -> attnviz.Patching:
    model, tokenizer = copying()
    return attnviz.patch(written(folder, rows), model, tokenizer=tokenizer, **options)


@pytest.fixture(scope="module")
def forty(tmp_path_factory: pytest.TempPathFactory) -> attnviz.Patching:
    """All heads of a model in which L0H0 alone decides."""
    return patched(tmp_path_factory.mktemp("pairs"), pairs())


def test_effects_of_several_pairs_are_of_the_mean(tmp_path: Path) -> None:
    rows, (model, tokenizer) = pairs(4), copying()
    result = patched(tmp_path, [row | {"note": "x"} for row in pairs(6)], limit=4, batch_size=3)
    alone = [attnviz.patch(**row, model=model, tokenizer=tokenizer, select="L0H0") for row in rows]
    clean, corrupt = (sum(getattr(each, side) for each in alone) / len(rows) for side in ("clean", "corrupt"))
    assert (result.clean, result.corrupt) == pytest.approx((clean, corrupt), abs=1e-3)
    moved = sum(each.heads[0].effect * (each.clean - each.corrupt) for each in alone) / len(rows)
    assert result.head("L0H0").effect == pytest.approx(moved / (clean - corrupt), abs=SHARP_32)
    assert result.heads[0].interval is None
    assert len(result.pairs) == 4
    assert "note" in result.report()


def test_many_pairs_have_intervals_and_a_control(forty: attnviz.Patching, tmp_path: Path) -> None:
    carrier = forty.head("L0H0")
    assert carrier.interval is not None
    assert carrier.unrelated is not None
    assert carrier.interval[0] < carrier.effect < carrier.interval[1]
    assert [str(head.id) for head in forty.heads if head.excludes_zero and abs(head.effect) > 0.1] == ["L0H0"]
    assert carrier.unrelated < 0.75 * carrier.effect  # another prompt's token takes the foil away, and no more
    assert forty.n_unrelated == 39  # none has as many tokens as the first
    (only,) = patched(tmp_path, pairs(), select="L0H0").heads
    assert only.interval is not None
    low, high = carrier.interval
    assert only.interval[1] - only.interval[0] < 0.9 * (high - low)  # corrected for one head, not for all


def test_where_no_head_can_be_named_it_is_said_how_many_pairs_it_takes(forty: attnviz.Patching, tmp_path: Path) -> None:
    result = patched(tmp_path, pairs(), select="L1")
    assert not any(head.excludes_zero for head in result.heads)
    known = [(head.effect, head.interval) for head in result.heads if head.interval is not None]
    narrower = min((high - low) / 2 / abs(effect) for effect, (low, high) in known)
    assert f" {math.ceil(40 * narrower**2):,} pairs" in result.report()
    assert forty.head("L0H3").interval is None  # it never moves the prediction by more than rounding
    assert "Too few" not in forty.report()
    same_first = patched(
        tmp_path, pairs()[1:], at="#0", select="L0"
    )  # the same in both prompts of all pairs: no effect
    assert "Too few" not in same_first.report()


def test_batches_change_nothing_but_rounding(tmp_path: Path) -> None:
    model, tokenizer = next_token_model()
    path = written(tmp_path, [{side: row[side] for side in ("clean", "corrupt")} for row in pairs(12)])
    found, one = (attnviz.patch(path, model.double(), tokenizer=tokenizer, batch_size=size) for size in (32, 1))
    assert (found.metric, found.clean) == ("kl", 0)
    for head in found.heads:
        assert one.head(head.id).effect == pytest.approx(head.effect, abs=SHARP_64)
        assert one.head(head.id).unrelated == pytest.approx(head.unrelated, abs=SHARP_64)


def test_the_control_is_of_pairs_with_another_prompt_alone(tmp_path: Path) -> None:
    rows = pairs(3)
    same, every, without = (patched(tmp_path, some) for some in ([rows[1], rows[1]], rows, rows[1:]))
    assert (same.n_unrelated, same.heads[0].unrelated) == (0, None)
    assert every.n_unrelated == without.n_unrelated == 2
    assert every.head("L0H0").unrelated == pytest.approx(without.head("L0H0").unrelated, abs=SHARP_32)


def test_equal_pairs_count_once_and_equal_prompts_and_spans_of_pairs_are_refused(tmp_path: Path) -> None:
    rows = pairs(3)
    copies = patched(tmp_path, rows[1:2] * 40)
    assert (copies.worse, copies.heads[0].interval, copies.n_different) == (None, None, 1)
    with pytest.raises(CorpusError, match=r"jsonl:2"):
        patched(tmp_path, [rows[1], rows[2] | {"corrupt": rows[2]["clean"]}])
    with pytest.raises(UsageError, match="--span"):
        patched(tmp_path, rows, spans="verb=ran")


def test_nothing_is_claimed_where_the_corrupt_prompts_are_no_worse(forty: attnviz.Patching, tmp_path: Path) -> None:
    """Of a model that answers the other way round each head's effect is the same, and stands for nothing."""
    assert forty.worse is not None
    assert forty.worse[0] > 0
    assert "L0H0" in [str(head.id) for head in forty.heads if head.beats_unrelated]
    wrong = patched(tmp_path, [row | {"answer": row["foil"], "foil": row["answer"]} for row in pairs()])
    assert wrong.worse is not None
    assert wrong.worse[1] < 0
    assert wrong.head("L0H0").effect == pytest.approx(forty.head("L0H0").effect, abs=SHARP_32)
    assert not any(head.interval or head.beats_unrelated for head in wrong.heads)


def test_a_card_shows_the_effect_of_its_head_in_a_run_of_the_same_model(tmp_path: Path) -> None:
    clean, corrupt, answer, foil = PROMPTS["gpt2"]
    model, tokenizer, _ = made("gpt2")
    result = attnviz.patch(clean, model, tokenizer=tokenizer, corrupt=corrupt, answer=answer, foil=foil)
    result.save(tmp_path, figures=[])
    file = tmp_path / "patch.json"
    plain: dict[str, Any] = {"circuits": False, "syntax": False, "patch": file, "tokenizer": tokenizer}
    card = attnviz.card("L1H1", clean, model, **plain)
    assert card.patched is not None
    assert card.patched["effect"] == result.head("L1H1").effect
    assert f"{result.head('L1H1').effect:.2f}" in card.report()
    with pytest.raises(UsageError):  # of other weights
        attnviz.card("L1H1", clean, next_token_model(seed=1)[0], **plain)
    for content in ("{}", "[]", "no JSON"):
        file.write_text(content)
        with pytest.raises(UsageError, match=r"patch\.json"):
            attnviz.card("L1H1", clean, model, **plain)


def test_a_label_or_a_column_stands_in_the_place_of_an_answer(tmp_path: Path) -> None:
    model, tokenizer, _ = made("classifier")
    clean, corrupt, answer, foil = PROMPTS["classifier"]
    found = attnviz.patch(clean, model, tokenizer=tokenizer, corrupt=corrupt, answer=answer)
    assert found.metric == "loss"
    labelled = attnviz.patch(clean, model, tokenizer=tokenizer, corrupt=corrupt, label=answer)
    path = written(tmp_path, [{"clean": clean, "corrupt": corrupt, "label": answer}])
    of_table = attnviz.patch(path, model, tokenizer=tokenizer)
    for other in (labelled, of_table):
        assert [head.effect for head in other.heads] == [head.effect for head in found.heads]
    with pytest.raises(UsageError):
        attnviz.patch(clean, model, tokenizer=tokenizer, corrupt=corrupt, label=answer, answer=foil)


# --- paths and self-repair

INDUCTION: dict[str, Any] = {
    "clean": "one two three four five one two three",
    "corrupt": "one two six four five one two three",
    "answer": " four",
    "foil": " five",
    "model": "tiny-gpt2",
}
MOVERS = {"L1H0", "L1H1", "L1H2", "L1H3"}


@pytest.mark.draws
def test_two_runs_find_the_induction_circuit_of_tiny_gpt2():
    writers = attnviz.patch(**INDUCTION, receiver="logits")
    assert {str(head.id) for head in writers.heads[:4]} == MOVERS
    assert max(map(len, writers.report(80).splitlines())) <= 80
    whole = attnviz.patch(**INDUCTION, select="L1H0").heads[0].effect
    by_keys, *others = attnviz.patch(**INDUCTION, receiver="L1H0.k").heads
    assert str(by_keys.id) == "L0H2"
    assert by_keys.effect == pytest.approx(whole, abs=0.03)
    others += [attnviz.patch(**INDUCTION, receiver=f"L1H0.{reads}", sender="L0H2").heads[0] for reads in "qv"]
    assert max(abs(head.effect) for head in others) < 0.03


BATCHED: list[dict[str, Any]] = [
    {"receiver": "L2H1.k"},
    {"receiver": "logits"},
    {"receiver": "L2H1.q", "networks": "run", "at": "last"},
    {"self_repair": True},
]


@pytest.mark.draws
@pytest.mark.parametrize("options", BATCHED, ids=str)
def test_batches_of_several_lengths_change_nothing_but_rounding(tmp_path, options):
    model, tokenizer = next_token_model()
    ends = {"answer": " ran", "foil": " saw"}
    prompts = {"the cat": "the dog", "i saw the cat": "i saw a cat", "on the tree": "in the tree", "a dog": "i dog"}
    path = written(tmp_path, [{"clean": clean, "corrupt": corrupt, **ends} for clean, corrupt in prompts.items()])
    one, all_at_once = (attnviz.patch(path, model, tokenizer=tokenizer, batch_size=size, **options) for size in (1, 32))
    for head in one.heads:
        other = all_at_once.head(head.id)
        assert other.effect == pytest.approx(head.effect, abs=1e-3)
        if options.get("self_repair"):
            for name in ("direct_effect", "total_effect"):
                assert getattr(other.repair, name) == pytest.approx(getattr(head.repair, name), abs=SHARP_32)


@pytest.mark.parametrize("at", [(), "last"])
def test_self_repair_is_the_difference_of_both_effects_and_its_parts_are_listed(at):
    result = attnviz.patch(**INDUCTION, self_repair=True, direction="noise", at=at)
    for head in result.heads:
        repair = head.repair
        assert repair is not None
        assert repair.repaired == pytest.approx(repair.direct_effect - repair.total_effect)
        assert repair.total_effect == pytest.approx(head.effect * (result.clean - result.corrupt), abs=SHARP_32)
        sizes = [abs(each.change) for each in repair.changed]
        assert sizes == sorted(sizes, reverse=True)
    carrier = result.head("L0H2").repair
    if not at:
        assert carrier.share is None  # it has no direct effect
        assert {each.part for each in carrier.changed[:4]} == MOVERS


@pytest.mark.thorough
@needs_smollm2
def test_the_parts_of_thirty_layers_sum_up_but_for_roundings_of_all_of_them():
    repair = attnviz.patch(**INDUCTION | {"model": "smollm2"}, select="L0H3", self_repair=True).heads[0].repair
    assert repair.repaired == pytest.approx(repair.direct_effect - repair.total_effect)


# --- refusals


@pytest.mark.parametrize("foil", [" dog", None])
def test_too_small_a_difference_is_refused(foil: str | None) -> None:
    """It has to be 0.001 logits, and 0.001 of a loss that is ln 400, about 6."""
    model, tokenizer = copying_gpt2()
    weight = model.lm_head.weight.detach().clone()
    prompts = {"corrupt": "the dog ran", "answer": " cat", "foil": foil}
    whole = attnviz.patch("the cat ran", model, tokenizer=tokenizer, **prompts)
    for difference, refused in ((5e-2, False), (3e-3, foil is None), (5e-4, True), (0, True)):
        with torch.no_grad():
            model.lm_head.weight.copy_(weight * difference / abs(whole.clean - whole.corrupt))
        if refused:
            with pytest.raises(UsageError, match=r"--answer|logit"):
                attnviz.patch("the cat ran", model, tokenizer=tokenizer, **prompts)
        else:
            attnviz.patch("the cat ran", model, tokenizer=tokenizer, **prompts)


CAT = {"clean": "the cat ran", "corrupt": "the big dog ran"}
HOUSE = "the house cat ran"
REFUSED: list[tuple[str, dict[str, Any] | str, type[AttnvizError], str]] = [
    ("gpt2", {**CAT, "spans": "cat ran"}, UsageError, "NAME=TEXT"),
    ("gpt2", {**CAT, "spans": "animal=cat"}, UsageError, "--span"),
    ("gpt2", {**CAT, "spans": ["animal=cat", "animal=dog#2"]}, UsageError, "dog#1"),
    ("gpt2", {**CAT, "spans": ["animal=cat", "animal=big dog"]}, UsageError, "big dog"),
    ("gpt2", {**CAT, "spans": ["animal=cat", "animal=dog", "animal=ran"]}, UsageError, "animal"),
    ("gpt2", {**CAT, "spans": ["animal=cat", "animal=dog", "all=cat ran", "all=dog ran"]}, UsageError, "clean"),
    ("gpt2", {**CAT, "spans": "verb=ran", "at": "last", "receiver": "logits"}, UsageError, "--at"),
    ("gpt2", {**CAT, "spans": "verb=ran", "self_repair": True}, UsageError, "--self-repair"),
    ("gpt2", {"clean": HOUSE, "corrupt": "the zebra cat ran"}, TextError, "“house” (1 token)"),
    ("gpt2", {"clean": HOUSE, "corrupt": "the house cat"}, TextError, "“ran”"),
    ("gpt2", {"clean": "the cat " * 300, "corrupt": "the dog " * 300}, TextError, "positions"),
    ("gpt2", "", CorpusError, "empty"),
    ("gpt2", "clean,answer\na,b\n", CorpusError, "corrupt"),
    ("gpt2", "clean,corrupt,answer,label\nthe cat,the dog, cat,good\n", CorpusError, "'label'"),
    ("gpt2", "clean,corrupt,answer\nthe cat,the dog, cat\nthe cat,, cat\n", CorpusError, "pairs.csv:3: "),
    ("gpt2", "clean,corrupt,answer,foil\nthe cat,the dog, cat,\n", CorpusError, "pairs.csv:2: "),
    ("gpt2", "clean,corrupt,answer,foil\nthe cat,the dog, cat, zzzq\n", CorpusError, "pairs.csv:2: "),
    ("gpt2", "clean,corrupt,answer,foil\nthe cat,the dog ran, cat, dog\n", CorpusError, "ran"),
    ("gpt2", "clean,corrupt,foil\nthe cat,the dog, dog\n", UsageError, "answer"),
    ("gpt2", "clean,corrupt,label\nthe cat,the dog,good\n", UsageError, "classification"),
    ("bert", "clean,corrupt\nthe cat ran,the dog ran\n", CorpusError, "pairs.csv:2: "),
    ("bert", "clean,corrupt\nthe [MASK] ran,[MASK] cat ran\n", CorpusError, "mask"),
    ("classifier", "clean,corrupt,label\nthe cat ran,the dog ran,worst\n", CorpusError, "worst"),
]


@pytest.mark.parametrize(("kind", "given", "error", "word"), REFUSED)
def test_what_cannot_be_patched_is_one_line_that_names_it(
    kind: str, given: dict[str, Any] | str, error: type[AttnvizError], word: str, tmp_path: Path
) -> None:
    """Two prompts, or a table, of which the row is named once."""
    path, (model, tokenizer, _) = tmp_path / "pairs.csv", made(kind)
    if isinstance(given, str):
        path.write_text(given)
        given = {"clean": path}
    with pytest.raises(error) as raised:
        attnviz.patch(model=model, tokenizer=tokenizer, **given)
    message = str(raised.value)
    assert word in message
    assert "\n" not in message
    assert message.count(str(path)) <= 1
