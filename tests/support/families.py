"""A tiny sharpened model of any family, with a tokenizer like its own; a text, and padded batches, for it."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers import BertForMaskedLM, GPT2LMHeadModel

from attnviz.inputs.prompt import shifted_right
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.run.verify import VerifiedAttention, VerifiedRows, verify_attention
from tests.support import encoder_decoders, llamas, relatives, sounds
from tests.support.models import bert_config, bert_tokenizer, gpt2_config, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.recorded import batch

LLAMAS, RELATIVES, ENCODER_DECODERS = (
    tuple(family for family in llamas.FAMILIES if family not in llamas.LIKE_DEEPSEEK),
    tuple(relatives.RELATIVES),
    tuple(encoder_decoders.FAMILIES),
)
FAMILIES = ("bert", "gpt2", *RELATIVES, *LLAMAS, *ENCODER_DECODERS)
"""All but those that also read images, whose text towers are other families."""

TEXT = "the cat that i saw ran away from the dog"


def model_of(
    family: str, dtype: torch.dtype = torch.float32, headed: bool = False, positions: int | None = None, **changes: Any
) -> tuple[Any, Any]:
    """A model, with its language-modelling head if it is ``headed`` or a Llama, and its tokenizer.

    ``positions`` is the longest text.
    """
    if positions is not None and family not in ("t5", "mt5", "umt5"):
        changes["n_positions" if family == "gpt2" else "max_position_embeddings"] = positions
    # transformers reads those of Qwen 3.5 byte by byte, whatever was saved
    of_llamas = gpt2_tokenizer if family.startswith("qwen3_5") else llamas.sentencepiece_tokenizer
    if family in llamas.WITH_IMAGES:
        return llamas.sharp_with_images(family, **changes), of_llamas()
    if family in relatives.TWO_TOWERS:
        return relatives.sharp_two_towers(family, **changes), gpt2_tokenizer()
    if family in llamas.FAMILIES:
        return llamas.sharp_llama(family, dtype=dtype, **changes), of_llamas()
    if family in RELATIVES:
        if headed:
            changes["auto_class"] = relatives.RELATIVES[family].headed
        checkpoint = relatives.checkpoint_of(family, dtype, **changes)
        return (headed and checkpoint.whole) or checkpoint.model, checkpoint.tokenizer
    if family == "whisper":
        return sounds.sharp_whisper(sounds.whisper_tokenizer(), **changes).to(dtype), sounds.whisper_tokenizer()
    if family in ENCODER_DECODERS:
        tokenizer = encoder_decoders.unigram_tokenizer()
        return encoder_decoders.sharp(family, len(tokenizer), **changes).to(dtype), tokenizer
    if family == "bert":
        changes |= {"model_class": BertForMaskedLM} if headed else {}
        return sharp_bert(**changes).to(dtype), bert_tokenizer()
    changes |= {"model_class": GPT2LMHeadModel} if headed else {}
    return sharp_gpt2(**changes).to(dtype), gpt2_tokenizer()


def config_of(family: str, **changes: Any) -> Any:
    """Its config, with settings changed that its class might refuse."""
    if family in LLAMAS:
        config = llamas.llama_config(family)
    elif family in RELATIVES:
        config = relatives.RELATIVES[family].config()
    elif family in ENCODER_DECODERS:
        config_class, _, settings = encoder_decoders.FAMILIES[family]
        config = config_class(**settings)
    else:
        config = bert_config() if family == "bert" else gpt2_config()
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def checkpoint_of(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Checkpoint:
    return from_loaded(*model_of(family, dtype, **changes))


def verified(
    checkpoint: Checkpoint, text: str = TEXT, visit: Callable[[VerifiedRows], None] = lambda _: None
) -> VerifiedAttention:
    """A text verified; with a target for an encoder-decoder."""
    target = None
    if checkpoint.stacks:
        start = checkpoint.config.decoder_start_token_id
        target = shifted_right(tokenize(checkpoint, "a dog ran away", target=True), start, "<pad>")
    if checkpoint.architecture.reads_sound:
        return verify_attention(checkpoint, sounds.noise(checkpoint), visit, target=target)
    return verify_attention(checkpoint, tokenize(checkpoint, text), visit, target=target)


def padded(checkpoint: Checkpoint, lengths: tuple[int, ...] = (12, 7), left: bool = False) -> dict[str, Tensor]:
    """A batch of random tokens, padded on one side; the same for a decoder."""
    inputs = batch(min(61, int(checkpoint.config.vocab_size)), lengths)
    if left:
        inputs = {name: values.flip(1) for name, values in inputs.items()}
    padding = getattr(checkpoint.config, "pad_token_id", None) or 0  # from which positions may be counted
    inputs["input_ids"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, padding)
    if checkpoint.stacks:
        inputs |= {f"decoder_{name}": values for name, values in inputs.items()}
    return inputs


def first_of(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """Values to parametrise with; those that are not chosen (default: the first) for a thorough run."""
    values = list(values)
    return [
        pytest.param(
            *(each if isinstance(each, tuple) else (each,)),
            marks=[pytest.mark.thorough] * (each not in (chosen or values[:1])),
        )
        for each in values
    ]


@st.composite
def drawn_settings(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """Settings of a family, drawn from what its config allows."""
    if family in ENCODER_DECODERS:
        return draw(encoder_decoders.drawn_settings())
    return draw((llamas if family in LLAMAS else relatives).drawn_settings(family))
