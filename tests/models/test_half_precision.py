"""Half precision of all families, with padding: batches of texts of other lengths verify, and a wrong mask does not."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import attnviz
from attnviz.errors import VerificationError
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.opening import open_checkpoint
from attnviz.reference import attention as reference
from attnviz.texts.batches import SampledAttention, collate, encode
from attnviz.texts.reading import Text
from tests.support import encoder_decoders, llamas, relatives

HALF = [torch.float16, torch.bfloat16]
TEXTS = [Text("the cat ran", number=0), Text("the cat that i saw ran away from the dog", number=1)]
BIASED = {"bart": 0, "marian": 0, "llama": 6, "qwen2": 8, "roberta": 0}
"""Families with biases, and seeds with which rounding decides."""
TARGETS = ("die", "die Katzen sahen das Haus")


def model(family: str, dtype: torch.dtype) -> Checkpoint:
    if family in llamas.FAMILIES:
        tokenizer = llamas.sentencepiece_tokenizer()
        return from_loaded(llamas.sharp_llama(family, dtype=dtype, vocab_size=len(tokenizer)), tokenizer)
    if family in relatives.RELATIVES:
        return relatives.checkpoint_of(family, dtype)
    tokenizer = encoder_decoders.unigram_tokenizer()
    return from_loaded(encoder_decoders.sharp(family, len(tokenizer)).to(dtype), tokenizer)


def verified(checkpoint: Checkpoint) -> SampledAttention:
    items = encode(checkpoint, TEXTS)
    if checkpoint.stacks:
        read = [(0, *checkpoint.tokenize(target, target=True).ids[:-1]) for target in TARGETS]
        items = [replace(item, target=ids) for item, ids in zip(items, read, strict=True)]
    attention = SampledAttention(checkpoint)
    attention.run(collate(checkpoint, items), lambda *_: None)
    return attention


@pytest.mark.draws
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", [*llamas.FAMILIES, *relatives.RELATIVES, *encoder_decoders.FAMILIES])
def test_padded_batches_verify(family, dtype):
    checkpoint = model(family, dtype)
    found = verified(checkpoint).verification
    assert found.heads_compared == sum(map(checkpoint.n_heads_of, range(checkpoint.n_layers)))
    assert checkpoint.dtype == dtype
    assert all(check.scale_limit is not None for check in found.layers)


@pytest.mark.parametrize("family", BIASED)
def test_scores_of_hundreds_with_biases_verify(family):
    """A linear map rounds x W + b once; a reference that rounds x W, too, is off by 0.1 in such patterns."""
    checkpoint = model(family, torch.bfloat16)
    generator = torch.Generator().manual_seed(BIASED[family])
    with torch.no_grad():
        for name, parameter in checkpoint.model.named_parameters():
            if "norm" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.8)
    verified(checkpoint)


@pytest.mark.parametrize("family", ["bart", "t5", "roberta", "llama"])
def test_padding_that_is_attended_to_fails(family, monkeypatch):
    right = reference.allowed_positions
    monkeypatch.setattr(reference, "allowed_positions", lambda mask, *more: right(torch.ones_like(mask), *more))
    with pytest.raises(VerificationError, match="do not reproduce the model"):
        verified(model(family, torch.float16))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", ["llama", "gpt_oss", "roberta"])
@pytest.mark.parametrize("verifying", [True, False])
def test_a_corpus_is_summed_as_a_text_is(family, dtype, verifying, tmp_path, monkeypatch):
    """Verified or not, patterns are widened before anything is summed; rows in half precision do not sum to 1."""
    monkeypatch.setattr(SampledAttention, "next_is_verified", verifying)
    checkpoint, corpus = model(family, dtype), tmp_path / "corpus.txt"
    corpus.write_text(f"{TEXTS[1].text}\n")
    heads = attnviz.analyze(TEXTS[1].text, checkpoint, syntax=False).heads
    profile = attnviz.profile_heads(checkpoint, [corpus], syntax=False, control=False)
    limit = 1e-6 if verifying else 2e-3  # the model's own patterns differ from the reference's by rounding
    found = profile.document()["statistics"]
    compared = [name for name in found if heads[0].statistics.get(name) is not None]
    assert {"sink", "entropy", "distance", "previous"} < {*compared}
    for head in heads:
        of_corpus = {name: found[name][head.id.layer][head.id.head] for name in compared}
        assert of_corpus == pytest.approx({name: head.statistics[name] for name in compared}, abs=limit), head.id


@pytest.mark.parametrize("family", ["t5", "mt5"])
def test_t5_keeps_a_part_in_float32_and_verifies(family, tmp_path):
    """As transformers loads it in float16: the second matrix of each network stays in float32."""
    folder = encoder_decoders.saved(family, tmp_path)
    checkpoint, _ = open_checkpoint(str(folder), device="cpu", dtype="float16")
    formats: dict[str, Any] = {name.split(".")[-2]: each.dtype for name, each in checkpoint.model.named_parameters()}
    assert (formats["wo"], formats["q"]) == (torch.float32, torch.float16)
    verified(checkpoint)
