"""What heads write: against plain loops in float64, and heads built to copy, to suppress, to raise all, to be quiet."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, GPT2LMHeadModel

from attnviz.commands.profile.measure import profile_heads, untrained_copy
from attnviz.inputs.batches import batches
from attnviz.inputs.prompt import Text
from attnviz.measures.patterns import COPY_SUPPRESSION, COPYING, INACTIVE, WRITTEN
from attnviz.measures.tallies import counting
from attnviz.measures.writing import QUIET, WritingTally
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.run.corpus import SampledAttention
from tests.support.corpora import WORDS, sentences
from tests.support.encoder_decoders import sharp, unigram_tokenizer
from tests.support.families import model_of as model_of_family
from tests.support.llamas import WINDOW, sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, gpt2_config, gpt2_tokenizer, hand_built_gpt2, sharp_bert, sharp_gpt2
from tests.support.outputs import model_of, of_head, own_numbers, sharper_gpt2
from tests.support.relatives import checkpoint_of
from tests.support.tolerances import SUMS_32, SUMS_64

TEXTS = ["the cat saw the dog", "the unbelievable cat ran away", "he saw the house of the dog that ran away"]


def of_library(kind: str, text: str) -> tuple[Any, Any, list[bool]]:
    """Patterns, [n_layers][n_heads, n, n], what each head writes, [n_layers][n_heads][n, d_model], and the sinks."""
    own = own_numbers(kind, model_of(kind, torch.float64) if kind == "bert" else sharper_gpt2(torch.float64), text)
    layers = range(len(own["patterns"]))
    return own["patterns"], [[of_head(own, layer, head)[2] for head in range(4)] for layer in layers], own["sink"]


def of_gemma(model: Any, ids: list[int]) -> tuple[Any, Any, list[bool]]:
    """The same, each head through W_O alone and the norm behind it at the scale of all heads together."""
    parts: list[np.ndarray] = []

    def through(o_proj: Any, args: Any, _: Any) -> None:
        heads = args[0][0].unflatten(-1, (4, -1))  # [n, n_heads, d_head]
        alone = [torch.zeros_like(heads).index_copy(1, torch.tensor([h]), heads[:, [h]]) for h in range(4)]
        parts.append(np.array([(each.flatten(-2) @ o_proj.weight.T).detach().numpy() for each in alone]))

    model.set_attn_implementation("eager")
    layers = model.model.layers
    hooks = [layer.self_attn.o_proj.register_forward_hook(through) for layer in layers]
    with torch.no_grad():
        patterns = [each[0].numpy() for each in model(torch.tensor([ids]), output_attentions=True).attentions]
    for hook in hooks:
        hook.remove()
    behind = [1 + layer.post_attention_layernorm.weight.detach().numpy() for layer in layers]
    scales = [np.sqrt((each.sum(0) ** 2).mean(-1, keepdims=True)) for each in parts]
    written = [part / scale * weight for part, scale, weight in zip(parts, scales, behind, strict=True)]
    return patterns, written, [True] + [False] * (len(ids) - 1)


def expected(texts: Any, logits: Any, causal: bool, windows: list[int]) -> dict[str, np.ndarray]:
    """Scores and baselines as defined, query by query; ``texts`` are the ids, patterns, outputs and sinks of each."""
    sums = np.zeros((5, len(windows), 4))
    n_content, n_quiet = 0, np.zeros((len(windows), 4))
    for ids, patterns, written, sink in texts:
        n_content += sink.count(False)
        for layer, window in enumerate(windows):
            norms = np.linalg.norm(np.array(written[layer]), axis=-1)
            for q in (q for q in range(len(ids)) if not sink[q]):
                n_quiet[layer] += norms[:, q] < QUIET * norms[:, q].mean()
                near = [k for k in range(q if causal else len(ids)) if k != q and not sink[k] and abs(q - k) < window]
                for head in range(4) if near else ():
                    attended = max(near, key=lambda k: patterns[layer][head][q][k])
                    if logits is None or patterns[layer][head][q][attended] < 0.1:
                        continue
                    effect = logits(written[layer][head][q])
                    effect = effect - effect.mean()
                    raised = [effect[ids[k]] > 0 for k in near]
                    own = effect[ids[attended]] > 0
                    share = sum(raised) / len(raised)
                    sums[:, layer, head] += 1, own, not own, share, 1 - share
    cases, raised, lowered, all_raised, all_lowered = sums
    found = {INACTIVE: (n_quiet / n_content, 0 * n_quiet)}
    if logits is not None:
        found |= {
            COPYING: (raised / cases, all_raised / cases),
            COPY_SUPPRESSION: (lowered / cases, all_lowered / cases),
        }
        found["cases"] = cases / n_content
    return found


def counted(checkpoint: Checkpoint, batch_size: int) -> WritingTally:
    """With texts verified (the first batch) and not."""
    tally, attention = WritingTally(checkpoint), SampledAttention(checkpoint)
    for batch in batches(checkpoint, [Text(text, number=i) for i, text in enumerate(TEXTS)], batch_size):
        with counting([tally], batch, torch.ones(3, len(batch.items), dtype=torch.float64)) as add:
            attention.run(batch, add, tally.add_written)
    return tally


def as_defined(kind: str) -> tuple[Checkpoint, dict[str, np.ndarray]]:
    if kind == "gemma3_text":
        model, tokenizer = sharp_llama(kind, dtype=torch.float64), sentencepiece_tokenizer()
        texts = [(ids, *of_gemma(model, ids)) for ids in tokenizer(TEXTS)["input_ids"]]
        gamma, table = (each.detach().numpy() for each in (1 + model.model.norm.weight, model.lm_head.weight))
        found = expected(texts, lambda x: table @ (gamma * x), True, [WINDOW, 99])
    elif kind == "gpt2":
        model, tokenizer = sharper_gpt2(torch.float64), gpt2_tokenizer()
        texts = [(tokenizer(text)["input_ids"], *of_library(kind, text)) for text in TEXTS]
        gamma, table = (each.detach().numpy() for each in (model.transformer.ln_f.weight, model.lm_head.weight))
        found = expected(texts, lambda x: table @ (gamma * (x - x.mean())), True, [99] * 3)
    else:
        model, tokenizer = model_of(kind, torch.float64), bert_tokenizer()
        texts = [(tokenizer(text)["input_ids"], *of_library(kind, text)) for text in TEXTS]
        found = expected(texts, None, False, [99] * 3)
    return from_loaded(model, tokenizer), found


@pytest.mark.parametrize("kind", ["gpt2", "gemma3_text", "bert"])
def test_scores_and_baselines_are_those_of_plain_loops(kind: str):
    checkpoint, found = as_defined(kind)
    assert kind == "bert" or np.nanstd(found[COPYING][0]) > 0.05  # heads differ
    for batch_size in (1, 3) if kind != "gemma3_text" else (1,):  # transformers' windows and padding in float64: NaN
        tally = counted(checkpoint, batch_size)
        estimates = tally.estimates()
        assert {*estimates, "cases"} == {*found, "cases"}
        for role, estimate in estimates.items():
            np.testing.assert_allclose(estimate.scores[0], found[role][0], atol=SUMS_64, err_msg=role)
            np.testing.assert_allclose(estimate.baseline[0], found[role][1], atol=SUMS_64, err_msg=role)
        if kind != "bert":
            np.testing.assert_allclose(tally.cases(), found["cases"], atol=SUMS_64)
            for role in (COPYING, COPY_SUPPRESSION):  # n is of the cases that a score rests on
                np.testing.assert_allclose(estimates[role].n, found["cases"] * tally.n_non_sink, atol=SUMS_32)
        np.testing.assert_array_equal(estimates[INACTIVE].n, tally.n_non_sink)


BUILT = [{COPYING}, {COPY_SUPPRESSION}, {COPYING, INACTIVE}, set()]
"""What each head writes of the token before: its code; less its code; its code, but little; that of all words."""


def built() -> Checkpoint:
    """A GPT-2 of one layer; a token's code is 32 balanced random signs, which heads read and write as they are."""
    model, tokenizer = GPT2LMHeadModel(gpt2_config(n_embd=128, n_layer=1, n_positions=32)), gpt2_tokenizer()
    positions = hand_built_gpt2([[lambda query: [query - 1]] * 4])
    generator, code = torch.Generator().manual_seed(0), slice(32, 64)
    with torch.no_grad():
        model.transformer.load_state_dict(positions.state_dict())
        model.transformer.wte.weight.zero_()
        for row in model.transformer.wte.weight:
            row[code] = torch.tensor([1.0, -1.0]).repeat(16)[torch.randperm(32, generator=generator)]
        attention = model.transformer.h[0].attn
        attention.c_attn.weight[:, 256:] = attention.c_proj.weight[:] = 0
        for head, size in enumerate((1.0, -1.0, 0.001, 0.0)):
            mine = slice(32 * head, 32 * head + 32)
            attention.c_attn.weight[code, 256 + 32 * head : 288 + 32 * head] = torch.eye(32)
            attention.c_proj.weight[mine, code] = size * torch.eye(32)
        attention.c_attn.weight[code, 352:] = 0  # the last reads nothing
        ids = sorted({i for word in WORDS for i in tokenizer(f"{word} {word}")["input_ids"]})
        attention.c_attn.bias[352:] = torch.linalg.pinv(model.transformer.wte.weight[ids, code]).sum(-1)
        attention.c_attn.bias[352:] *= 5 / attention.c_attn.bias[352:].norm()
        attention.c_proj.weight[96:, code] = torch.eye(32)
    return from_loaded(model.eval(), tokenizer)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentences(tmp_path_factory.mktemp("corpus") / "random.txt", 130)


