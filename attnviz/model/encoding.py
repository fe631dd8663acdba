"""Tokenizers and text through them: the one door, where whatever a tokenizer does to a text is caught and named."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnviz.errors import CheckpointError, TextError
from attnviz.model.libraries import calling_transformers, panics_unprinted
from attnviz.model.sources import read_json, refuse_pointer
from attnviz.model.wording import quoted
from attnviz.model.words import SPACE, Pieces, pieces_of

_SHOWN = 100
"""Characters of a text that a message may show; of a text of megabytes no more is looked at."""

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in a checkpoint's folder; CheckpointError where there is none, or it cannot be read."""
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


def encodings(
    tokenizer: Any,
    texts: Sequence[str],
    pair: str | None = None,
    *,
    vocabulary_size: int,
    token_types: int | None = None,
    max_length: int | None = None,
    target: bool = False,
) -> Sequence[Any]:
    """What a fast tokenizer makes of texts, with special tokens: its own encodings, checked against the model's tables.

    Args:
        tokenizer: of transformers, backed by the ``tokenizers`` library.
        texts: any number of them.
        pair: a second segment, of one text.
        vocabulary_size: rows of the model's embedding matrix.
        token_types: rows of the model's table of token types; None where it has none.
        max_length: in tokens; longer texts are cut.
        target: for the decoder of an encoder-decoder, whose tokenizer may have a vocabulary of its own for it.

    Raises:
        CheckpointError: the tokenizer is not a fast one, fails on a text, or gives ids that the model has no rows for.
        TextError: it gives token types that the model has no rows for.
    """
    two_models = hasattr(tokenizer, "spm_target")
    if not getattr(tokenizer, "is_fast", False) and not two_models:
        raise CheckpointError(
            f"expected a fast tokenizer (backed by the tokenizers library), found {type(tokenizer).__name__}; "
            "only a fast tokenizer knows which characters and words its tokens come from."
        )
    cut = {"truncation": max_length is not None, "max_length": max_length}
    what = f"the model's tokenizer fails on {_named(texts)}; mend or replace its files"
    if two_models and pair is not None:
        raise TextError(
            "a pair was given, but this tokenizer puts nothing between two texts; expected one text: join the two "
            "yourself."
        )
    with calling_transformers(what), panics_unprinted():
        if two_models:
            made: Sequence[Any] = [_of_two_models(tokenizer, text, target, cut) for text in texts]
        else:
            given: dict[str, Any] = {"text_target" if target else "text": list(texts)}
            second = None if pair is None else [pair]
            made = tokenizer(**given, text_pair=second, **cut, return_token_type_ids=True, verbose=False).encodings
    for encoding in made:
        _check_ids(encoding, vocabulary_size, token_types)
    return made


def _of_two_models(tokenizer: Any, text: str, target: bool, cut: dict[str, Any]) -> Pieces:
    """Through one of Marian's two SentencePiece models, which tell no characters: the pieces say where words begin."""
    ids = tokenizer(**{"text_target" if target else "text": text}, **cut, verbose=False)["input_ids"]
    vocabulary = tokenizer.target_encoder if target and tokenizer.separate_vocabs else tokenizer.encoder
    names = {number: piece for piece, number in vocabulary.items()}
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    return pieces_of(ids, [names.get(token, f"id {token}") for token in ids], special, _spaced)


def _spaced(pieces: Sequence[str]) -> str:
    return "".join(pieces).replace(SPACE, " ").removeprefix(" ")


def lost_segments(encoding: Any, n_segments: int) -> bool:
    """Whether no token is left of one of the segments: special tokens are not of it, whatever the tokenizer says."""
    ordinary = zip(encoding.sequence_ids, encoding.special_tokens_mask, strict=True)
    return len({segment for segment, special in ordinary if segment is not None and not special}) < n_segments


def rough_cut(text: str, encoding: Any, segment: int, n_tokens: int) -> str:
    """A text up to its first so many tokens: to truncate a long pair at once takes the library hours and gigabytes."""
    of_text = zip(encoding.offsets, encoding.sequence_ids, strict=True)
    ends = [end for (_, end), of in of_text if of == segment]
    return text if len(ends) <= n_tokens else text[: ends[n_tokens - 1]]


def mask_token(tokenizer: Any, vocabulary_size: int) -> int:
    """The id of the mask token, of a tokenizer that has one.

    Raises:
        CheckpointError: the model has no row for it.
    """
    mask: int = tokenizer.mask_token_id
    if not 0 <= mask < vocabulary_size:
        raise _beyond(mask, vocabulary_size)
    return mask


def _named(texts: Sequence[str]) -> str:
    first = quoted(texts[0][:_SHOWN]) if texts else ""
    return first if len(texts) == 1 else f"one of {len(texts)} texts from {first} on"


def _check_ids(encoding: Any, vocabulary_size: int, token_types: int | None) -> None:
    """Refuse ids that the model's tables have no rows for."""
    token, kind = max(encoding.ids, default=0), max(encoding.type_ids, default=0)
    if token >= vocabulary_size:
        raise _beyond(token, vocabulary_size)
    if token_types is not None and kind >= token_types:
        raise TextError(
            f"this model has {'one token type' if token_types == 1 else f'{token_types} token types'} only, but the "
            f"text has tokens of type {kind}; expected one text without a pair, or a BERT with two token types."
        )


def _beyond(token: int, vocabulary_size: int) -> CheckpointError:
    return CheckpointError(
        f"the tokenizer gives token id {token}, but the model's vocabulary ends at {vocabulary_size - 1}: this "
        "tokenizer does not belong to this model."
    )
