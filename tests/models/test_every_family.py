"""Every family: right in each number format, padded, with settings drawn at random; read from files; told by size."""

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import attnviz
from attnviz.errors import CheckpointError, TextError, VerificationError
from attnviz.inputs.encoding import encodings
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import from_loaded
from attnviz.models.families import ARCHITECTURES
from attnviz.models.opening import open_checkpoint
from attnviz.reference import attention
from attnviz.reference.tolerances import tolerance_of
from attnviz.run.verify import VerifiedRows
from tests.support import encoder_decoders, llamas
from tests.support.explained import steps_of
from tests.support.families import FAMILIES, TEXT, checkpoint_of, drawn_settings, first_of, model_of, padded, verified
from tests.support.models import save_checkpoint
from tests.support.recorded import own_patterns, verified_batch
from tests.support.relatives import TWO_TOWERS, sharp
from tests.support.tolerances import HALF, SUMS_32

UNLIKE = ("bert", "gpt2", "llama", "gemma2", "mixtral", "t5", "deberta-v2", "bloom", "deepseek_v3", "marian")
"""Families that differ in kind."""


def right_in(checkpoint: Any, inputs: dict[str, Tensor]) -> list[VerifiedRows]:
    seen: list[VerifiedRows] = []
    part = 10 if checkpoint.dtype == torch.float32 else 2  # of the tolerance; rounding takes 1 % of that of float32
    verification = verified_batch(checkpoint, inputs, seen.append)
    assert verification.heads_compared == sum(map(checkpoint.n_heads_of, range(checkpoint.n_layers)))
    assert verification.pattern_error <= verification.pattern_tolerance / part
    errors = verification.output_error, *(check.residual_error for check in verification.layers)
    assert max(errors) <= verification.tolerance.output / part
    assert all(check.scale_limit is not None for check in verification.layers) == (checkpoint.dtype.itemsize == 2)
    real = inputs["attention_mask"].bool()
    for rows in seen:
        for pattern, is_token in zip(rows.pattern, real, strict=True):
            assert (pattern[:, is_token][..., ~is_token] == 0).all()
    return seen


@pytest.mark.parametrize("family", first_of([*FAMILIES, *llamas.LIKE_DEEPSEEK], *UNLIKE))
def test_every_family_verifies_with_padding_on_either_side(family):
    checkpoint = checkpoint_of(family)
    for left in (False, True):
        seen = right_in(checkpoint, padded(checkpoint, left=left))
        for rows in seen:  # far from uniform, or wrong formulas would agree
            on_tokens = rows.pattern[0].float() / rows.pattern[0].float().sum(-1, keepdim=True)
            assert on_tokens.amax(-1)[..., 2:].mean() > (0.1 if family in ("electra", "albert", "opt-350m") else 0.18)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", first_of([*UNLIKE, "gpt_oss", "gpt_neo"], "bert", "llama", "t5"))
def test_every_number_format_verifies(family, dtype):
    checkpoint = checkpoint_of(family, dtype)
    lengths = (12,) if dtype == torch.float64 else (12, 7)  # a window of padding alone is NaN in the model itself
    right_in(checkpoint, padded(checkpoint, lengths, left=dtype == torch.bfloat16))
    assert checkpoint.tolerance == tolerance_of(dtype, checkpoint.architecture.float32_steps)


@settings(max_examples=6)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), left=st.booleans())
@pytest.mark.parametrize(
    "family", first_of(sorted({*FAMILIES} - {"bert", "gpt2", "gemma3_text", "t5", "mt5"}), "granitemoe", "modernbert")
)
def test_settings_drawn_at_random_verify(family, data, dtype, left):
    checkpoint = checkpoint_of(family, dtype, **data.draw(drawn_settings(family)))
    right_in(checkpoint, padded(checkpoint, (12,) if dtype == torch.float64 else (12, 7), left))
    if checkpoint.architecture.explained:
        assert len(steps_of(checkpoint, range(checkpoint.n_layers), TEXT)) == checkpoint.n_layers


@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        ("olmo", {}),
        ("olmo", {"rotary_in_float32": False}),
        ("olmo2", {"norm_kind": "rms"}),
        ("olmo3", {}),
        ("gpt_oss", {}),
        ("gpt_oss", {"softmax_in_float32": True}),
        ("bloom", {}),
    ],
)
def test_what_is_rounded_once_agrees_but_where_a_sum_lies_between_two_numbers(monkeypatch, family, wrong):
    """Which of them depends on the kernel: in one of a thousand weights or so, and in a sixth or more of wrong ones."""
    for name, value in wrong.items():
        monkeypatch.setattr(ARCHITECTURES[family], name, value)
    checkpoint = checkpoint_of(family, torch.bfloat16)
    checkpoint.model.set_attn_implementation("eager")
    seen, inputs = list[VerifiedRows](), padded(checkpoint, (12,))
    verified_batch(checkpoint, inputs, seen.append)
    own = own_patterns(checkpoint, inputs)
    differing = max(float((rows.pattern != own[rows.layer]).float().mean()) for rows in seen)
    assert differing > 0.1 if wrong else differing < 0.02


