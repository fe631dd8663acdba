"""``attnviz models NAME… --verify``: every head, and the rest of each layer, verified on a fixed set of short texts."""

import platform
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
import transformers

from attnviz.commands.explain.stages import VerifiedStages, verify_stages
from attnviz.commands.models.measure import CONFIG, find_config
from attnviz.errors import AttnvizError
from attnviz.memory import out_of_memory_named, peak_memory
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.files import read_json
from attnviz.models.opening import open_checkpoint
from attnviz.models.sound import COLUMNS
from attnviz.models.sources import find_checkpoint
from attnviz.present.documents import model_entry, verification_entry
from attnviz.run.corpus import SampledAttention
from attnviz.texts.batches import EncodedText, collate, encode
from attnviz.texts.reading import Text
from attnviz.version import __version__

_SHORT = "The cat that I saw ran away."
_LONG = "The old house by the river, which nobody had entered for years, was sold to a young couple. " * 4

# Of these the largest of all layers and texts is told.
ERRORS = ("pattern_error", "output_error", "residual_error", "input_error", "head_output_error")

VERSIONS = {"attnviz": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
VERSIONS |= {"python": platform.python_version(), "platform": platform.platform()}


def texts_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """A long text, a short one, one in other scripts, and one in which a special token of this model is written."""
    special = next(iter(checkpoint.tokenizer.all_special_tokens), "[MASK]")
    other = "Кошка, которую я видел, убежала. 猫が逃げた。 रात"
    return _LONG, _SHORT, other, f"The {special} ran {special}."


def _encoded(checkpoint: Checkpoint, words: list[str]) -> list[EncodedText]:
    """A text as the model reads it; half of it, or less, where the whole is too long; empty where nothing can be."""
    items = encode(checkpoint, [Text(" ".join(words))], lambda *_: None)
    return items if items or len(words) < 2 else _encoded(checkpoint, words[: len(words) // 2])


def verified(name: str) -> dict[str, Any]:
    """What verification of a model by name gave; ``level`` is None where there is none; the ``reason`` of a failure."""
    started = time.perf_counter()
    model = dict[str, Any]()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        with out_of_memory_named():
            checkpoint = open_checkpoint(find_checkpoint(name), sound=None)[0]
            model = model_entry(checkpoint) | {"class": type(checkpoint.model).__name__}
            model |= {"attention": checkpoint.attention, "head": checkpoint.head_in_words}
            return {"model": model} | _verified(checkpoint) | {"seconds": time.perf_counter() - started}
    except AttnvizError as error:
        if not model:
            model["name"] = name
            with suppress(AttnvizError):  # where the config cannot be read
                config = read_json(find_config(name).folder / CONFIG)
                classes = config.get("architectures")
                names = {"architecture": config.get("model_type")}
                if isinstance(classes, list) and classes:
                    names["class"] = classes[0]
                model |= {key: value for key, value in names.items() if isinstance(value, str)}
        return {"model": model, "level": None, "reason": str(error)}


def _verified(checkpoint: Checkpoint) -> dict[str, Any]:
    items = [item for text in texts_of(checkpoint) for item in _encoded(checkpoint, text.split())]
    if checkpoint.stacks:
        items = [replace(item, target=item.ids) for item in items]
    attention = SampledAttention(checkpoint)
    batch = collate(checkpoint, items)
    if checkpoint.architecture.reads_sound:  # one at random for each text
        n_bins, n = checkpoint.config.num_mel_bins, checkpoint.config.max_source_positions
        features = torch.randn(len(items), n_bins, COLUMNS * n, generator=torch.Generator().manual_seed(0))
        inputs = {name: value for name, value in batch.inputs.items() if name.startswith("decoder_")}
        inputs["input_features"] = features.to(checkpoint.device, checkpoint.dtype)
        batch = replace(batch, inputs=inputs, valid=batch.valid.new_ones(len(items), n))
    attention.verify(batch, lambda _: None)
    entry = verification_entry(attention.verification)
    layer_errors = list[float]()

    def on_layer(stages: VerifiedStages) -> None:
        layer_errors.append(max(check.error for check in stages.checks.values()))

    reason = None
    explained = checkpoint.architecture.explained
    try:
        for item in items if explained else ():
            verify_stages(checkpoint, checkpoint.tokenize(item.source.text), range(checkpoint.n_layers), on_layer)
    except AttnvizError as error:
        reason = f"the heads are verified, not the rest of the layers: {error}"
    return {
        "level": entry["level"],
        "reason": reason,
        "texts": [item.source.text for item in items],
        "tokens": [len(item) for item in items],
        "errors": {key: max(layer[key] for layer in entry["layers"]) for key in ERRORS}
        | {"layer_error": None if reason or not explained else max(layer_errors)},
        "peak_bytes": torch.cuda.max_memory_allocated() if checkpoint.device.type == "cuda" else peak_memory(),
        "verification": entry,
    }
