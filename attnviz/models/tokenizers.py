"""Loads tokenizers, which always divide a text alike."""

import copy
from importlib.util import find_spec
from typing import Any

from attnviz.arguments import did_you_mean
from attnviz.errors import CheckpointError, UsageError
from attnviz.models.files import read_json, refuse_pointer
from attnviz.models.libraries import calling_tokenizer, calling_transformers
from attnviz.models.sources import TOKENIZER_FILES, Source, check_tokenizer
from attnviz.wording import shortened

# Settings of tokenizers (BPE, Unigram, SentencePiece) by which they divide a text at random.
_SAMPLING = ("dropout", "nbest_size", "alpha", "_enable_sampling")


def load_tokenizer(source: Source) -> Any:
    """The tokenizer of a source, of its languages; CheckpointError where unreadable, UsageError for unknown ones."""
    from transformers import AutoTokenizer

    folder = (source.tokenizer or source).folder
    languages = source.languages
    check_tokenizer(folder)
    for name in TOKENIZER_FILES:
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
    with calling_tokenizer(what):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    for option, code in languages.items():
        codes = tokenizer.extra_special_tokens if hasattr(tokenizer, "tgt_lang") else []
        if code not in codes:
            known = shortened(f"one of {', '.join(codes)}", 100) if codes else "none, as this tokenizer has none"
            flag = f"--{option.replace('_', '-')}"
            raise UsageError(f"unknown language {flag} {code}: expected {known}.{did_you_mean(code, codes)}")
        setattr(tokenizer, {"source_language": "src_lang", "target_language": "tgt_lang"}[option], code)
    return tokenizer


def without_sampling(tokenizer: Any) -> tuple[Any, tuple[str, ...]]:
    """A tokenizer that always divides a text alike, a copy if need be, and a note if one was."""
    if not _sampling(tokenizer):
        return tokenizer, ()
    with calling_transformers("the tokenizer divides texts at random, and no copy without that can be made"):
        steady = copy.deepcopy(tokenizer)
    for part, name in _sampling(steady):
        setattr(part, name, None)
    return steady, (
        "The tokenizer divides texts at random (dropout or sampling, for training); that was switched off.",
    )


def _sampling(tokenizer: Any) -> list[tuple[Any, str]]:
    """Parts of a tokenizer, each with a setting by which it divides texts at random."""
    parts = [getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)]
    parts += [getattr(tokenizer, name, None) for name in ("spm_source", "spm_target")]
    return [(part, name) for part in parts for name in _SAMPLING if getattr(part, name, None)]


def unknown_id(tokenizer: Any) -> int | None:
    """The id of what stands for all that the vocabulary lacks; None where no text has it."""
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    token: int | None = tokenizer.unk_token_id
    if token is None and getattr(model, "unk_token", None):
        token = model.token_to_id(model.unk_token)
    others = ("bos", "eos", "cls", "sep", "pad", "mask")  # GPT-2's <|endoftext|> is all of these, and never unknown
    return None if token in [getattr(tokenizer, f"{name}_token_id", None) for name in others] else token
