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
from attnviz.models.tokens import Positions, Tokens

_RATE, _HOP, COLUMNS = 16_000, 160, 2
"""Samples a second, samples from one column of features to the next, and columns in a frame."""

SECONDS = COLUMNS * _HOP / _RATE
"""Length of a frame."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Frames(Tokens):
    """All frames that the encoder makes of a sound, with its final ``states`` [1, n, d_model].

    ``n_heard`` are those up to the end of the sound; the others are padding, and sinks.
    """

    states: Tensor
    n_heard: int

    @property
    def notes(self) -> list[str]:
        """What the frames are."""
        sound = f"Sound: {self.n_heard} frames of {SECONDS:g} s, the keys of X. The encoder itself is not measured."
        return [sound, f"Padding up to {len(self)} frames counts as a sink."][: 1 + any(self.sink)]

    def stretches(self, most: int | None = None) -> Positions:
        """Stretches of as many frames as leave at most so many, labelled by their begin, and one of all padding."""
        size = math.ceil(self.n_heard / (most or self.n_heard))
        ends = [*range(0, self.n_heard, size), self.n_heard, len(self)]
        groups = [tuple(range(*each)) for each in pairwise(ends) if each[0] < each[1]]
        labels, sink = (tuple(names[group[0]] for group in groups) for names in (self.labels, self.sink))
        return Positions("frame", labels, (False,) * len(groups), sink, tuple(groups))

    def model_inputs(self, device: torch.device) -> dict[str, Any]:
        """What the model's forward takes in place of features."""
        return {"encoder_outputs": (self.states.to(device),)}


def read_sound(path: Path, config: Any, truncate: bool) -> Tensor:
    """The log-mel features [n_bins, n_columns] of a WAV file, or those in a .npy or .safetensors file.

    A sound that is longer than the model reads is cut with ``truncate``; a shorter one is padded with silence.

    Raises:
        TextError: the file is of another kind or shape, or too long.
    """
    n_bins, n_columns, columns = config.num_mel_bins, COLUMNS * config.max_source_positions, 0
    try:
        if path.suffix == ".npy":
            found = np.load(path, allow_pickle=False)
        elif path.suffix == ".safetensors":
            found = next(iter(load_file(path).values()))
        else:
            found, columns = _features_of_wav(path, n_bins, n_columns)
    except (OSError, EOFError, ValueError, wave.Error, SafetensorError) as error:
        raise TextError(
            f"cannot read a sound in {path} ({error}); expected features (.npy, .safetensors), or a WAV file of "
            f"{_RATE} samples a second of 16 bits: ffmpeg -i {path} -ar {_RATE} -ac 1 -c:a pcm_s16le out.wav"
        ) from error
    if found.shape[:-1] not in ((n_bins,), (1, n_bins)) or not found.size:
        raise TextError(f"expected features [{n_bins}, n_columns] in {path}, found {list(found.shape)}.")
    columns = max(columns, found.shape[-1])
    if columns > n_columns and not truncate:
        found_and_most = (f"{n * _HOP / _RATE:.2f} seconds" for n in (columns, n_columns))
        raise TextError("{} has {}, but the model reads {}; cut it (--truncate).".format(path, *found_and_most))
    features = torch.from_numpy(found.astype(np.float32)).reshape(n_bins, -1)[:, :n_columns]
    silence = float(features.max()) - 2  # as low as the feature extractor goes
    return torch.nn.functional.pad(features, (0, n_columns - features.shape[1]), value=silence)


def _features_of_wav(path: Path, n_bins: int, n_columns: int) -> tuple[Any, int]:
    """Features of so many columns, and how many the sound has."""
    from transformers import WhisperFeatureExtractor

    with wave.open(str(path)) as file:
        rate, bits, content = file.getframerate(), 8 * file.getsampwidth(), file.readframes(file.getnframes())
        if (rate, bits) != (_RATE, 16):
            raise ValueError(f"it has {rate} samples a second of {bits} bits")
        samples = np.frombuffer(content, "<i2").reshape(-1, file.getnchannels()).mean(1) / 2**15
    extract = WhisperFeatureExtractor(feature_size=n_bins)
    features = extract(samples, sampling_rate=_RATE, max_length=n_columns * _HOP, return_tensors="np")["input_features"]
    return features, math.ceil(len(samples) / _HOP)


def frames_of(features: Tensor, states: Tensor) -> Frames:
    """The frames of features [n_bins, n_columns], of which the last are padding where they are all alike."""
    heard = (features != features[0, -1]).any(0) * torch.arange(1, features.shape[1] + 1)
    n, n_heard = states.shape[1], max(1, int(heard.max()) // COLUMNS)
    padding = tuple(frame >= n_heard for frame in range(n))
    return Frames(
        ids=tuple(range(n)),
        labels=(*(f"{SECONDS * frame:.2f}s" for frame in range(n_heard)), *["padding"] * (n - n_heard)),
        special=padding,
        sink=padding,
        words=(None,) * n,
        segments=(0,) * n,
        offsets=((0, 0),) * n,
        type_ids=None,
        word_labels=(),
        states=states,
        n_heard=n_heard,
    )
