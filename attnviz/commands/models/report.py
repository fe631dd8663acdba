"""JSON, CSV and tables of models, with the sources of the numbers; and of the reproduced families."""

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType

from attnviz.commands.models.measure import Configuration, paper_titles
from attnviz.plugins import ORIGIN
from attnviz.present.documents import csv_text
from attnviz.present.fields import Field
from attnviz.present.tables import RowTable, notes, spaced
from attnviz.version import __version__
from attnviz.wording import abbreviated, visible

_SIZES = {"Layers": "n_layers", "Heads": "n_heads", "d_model": "d_model", "d_head": "d_head", "Positions": "positions"}
_LEVEL = (
    "Level 4: from the input of each attention, queries, keys, values, patterns and outputs are recomputed with the "
    "weights and compared, and the sum and norm after it. Embeddings, norms before attention and feed-forward networks "
    "are the model's own."
)


def models_document(models: Sequence[Configuration]) -> dict[str, Any]:
    """The document of models.json, with the papers cited."""
    cited = {model.source for model in models if model.kind == "paper"}
    papers = {name: title for name, title in paper_titles().items() if name in cited}
    return {"attnviz": __version__, "models": [model.entry() for model in models], "papers": papers}


def models_csv(content: dict[str, Any]) -> str:
    """The CSV file of the document of models.json."""
    columns = [name for name in Configuration("", "").entry() if name != "origins"]
    return csv_text(columns, content["models"])


def verified_csv(content: dict[str, Any]) -> str:
    """The CSV file of the document of models-verify.json."""
    of_model = ("name", "architecture", "class", "revision", "weights_sha256", "dtype", "attention")
    columns = (*of_model, "level", "seconds", "peak_bytes", "reason")
    errors = list(next((model["errors"] for model in content["models"] if model["level"]), ()))
    rows = ({**model["model"], **model, **model.get("errors", {})} for model in content["models"])
    return csv_text([*columns, *errors], rows)


def verified_report(content: dict[str, Any]) -> RenderableType:
    """Table with a row per model that was verified, why others were not, and what a report of a fault needs."""
    models: Sequence[dict[str, Any]] = content["models"]

    def error(title: str) -> Field[dict[str, Any]]:
        def value(model: dict[str, Any]) -> object:
            return model.get("errors", {}).get(f"{title.lower()}_error")

        return Field(f"{title} error", value, write=lambda number: number if number is None else f"{number:.1e}")

    columns: list[Field[dict[str, Any]]] = [
        Field("Name", lambda model: visible(model["model"]["name"])),
        Field("Level", lambda model: model["level"]),
        *map(error, ("Pattern", "Output", "Layer")),
        Field("Time", lambda model: model.get("seconds"), "s"),
        Field("Memory", lambda model: model.get("peak_bytes"), "GiB", write=lambda size: size and size / 2**30),
    ]
    title = "Verified on four texts: long, padded, another script, special tokens"
    lines = [
        f"{_LEVEL} Errors: the largest of all. Layer: of any step of any layer, from the embeddings on; – where "
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
    programs = ("attnviz", "torch", "transformers", "python", "platform")
    lines.append(", ".join(f"{name} {content[name]}" for name in programs))
    return spaced([RowTable(title, columns, models), notes(*map(visible, lines))])


def models_report(models: Sequence[Configuration]) -> RenderableType:
    """Table with a row per model."""

    def size(title: str, name: str) -> Field[Configuration]:
        def value(model: Configuration) -> str:  # with a star if it is not the paper's own
            number = getattr(model, name)
            of_decoder = getattr(model, f"n_decoder_{title.lower()}", None)  # of layers and heads
            if number is None:
                return "–"
            star = "*" if model.origins.get(name) == "released" else ""
            return f"{star}{number}" if of_decoder is None else f"{star}{number}+{of_decoder}"

        return Field(title, value, detail=name in ("d_head", "positions"))

    def source(model: Configuration) -> str:
        return (model.source or "").replace(" et al.", "") if model.kind == "paper" else model.kind

    columns: list[Field[Configuration]] = [
        Field("Name", lambda model: visible(model.name)),
        *(size(title, name) for title, name in _SIZES.items()),
        Field("Parameters", lambda model: abbreviated(model.stated_parameters or model.parameters)),
        Field("Source", source, detail=True),
        Field("Level", lambda model: model.level),
    ]
    papers = [model for model in models if model.kind == "paper"]
    lines = []
    if any(model.parameters or model.stated_parameters for model in models):
        lines.append(
            "Parameters: as a paper states them, else counted, of the bare model without a task head; embeddings and "
            "BERT's pooler count, shared ones once."
        )
    counts = [f"{model.name} {abbreviated(model.parameters)}" for model in papers if model.parameters is not None]
    if counts:
        lines.append(f"Counted from the released sizes: {', '.join(counts)}.")
    sharing: dict[str, list[str]] = {}  # reasons and notes, each once for all models that share it
    for model in models:
        reasons = [] if model.reproduced else [f"not reproduced: {model.reason}"]
        for note in (*reasons, *model.notes):
            sharing.setdefault(note.removesuffix("."), []).append(model.name)
    lines += [f"{', '.join(names)}: {note}." for note, names in sharing.items()]
    if any(model.level for model in models):
        lines.append(f"{_LEVEL} –: not reproduced. --families lists which commands take which.")
    if any("released" in (model.origins.get(name) for name in _SIZES.values()) for model in papers):
        lines.append("*: not in the paper, but in the config that its authors released.")
    cited = {model.source for model in papers}
    lines += [f"{name}: {title}." for name, title in paper_titles().items() if name in cited]
    title = "Models (from configs and papers; no weights were loaded)"
    return spaced([RowTable(title, columns, models), notes(*map(visible, lines))])


def families_document() -> dict[str, Any]:
    """The document of families: each one's level, and by command the part of its models that is measured."""
    from attnviz.models.families import ARCHITECTURES, REFUSED, commands_of
    from attnviz.run.checks import Verification

    families = [
        {"architecture": name, "level": None if name in ARCHITECTURES.plugins else Verification.level}
        | {"commands": commands_of(architecture)}
        | ({"plugin": ORIGIN} if name in ARCHITECTURES.plugins else {})
        for name, architecture in sorted(ARCHITECTURES.items())
    ]
    return {"attnviz": __version__, "families": families, "refused": dict(sorted(REFUSED.items()))}


def families_report(document: dict[str, Any]) -> RenderableType:
    """Table with a row per family."""
    from attnviz.models.families import commands_in_words

    families = document["families"]
    columns: list[Field[dict[str, Any]]] = [
        Field("model_type", lambda family: family["architecture"]),
        Field("Level", lambda family: family["level"] or "?"),
        Field("Commands that take it", lambda family: commands_in_words(family["commands"])),
    ]
    title = "Families that attnviz reproduces"
    plugged = ", ".join(f"{family['architecture']} ({family['plugin']})" for family in families if "plugin" in family)
    also = [f"From plug-ins: {visible(plugged)}. ?: not tried; each run verifies them."] if plugged else []
    commands = ", ".join(families[0]["commands"])
    refused = (
        f"All: {commands}. Of the encoder: of an encoder-decoder its encoder alone. All others are refused by name: "
        "what reads images or sound alone, and with the reason and what to do instead "
        f"{', '.join(document['refused'])}."
    )
    return spaced(
        [RowTable(title, columns, families), notes(*also, f"model_type: as config.json has it. {_LEVEL}", refused)]
    )
