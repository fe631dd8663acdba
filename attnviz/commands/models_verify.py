"""``attnviz models NAME… --verify``: every head, and the rest of each layer, verified on a fixed set of short texts."""

import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
import transformers
from rich.console import RenderableType

from attnviz.commands.models import CONFIG, LEVEL_TEXT, Listing, find_config
from attnviz.errors import AttnvizError
from attnviz.inputs.prompt import Prompt, TargetTokens, Text
from attnviz.inputs.text import encode, tokenize
from attnviz.memory import out_of_memory_named, peak_memory
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.files import read_json
from attnviz.models.opening import open_checkpoint
from attnviz.models.sources import find_checkpoint
from attnviz.present.documents import csv_text, model_entry, verification_entry
from attnviz.present.fields import Field, Table
from attnviz.present.tables import notes, spaced
from attnviz.progress import Progress
from attnviz.run.corpus import verified_texts
from attnviz.run.layer_steps import verify_stages
from attnviz.version import __version__
from attnviz.wording import visible

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


def _encoded(checkpoint: Checkpoint, words: list[str]) -> list[Prompt]:
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
        targets = [TargetTokens("", item, True, item.ids) for item in items]
        items = [
            replace(item, source=replace(item.source, target=target))
            for item, target in zip(items, targets, strict=True)
        ]
    entry = verification_entry(verified_texts(checkpoint, items))
    layer_error: float | None = None
    reason = None
    try:
        for item in items if checkpoint.architecture.explained else ():
            for stages in verify_stages(checkpoint, tokenize(checkpoint, item.source.text), range(checkpoint.n_layers)):
                layer_error = max(layer_error or 0.0, *(check.error for check in stages.checks.values()))
    except AttnvizError as error:
        layer_error, reason = None, f"the heads are verified, not the rest of the layers: {error}"
    errors = {key: max(layer[key] for layer in entry["layers"]) for key in ERRORS}
    return {
        "level": entry["level"],
        "reason": reason,
        "texts": [item.source.text for item in items],
        "tokens": [len(item) for item in items],
        "errors": errors | {"layer_error": layer_error},
        "peak_bytes": torch.cuda.max_memory_allocated() if checkpoint.device.type == "cuda" else peak_memory(),
        "verification": entry,
    }


# What is written and said


def listed_verified(names: Sequence[str], progress: Progress) -> Listing:
    """A row per model that was verified, why others were not, and what a report of a fault needs."""
    models = []
    for done, name in enumerate(names):
        progress(f"verifying {name}", done, len(names))
        models.append(verified(name))
    of_model = ("name", "architecture", "class", "revision", "weights_sha256", "dtype", "attention")
    columns = (*of_model, "level", "seconds", "peak_bytes", "reason")
    errors = next((model["errors"] for model in models if model["level"]), ())
    rows = ({**model["model"], **model, **model.get("errors", {})} for model in models)
    failed = any(model["reason"] for model in models)
    csv = csv_text([*columns, *errors], rows)
    return Listing(VERSIONS | {"models": models}, csv, _report(models), "models-verify", int(failed))


def _report(models: Sequence[dict[str, Any]]) -> RenderableType:

    def error(name: str) -> Field[dict[str, Any]]:
        title, path = f"{name.capitalize()} error", f"errors.{name}_error"
        return Field(title, path, write=lambda number: number if number is None else f"{number:.1e}")

    columns: list[Field[dict[str, Any]]] = [
        Field("Name", "model.name", write=visible),
        Field(name="level"),
        *map(error, ("pattern", "output", "layer")),
        Field("Time", "seconds", "s"),
        Field("Memory", "peak_bytes", "GiB", write=lambda size: size and size / 2**30),
    ]
    title = "Verified on four texts: long, padded, another script, special tokens"
    lines = [
        f"{LEVEL_TEXT} Errors: the largest of all. Layer: of any step of any layer, from the embeddings on; – where "
        "explain takes no such model. Memory: the peak of the process so far, or of the GPU."
    ]
    for model in models:  # what it is, as far as it is known, and why it is not verified
        entry = model["model"]
        known = [entry.get(name) for name in ("architecture", "class", "dtype", "device")]
        known += [f"{name}: {entry[name]}" for name in ("attention", "head") if entry.get(name)]
        if any(known):
            lines.append(f"{entry['name']}: {', '.join(filter(None, known))}.")
        if model["reason"]:
            lines.append(f"{entry['name']}: {model['reason']}")
    lines.append(", ".join(f"{name} {version}" for name, version in VERSIONS.items()))
    return spaced([Table(title, columns, models), notes(*map(visible, lines))])