BIASED = {"bart": 0, "marian": 0, "llama": 6, "qwen2": 8, "roberta": 0}
"""Families with biases, and seeds with which rounding decides."""


@pytest.mark.parametrize("family", first_of(BIASED))
def test_scores_of_hundreds_with_biases_verify(family):
    """A linear map rounds x W + b once; a reference that rounds x W, too, is off by 0.1 in such patterns."""
    checkpoint = checkpoint_of(family, torch.bfloat16)
    generator = torch.Generator().manual_seed(BIASED[family])
    with torch.no_grad():
        for name, parameter in checkpoint.model.named_parameters():
            if "norm" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.8)
    verified_batch(checkpoint, padded(checkpoint, (11, 5)))


@pytest.mark.parametrize("family", first_of(["llama", "bart", "t5", "roberta", "deberta-v2"]))
def test_padding_that_is_attended_to_fails(family, monkeypatch):
    checkpoint, right = checkpoint_of(family, torch.float16), attention.allowed_positions
    monkeypatch.setattr(attention, "allowed_positions", lambda mask, *more: right(torch.ones_like(mask), *more))
    with pytest.raises(VerificationError):
        verified_batch(checkpoint, padded(checkpoint))


@pytest.mark.thorough
@pytest.mark.parametrize("verifying", [True, False])
def test_a_corpus_is_summed_as_a_text_is(verifying, tmp_path, monkeypatch):
    """Verified or not, patterns are widened before anything is summed; rows in half precision do not sum to 1."""
    monkeypatch.setattr("attnviz.run.corpus.SampledAttention.next_is_verified", verifying)
    checkpoint, corpus = checkpoint_of("gpt_oss", torch.float16), tmp_path / "corpus.txt"
    corpus.write_text(f"{TEXT}\n")
    profile = attnviz.profile_heads(checkpoint, [corpus], syntax=False, control=False)
    limit = SUMS_32 if verifying else HALF[torch.float16]  # the model's own patterns are rounded otherwise
    found = profile.document()["statistics"]
    for head in attnviz.analyze(TEXT, checkpoint, syntax=False).heads:
        for name in ("sink", "entropy", "distance", "previous"):
            expected = head.statistics[name]
            assert found[name][head.id.layer][head.id.head] == pytest.approx(expected, abs=limit), (head.id, name)


@pytest.mark.parametrize("kind", first_of(llamas.ROPE, "yarn", "llama3"))
def test_scaled_kinds_of_rotary_positions_verify(kind):
    scaled_settings = {"rope_type": kind.split(",")[0], "rope_theta": 10000.0, **llamas.ROPE[kind]}
    scaled = checkpoint_of("llama", rope_parameters=scaled_settings)
    (found, *_), (plain, *_) = (
        right_in(checkpoint, padded(checkpoint, (12,))) for checkpoint in (scaled, checkpoint_of("llama"))
    )
    if kind != "dynamic":  # which scales what is longer than the model's positions alone
        assert (found.pattern - plain.pattern).abs().max() > 0.02


@pytest.mark.parametrize("family", first_of(["olmo3", "gemma3_text"]))
def test_rotary_settings_beside_those_by_type_of_layer_are_left_out_as_transformers_does(family):
    checkpoint = checkpoint_of(
        family, rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, **llamas.ROPE["yarn"]}
    )
    right_in(checkpoint, padded(checkpoint, (12,)))


@pytest.mark.parametrize(
    "family", first_of(["roberta", "mpnet", "esm", "opt", "bert", "gpt2", "bloom"], "roberta", "gpt2")
)
def test_a_text_may_have_as_many_tokens_as_the_model_has_usable_positions(family):
    checkpoint = checkpoint_of(family, positions=20)
    usable = 18 if checkpoint.architecture.positions_after_padding else 20
    tokens = tokenize(checkpoint, "the cat " * 20, truncate=True)
    assert len(tokens) == checkpoint.positions == usable
    verified(checkpoint, "the cat")
    with pytest.raises(TextError, match=str(usable)):
        tokenize(checkpoint, "the cat " * 20)


