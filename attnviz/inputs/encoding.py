"""Calls tokenizers: encodings of texts, checked against the model; their errors become messages."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

from attnviz.arguments import as_found, is_whole
from attnviz.errors import CheckpointError, TextError, UsageError
from attnviz.inputs.prompt import Prompt, Text, unknown_note
from attnviz.inputs.words import (
    SPACE,
    WORDPIECE,
    Encoding,
    continues_mark,
    decoded_pieces,
    decoder,
    encoding_of_pieces,
    vocabulary_labels,
    word_numbers,
)
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.libraries import calling_tokenizer
from attnviz.models.tokenizers import unknown_id
from attnviz.wording import counted, quoted, visible

_SHOWN = 100  # characters of a text that a message may show


def encodings(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    truncate: bool = False,
    rendered: bool = False,
    target: bool = False,
) -> list[Encoding]:
    """The tokenizer's encodings of texts, with special tokens, checked against the model's embedding tables.

    ``pairs`` are the second segments of all texts; ``truncate`` cuts texts that are longer than the model. ``rendered``
    are chats, in which a template wrote all control tokens: they are special, and no others are added. ``target`` is
    for the decoder of an encoder-decoder, whose tokenizer may have a vocabulary of its own for it. The tokenizer is a
    fast one, or for texts without words one of pieces alone, which stand in the text as they are.

    Raises:
        CheckpointError: the tokenizer is of another kind, fails, or gives ids beyond the vocabulary.
        TextError: token types that the model has not, a token for an image, or a pair that nothing separates.
    """
    tokenizer, architecture = checkpoint.tokenizer, checkpoint.architecture
    two_models = hasattr(tokenizer, "spm_target")
    fast = getattr(tokenizer, "is_fast", False)
    if not (fast or two_models) and (architecture.has_words or not hasattr(tokenizer, "tokenize")):
        raise CheckpointError(
            f"expected a fast tokenizer (backed by the tokenizers library), found {type(tokenizer).__name__}; "
            "only a fast tokenizer knows which characters and words its tokens come from."
        )
    if not fast and pairs is not None:
        raise TextError(
            "a pair was given, but this tokenizer reads one text; expected one text: join the two yourself."
        )
    if target and getattr(tokenizer, "tgt_lang", "") is None:
        raise TextError(
            "a target begins or ends with its language, which this tokenizer does not know; expected "
            "--target-language CODE, tgt_lang in tokenizer_config.json, or in Python tokenizer.tgt_lang = ... "
            "(src_lang is the source's)."
        )
    cut = {"truncation": truncate, "max_length": checkpoint.positions if truncate else None}
    first = quoted(texts[0][:_SHOWN]) if texts else ""
    which = first if len(texts) == 1 else f"one of {len(texts)} texts from {first} on"
    with calling_tokenizer(f"the model's tokenizer fails on {which}; mend or replace its files"):
        if two_models:
            results = [_of_two_models(tokenizer, text, target, cut) for text in texts]
        elif not fast:
            results = [_of_pieces(tokenizer, text, cut) for text in texts]
        else:
            named: dict[str, Any] = {"text_target" if target else "text": list(texts)}
            batch = tokenizer(
                **named,
                text_pair=None if pairs is None else list(pairs),
                **cut,
                add_special_tokens=not rendered,
                return_token_type_ids=True,
                verbose=False,
            )
            results = list(map(of_fast, batch.encodings))
    size = vocabulary_size(checkpoint, target)
    for encoding in results:
        refuse_images(checkpoint, encoding.ids)
        if max(encoding.ids, default=0) >= size:
            raise _beyond(max(encoding.ids), size)
        n_types, kind = n_token_types(checkpoint), max(encoding.type_ids, default=0)
        if n_types is not None and kind >= n_types:
            has = "one token type" if n_types == 1 else f"{n_types} token types"
            raise TextError(
                f"this model has {has} only, but the text has tokens of type {kind}; expected one text without a pair, "
                "or a BERT with two token types."
            )
        if pairs is not None and not architecture.segments:
            _check_separated(encoding)
    if not rendered:
        return [_with_doubled(encoding) for encoding in results]
    # special tokens, and those that a vocabulary has for chats alone (``<|start_header_id|>``)
    added = tokenizer.added_tokens_decoder.items()
    control = special_ids(tokenizer) | {number for number, token in added if token.special}
    return [encoding.with_special([token in control for token in encoding.ids]) for encoding in results]


def vocabulary_size(checkpoint: Checkpoint, target: bool = False) -> int:
    """Rows of the table of words; of a decoder that has its own, for a ``target`` of that one."""
    own = getattr(checkpoint.config, "decoder_vocab_size", None) if target else None
    return int(own or checkpoint.config.vocab_size)


def n_token_types(checkpoint: Checkpoint) -> int | None:
    """Rows of the table of token types; None where the model takes none, or as many as there are."""
    return getattr(checkpoint.config, "type_vocab_size", None) if checkpoint.architecture.segments else None


def refuse_images(checkpoint: Checkpoint, ids: Sequence[int]) -> None:
    """Raise TextError for a token in place of which the whole model reads an image."""
    if checkpoint.image_token in ids:
        token = checkpoint.tokenizer.convert_ids_to_tokens(checkpoint.image_token)
        raise TextError(
            f"the text has the token {token!r}, in place of which the model reads an image; attnviz measures it on "
            "text alone."
        )


def unknown_note_of(checkpoint: Checkpoint, n_unknown: int, n_tokens: int, where: str = "") -> str:
    """A sentence on unknown tokens among those of several texts, or ''."""
    tokenizer = checkpoint.tokenizer
    label = tokenizer.convert_ids_to_tokens(unknown_id(tokenizer)) if n_unknown else None
    return unknown_note(n_unknown, n_tokens, label, where)


def prompt_of_ids(checkpoint: Checkpoint, ids: Sequence[int]) -> Prompt:
    """The prompt of ids and of what they spell, by their pieces; words begin at spaces."""
    tokenizer = checkpoint.tokenizer
    named = zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True)  # a model may have rows beyond these
    pieces = [f"<id {token}>" if piece is None else piece for token, piece in named]
    encoding = decoded_pieces(ids, pieces, special_ids(tokenizer), decoder(tokenizer))
    return prompt_of(checkpoint, encoding, Text(str(encoding.text)))


def of_fast(encoded: Any) -> Encoding:
    """The encoding of the tokenizers library."""
    segments = zip(encoded.sequence_ids, encoded.special_tokens_mask, strict=True)
    return Encoding(
        ids=encoded.ids,
        tokens=encoded.tokens,
        sequence_ids=[None if special else segment for segment, special in segments],
        word_ids=encoded.word_ids,
        offsets=encoded.offsets,
        type_ids=encoded.type_ids,
    )


def _with_doubled(encoding: Encoding) -> Encoding:
    """The encoding; where its text writes out the special token that the tokenizer adds, both are special."""
    special = [segment is None for segment in encoding.sequence_ids]
    ends = list(special)
    for order in (range(len(ends)), range(len(ends))[::-1]):
        for outer, inner in pairwise(order):
            if not ends[outer] or encoding.ids[inner] != encoding.ids[outer]:
                break
            ends[inner] = True
    return encoding if ends == special else encoding.with_special(ends)


def token_id(tokenizer: Any, name: str, token: str | int, vocabulary_size: int, target: bool = False) -> int:
    """The id of one token of the vocabulary, by its text, its piece (``##able``) or its id; ``name`` is of the option.

    UsageError for none or several: it says which, and whether a leading space makes it one.
    """
    given = f"--{name} ({name}=...) {as_found(token)}"
    if is_whole(token):
        if not 0 <= token < vocabulary_size:
            raise UsageError(f"{given} is no id of a token: the vocabulary has 0 to {vocabulary_size - 1}.")
        return int(token)
    if not isinstance(token, str):
        raise UsageError(f"expected {name} as the text of a token or as its id, found {as_found(token)}.")

    def alone(text: str) -> list[int]:
        with calling_tokenizer(f"the model's tokenizer fails on {text!r}; mend or replace its files"):
            ids: list[int] = tokenizer(
                **{"text_target" if target else "text": text}, add_special_tokens=False
            ).input_ids
        return ids

    ids = alone(token)
    piece = tokenizer.convert_tokens_to_ids(token)
    if len(ids) != 1 and piece is not None and piece != tokenizer.unk_token_id:
        ids = [piece]
    if tokenizer.unk_token_id in ids and token != tokenizer.unk_token:
        raise UsageError(f"{given} is not in the model's vocabulary; expected one token of it.")
    if len(ids) != 1:
        pieces = ", ".join(map(quoted, vocabulary_labels(tokenizer, ids))) or "none"
        spaced = token[1:] if token.startswith(" ") else f" {token}"
        how = "without its" if token.startswith(" ") else "with a"
        works = token and len(alone(spaced)) == 1
        hint = f"try {spaced!r}, {how} leading space" if works else "give another word"
        raise UsageError(f"{given} is {counted(len(ids), 'token')} ({pieces}), expected one: {hint}.")
    return ids[0]


def language_prefix(checkpoint: Checkpoint) -> list[int]:
    """The ids that every target of a tokenizer with languages begins with (NLLB: that of the language; Whisper)."""
    tokenizer = checkpoint.tokenizer
    if not hasattr(tokenizer, "tgt_lang") and not hasattr(tokenizer, "prefix_tokens"):
        return []
    [encoding] = encodings(checkpoint, [""], target=True)
    ids = encoding.ids
    return ids[: ids.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in ids else ids


def _of_two_models(tokenizer: Any, text: str, target: bool, cut: dict[str, Any]) -> Encoding:
    """Encode with one of Marian's two SentencePiece models, which give no offsets; pieces mark where words begin."""
    ids = tokenizer(**{"text_target" if target else "text": text}, **cut, verbose=False)["input_ids"]
    vocabulary = tokenizer.target_encoder if target and tokenizer.separate_vocabs else tokenizer.encoder
    names = {number: piece for piece, number in vocabulary.items()}
    pieces = [names.get(token, f"id {token}") for token in ids]
    return decoded_pieces(
        ids, pieces, special_ids(tokenizer), lambda parts: "".join(parts).replace(SPACE, " ").removeprefix(" ")
    )


def _of_pieces(tokenizer: Any, text: str, cut: dict[str, Any]) -> Encoding:
    """Encode with a tokenizer that gives no offsets, but pieces that stand in the text as they are (ESM's)."""
    encoded = tokenizer(text, **cut, return_special_tokens_mask=True, verbose=False)
    ids = encoded["input_ids"]
    special = list[bool]()
    pieces = tokenizer.tokenize(text)
    end = 0
    offsets = list[tuple[int, int]]()
    for is_added in encoded["special_tokens_mask"]:
        piece = "" if is_added else pieces.pop(0)
        special.append(piece in ("", ":"))  # a colon parts two chains
        start = text.index(piece, end)
        end = start + len(piece)
        offsets.append((start, end))
    return encoding_of_pieces(ids, tokenizer.convert_ids_to_tokens(ids), special, offsets, text)


def special_ids(tokenizer: Any) -> set[int]:
    """The ids of special tokens, but of the unknown one."""
    return set(tokenizer.all_special_ids) - {unknown_id(tokenizer)}


def mask_token(tokenizer: Any, vocabulary_size: int) -> int:
    """The id of the mask token, of a tokenizer that has one; CheckpointError beyond the model's vocabulary."""
    mask: int = tokenizer.mask_token_id
    if not 0 <= mask < vocabulary_size:
        raise _beyond(mask, vocabulary_size)
    return mask


def _beyond(token: int, vocabulary_size: int) -> CheckpointError:
    return CheckpointError(
        f"the tokenizer gives token id {token}, but the model's vocabulary ends at {vocabulary_size - 1}: this "
        "tokenizer does not belong to this model."
    )


def _check_separated(encoding: Encoding) -> None:
    """Raise TextError unless a special token stands between the two segments."""
    if (0, 1) in pairwise(segment for segment, _ in groupby(encoding.sequence_ids)):
        raise TextError(
            "a pair was given, but this architecture has no sentence segments, and its tokenizer puts nothing between "
            "two texts; expected one text: join the two yourself, or choose a BERT checkpoint."
        )


def prompt_of(checkpoint: Checkpoint, encoding: Encoding, source: Text, labelled: bool = True) -> Prompt:
    """The prompt of an encoding of a text, or of a text and its pair; with labels and words where ``labelled``."""
    tokenizer, architecture = checkpoint.tokenizer, checkpoint.architecture
    special = tuple(segment is None for segment in encoding.sequence_ids)
    sink_first, why = architecture.causal, ""
    if not architecture.has_words:
        why = "texts of this model have no words."
    elif not getattr(tokenizer, "is_fast", True):
        why = "this tokenizer does not tell which characters its tokens stand for."
    prompt = Prompt(
        ids=tuple(encoding.ids),
        special=special,
        sink=tuple(is_special or (sink_first and not position) for position, is_special in enumerate(special)),
        segments=tuple(encoding.sequence_ids),
        offsets=tuple(encoding.offsets),
        type_ids=tuple(encoding.type_ids) if architecture.segments else None,
        unknown_id=unknown_id(tokenizer),
        truncated=encoding.truncated,
        spelled=encoding.text,
        why_unparsed=why,
        source=source,
    )
    return _labelled(checkpoint, prompt, encoding) if labelled else prompt


def _labelled(checkpoint: Checkpoint, prompt: Prompt, encoding: Encoding) -> Prompt:
    """The prompt with its words, and labels of tokens and words."""
    tokenizer, has_words = checkpoint.tokenizer, checkpoint.architecture.has_words
    words = word_numbers(encoding, prompt.source.texts if encoding.text is None else [encoding.text], has_words)
    word_pieces: dict[int, list[str]] = {}
    for piece, word in zip(encoding.tokens, words, strict=True):
        if word is not None:
            word_pieces.setdefault(word, []).append(piece)
    decode = decoder(tokenizer)
    mark = continues_mark(tokenizer)
    pretokens = list(zip(encoding.sequence_ids, encoding.word_ids, strict=True))
    pieces = tokenizer.convert_ids_to_tokens(encoding.ids) if encoding.text is None else encoding.tokens
    labels = []
    for position, (piece, word) in enumerate(zip(pieces, words, strict=True)):  # <unk> as such
        text = decode([piece])
        same_pretoken = position > 0 and pretokens[position] == pretokens[position - 1]
        in_word = position > 0 and word == words[position - 1] and (same_pretoken or mark != WORDPIECE)
        # to SentencePiece a whole text may be one pretoken; a full stop in it continues no word
        continues = (
            has_words
            and word is not None
            and not piece.startswith(SPACE)
            and (in_word or (same_pretoken and not text.strip()))
        )
        number = "" if has_words or word is None else word + 1  # K12
        labels.append(f"{mark if continues else ''}{visible(text)}{number}")
    word_labels = tuple(visible(decode(parts)) for parts in word_pieces.values())
    return replace(prompt, labels=tuple(labels), words=tuple(words), word_labels=word_labels)
