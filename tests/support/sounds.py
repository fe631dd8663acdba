"""A tiny Whisper with random weights, its tokenizer, and sounds for it: 0.6 seconds at most."""

import math
import struct
import wave
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration, WhisperTokenizer

SAID = " the dog saw the house and ran away"
FRAMES = 30
_SPECIALS = "<|startoftranscript|> <|en|> <|zh|> <|de|> <|translate|> <|transcribe|> <|notimestamps|>".split()


def whisper_tokenizer(**settings: Any) -> WhisperTokenizer:
    """A token a byte, and the special tokens of a multilingual model."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: id for id, piece in enumerate([*alphabet, "<|endoftext|>"])}
    return WhisperTokenizer(vocab=vocabulary, merges=[], extra_special_tokens=_SPECIALS, **settings)


def sharp_whisper(tokenizer: Any, seed: int = 0, **changes: Any) -> Any:
    """A model whose attention is far from uniform, whose biases matter, and whose norms are no ones and zeros."""
    start, english, _, german, *_ = tokenizer.convert_tokens_to_ids(_SPECIALS)
    end = tokenizer.eos_token_id
    ids = {"decoder_start_token_id": start, "eos_token_id": end, "pad_token_id": end, "bos_token_id": end}
    sizes = {
        "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 8,
        "max_source_positions": FRAMES, "max_target_positions": 60,
    }  # fmt: skip
    torch.manual_seed(seed)
    config = WhisperConfig(**(sizes | {"vocab_size": len(tokenizer), "begin_suppress_tokens": None} | ids | changes))
    model = WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            kind, of = name.split(".")[-2:]
            if kind in ("q_proj", "k_proj") and of == "weight":
                parameter.mul_(40)
            elif kind == "embed_tokens" or name.endswith("decoder.embed_positions.weight"):
                parameter.normal_()
            elif of == "bias":
                parameter.normal_(std=0.4)
            elif "norm" in kind:
                parameter.uniform_(0.5, 1.5)
        model.model.decoder.embed_tokens.weight[tokenizer.all_special_ids] *= 0.1  # so that it writes a text
    model.generation_config = GenerationConfig(
        **ids,
        is_multilingual=True,
        lang_to_id={"<|en|>": english, "<|de|>": german},
        task_to_id={name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("translate", "transcribe")},
        no_timestamps_token_id=tokenizer.convert_tokens_to_ids("<|notimestamps|>"),
    )
    return model.eval()


def noise(checkpoint: Any, seconds: float = 0.4) -> Any:
    """The frames of random features."""
    from attnviz.inputs.sound import frames_of  # after coverage has begun

    config = checkpoint.config
    features = torch.full((config.num_mel_bins, 2 * config.max_source_positions), -1.5, dtype=checkpoint.dtype)
    n = int(100 * seconds)
    features[:, :n] = torch.rand(config.num_mel_bins, n, generator=torch.Generator().manual_seed(0))
    return frames_of(features)


def tone(path: Path, seconds: float = 0.3, rate: int = 16_000, channels: int = 1, width: int = 2) -> Path:
    """A WAV file of a rising tone."""
    values = [int(9000 * math.sin(0.05 * n * (1 + n / 4000))) for n in range(int(seconds * rate))]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        samples = [value for value in values for _ in range(channels)]
        packed = struct.pack(f"<{len(samples)}h", *samples) if width == 2 else bytes(len(samples) * width)
        file.writeframes(packed)
    return path
