"""Configurations of models: sizes, their sources, where config.json lies, and counted parameters.

No weights are loaded, and torch is imported only where parameters are counted. Models of papers are as the papers
print them (public copies); what they do not print is marked, and oddities of the originals are kept, and noted.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

from attnviz.arguments import as_found, did_you_mean, is_whole
from attnviz.errors import ArchitectureError, CheckpointError, UsageError
from attnviz.models.libraries import first_line
from attnviz.models.smollm2 import check_cache
from attnviz.models.sources import (
    ADAPTER_CONFIG,
    BUILT_IN,
    as_folder,
    built_in_folder,
    download,
    find_checkpoint,
    read_json,
    weight_files,
)
from attnviz.options import checked

if TYPE_CHECKING:
    from attnviz.models.families.base import Architecture

CONFIG = "config.json"


@dataclass(frozen=True)
class Configuration:
    """Sizes of a model without its weights; None if unknown.

    Attributes:
        name: as the user gave it, or as a paper's model is called here.
        kind: ``built-in``, ``folder``, ``hub`` or ``paper``.
        source: of a paper's model the paper, of a hub model its commit; None otherwise.
        architecture: the ``model_type`` of its config; ``gpt3`` has none in transformers.
        n_layers, n_heads: of an encoder-decoder those of the encoder; heads in each layer.
        n_decoder_layers, n_decoder_heads: of an encoder-decoder those of its decoder, with as much cross-attention.
        n_kv_heads: keys and values in each layer, where the config names a number.
        d_model, d_head: width of the residual stream, and of a head.
        positions: the longest text, in tokens, as the config or the paper has it.
        vocabulary: entries of the table of words.
        parameters: of the bare model (no task head; embeddings and BERT's pooler counted, what is shared once).
        attention_parameters: those in W_Q, W_K, W_V, W_O and their biases.
        stated_parameters: as the paper rounds them.
        reproduced, reason: whether the reference attention reproduces it, and why it does not.
        origins: by the name of a number, where it comes from: ``config``, ``paper``, ``released`` (the config that the
            authors released, where the paper has no such number), ``derived`` (d_model / n_heads), ``counted``.
        notes: what to know before one relies on the numbers.
    """

    name: str
    kind: str
    source: str | None = None
    architecture: str | None = None
    n_layers: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    d_model: int | None = None
    d_head: int | None = None
    positions: int | None = None
    vocabulary: int | None = None
    parameters: int | None = None
    attention_parameters: int | None = None
    stated_parameters: int | None = None
    reproduced: bool = False
    reason: str | None = None
    origins: dict[str, str] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    n_decoder_layers: int | None = None
    n_decoder_heads: int | None = None

    @property
    def level(self) -> int | None:
        """Level of verification, see :class:`attnviz.trace.checks.Verification`; None for none."""
        return 4 if self.reproduced else None

    @property
    def float32_gib(self) -> float | None:
        """Size of the weights in float32, in GiB (2**30 bytes)."""
        return None if self.parameters is None else self.parameters * 4 / 2**30

    def with_counts(self, parameters: int, in_attention: int | None) -> "Configuration":
        """Fill in the counted parameters; those in attention are None if unknown."""
        origins = {**self.origins, "parameters": "counted"}
        if in_attention is not None:
            origins["attention_parameters"] = "counted"
        return replace(self, parameters=parameters, attention_parameters=in_attention, origins=origins)

    def entry(self) -> dict[str, Any]:
        """The JSON entry of the configuration."""
        content = asdict(self)
        trailing = {key: content.pop(key) for key in ("reproduced", "reason", "origins", "notes")}
        return {**content, "float32_gib": self.float32_gib, "level": self.level, **trailing, "notes": list(self.notes)}


def width_of_heads(d_model: int | None, n_heads: int | None, stated: int | None) -> tuple[int | None, str | None]:
    """Width of a head, stated or d_model / n_heads if that is an int, and a note on oddities."""
    if d_model is None or not n_heads or n_heads < 0:
        return stated, None
    if stated is None:
        if d_model % n_heads:
            return None, f"d_model {d_model} is no multiple of {n_heads} heads, so there is no d_head"
        return d_model // n_heads, None
    if n_heads * stated != d_model:
        return stated, f"{n_heads} heads of {stated} are {n_heads * stated} wide, d_model is {d_model}"
    return stated, None


class Paper(NamedTuple):
    """Fields shared by all models of a paper.

    Attributes:
        title: with the place of the numbers.
        architecture: as in transformers, or ``gpt3``.
        positions, vocabulary: the vocabulary is None where the weights are not public.
        origins: of the sizes that not every paper prints.
        notes: on all its models.
    """

    title: str
    architecture: str
    positions: int
    vocabulary: int | None
    origins: dict[str, str]
    notes: tuple[str, ...]


PAPERS = {
    "Devlin et al. 2019": Paper(
        "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding, section 3",
        "bert", 512, 30_522, {"vocabulary": "released", "n_heads": "paper", "d_head": "derived"},
        ("counted with the pooler and the released, uncased vocabulary of 30,522 entries; "
         "the paper rounds both numbers",),
    ),
    "Radford et al. 2019": Paper(
        "Language Models are Unsupervised Multitask Learners, Table 2",
        "gpt2", 1024, 50_257, {"vocabulary": "paper", "n_heads": "released", "d_head": "released"},
        ("the paper does not give n_heads and d_head",
         "its parameter counts are wrong, as the README of its authors' repository says; "
         "counted is what they released"),
    ),
    "Brown et al. 2020": Paper(
        "Language Models are Few-Shot Learners, Table 2.1",
        "gpt3", 2048, None, {"n_heads": "paper", "d_head": "paper"},
        ("its layers alternate dense and locally banded sparse attention",),
    ),
}  # fmt: skip
"""Papers by citation."""


class _Row(NamedTuple):
    """A paper's model: ``stated`` parameters in millions, and all and those in attention as transformers builds it.

    ``d_head`` where the paper prints it; ``counted`` where the weights are public.
    """

    name: str
    stated: int
    n_layers: int
    d_model: int
    n_heads: int
    counted: tuple[int, int] | None = None
    d_head: int | None = None
    other_name: str = ""
    note: str = ""


_ROWS = (
    _Row("bert-base", 110, 12, 768, 12, (109_482_240, 28_348_416)),
    _Row("bert-large", 340, 24, 1024, 16, (335_141_888, 100_761_600)),
    _Row("gpt2-small", 117, 12, 768, 12, (124_439_808, 28_348_416)),
    _Row("gpt2-medium", 345, 24, 1024, 16, (354_823_168, 100_761_600)),
    _Row("gpt2-large", 762, 36, 1280, 20, (774_030_080, 236_113_920)),
    _Row("gpt2-xl", 1542, 48, 1600, 25, (1_557_611_200, 491_827_200)),
    _Row("gpt3-125m", 125, 12, 768, 12, None, 64, "gpt3-small"),
    _Row("gpt3-350m", 350, 24, 1024, 16, None, 64, "gpt3-medium"),
    _Row("gpt3-760m", 760, 24, 1536, 16, None, 96, "gpt3-large"),
    _Row("gpt3-1.3b", 1_300, 24, 2048, 24, None, 128, "gpt3-xl", "n_heads and d_head are as printed"),
    _Row("gpt3-2.7b", 2_700, 32, 2560, 32, None, 80),
    _Row("gpt3-6.7b", 6_700, 32, 4096, 32, None, 128),
    _Row("gpt3-13b", 13_000, 40, 5140, 40, None, 128, "", "d_model is as printed, probably a misprint for 5120"),
    _Row("gpt3-175b", 175_000, 96, 12288, 96, None, 128, "gpt3"),
)
_RELEASED = {"bert-base-uncased": "bert-base", "bert-large-uncased": "bert-large", "gpt2": "gpt2-small"}
_RELEASED |= {name: name for name in ("gpt2-medium", "gpt2-large", "gpt2-xl")}
"""By hub id of the weights, without its owner."""


def paper_configurations() -> list[Configuration]:
    """Configurations of the papers' models: BERT, GPT-2, GPT-3, each from the smallest."""
    return [_configuration(row) for row in _ROWS]


def paper_configuration(name: str) -> Configuration | None:
    """The paper's model of this name, in any case, ``gpt-3`` or ``gpt3``; None if there is none."""
    wanted = name.casefold().replace("gpt-", "gpt")
    return next((_configuration(row) for row in _ROWS if wanted and wanted in (row.name, row.other_name)), None)


def _configuration(row: _Row) -> Configuration:
    architecture = row.name.partition("-")[0]
    cited, paper = next((cited, paper) for cited, paper in PAPERS.items() if paper.architecture == architecture)
    d_head, odd = width_of_heads(row.d_model, row.n_heads, row.d_head)
    model = Configuration(
        row.name, "paper", cited, architecture, row.n_layers, row.n_heads, None, row.d_model, d_head,
        paper.positions, paper.vocabulary, stated_parameters=row.stated * 10**6, reason="weights are not public",
        origins=dict.fromkeys(("n_layers", "d_model", "positions", "stated_parameters"), "paper") | paper.origins,
        notes=tuple(filter(None, (odd, row.note, *paper.notes))),
    )  # fmt: skip
    return replace(model, reproduced=True, reason=None).with_counts(*row.counted) if row.counted else model


@dataclass(frozen=True)
class ConfigFile:
    """The config.json of a model: its name as given, ``built-in``, ``folder`` or ``hub``, and the hub's commit."""

    name: str
    kind: str
    folder: Path
    revision: str | None = None

    @property
    def path(self) -> Path:
        """The file itself."""
        return self.folder / CONFIG


def find_config(name: str) -> ConfigFile:
    """Find the config.json of a built-in model, a folder or a hub id; from the hub it is fetched alone.

    Raises:
        CheckpointError: there is none, or the hub cannot be reached, within 10 seconds.
        UsageError: the name is empty.
    """
    if not name.strip():
        raise UsageError("NAME is empty; expected a built-in name, a folder, a hub id or the name of a paper's model.")
    if name in BUILT_IN:
        return ConfigFile(name, "built-in", built_in_folder(name) or find_checkpoint(name).folder)
    folder = as_folder(name) or as_folder(name, ADAPTER_CONFIG)
    if folder is None:
        return _on_hub(name)
    if folder.name == CONFIG and folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        kind = "a file" if folder.exists() else "nothing"
        raise CheckpointError(f"expected a folder with a {CONFIG} at {folder}, found {kind}.")
    adapter = folder / ADAPTER_CONFIG
    if not (folder / CONFIG).is_file():
        base = read_json(adapter).get("base_model_name_or_path") if adapter.is_file() else None
        if isinstance(base, str) and base != name:
            return replace(find_config(base), name=f"{base} + {name}")
        raise CheckpointError(f"{folder} has no {CONFIG}: expected one as transformers' save_pretrained writes it.")
    return ConfigFile(name, "folder", folder)


def built_in_configs() -> list[ConfigFile]:
    """config.json of the installed built-in models."""
    return [ConfigFile(name, "built-in", folder) for name in BUILT_IN if (folder := built_in_folder(name)) is not None]


def cached_configs() -> dict[str, ConfigFile]:
    """config.json of every model in the hub's cache, by hub id; without network.

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
            configs[repo.repo_id] = ConfigFile(repo.repo_id, "hub", best.snapshot_path, best.commit_hash)
    return configs


def _on_hub(name: str) -> ConfigFile:
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise CheckpointError(_unknown(name, f"it is no valid hub id ({first_line(error)})")) from error
    if (cached := cached_configs().get(name)) is not None:
        return cached
    if constants.HF_HUB_OFFLINE:
        reason = f"as a hub id it has no {CONFIG} in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set"
        raise CheckpointError(_unknown(name, reason))

    def needed(files: list[str]) -> list[str]:
        if CONFIG not in files:
            raise CheckpointError(f"the hub model {name!r} has no {CONFIG}, so it is no transformers model.")
        return [CONFIG]

    folder = download(name, None, needed, partial(_unknown, name))
    return ConfigFile(name, "hub", folder, folder.name)


def _unknown(name: str, reason: str) -> str:
    papers = [known.name for known in paper_configurations()]
    meant = did_you_mean(name, [*BUILT_IN, *papers])
    released = _RELEASED.get(name.casefold().rpartition("/")[2])
    instead = f"attnviz models {released}, for its sizes" if released else "attnviz models, for all that are known here"
    return (
        f"no configuration of {name!r}: it is not a built-in name ({', '.join(BUILT_IN)}), not a folder with a "
        f"{CONFIG}, not a paper's model ({papers[0]} … {papers[-1]}), and {reason}.{meant} Type: {instead}."
    )


_NAMES = {
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
    "n_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "d_model": ("hidden_size", "n_embd", "d_model", "dim", "n_embed"),
    "d_head": ("head_dim", "d_kv", "kv_channels"),
    "positions": ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx"),
    "vocabulary": ("vocab_size",),
}
"""Names of each size across architectures: transformers' standard name first, which it maps others to."""

_OF_DECODER = {
    "n_decoder_layers": ("decoder_layers", "num_decoder_layers"),
    "n_decoder_heads": ("decoder_attention_heads", "num_heads"),
}
"""Names of the decoder's sizes; a name that both parts share stands for both."""

_LONGEST = 160
"""Most characters of a reason from transformers."""

_SHORT = re.compile(r"\bhas (\w+=[^,;]+)|\b(architecture '[^']*')")


@checked
def model_configurations(
    names: str | Path | Iterable[str | Path] | None = (), tell: Callable[[int, int], None] = lambda _, __: None
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
    wanted = list(dict.fromkeys(_names(names)))
    if not wanted:
        return _known_here(tell)
    configurations: list[Configuration] = []
    for count, name in enumerate(wanted):
        tell(count, len(wanted))
        configurations += _named(name)
    return configurations


def _names(names: object) -> list[str]:
    """Names as a list of strings; UsageError for anything else."""
    several = [names] if isinstance(names, str | Path) else [] if names is None else names
    if isinstance(several, bytes) or not isinstance(several, Iterable):
        raise UsageError(f"expected a list of models such as ['minilm', 'gpt2-xl'], found {as_found(names)}.")
    listed = list(several)
    for name in listed:
        if not isinstance(name, str | Path):
            raise UsageError(f"expected names or folders of models, found {as_found(name)} among them.")
    return [str(name) for name in listed]


def _named(name: str) -> list[Configuration]:
    paper = paper_configuration(name)
    if paper is None or name in BUILT_IN or as_folder(name) is not None:
        return [read_configuration(find_config(name))]
    cached = cached_configs().get(name)
    return [paper] if cached is None else [paper, read_configuration(cached)]


def _known_here(tell: Callable[[int, int], None]) -> list[Configuration]:
    """Configurations in the cache; unreadable ones are listed with the reason."""
    configurations, files = list[Configuration](), [*built_in_configs(), *cached_configs().values()]
    for count, file in enumerate(files):
        tell(count, len(files))
        try:
            configurations.append(read_configuration(file))
        except CheckpointError as error:
            configurations.append(Configuration(file.name, file.kind, file.revision, reason=str(error)))
    return configurations + paper_configurations()


def read_configuration(file: ConfigFile) -> Configuration:
    """Read a model of any architecture from its config.json; no weights are read, no code of the checkpoint is run.

    Raises:
        CheckpointError: the file cannot be read, or is not a transformers model's.
    """
    if file.kind == "built-in" and file.name == "smollm2":
        check_cache(only=file.path.name)
    raw = read_json(file.path)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise CheckpointError(
            f"{file.path} has model_type {model_type!r}; expected the name of an architecture, such as 'bert', as "
            "transformers' save_pretrained writes it."
        )
    model = Configuration(file.name, file.kind, file.revision, model_type)
    from transformers import CONFIG_MAPPING, __version__

    if model_type not in CONFIG_MAPPING:
        unknown = f"transformers {__version__} does not know it: sizes as its config names them, parameters not counted"
        return _with_sizes(replace(model, reason=f"architecture {model_type!r}", notes=(unknown,)), raw.get)
    from attnviz.models.configs import read_config
    from attnviz.models.libraries import calling_transformers

    config = read_config(file.folder)
    with calling_transformers(f"transformers cannot tell the sizes in {file.path}"):
        model = _with_sizes_of(model, config)
    return _counted(model, config, file)


def _with_sizes_of(model: Configuration, config: Any) -> Configuration:
    """Fill in the sizes of the main part; sizes that differ between layers are None."""
    from attnviz.models.families import ARCHITECTURES

    def setting(name: str) -> Any:
        try:
            return getattr(inner, name, None)
        except RuntimeError:  # transformers' own, where each layer has its own
            varying.append(name)
            return None

    inner, notes, varying = config, list[str](), list[str]()
    decoder = getattr(config, "is_encoder_decoder", False)
    if not isinstance(getattr(config, "hidden_size", None), int):
        with suppress(ValueError):  # several parts, none of them the main one
            inner = config.get_text_config()
        if inner is not config:
            notes.append(f"sizes are those of its part {inner.model_type!r}; parameters are counted for the whole")
    elif decoder:
        notes.append("encoder and decoder: layers and heads are those of the encoder + those of the decoder")
    family = ARCHITECTURES.usable([config.model_type]).get(config.model_type)
    one_width = family is not None and not family.states_d_head
    model = replace(model, notes=tuple(notes))
    model = _with_sizes(model, setting, decoder=decoder and inner is config, one_width=one_width)
    if not varying:
        return model
    origins = {size: origin for size, origin in model.origins.items() if size != "d_head"}
    differs = f"{', '.join(varying)}: each layer has its own"
    return replace(model, d_head=None, origins=origins, notes=(*notes, differs))


def _counted(model: Configuration, config: Any, file: ConfigFile) -> Configuration:
    """Fill in the parameters, and whether the reference reproduces the model."""
    from torch import nn

    from attnviz.models.configs import empty_model
    from attnviz.models.families.base import first_position

    architecture, reason = _reproduced(model, config)
    try:
        empty = empty_model(config)
    except CheckpointError as error:
        why = str(error) if architecture is not None else f"parameters not counted: {error}"
        why = shorten(why, _LONGEST, placeholder=" …")
        return replace(model, reason=reason or why, notes=(*model.notes, *([why] if reason else [])))
    total = sum(parameter.numel() for parameter in empty.parameters())  # what is shared comes once
    if architecture is None:
        return replace(model, reason=reason).with_counts(total, None)
    if unused := first_position(architecture, config):
        usable = f"of {model.positions} positions {unused} are for no token: they are counted from pad_token_id + 1"
        left = config.max_position_embeddings - unused
        origins = {**model.origins, "positions": "derived"}
        model = replace(model, positions=left, origins=origins, notes=(*model.notes, usable))
    layers = architecture.modules(architecture.base_model(empty))
    in_attention = nn.ModuleList(part for layer in layers for part in (layer.pattern, layer.o_proj))
    norms = nn.ModuleList(layer.attention_norm for layer in layers if layer.attention_norm is not None)
    weights = set(in_attention.parameters()) - set(norms.parameters())  # ALBERT's attention has its norm inside
    n_layers = model.n_layers if architecture.stacks(config) else len(layers)  # a config may count them in groups
    reproduced = replace(model, reproduced=True, n_layers=n_layers, notes=(*model.notes, *_missing_weights(file)))
    return reproduced.with_counts(total, sum(parameter.numel() for parameter in weights))


def _reproduced(model: Configuration, config: Any) -> "tuple[Architecture | None, str | None]":
    """The architecture that reproduces the config, or a short reason why none does."""
    import torch

    from attnviz.models.families import ARCHITECTURES, architecture_of

    unknown = [name for name in ("n_layers", "n_heads", "d_model") if getattr(model, name) is None]
    if unknown and model.architecture in {*ARCHITECTURES}:
        return None, f"its config has no {' and no '.join(unknown)} above 0"
    try:
        return architecture_of(config, torch.float32), None
    except ArchitectureError as error:
        short = _SHORT.search(str(error))
        return None, str(error) if short is None else next(filter(None, short.groups()))


def _missing_weights(file: ConfigFile) -> list[str]:
    """Reasons why the weights cannot be loaded."""
    try:
        weight_files(file.folder)
    except CheckpointError:
        where = "in the cache: attnviz heads will fetch them" if file.kind == "hub" else "in the folder"
        return [f"its weights are not {where}"]
    return []


def _with_sizes(
    model: Configuration, get: Callable[[str], Any], *, decoder: bool = False, one_width: bool = False
) -> Configuration:
    """Fill in sizes, under any architecture's names; None for what is no number.

    ``one_width``: heads are d_model / n_heads wide, whatever the config says.
    """
    sizes = {  # the first positive int; some configs have a list with a number per layer
        size: next((value for value in map(get, names) if is_whole(value) and value > 0), None)
        for size, names in (_NAMES | (_OF_DECODER if decoder else {})).items()
    }
    stated = None if one_width else sizes["d_head"]
    sizes["d_head"], odd = width_of_heads(sizes["d_model"], sizes["n_heads"], stated)
    origins = {size: "config" for size, number in sizes.items() if number is not None}
    if stated is None and sizes["d_head"] is not None:
        origins["d_head"] = "derived"
    return replace(model, **sizes, origins=origins, notes=(*model.notes, *([odd] if odd else [])))  # type: ignore[arg-type]
