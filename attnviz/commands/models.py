"""Sizes of models, from their config.json or from papers, counted parameters, and whether attnviz reproduces them.

No weights are loaded. Models of papers are as the papers print them (public copies), in data/configurations.json; what
they do not print is marked there, and oddities of the originals are kept, and noted.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from attnviz.arguments import as_found, did_you_mean, is_whole
from attnviz.errors import ArchitectureError, CheckpointError, UsageError
from attnviz.models.files import read_json
from attnviz.models.sources import (
    ADAPTER_CONFIG,
    BUILT_IN,
    Source,
    as_folder,
    built_in_folder,
    find_checkpoint,
    from_hub,
    weight_files,
)
from attnviz.options import checked
from attnviz.plugins import ORIGIN
from attnviz.present.documents import json_text
from attnviz.present.fields import Field, Table, pick, plain
from attnviz.present.output_folder import OutputFolder
from attnviz.present.tables import notes, spaced
from attnviz.progress import Progress
from attnviz.version import __version__
from attnviz.wording import abbreviated, visible

if TYPE_CHECKING:
    from attnviz.models.families.base import Architecture

CONFIG = "config.json"


@dataclass(frozen=True)
class Configuration:
    """Sizes of a model without its weights; None if unknown."""

    name: str
    kind: str  # built-in, folder, hub or paper
    source: str | None = None  # of a paper's model the paper, of a hub model its commit
    architecture: str | None = None  # the model_type of its config; gpt3 has none in transformers
    n_layers: int | None = None  # of an encoder-decoder those of the encoder, as n_heads
    n_heads: int | None = None
    n_kv_heads: int | None = None  # keys and values in each layer, where the config names a number
    d_model: int | None = None
    d_head: int | None = None
    positions: int | None = None  # the longest text, in tokens, as the config or the paper has it
    vocabulary: int | None = None
    parameters: int | None = None  # of the bare model: embeddings and BERT's pooler counted, what is shared once
    attention_parameters: int | None = None  # those in W_Q, W_K, W_V, W_O and their biases
    stated_parameters: int | None = None  # as the paper rounds them
    reproduced: bool = False  # by the reference attention
    reason: str | None = None  # why not
    # by the name of a number, where it comes from: config, paper, released (the config that the authors released, where
    # the paper has no such number), derived (d_model / n_heads), counted
    origins: dict[str, str] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    n_decoder_layers: int | None = None  # with as much cross-attention
    n_decoder_heads: int | None = None

    @property
    def level(self) -> int | None:
        """Level of verification, see :class:`attnviz.run.checks.Verification`; None for none."""
        return 4 if self.reproduced else None

    @property
    def float32_gib(self) -> float | None:
        """Size of the weights in float32, in GiB (2**30 bytes)."""
        return None if self.parameters is None else self.parameters * 4 / 2**30


@cache
def _papers() -> list[dict[str, Any]]:
    path = Path(__file__).parents[1] / "data" / "configurations.json"
    return list(json.loads(path.read_text(encoding="utf-8")))


def paper_titles() -> dict[str, str]:
    """The title of each paper, with the place of its numbers, by citation."""
    return {paper["source"]: paper["title"] for paper in _papers()}


def paper_configurations() -> list[Configuration]:
    """Configurations of the papers' models: BERT, GPT-2, GPT-3, each from the smallest."""
    return [
        Configuration(
            **{key: value for key, value in model.items() if key not in ("notes", "other_name")},
            **paper["of_all"],
            kind="paper",
            source=paper["source"],
            notes=(*model.get("notes", ()), *paper["notes"]),
        )
        for paper in _papers()
        for model in paper["models"]
    ]


def paper_configuration(name: str) -> Configuration | None:
    """The paper's model of this name, in any case, ``gpt-3`` or ``gpt3``; None if there is none."""
    wanted = name.casefold().replace("gpt-", "gpt")
    models = (model for paper in _papers() for model in paper["models"])
    both = zip(models, paper_configurations(), strict=True)
    return next((found for model, found in both if wanted in (found.name, model.get("other_name"))), None)


