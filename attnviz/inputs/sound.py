"""Sound as an encoder-decoder such as Whisper reads it: log-mel features, and the frames that its encoder makes."""

import math
import shlex
import wave
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.errors import TextError
from attnviz.inputs.arrays import real_numbers
from attnviz.inputs.prompt import Positions, Prompt, Text, read_prompt, tokens_of_labels
from attnviz.models.checkpoint import Checkpoint

# Samples a second, samples from one column of features to the next, and columns in a frame.
_RATE, _HOP, COLUMNS = 16_000, 160, 2

_SECONDS, _MOST_INTERVALS = COLUMNS * _HOP / _RATE, 125  # length of a frame, and most columns of a picture


@dataclass(frozen=True, eq=False, kw_only=True)
class Frames(Prompt):
    """``n_heard`` frames of a sound, and then of padding, from its log-mel ``features`` [n_bins, n_columns]."""

    features: Tensor
    n_heard: int

    @property
    def notes(self) -> list[str]:
        return [f"X attends to {self.size} and to padding, {len(self)} frames; the encoder itself is not measured."]

    @property
    def asked(self) -> tuple[list[str], dict[str, object]]:
        return [], {"audio": self.source.text}

    @property
    def size(self) -> str:
        return f"{_SECONDS * self.n_heard:.2f} s in intervals of {_SECONDS * len(self.intervals.members[0]):.2f} s"

    @property
    def intervals(self) -> Positions:
        """Columns of pictures: as many frames each as leave few enough, labelled by the first; and all padding."""
        firsts = range(0, self.n_heard, math.ceil(self.n_heard / _MOST_INTERVALS))
        ends = [*firsts, self.n_heard]
        if self.n_heard < len(self):
            ends.append(len(self))
        groups = tuple(tuple(range(start, end)) for start, end in pairwise(ends))
        labels = tuple(self.labels[group[0]] for group in groups)
        padding = tuple(self.special[group[0]] for group in groups)
        return Positions("interval", labels, padding, padding, groups)

    def model_inputs(self, device: torch.device) -> dict[str, Tensor]:
        """What the model's forward takes: a batch of this sound."""
        return {"input_features": self.features[None].to(device)}


@dataclass(frozen=True)
class Sound:
    """A sound in a file, instead of a text."""

    file: Path


@read_prompt.register
def _(given: Sound, checkpoint: Checkpoint, truncate: bool = False) -> Prompt:  # noqa: ARG001 - it is cut nowhere
    return replace(read_sound(given.file, checkpoint.config, checkpoint.dtype), source=Text(str(given.file)))


def read_sound(path: Path, config: Any, dtype: torch.dtype) -> Frames:
    """The frames of a WAV file, or of features in a .npy file, padded with silence.

    TextError where the file is of another kind or shape, or longer than the model reads.
    """
    from transformers import WhisperFeatureExtractor

    n_bins, n_columns = config.num_mel_bins, COLUMNS * config.max_source_positions
    try:
        if path.suffix == ".npy":
            with np.errstate(over="ignore"):  # they become infinite, which is refused
                features = real_numbers(path).astype(np.float32)
        else:
            with wave.open(str(path)) as file:
                rate, bits, n_channels = file.getframerate(), 8 * file.getsampwidth(), file.getnchannels()
                expected = file.getnframes() * n_channels
                content = file.readframes(file.getnframes())
            if (rate, bits) != (_RATE, 16):
                raise ValueError(f"{rate} samples a second of {bits} bits")
            if not len(content) == 2 * expected > 0:
                raise ValueError(f"{len(content) // 2} of {expected} samples")
            samples = np.frombuffer(content, "<i2").reshape(-1, n_channels).mean(1) / 2**15
            extract = WhisperFeatureExtractor(feature_size=n_bins)
            length = max(len(samples), n_columns * _HOP)
            features = extract(samples, sampling_rate=rate, max_length=length, return_tensors="np")["input_features"]
        fits = features.shape[:-1] in ((n_bins,), (1, n_bins)) and 0 < features.shape[-1] <= n_columns
        if not fits or not np.isfinite(features).all():
            raise ValueError(f"features {list(features.shape)}, for at most [{n_bins}, {n_columns}], all finite")
    except (OSError, EOFError, TypeError, ValueError, wave.Error) as error:
        seconds = f"{n_columns * _HOP / _RATE:g}"
        raise TextError(
            f"cannot read a sound of at most {seconds} seconds in {path} ({str(error) or 'the file ends early'}); "
            f"expected features (.npy), or a WAV file of {_RATE} samples a second of 16 bits: "
            f"ffmpeg -i {shlex.quote(str(path))} -t {seconds} -ar {_RATE} -ac 1 out.wav"
        ) from error
    tensor = torch.from_numpy(features.reshape(n_bins, -1)).to(dtype)
    silence = float(features.max()) - 2  # as low as the feature extractor goes
    return frames_of(torch.nn.functional.pad(tensor, (0, n_columns - tensor.shape[1]), value=silence))


def frames_of(features: Tensor) -> Frames:
    """The frames of features [n_bins, n_columns], of which those after the end of the sound are all alike."""
    heard = (features != features[0, -1]).any(0) * torch.arange(1, features.shape[1] + 1)
    n_heard = max(1, math.ceil(int(heard.max()) / COLUMNS))
    times = [f"{_SECONDS * frame:.2f}s" for frame in range(n_heard)]
    tokens = tokens_of_labels((*times, *["<padding>"] * (features.shape[1] // COLUMNS - n_heard)), False)
    return Frames(**vars(replace(tokens, why_unparsed="a sound has none.")), features=features, n_heard=n_heard)