@pytest.mark.draws
@pytest.mark.parametrize("family", first_of(FAMILIES, "bert", "gpt2", "mixtral", "t5"))
def test_a_checkpoint_is_read_with_its_head_and_its_sizes_are_told(family, tmp_path):
    model, tokenizer = model_of(family, headed=True)
    folder = save_checkpoint(model, tokenizer, tmp_path / family)
    checkpoint, _ = open_checkpoint(str(folder), device="cpu")
    inputs = {"input_ids": torch.tensor([[5, 6, 7]])}
    inputs |= {"decoder_input_ids": torch.tensor([[0, 5]])} if checkpoint.stacks else {}
    with torch.no_grad():
        states = checkpoint.model(**inputs)
        if "last_hidden_state" in states and checkpoint.language_head:  # the bare model of T5 is the whole one
            torch.testing.assert_close(checkpoint.language_head(states.last_hidden_state), model(**inputs).logits)
    bare = checkpoint.architecture.bare_class.from_pretrained(folder)
    (known,) = attnviz.model_configurations(str(folder))
    assert (known.level, known.architecture) == (4, checkpoint.architecture.name)
    assert (known.d_model, known.d_head) == (checkpoint.d_model, checkpoint.d_head)
    assert known.parameters == sum(parameter.numel() for parameter in bare.parameters())
    parts = {
        part
        for layer in checkpoint.modules[: checkpoint.n_layers]
        for part in (*layer.projections, layer.o_proj, *layer.head_norms)
    }
    counted = sum(parameter.numel() for part in parts for parameter in part.parameters())
    if family in llamas.OF_LATENTS:  # their narrower vectors, too
        parts = {layer.attention for layer in checkpoint.modules}
        counted = sum(parameter.numel() for part in parts for parameter in part.parameters())
    biases_and_sinks = {"t5": 64, "mt5": 64, "umt5": 160, "gpt_oss": 8}
    assert known.attention_parameters == counted + biases_and_sinks.get(family, 0)
    assert known.positions in (None, checkpoint.positions)