_RELEASED = {"bert-base-uncased": "bert-base", "bert-large-uncased": "bert-large", "gpt2": "gpt2-small"}
_RELEASED |= {name: name for name in ("gpt2-medium", "gpt2-large", "gpt2-xl")}
"""By hub id of the weights, without its owner."""


def find_config(name: str) -> Source:
    """The folder with the config.json of a built-in model, a folder or a hub id; from the hub it is fetched alone.

    The source's ``kind`` is ``built-in``, ``folder`` or ``hub``.

    Raises:
        CheckpointError: there is none, or the hub cannot be reached, within 10 seconds.
        UsageError: the name is empty.
    """
    if not name.strip():
        raise UsageError("NAME is empty; expected a built-in name, a folder, a hub id or the name of a paper's model.")
    if name in BUILT_IN:
        return Source(name, built_in_folder(name) or find_checkpoint(name).folder, kind="built-in")
    folder = as_folder(name) or as_folder(name, ADAPTER_CONFIG)
    if folder is None:
        papers = [known.name for known in paper_configurations()]
        released = _RELEASED.get(name.casefold().rpartition("/")[2])
        meant = f" Its sizes: attnviz models {released}." if released else did_you_mean(name, [*BUILT_IN, *papers])
        unknown = (
            f"no configuration of {name!r}.{meant} It is not a built-in name ({', '.join(BUILT_IN)}), not a folder "
            f"with a {CONFIG}, not a paper's model ({papers[0]} … {papers[-1]})"
        )
        return replace(from_hub(name, None, _check_config, _config_alone, unknown), kind="hub")
    if folder.name == CONFIG and folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        kind = "a file" if folder.exists() else "nothing"
        raise CheckpointError(f"expected a folder with a {CONFIG} at {folder}, found {kind}.")
    adapter = folder / ADAPTER_CONFIG
    if adapter.is_file() and not (folder / CONFIG).is_file():
        base = read_json(adapter).get("base_model_name_or_path")
        if isinstance(base, str) and base != name:
            return replace(find_config(base), name=f"{base} + {name}")
    _check_config(folder)
    return Source(name, folder, kind="folder")


def built_in_configs() -> list[Source]:
    """The installed built-in models."""
    folders = {name: built_in_folder(name) for name in BUILT_IN}
    return [Source(name, folder, kind="built-in") for name, folder in folders.items() if folder is not None]


def cached_configs() -> dict[str, Source]:
    """Every model with a config.json in the hub's cache, by hub id; without network.

    Of several revisions it is the main branch's, else the newest. HF_HOME and HF_HUB_CACHE are honoured.
    """
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, ValueError):  # not there, or a file
        return {}
    configs = {}
    for repo in sorted(cache.repos, key=lambda repo: repo.repo_id):
        revisions = [revision for revision in repo.revisions if (revision.snapshot_path / CONFIG).is_file()]
        if repo.repo_type == "model" and revisions:
            best = max(revisions, key=lambda revision: ("main" in revision.refs, revision.last_modified))
            configs[repo.repo_id] = Source(repo.repo_id, best.snapshot_path, best.commit_hash, kind="hub")
    return configs


def _check_config(folder: Path) -> None:
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder} has no {CONFIG}: expected one as transformers' save_pretrained writes it.")


def _config_alone(names: list[str]) -> list[str]:
    if CONFIG not in names:
        raise CheckpointError(f"this model of the hub has no {CONFIG}, so it is no transformers model.")
    return [CONFIG]


_LONGEST = 160  # most characters of a reason from transformers

_SHORT = re.compile(r"\bhas (\w+=[^,;]+)")