def test_heads_that_are_built_to_copy_suppress_or_write_little_are_told_from_one_that_raises_all_words(corpus: Path):
    profile = profile_heads(built(), [corpus], syntax=False)
    assert profile is not None
    roles = {(role.id.head, role.role): role for role in profile.roles if role.role in WRITTEN}
    assert [{name for (at, name), role in roles.items() if role.passed and at == head} for head in range(4)] == BUILT
    assert roles[0, COPYING].score == roles[1, COPY_SUPPRESSION].score == roles[2, INACTIVE].score == 1
    all_words = roles[3, COPYING]
    assert all_words.score > 0.9
    assert all_words.score - all_words.baseline < 0.05
    assert all(role.untrained is not None for role in roles.values())


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_freshly_initialised_model_writes_in_no_way_that_passes_even_without_a_control(corpus: Path, seed: int):
    torch.manual_seed(seed)
    fresh = from_loaded(GPT2LMHeadModel(gpt2_config()).eval(), gpt2_tokenizer())
    profile = profile_heads(fresh, [corpus], control=False, syntax=False, examples=0)
    assert profile is not None
    assert {role.role for role in profile.roles} >= set(WRITTEN)
    assert {role.role for role in profile.roles if role.holds} <= {"broad"}


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("granite", True), ("gemma3", True)])
def test_an_untrained_copy_has_an_unembedding_of_its_own_tied_where_the_models_is(family: str, tied: bool):
    checkpoint = from_loaded(*model_of_family(family, tie_word_embeddings=tied))
    fresh, again = (untrained_copy(checkpoint, 1) for _ in range(2))
    own, of_fresh, of_again = (next(each.language_head.parameters()) for each in (checkpoint, fresh, again))
    for each, head in ((checkpoint, own), (fresh, of_fresh)):
        assert (head is each.model.get_input_embeddings().weight) is tied
    assert own.shape == of_fresh.shape
    assert not torch.allclose(own, of_fresh)
    assert torch.equal(of_fresh, of_again)


def test_without_a_way_to_the_logits_inactive_is_still_judged(tmp_path: Path):
    few = sentences(tmp_path / "few.txt", 20)
    profile = profile_heads(from_loaded(sharp_bert(), bert_tokenizer()), [few], control=False, syntax=False)
    assert profile is not None
    assert {role.role for role in profile.roles} & set(WRITTEN) == {INACTIVE}


@pytest.mark.parametrize(
    "checkpoint",
    [
        lambda: from_loaded(sharp_llama("gemma2"), sentencepiece_tokenizer()),  # bounds its logits
        lambda: from_loaded(sharp_gpt2(), gpt2_tokenizer()),  # has no language-modelling head
        lambda: checkpoint_of("modernbert", auto_class=AutoModelForMaskedLM),  # whose head is not linear
        lambda: from_loaded(sharp("t5"), unigram_tokenizer()).encoder,
    ],
)
def test_some_kinds_of_models_have_no_way_to_the_logits(checkpoint: Any):
    assert WritingTally(checkpoint()).why_no_copying
