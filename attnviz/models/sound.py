"""Sound as an encoder-decoder such as Whisper reads it: log-mel features, and the frames that its encoder makes."""

import math
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.errors import TextError
from attnviz.models.tokens import Positions, Tokens

_RATE, _HOP = 16_000, 160
"""Samples a second, and from one column of features to the next."""

COLUMNS = 2
"""Columns of features in a frame, after the encoder's second convolution."""

SECONDS = COLUMNS * _HOP / _RATE
"""Length of a frame."""

_MOST_COLUMNS, _IN_A_COLUMN = 120, (1, 2, 5, 10, 15)
"""Of a picture, and numbers of frames that may share one, for round times."""

_QUIETEST = 2.0
"""How far silence is below the largest feature, as the feature extractor bounds it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Frames(Tokens):
    """The frames of a sound, all that the encoder makes; those after its end are padding, and sinks.

    Attributes:
        file: where it was read.
        features: [n_bins, 2 * n_frames], log-mel.
        n_heard: frames up to the end of the sound.
    """

    file: Path
    features: Tensor
    n_heard: int

    @property
    def length(self) -> str:
        """Its length: ``2.60 s``."""
        return f"{SECONDS * self.n_heard:.2f} s"

    @property
    def in_a_column(self) -> int:
        """Frames that share a column of a picture."""
        least = math.ceil(self.n_heard / _MOST_COLUMNS)
        return next((size for size in _IN_A_COLUMN if size >= least), least)

    @property
    def column_note(self) -> str:
        """What a picture says of its columns, or ''."""
        if self.in_a_column == 1:
            return ""
        return f"attention to the sound is summed over {SECONDS * self.in_a_column:g} s"

    def stretches(self, size: int = 1) -> Positions:
        """Stretches of so many frames, labelled by their begin, and one of all padding."""
        firsts = range(0, self.n_heard, size)
        members = [tuple(range(first, min(first + size, self.n_heard))) for first in firsts]
        labels = [self.labels[first] for first in firsts]
        padding = tuple(range(self.n_heard, len(self)))
        if padding:
            members.append(padding)
            labels.append(self.labels[-1])
        sink = tuple(self.sink[of_unit[0]] for of_unit in members)
        return Positions("frame", tuple(labels), (False,) * len(labels), sink, tuple(members))

    def model_inputs(self, device: torch.device) -> dict[str, Tensor]:
        """What the model's forward takes, a batch of one."""
        return {"input_features": self.features[None].to(device)}


def read_sound(path: Path, config: Any, dtype: torch.dtype, truncate: bool = False) -> Frames:
    """The frames of a WAV file, or of log-mel features [n_bins, n_columns] in a .npy or .safetensors file.

    ``truncate`` cuts a sound that is longer than the model reads. Shorter ones are padded with silence.

    Raises:
        TextError: the file cannot be read, is of another kind or shape, or holds no sound or too much of it.
    """
    n_columns = COLUMNS * config.max_source_positions
    try:
        if path.suffix.lower() in (".npy", ".safetensors"):
            features = _saved_features(path, config.num_mel_bins)
        else:
            features = _features_of_wav(path, config.num_mel_bins, n_columns, truncate)
    except OSError as error:
        raise TextError(f"cannot read the sound in {path}: {error.strerror or error}.") from error
    if features.shape[1] > n_columns and not truncate:
        raise _too_long(path, features.shape[1], n_columns)
    features = features[:, :n_columns]
    missing = n_columns - features.shape[1]
    features = np.pad(features, [(0, 0), (0, missing)], constant_values=features.max() - _QUIETEST)
    return frames_of(torch.from_numpy(features).to(dtype), path)


def frames_of(features: Tensor, path: Path) -> Frames:
    """The frames of features [n_bins, n_columns] of the length that the model reads.

    Raises:
        TextError: all of them are alike.
    """
    heard = (features != features[0, -1]).any(0).nonzero()  # padding is one value
    if not len(heard):
        raise TextError(f"expected a sound in {path}, found silence.")
    n, n_heard = features.shape[1] // COLUMNS, max(1, (int(heard[-1]) + 1) // COLUMNS)
    times = [f"{SECONDS * frame:.2f}s" for frame in range(n_heard)]
    after = [frame >= n_heard for frame in range(n)]
    return Frames(
        ids=tuple(range(n)),
        labels=(*times, *["padding"] * (n - n_heard)),
        special=tuple(after),
        sink=tuple(after),
        words=(None,) * n,
        segments=(0,) * n,
        offsets=((0, 0),) * n,
        type_ids=None,
        word_labels=(),
        file=path,
        features=features,
        n_heard=n_heard,
    )


def _too_long(path: Path, columns: int, most: int) -> TextError:
    seconds = _HOP / _RATE
    return TextError(
        f"the sound in {path} has {columns * seconds:.2f} seconds, but the model reads {most * seconds:g}; cut it, or "
        "pass --truncate (truncate=True)."
    )


def _saved_features(path: Path, n_bins: int) -> NDArray[np.float32]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        found = [np.load(path, allow_pickle=False)] if path.suffix.lower() == ".npy" else [*load_file(path).values()]
    except (ValueError, SafetensorError) as error:
        raise TextError(f"cannot read the features in {path}: {error}.") from error
    features = found[0] if len(found) == 1 else np.empty(0)
    features = features[0] if features.ndim == 3 and len(features) == 1 else features
    if features.ndim != 2 or len(features) != n_bins or not np.isfinite(features).all() or not features.size:
        shapes = ", ".join(str(list(each.shape)) for each in found) or "nothing"
        raise TextError(f"expected finite log-mel features [{n_bins}, n_columns] in {path}, found {shapes}.")
    return features.astype(np.float32)


def _features_of_wav(path: Path, n_bins: int, n_columns: int, truncate: bool) -> NDArray[np.float32]:
    from transformers import WhisperFeatureExtractor

    try:
        with wave.open(str(path)) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            found = f"{rate} samples a second of {8 * width} bits"
            content = file.readframes(file.getnframes()) if (rate, width) == (_RATE, 2) else b""
    except (wave.Error, EOFError) as error:
        found, content = str(error) or "no such file", b""
    samples = np.frombuffer(content[: len(content) // 2 * 2], "<i2") / 2**15
    if not samples.size:
        raise TextError(
            f"expected {path} as a WAV file of {_RATE} samples a second of 16 bits, or as features (.npy, "
            f".safetensors), found {found}; this makes one: ffmpeg -i {path} -ar {_RATE} -ac 1 -c:a pcm_s16le out.wav"
        )
    mono = samples[: len(samples) // channels * channels].reshape(-1, channels).mean(1)
    columns = -(-len(mono) // _HOP)
    if columns > n_columns and not truncate:
        raise _too_long(path, columns, n_columns)
    extractor = WhisperFeatureExtractor(feature_size=n_bins)
    found_features = extractor(mono, sampling_rate=_RATE, max_length=n_columns * _HOP, return_tensors="np")
    features: NDArray[np.float32] = found_features["input_features"][0]
    return features