@checked
def model_configurations(
    names: str | Path | Iterable[str | Path] | None = (), tell: Callable[[int, int], None] | None = None
) -> list[Configuration]:
    """List sizes and parameters of models, from configs and papers; no weights are loaded.

    Args:
        names: built-in names, folders, hub ids, and names of papers' models (``bert-large``, ``gpt2-xl``,
            ``gpt3-175b``); one alone needs no list. A name that is both a paper's model and in the hub's cache gives
            both. None or an empty list: the built-in models, all in the hub's cache, and the papers'.
        tell: callback with how many are read, of how many.

    Raises:
        CheckpointError: a name leads nowhere, or its config cannot be read.
        UsageError: a name is empty, or no name at all.
    """
    tell = tell or (lambda _, __: None)
    several = [names] if isinstance(names, str | Path) else [] if names is None else names
    try:
        listed: list[object] = [several] if isinstance(several, bytes) else list(several)
    except (TypeError, RuntimeError):  # also of arrays and tensors of which no row can be read
        listed = [several]
    for given in listed:
        if not isinstance(given, str | Path):
            raise UsageError(f"expected a list of models such as ['minilm', 'gpt2-xl'], found {as_found(given)}.")
    wanted = list(dict.fromkeys(map(str, listed)))
    configurations = list[Configuration]()
    for count, name in enumerate(wanted):
        tell(count, len(wanted))
        paper = paper_configuration(name)
        if paper is None or name in BUILT_IN or as_folder(name) is not None:
            configurations.append(read_configuration(find_config(name)))
            continue
        configurations.append(paper)
        cached = cached_configs().get(name)
        if cached is not None:
            configurations.append(read_configuration(cached))
    if wanted:
        return configurations
    files = [*built_in_configs(), *cached_configs().values()]
    for count, file in enumerate(files):
        tell(count, len(files))
        try:
            configurations.append(read_configuration(file))
        except CheckpointError as error:
            configurations.append(Configuration(file.name, file.kind, file.revision, reason=str(error)))
    return configurations + paper_configurations()


def read_configuration(file: Source) -> Configuration:
    """Read a model from its config.json; sizes and parameters if attnviz knows its architecture, else why not.

    No weights are read, no code of the checkpoint is run.

    Raises:
        CheckpointError: the file cannot be read, or is not a transformers model's.
    """
    from attnviz.models.configs import of_first_layer, read_config
    from attnviz.models.families import ARCHITECTURES, instead_of
    from attnviz.models.libraries import calling_transformers

    model_type = read_json(file.folder / CONFIG).get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise CheckpointError(
            f"{file.folder / CONFIG} has model_type {model_type!r}; expected an architecture, such as 'bert', as "
            "transformers' save_pretrained writes it."
        )
    model = Configuration(file.name, file.kind, file.revision, model_type)
    family = ARCHITECTURES.get(model_type)
    if family is None:
        return replace(model, reason=f"architecture {model_type!r}{instead_of(model_type)}")
    config = read_config(file.folder)
    with calling_transformers(f"transformers cannot tell the sizes in {file.folder / CONFIG}"):
        model = _with_sizes(model, config, of_first_layer(getattr(config, "text_config", config)), family)
    return _counted(model, config, file)


# transformers' standard names of the sizes, to which its configs map others.
_SETTINGS = {
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "d_model": "hidden_size",
    "d_head": "head_dim",
    "positions": "max_position_embeddings",
    "vocabulary": "vocab_size",
}

# Names of the decoder's sizes; a name that both parts share stands for both.
_DECODER_SETTINGS = {
    "n_decoder_layers": ("decoder_layers", "num_decoder_layers"),
    "n_decoder_heads": ("decoder_attention_heads", "num_heads"),
}


