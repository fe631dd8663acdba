"""Scores in parts: they sum to the model's own in every family, wrong parts are noticed, known heads are found."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from matplotlib.text import Text
from transformers import GPT2Config, GPT2Model

import attnviz
from attnviz.commands import why as command
from attnviz.commands.why import PATH, Account
from attnviz.errors import UsageError, VerificationError
from attnviz.measures import scores
from attnviz.models.families import ARCHITECTURES
from attnviz.models.head_ids import HeadId, number_of
from attnviz.present.view import ViewOptions
from attnviz.reference.attention import LayerNorm, RMSNorm
from attnviz.run import stream
from attnviz.run.stream import WrittenParts
from tests.conftest import needs_minilm
from tests.support.classifiers import sharp_classifier
from tests.support.explained import bert, gpt2
from tests.support.families import checkpoint_of, first_of
from tests.support.llamas import ROPE, sentencepiece_tokenizer, sharp_llama
from tests.support.models import gpt2_tokenizer
from tests.support.outputs import sharper_gpt2
from tests.support.tolerances import SHARP_32, SUMS_32

TEXT = "the cat saw the dog and ran away"
REPEATED = "one two three four five one two three four five"


QUICK = ("bert", "deepseek_v3", "gemma2", "gpt2", "gpt_oss", "llama", "mpnet", "olmo", "olmo2", "t5")
QUICK += ("hunyuan_v1_dense", "ministral3")
model = cache(checkpoint_of)


def of(family: str, **options: Any) -> Account:
    checkpoint = {"bert": bert, "gpt2": gpt2}[family]() if family in ("bert", "gpt2") else model(family)
    last = number_of(checkpoint.encoder.layers[-1])
    return attnviz.why(TEXT, checkpoint, head=f"{'E' if checkpoint.stacks else 'L'}{last}H1", **options)


@pytest.mark.draws
@pytest.mark.parametrize("family", first_of(sorted(set(ARCHITECTURES) - {"whisper"}), *QUICK))
def test_parts_sum_to_the_scores_of_every_family_and_a_followed_heads_keys_to_its_part(family: str) -> None:
    result = of(family, depth=3)
    assert 0 < result.scores.error < SUMS_32
    assert [key.weight for key in result.keys] == sorted((key.weight for key in result.keys), reverse=True)
    assert result.attention.verification.level == 4
    near = SUMS_32 * (result.scores.scale + 1)
    for key in result.keys:
        score, difference = (sum(each[of] for each in key.extras.values()) for of in (0, 1))
        assert float(key.pairs.sum()) + score == pytest.approx(key.score, abs=near)
        assert float(key.differences.sum()) + difference == pytest.approx(key.difference, abs=near)
    first, second = result.keys[:2]  # of which the softmax sees the difference alone
    assert first.score - second.score == pytest.approx(math.log(first.weight) - math.log(second.weight), abs=1e-3)
    for step in result.chain:
        if step.rest is not None:
            assert sum(source.share for source in step.sources) + step.rest == pytest.approx(1)
        assert step.scores.error < SUMS_32
        if step.source is not None:  # the chain ends where no earlier head raises the score
            assert step.scores.keys[0].difference > 0
            assert dict(step.scores.totals(step.side, step.scores.keys[0]))[step.source] > 0


def test_parts_sum_where_a_norm_stands_after_a_rotation_that_scales() -> None:
    checkpoint = checkpoint_of(
        "hunyuan_v1_dense", rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, **ROPE["yarn"]}
    )
    assert 0 < attnviz.why(TEXT, checkpoint, head="L1H1").scores.error < SUMS_32


@pytest.mark.parametrize(
    ("difference", "share"), [(5.0, 2.0), (1.01, 10 / 1.01), (0.99, None), (-0.06, None), (0.0, None)]
)
def test_a_difference_that_is_small_beside_its_parts_has_no_shares(difference: float, share: float | None) -> None:
    parts = torch.tensor([[10.0, difference - 10.0]])
    key = scores.KeyScore(0, 0.5, difference, 0.0, parts, parts, {}, torch.zeros(1))
    assert key.share(10.0) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    "family", first_of(("gpt2", "qwen3", "gpt_oss", "bert", "gemma2", "mpnet"), "gpt2", "qwen3", "gpt_oss")
)
@pytest.mark.parametrize("side", ["query", "key"])
def test_what_a_head_took_from_each_key_sums_to_its_part(family: str, side: str, monkeypatch: Any) -> None:
    taken: list[tuple[float, float]] = []
    follow = command.follow

    def spied(head: scores.ScoreDecomposer, found: scores.QueryScores, depth: int) -> Any:
        for source, value in found.totals(side, found.keys[0]):
            if isinstance(source, HeadId):
                taken.append((float(head.attribute_to_source(found, side, source).sum()), value))
        return follow(head, found, depth)

    monkeypatch.setattr(command, "follow", spied)
    result = of(family)
    assert len(taken) >= 4
    assert [one for one, _ in taken] == pytest.approx([other for _, other in taken], abs=SUMS_32 * result.scores.scale)


right_terms, right_rotary = WrittenParts.terms, scores.apply_rotary
right_constant, right_add, right_compared = stream.constant_term, stream.Reading.add, scores.ScoreDecomposer._compared


def without(name: str) -> Callable[..., Any]:
    return lambda self, *given: (term for term in right_terms(self, *given) if term.sources[0][0] != name)


def another_scale(self: WrittenParts, *given: Any) -> Any:
    return (replace(term, scale=1.1 * term.scale) for term in right_terms(self, *given))


def unnormed(self: Any, weight: torch.Tensor) -> torch.Tensor:
    return self.weight[:, None] * weight


WRONG: dict[str, tuple[str, Any, str, Any]] = {
    "a bias of attention lost": ("gpt2", WrittenParts, "terms", without("attention bias")),
    "a bias of norms lost": ("bert", WrittenParts, "terms", without("norm bias")),
    "a network lost": ("qwen3", WrittenParts, "terms", without("feed-forward")),
    "the positions lost": ("gpt2", WrittenParts, "terms", without("position embedding")),
    "the scale of a norm": ("bert", WrittenParts, "terms", another_scale),
    "a norm that subtracts no mean": ("gpt2", LayerNorm, "read_by", unnormed),
    "a norm's weight without its 1": ("gemma2", RMSNorm, "read_by", unnormed),
    "rotation on one side": (
        "llama", scores, "apply_rotary", lambda x, *given: x if x.shape[-2] == 1 else right_rotary(x, *given)
    ),
    "the weight of the norm of queries": ("olmo2", stream, "normed_heads", lambda rows, *_, **__: rows),
    "the bias of queries lost": (
        "bert", stream, "constant_term",
        lambda source, part, scale: right_constant(source, (source[0] != "query bias") * part, scale),
    ),
    "the scale of scores": (
        "gpt2", scores.ScoreDecomposer, "_compared", lambda self, side, *given: 1.1 * right_compared(self, side, *given)
    ),
    "a bound forgotten": (
        "olmo", stream.Reading, "add",
        lambda self, source, written: right_add(self, source, (source[0] != "bound of query") * written),
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_parts_do_not_pass(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, owner, name, instead = WRONG[wrong]
    monkeypatch.setattr(owner, name, instead)
    with pytest.raises(VerificationError, match="parts"):
        of(family)


def hand_built() -> Any:
    """Two layers without norms' weights: L0H0 copies word 0's dimension on, L1H0 compares it with the query's word."""
    torch.manual_seed(0)
    built = GPT2Model(GPT2Config(vocab_size=400, n_embd=8, n_layer=2, n_head=2, n_positions=16)).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.zero_()
        for layer in built.h:
            layer.ln_1.weight.fill_(1)
            layer.ln_2.weight.fill_(1)
        built.wte.weight.normal_()
        built.h[0].attn.c_attn.weight[:, 16:20] = torch.eye(8)[:, :4]  # V of L0H0: the first four dimensions
        built.h[0].attn.c_proj.weight[:4, 4:] = torch.eye(4)  # written to the last four
        built.h[1].attn.c_attn.weight[:4, 0:4] = torch.eye(4)  # Q of L1H0
        built.h[1].attn.c_attn.weight[4:, 8:12] = torch.eye(4)  # K of L1H0
    return built


