"""Sound as an encoder-decoder such as Whisper reads it: log-mel features, and the frames that its encoder makes."""

import math
import wave
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor

from attnviz.errors import TextError
from attnviz.models.tokens import Positions, Tokens, tokens_of_labels

_RATE, _HOP, COLUMNS = 16_000, 160, 2
"""Samples a second, samples from one column of features to the next, and columns in a frame."""

_SECONDS = COLUMNS * _HOP / _RATE
"""Length of a frame."""

_MOST_STRETCHES = 120


@dataclass(frozen=True, eq=False, kw_only=True)
class Frames(Tokens):
    """The frames of a sound, and those of the padding after its end: ``n_heard`` and more.

    ``states`` are the encoder's final states, [1, n, d_model].
    """

    states: Tensor
    n_heard: int

    @property
    def notes(self) -> list[str]:
        """What they are."""
        return [f"X attends to {self.in_words} and to padding, {len(self)} frames; the encoder itself is not measured."]

    @property
    def in_words(self) -> str:
        """The length of the sound, and of its stretches."""
        return f"{_SECONDS * self.n_heard:.2f} s in stretches of {_SECONDS * len(self.stretches.members[0]):.2f} s"

    @property
    def stretches(self) -> Positions:
        """Columns of pictures: as many frames each as leave few enough, labelled by the first; and all padding."""
        firsts = range(0, self.n_heard, math.ceil(self.n_heard / _MOST_STRETCHES))
        ends = [*firsts, self.n_heard, *[len(self)] * (self.n_heard < len(self))]
        groups = tuple(tuple(range(*each)) for each in pairwise(ends))
        labels, padding = (tuple(names[group[0]] for group in groups) for names in (self.labels, self.special))
        return Positions("stretch", labels, padding, padding, groups)

    def model_inputs(self, device: torch.device) -> dict[str, Any]:
        """What the model's forward takes in place of features."""
        return {"encoder_outputs": (self.states.to(device),)}


def read_sound(path: Path, config: Any, truncate: bool) -> Tensor:
    """The log-mel features [n_bins, n_columns] of a WAV file, or those in a .npy or .safetensors file.

    A sound that is longer than the model reads is cut with ``truncate``; a shorter one is padded with silence.

    Raises:
        TextError: the file is of another kind or shape, or too long.
    """
    n_bins, n_columns = config.num_mel_bins, COLUMNS * config.max_source_positions
    try:
        if path.suffix == ".npy":
            found = np.load(path, allow_pickle=False)
        elif path.suffix == ".safetensors":
            found = next(iter(load_file(path).values()))
        else:
            found = _features_of_wav(path, n_bins, n_columns)
    except (OSError, EOFError, ValueError, wave.Error, SafetensorError) as error:
        raise TextError(
            f"cannot read a sound in {path} ({error}); expected features (.npy, .safetensors), or a WAV file of "
            f"{_RATE} samples a second of 16 bits: ffmpeg -i {path} -ar {_RATE} -ac 1 -c:a pcm_s16le out.wav"
        ) from error
    n_found = found.shape[-1] if found.shape[:-1] in ((n_bins,), (1, n_bins)) else 0
    if not 0 < n_found <= (math.inf if truncate else n_columns):
        raise TextError(
            f"expected features [{n_bins}, up to {n_columns}] in {path}, {n_columns * _HOP / _RATE:g} seconds, found "
            f"{list(found.shape)}; of a longer sound --truncate (truncate=True) reads as much."
        )
    features = torch.from_numpy(found.astype(np.float32)).reshape(n_bins, -1)[:, :n_columns]
    silence = float(features.max()) - 2  # as low as the feature extractor goes
    return torch.nn.functional.pad(features, (0, n_columns - features.shape[1]), value=silence)


def _features_of_wav(path: Path, n_bins: int, n_columns: int) -> Any:
    """The features [1, n_bins, n_columns or more]."""
    from transformers import WhisperFeatureExtractor

    with wave.open(str(path)) as file:
        rate, bits, content = file.getframerate(), 8 * file.getsampwidth(), file.readframes(file.getnframes())
        if (rate, bits) != (_RATE, 16):
            raise ValueError(f"it has {rate} samples a second of {bits} bits")
        samples = np.frombuffer(content, "<i2").reshape(-1, file.getnchannels()).mean(1) / 2**15
    length = max(len(samples), n_columns * _HOP)
    extract = WhisperFeatureExtractor(feature_size=n_bins)
    return extract(samples, sampling_rate=_RATE, max_length=length, return_tensors="np")["input_features"]


def frames_of(features: Tensor, states: Tensor) -> Frames:
    """The frames of features [n_bins, n_columns], of which the last are padding where they are all alike."""
    heard = (features != features[0, -1]).any(0) * torch.arange(1, features.shape[1] + 1, device=features.device)
    n_heard = max(1, int(heard.max()) // COLUMNS)
    times = [f"{_SECONDS * frame:.2f}s" for frame in range(n_heard)]
    tokens = tokens_of_labels((*times, *["<padding>"] * (states.shape[1] - n_heard)), False)
    return Frames(**vars(tokens), states=states, n_heard=n_heard)