def _with_sizes(model: Configuration, config: Any, part: Any, family: "Architecture") -> Configuration:
    """Fill in the sizes of the model, of several parts those of ``part``, which reads text."""
    notes = list[str]()
    if hasattr(config, "text_config"):
        notes.append(f"sizes are those of its part {part.model_type!r}; parameters are counted for the whole")
    settings_of = _SETTINGS | {"d_head": family.d_head_setting}
    names: dict[str, tuple[str, ...]] = {size: (name,) for size, name in settings_of.items()}
    if getattr(config, "is_encoder_decoder", False):
        notes.append("encoder and decoder: layers and heads are those of the encoder + those of the decoder")
        names |= _DECODER_SETTINGS
    sizes: dict[str, Any] = {}
    for size, settings in names.items():
        values = (getattr(part, setting, None) for setting in settings)
        sizes[size] = next((value for value in values if is_whole(value) and value > 0), None)
    origins = {size: "config" for size, number in sizes.items() if number is not None}
    n_heads, d_model = sizes["n_heads"], sizes["d_model"]
    if not family.states_d_head or sizes["d_head"] is None:
        origins.pop("d_head", None)
        sizes["d_head"] = None
        if d_model and n_heads and d_model % n_heads == 0:
            sizes["d_head"] = d_model // n_heads
            origins["d_head"] = "derived"
    elif n_heads and n_heads * sizes["d_head"] != d_model:
        width = n_heads * sizes["d_head"]
        notes.append(f"{n_heads} heads of {sizes['d_head']} are {width} wide, d_model is {d_model}")
    return replace(model, **sizes, origins=origins, notes=tuple(notes))


def _counted(model: Configuration, config: Any, file: Source) -> Configuration:
    """Fill in the parameters, and whether the reference reproduces the model."""
    import torch

    from attnviz.models.configs import empty_model
    from attnviz.models.families import architecture_of
    from attnviz.models.families.base import first_position

    architecture, reason = None, None
    try:
        architecture = architecture_of(config, torch.float32)
    except ArchitectureError as error:
        setting = _SHORT.search(str(error))
        reason = str(error) if setting is None else setting[1]
    try:
        empty = empty_model(config, None if architecture is None else architecture.bare_class)
    except CheckpointError as error:
        why = shorten(str(error), _LONGEST, placeholder=" …")
        counted = () if reason is None else (f"parameters not counted: {why}",)
        return replace(model, reason=reason or why, notes=(*model.notes, *counted))
    origins = {**model.origins, "parameters": "counted"}
    total = sum(parameter.numel() for parameter in empty.parameters())  # what is shared comes once
    model = replace(model, parameters=total, reason=reason, origins=origins)
    if architecture is None:
        return model
    text_config = getattr(config, "text_config", config)
    notes = [*model.notes, *architecture.notes(text_config)]
    most, why = architecture.longest(text_config)
    if why:
        notes.append(f"texts of up to {most} tokens are reproduced: {why}")
        model = replace(model, positions=most)
    unused = first_position(architecture, config)
    if unused:
        notes.append(
            f"of {model.positions} positions {unused} are for no token: they are counted from pad_token_id + 1"
        )
        model = replace(model, positions=config.max_position_embeddings - unused)
        origins["positions"] = "derived"
    layers = architecture.modules(architecture.base_model(empty))
    attending = [layer for layer in layers if layer.attends]
    in_attention = torch.nn.ModuleList(part for layer in attending for part in (layer.attention, layer.o_proj))
    norms = torch.nn.ModuleList(layer.attention_norm for layer in layers if layer.attention_norm is not None)
    weights = set(in_attention.parameters()) - set(norms.parameters())  # ALBERT's attention has its norm inside
    try:
        weight_files(file.folder)
    except CheckpointError:
        where = "in the cache: attnviz heads will fetch them" if file.kind == "hub" else "in the folder"
        notes.append(f"its weights are not {where}")
    return replace(
        model,
        reproduced=True,
        n_layers=model.n_layers if architecture.stacks(config) else len(layers),  # a config may count them in groups
        attention_parameters=sum(parameter.numel() for parameter in weights),
        origins=origins | {"attention_parameters": "counted"},
        notes=tuple(notes),
    )


# What is written and said

_SIZES = {"Layers": "n_layers", "Heads": "n_heads", "d_model": "d_model", "d_head": "d_head", "Positions": "positions"}
LEVEL_TEXT = (
    "Level 4: from the input of each attention, queries, keys, values, patterns and outputs are recomputed with the "
    "weights and compared, and the sum and norm after it. Embeddings, norms before attention and feed-forward networks "
    "are the model's own."
)