def test_a_hand_built_models_parts_are_those_of_the_closed_form() -> None:
    built, tokenizer = hand_built(), gpt2_tokenizer()
    text = "the cat saw the dog"
    result = attnviz.why(text, built, tokenizer=tokenizer, head="L1H0", query=4, key=2)
    x = built.wte.weight[torch.tensor(result.tokens.ids)].detach().double()

    def normed(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        centred = part - part.mean(-1, keepdim=True)
        return centred / (whole.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()

    mean = torch.tril(torch.ones(5, 5).double())
    mean /= mean.sum(1, keepdim=True)  # no queries: uniform attention
    written = torch.cat([torch.zeros(5, 4).double(), (mean @ normed(x, x))[:, :4]], 1)
    whole = x + written
    query = {"word embedding": normed(x, whole)[4, :4], "L0H0": normed(written, whole)[4, :4]}
    keys = {"word embedding": normed(x, whole)[:, 4:], "L0H0": normed(written, whole)[:, 4:]}
    (key,) = result.keys
    found = {
        (stream.source_name(a), stream.source_name(b)):
        (float(key.pairs[i, j]), float(key.differences[i, j]))
        for i, a in enumerate(result.scores.query_sources) for j, b in enumerate(result.scores.key_sources)
    }  # fmt: skip
    for one, other in itertools.product(query, keys):
        products = keys[other] @ query[one] / 2
        expected = (float(products[2]), float(products[2] - products.mean()))
        assert found.pop((one, other)) == pytest.approx(expected, abs=SUMS_32)
    assert sum(value for value, _ in found.values()) == pytest.approx(0, abs=SUMS_32)


def test_the_chain_of_an_induction_head_leads_to_the_previous_token_head() -> None:
    result = attnviz.why(REPEATED, "tiny-gpt2", head="L1H0", query="#9", key="#5", depth=2)
    first, second = result.chain
    assert (first.side, str(first.source), first.source_position, first.source_key) == ("key", "L0H2", 5, 4)
    assert first.sources[0].share > 0.5
    assert first.source_key_share == pytest.approx(1, abs=0.01)
    assert (str(second.scores.head), second.scores.query, second.scores.keys[0].position) == ("L0H2", 5, 4)
    assert second.sources[0].source == "position embedding"


def drawn(result: Account) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """The words of the picture, and the first and last word of each arc, by its name."""
    (plan,) = PATH.plans(result, ViewOptions())
    words = [word.text for word in plan.words]
    (block,) = plan.blocks
    return words, {arc.name.split()[0]: (words[arc.dependent], words[arc.head]) for arc in block.arcs}


@pytest.mark.parametrize("n_before", [0, 30, 31])
def test_the_picture_is_the_path_from_head_to_head_over_the_tokens_around_it(n_before: int) -> None:
    others = ["red", "big", "house", "day"]
    text = " ".join([*(others[i % 4] for i in range(n_before)), REPEATED])
    options: dict[str, Any] = {"query": n_before + 9, "key": n_before + 5, "depth": 2}
    words, arcs = drawn(attnviz.why(text, "tiny-gpt2", head="L1H0", **options))
    assert arcs == {"L0H2": ("five", "one"), "L1H0": ("one", "five")}
    whole = n_before <= 30
    assert words.count("…") == (not whole)
    assert len(words) == (n_before + 10 if whole else 12)


def test_every_arc_of_a_path_has_its_name_also_between_the_legs_of_others() -> None:
    result = attnviz.why("one one two two three three", "tiny-gpt2", head="L1H3", query=5, key=5)
    texts = {text.get_text().split()[0] for text in result.figure().findobj(Text) if text.get_fontsize() == 6}
    assert {"L0H2", "L1H3"} <= texts


def test_where_no_earlier_head_wrote_what_is_read_the_path_is_that_of_the_head_alone() -> None:
    words, arcs = drawn(attnviz.why(REPEATED, "tiny-gpt2", head="L0H2", query=5, key=4, depth=3))
    assert arcs == {"L0H2": ("five", "one")}
    assert len(words) == 10


@pytest.mark.draws
@pytest.mark.thorough
@needs_minilm
def test_real_weights_and_half_precision() -> None:
    result = attnviz.why("The cat that I saw ran away", "minilm", head="L2H8", query="saw", depth=3)
    assert result.scores.error < SUMS_32
    coarse = attnviz.why("The cat that I saw ran away", "minilm", head="L2H8", query="saw", dtype="bfloat16")
    assert coarse.scores.error < 0.05
    assert coarse.keys[0].difference == pytest.approx(result.keys[0].difference, abs=0.1)


@pytest.mark.parametrize(
    ("options", "name"),
    [({}, "--head"), ({"head": "L7H0"}, "L7H0"), ({"head": "L2H1", "query": "zebra"}, "zebra"),
     ({"head": "L2H1", "query": "cat", "key": "dog"}, "L2H1"), ({"head": "L2H1", "query": "#0"}, "L2H1"),
     ({"head": "L2H1", "depth": 0}, "depth"), ({"head": "L2H1", "answer": "cat"}, None)],
)  # fmt: skip
def test_what_is_not_there_is_named(options: dict[str, Any], name: str | None) -> None:
    with pytest.raises(UsageError, match=name):
        attnviz.why(TEXT, gpt2(), **options)


def test_keys_that_get_no_attention_are_still_of_the_window() -> None:
    steep = sharp_llama("mistral")
    with torch.no_grad():
        steep.model.layers[0].self_attn.q_proj.weight.mul_(300)
    result = attnviz.why(TEXT, steep, tokenizer=sentencepiece_tokenizer(), head="L0H1", query=8)
    assert [key.weight for key in result.keys[1:]] == [0.0, 0.0]
    assert all(5 <= key.position <= 8 for key in result.keys)


def test_pairs_and_sources_of_the_document_sum_to_the_difference() -> None:
    content = attnviz.why(REPEATED, "tiny-gpt2", head="L1H0", depth=2).document(top=4)
    first = content["keys"][0]
    assert sum(pair["difference"] for pair in first["pairs"]) == pytest.approx(first["difference"], abs=SHARP_32)
    for side in ("query", "key"):
        total = sum(source[f"{side}_share"] or 0 for source in first["sources"])
        assert total == pytest.approx(1, abs=SHARP_32)


@pytest.mark.parametrize(
    ("whole", "tokenizer"), [(sharper_gpt2, gpt2_tokenizer), (lambda: sharp_llama("qwen2"), sentencepiece_tokenizer)]
)
def test_what_a_head_does_is_that_of_outputs_by_key(whole: Any, tokenizer: Any) -> None:
    given: dict[str, Any] = {"model": whole(), "tokenizer": tokenizer(), "answer": 7, "foil": 11}
    result = attnviz.why(TEXT, head="L0H1", query=4, **given)
    of_all = attnviz.head_outputs(TEXT, token=4, **given).effects
    assert result.effects is not None
    assert sum(result.effects.keys) == pytest.approx(of_all.heads[HeadId(0, 1)], abs=SUMS_32 * of_all.scale)
    assert result.effects.keys[5:] == (0.0,) * (len(result.tokens) - 5)  # which the query does not see
    assert len(result.document()["effects"]["direct_effect_by_key"]) == len(result.tokens)


def test_what_a_head_does_in_a_classifier_is_where_the_classifier_reads() -> None:
    classifier, tokenizer = sharp_classifier("bert")
    result = attnviz.why("the cat ran", classifier, tokenizer=tokenizer, head="L1H2", query=0, answer="good")
    outputs = attnviz.head_outputs("the cat ran", classifier, tokenizer=tokenizer, answer="good").effects
    assert sum(result.effects.keys) == pytest.approx(outputs.heads[HeadId(1, 2)], abs=SUMS_32 * outputs.scale)
    with pytest.raises(UsageError, match="--query"):
        attnviz.why("the cat ran", classifier, tokenizer=tokenizer, head="L1H2", query=1, answer="good")
