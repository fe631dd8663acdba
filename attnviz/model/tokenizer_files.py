"""The tokenizer in a checkpoint's folder."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnviz.errors import CheckpointError
from attnviz.model.configs import calling_transformers
from attnviz.model.panics import panics_unprinted
from attnviz.model.sources import read_json, refuse_pointer

__all__ = ["load_tokenizer"]

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, of whatever kind transformers makes it.

    Raises:
        CheckpointError: there is none, it cannot be read, or a library that it needs is not installed.
    """
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise CheckpointError(
            f"{folder} has no tokenizer: expected one of {', '.join(_TOKENIZER_FILES)}; in Python: "
            f"AutoTokenizer.from_pretrained(the model it was trained from).save_pretrained({str(folder)!r})"
        )
    for name in _TOKENIZER_FILES:
        refuse_pointer(folder / name)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / name).exists():
            read_json(folder / name)
    if (folder / "source.spm").is_file() and find_spec("sentencepiece") is None:
        raise CheckpointError(
            f"the tokenizer in {folder} is a pair of SentencePiece models, which need a library that is not installed: "
            "pip install sentencepiece"
        )
    what = f"cannot read the tokenizer in {folder}; download or save it again"
    with calling_transformers(what), panics_unprinted():
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