_FIELDS: tuple[Field[Any], ...] = (
    Field(name="name", write=visible),
    *plain("kind", "source", "architecture", "n_layers", "n_heads", "n_kv_heads", "d_model", "d_head", "positions"),
    *plain("vocabulary", "parameters", "attention_parameters", "stated_parameters"),
    *plain("n_decoder_layers", "n_decoder_heads", "float32_gib", "level", "reproduced", "reason"),
    Field(name="origins", csv={}),
    *plain("notes"),
)


@dataclass(frozen=True)
class Listing:
    """What a form of the command gives: a document, its rows as a CSV file, and what the terminal shows."""

    document: dict[str, Any]
    csv: str
    report: RenderableType
    stem: str = "models"  # of both files
    exit_code: int = 0

    def write(self, output: OutputFolder) -> None:
        """Write the files, and their names into the document."""
        self.document["files"] = [f"{self.stem}.csv", f"{self.stem}.json"]
        output.write(f"{self.stem}.csv", self.csv)
        output.write(f"{self.stem}.json", json_text(self.document))


def listed_models(names: Sequence[str], progress: Progress) -> Listing:
    """Models by name, default all that are known; with the papers cited."""
    models = model_configurations(names, lambda done, total: progress("reading", done, total))
    cited = {model.source for model in models if model.kind == "paper"}
    papers = {name: title for name, title in paper_titles().items() if name in cited}
    table = Table("", _FIELDS, models)
    document = {"attnviz": __version__, "models": table.entries(), "papers": papers}
    return Listing(document, table.csv(), models_report(models))


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
        *pick(_FIELDS, "name"),
        *(size(title, name) for title, name in _SIZES.items()),
        Field("Parameters", lambda model: abbreviated(model.stated_parameters or model.parameters)),
        Field("Source", source, detail=True),
        *pick(_FIELDS, "level"),
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
        lines.append(f"{LEVEL_TEXT} –: not reproduced. --families lists which commands take which.")
    if any("released" in (model.origins.get(name) for name in _SIZES.values()) for model in papers):
        lines.append("*: not in the paper, but in the config that its authors released.")
    cited = {model.source for model in papers}
    lines += [f"{name}: {title}." for name, title in paper_titles().items() if name in cited]
    title = "Models (from configs and papers; no weights were loaded)"
    return spaced([Table(title, columns, models), notes(*map(visible, lines))])


def listed_families() -> Listing:
    """Each family with its level, and by command the part of its models that is measured."""
    from attnviz.models.families import ARCHITECTURES, REFUSED, commands_in_words, commands_of
    from attnviz.run.checks import Verification

    families: list[dict[str, Any]] = [
        {"architecture": name, "level": None if name in ARCHITECTURES.plugins else Verification.level}
        | {"commands": commands_of(architecture)}
        | ({"plugin": ORIGIN} if name in ARCHITECTURES.plugins else {})
        for name, architecture in sorted(ARCHITECTURES.items())
    ]
    document = {"attnviz": __version__, "families": families, "refused": dict(sorted(REFUSED.items()))}
    columns: list[Field[dict[str, Any]]] = [
        Field("model_type", "architecture"),
        Field(name="level", write=lambda level: level or "?"),
        Field("Commands that take it", "commands", write=commands_in_words),
    ]
    title = "Families that attnviz reproduces"
    plugged = ", ".join(f"{family['architecture']} ({family['plugin']})" for family in families if "plugin" in family)
    also = [f"From plug-ins: {visible(plugged)}. ?: not tried; each run verifies them."] if plugged else []
    commands = ", ".join(families[0]["commands"])
    refused = (
        f"All: {commands}. Of the encoder: of an encoder-decoder its encoder alone. All others are refused by name: "
        "what reads images or sound alone, and with the reason and what to do instead "
        f"{', '.join(sorted(REFUSED))}."
    )
    told = notes(*also, f"model_type: as config.json has it. {LEVEL_TEXT}", refused)
    return Listing(document, "", spaced([Table(title, columns, families), told]))