def test_what_older_versions_saved_is_read_and_what_they_did_not_is_refused(tmp_path):
    folder = save_checkpoint(*model_of("roberta", headed=True), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    older = {"roberta.embeddings.position_ids": torch.arange(66)[None]}
    older |= {"roberta.pooler.dense.weight": torch.zeros(32, 32), "roberta.pooler.dense.bias": torch.zeros(32)}
    save_file(weights | older, folder / "model.safetensors", {"format": "pt"})
    assert open_checkpoint(str(folder), device="cpu")[0].language_head is not None
    save_file(weights | {"roberta.encoder.extra": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"encoder\.extra"):
        open_checkpoint(str(folder), device="cpu")


@pytest.mark.thorough
def test_the_head_and_the_masks_of_older_pythias_are_read(tmp_path):
    folder = save_checkpoint(*model_of("gpt_neox"), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    older = {name.replace("lm_head", "embed_out"): weight for name, weight in weights.items()}
    at = "gpt_neox.layers.0.attention"
    older |= {f"{at}.bias": torch.ones(1, 1, 64, 64).tril(), f"{at}.masked_bias": torch.tensor(-1e9)}
    save_file(older | {f"{at}.rotary_emb.inv_freq": torch.ones(2)}, folder / "model.safetensors", {"format": "pt"})
    checkpoint, _ = open_checkpoint(str(folder), device="cpu")
    assert checkpoint.language_head is not None
    verified(checkpoint)


@pytest.mark.draws
@pytest.mark.parametrize(
    ("family", "head"),
    first_of(
        [
            ("roberta", "TokenClassification"),
            ("electra", "PreTraining"),  # whose discriminator has no language-modelling head
            ("distilbert", "QuestionAnswering"),
            ("albert", "SequenceClassification"),
            ("camembert", "MultipleChoice"),
        ]
    ),
)
def test_another_head_is_left_out(family, head, tmp_path):
    model, tokenizer = sharp(family, auto_class=getattr(transformers, f"AutoModelFor{head}")), model_of(family)[1]
    checkpoint, _ = open_checkpoint(str(save_checkpoint(model, tokenizer, tmp_path / family)), device="cpu")
    assert checkpoint.language_head is None
    inputs = tokenize(checkpoint, TEXT).model_inputs(checkpoint.device)
    with torch.inference_mode():
        states = [of.model(**inputs).last_hidden_state for of in (checkpoint, from_loaded(model, tokenizer))]
    torch.testing.assert_close(*states)


@pytest.mark.thorough
@pytest.mark.parametrize("family", [*llamas.WITH_IMAGES, *TWO_TOWERS])
def test_the_text_tower_of_a_model_with_images_is_the_text_model(family, tmp_path):
    folder = str(save_checkpoint(*model_of(family), tmp_path / "model"))
    tower = f"{family}_text_model" if family in TWO_TOWERS else llamas.WITH_IMAGES[family][1]
    expected = attnviz.analyze(TEXT, checkpoint_of(tower), syntax=False)
    result = attnviz.analyze(TEXT, folder, device="cpu", syntax=False)
    assert (result.verification.level, result.checkpoint.architecture.name) == (4, family.partition("-")[0])
    assert (result.pattern("L1H2") - expected.pattern("L1H2")).abs().max() <= SUMS_32
    if family in TWO_TOWERS:
        assert result.checkpoint.language_head is None
        return
    (known,) = attnviz.model_configurations(folder)
    sizes = len(expected.checkpoint.every_layer), expected.checkpoint.d_head
    assert (known.reproduced, known.n_layers, known.d_head) == (True, *sizes)
    image = result.checkpoint.tokenizer.decode([5])
    with pytest.raises(TextError, match="image"):
        attnviz.analyze(f"the {image}", folder, device="cpu", syntax=False)


def test_a_model_with_images_is_read_from_memory_with_its_head():
    model, tokenizer = model_of("gemma3")
    result = attnviz.analyze(TEXT, model, tokenizer=tokenizer, syntax=False)
    assert (result.verification.level, result.checkpoint.architecture.name) == (4, "gemma3")
    with pytest.raises(TextError, match="image"):  # of several texts, too
        encodings(from_loaded(model, tokenizer), [TEXT, "the \x02"])
    inputs = result.tokens.model_inputs(torch.device("cpu"))
    with torch.no_grad():
        logits = result.checkpoint.language_head(result.checkpoint.model(**inputs).last_hidden_state)
        torch.testing.assert_close(logits, model(**inputs).logits)


def test_t5_keeps_a_part_in_float32_and_verifies(tmp_path):
    """As transformers loads it in float16: the second matrix of each network stays in float32."""
    checkpoint, _ = open_checkpoint(str(encoder_decoders.saved("t5", tmp_path)), device="cpu", dtype="float16")
    formats: dict[str, Any] = {name.split(".")[-2]: each.dtype for name, each in checkpoint.model.named_parameters()}
    assert (formats["wo"], formats["q"]) == (torch.float32, torch.float16)
    verified(checkpoint)


OF_ATTENTION, OF_NORM = ("attention bias",), ("final norm bias",)
PARTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "gpt_oss", *llamas.OF_LATENTS), OF_ATTENTION),
    **dict.fromkeys(("phimoe", "gpt_neox", "starcoder2"), OF_ATTENTION + OF_NORM),
    **dict.fromkeys(llamas.HYBRID, ("mixer",)),
    **dict.fromkeys(llamas.GATED, ("mixer", *OF_ATTENTION)),
    "granitemoehybrid": ("mixer", "experts"),
    "stablelm": OF_NORM,
    "phi": (*OF_ATTENTION, *OF_NORM, "unembedding bias"),
    "gemma2": ("unembedding (not linear)",),
    "gemma4_text": ("words by layer", "unembedding (not linear)"),
    **dict.fromkeys(("mixtral", "olmo2", "granite", "glm4", "exaone4", "cohere", "gemma3_text"), ()),
}
"""By family, the parts beside heads, word embeddings and feed-forward networks."""


@pytest.mark.parametrize("family", first_of(PARTS, "gpt_neox", "gemma2", "granite"))
def test_what_heads_write_sums_to_outputs_and_logits(family):
    result = attnviz.head_outputs(TEXT, checkpoint_of(family))
    assert max(layer.sum_error for layer in result.layers) <= SUMS_32
    assert result.effects.error <= SUMS_32
    names = {part.name for part in result.effects.parts}
    assert names - {"word embedding", "feed-forward"} == {*PARTS[family]}


def test_of_words_in_a_window_those_count_that_are_seen():
    model, tokenizer = model_of("gemma2")
    found = attnviz.analyze("unbelievable cat that i saw", model, tokenizer=tokenizer, syntax=False, words=True)
    seen = found.context_of(0).allowed_rows(0, 6).int()  # <s> un ~believ ~able cat that i saw: 8 tokens, 6 words
    assert ["".join(map(str, row)) for row in seen.tolist()] == "100000 110000 011000 011100 011110 001111".split()
