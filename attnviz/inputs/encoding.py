"""Tokenizes texts; errors of tokenizers become messages."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any

from attnviz.arguments import as_found, is_whole
from attnviz.errors import CheckpointError, TextError, UsageError
from attnviz.inputs.tokenized import documents_of
from attnviz.inputs.tokens import Tokens, unknown_note
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
from attnviz.models.families.base import first_position
from attnviz.models.libraries import calling_tokenizer
from attnviz.models.tokenizers import unknown_id
from attnviz.wording import counted, quoted, visible

_SHOWN = 100  # characters of a text that a message may show


@dataclass(frozen=True)
class TextReader:
    """How a model reads texts: its tokenizer, and what its embedding tables and its architecture take.

    The tokenizer is a fast one, or for texts without words one of pieces alone, which stand in the text as they are.
    """

    tokenizer: Any
    vocabulary_size: int  # rows of the table of words
    max_positions: int  # of a text with its special tokens
    segments: bool  # whether the model takes token types; without them a separator must stand between a pair
    sink_first: bool  # whether position 0 is a sink without being special
    token_types: int | None = None  # rows of their table, with segments
    has_words: bool = True
    limit: str = ""  # said after the positions in messages
    image_token: int | None = None  # in place of which the whole model reads an image

    def tokenize(
        self, text: str, pair: str | None = None, truncate: bool = False, target: bool = False, rendered: bool = False
    ) -> Tokens:
        """Tokenize a text, or a pair; see :meth:`encodings`. ``truncate`` cuts to ``max_positions`` instead of raising.

        Raises:
            TextError: no text, blank, not valid Unicode, no tokens left, too long for the model, or a pair without a
                separator.
            CheckpointError: the tokenizer is not a fast one, or does not belong to the model.
        """
        kind = "target" if target else "text"
        _check_text(text, kind)
        if pair is not None:
            _check_text(pair, "pair")
        encode = partial(self.encodings, target=target, rendered=rendered)
        [encoding] = encode([text], None if pair is None else [pair])
        n_tokens = len(encoding.ids)
        most = self.max_positions
        if n_tokens > most:
            if not truncate:
                raise TextError(
                    f"the {kind} has {n_tokens} tokens, but the model has {most} positions{self.limit}; shorten it, "
                    "or pass --truncate (truncate=True) to cut it there."
                )
            rough = 2 * most + 100
            text, pair = _rough_cut(text, encoding, 0, rough), pair and _rough_cut(pair, encoding, 1, rough)
            [encoding] = encode([text], None if pair is None else [pair], max_length=most)
            if len(encoding.ids) > most:
                raise TextError(f"the model's {most} positions do not even hold the tokenizer's special tokens.")
        if lost_segments(encoding, 1 if pair is None else 2):
            which = f"the {kind}" if pair is None else "the text or of its pair"
            raise TextError(
                f"no tokens are left of {which} after tokenization; expected at least one visible character, and a "
                "tokenizer whose post-processor keeps the text."
            )
        texts = [part for part in (text, pair) if part is not None] if encoding.text is None else [encoding.text]
        tokens = _tokens(self.tokenizer, encoding, texts, self.sink_first, self.has_words)
        type_ids = tuple(encoding.type_ids) if self.segments else None
        return replace(tokens, type_ids=type_ids, truncated=n_tokens - len(encoding.ids))

    def as_given(self, ids: tuple[int, ...], type_ids: tuple[int, ...] | None) -> tuple[str, str | None, Tokens]:
        """The text, its pair or None, and the tokens of given ids.

        Where the tokenizer gives these ids for their text again, the tokens have its words; else words begin at spaces.
        TextError for too many; UsageError for ids or token types that the model has not, or special tokens alone.
        """
        tokenizer = self.tokenizer
        special = _special_ids(tokenizer)
        types = type_ids or (0,) * len(ids)
        if len(ids) > self.max_positions:
            raise TextError(
                f"the input_ids have {len(ids)} tokens, but the model has {self.max_positions} positions{self.limit}; "
                "let the tokenizer cut them: truncation=True."
            )
        self._refuse_images(ids)
        wrong = [token for token in ids if not 0 <= token < self.vocabulary_size]
        if wrong:
            raise UsageError(f"expected input_ids from 0 to {self.vocabulary_size - 1}, found {wrong[0]}.")
        has_types = self.segments and self.token_types is not None
        n_types = (self.token_types or 1) if has_types else 1
        if not all(0 <= kind < n_types for kind in types):
            raise UsageError(f"expected token_type_ids below {n_types}, as this model has them, found {max(types)}.")
        if special.issuperset(ids):
            raise UsageError("expected input_ids of a text, found special tokens alone.")
        runs = [list(run) for is_special, run in groupby(ids, key=special.__contains__) if not is_special]
        spaces = {"clean_up_tokenization_spaces": True} if continues_mark(tokenizer) == WORDPIECE else {}
        text = tokenizer.decode(runs[0], **spaces)
        pair = tokenizer.decode(runs[1], **spaces) if len(runs) == 2 else None
        tokens: Tokens | None = None
        if len(runs) <= 2:
            with suppress(TextError, CheckpointError):  # such as a text of a space
                tokens = self.tokenize(text, pair)
        if (tokens is None or tokens.ids != ids) and getattr(tokenizer, "is_fast", False):
            # special tokens may stand in the text, as in a chat, where none are added
            text = tokenizer.decode(ids)
            pair = None
            [again] = tokenizer([text], add_special_tokens=False, return_token_type_ids=True, verbose=False).encodings
            encoding = _of_fast(again).with_special([token in special for token in again.ids])
            tokens = _tokens(tokenizer, encoding, [text], self.sink_first)
        if tokens is None or tokens.ids != ids:
            text, tokens = tokens_of_ids(tokenizer, ids, self.sink_first)
            pair = None
        return text, pair, replace(tokens, type_ids=types if has_types else None)

    def encodings(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        max_length: int | None = None,
        target: bool = False,
        rendered: bool = False,
    ) -> list[Encoding]:
        """The tokenizer's encodings of texts, with special tokens, checked against the model's embedding tables.

        Texts of more than ``max_length`` tokens are cut; ``pairs`` are the second segments of all texts. ``target`` is
        for the decoder of an encoder-decoder, whose tokenizer may have a vocabulary of its own for it. ``rendered`` are
        chats, in which a template wrote all control tokens: they are special, and no others are added.
        CheckpointError where the tokenizer fails or gives ids beyond the vocabulary; TextError for types it has not, a
        token for an image, or a pair that nothing separates.
        """
        tokenizer = self.tokenizer
        two_models = hasattr(tokenizer, "spm_target")
        fast = getattr(tokenizer, "is_fast", False)
        if not (fast or two_models) and (self.has_words or not hasattr(tokenizer, "tokenize")):
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
        cut = {"truncation": max_length is not None, "max_length": max_length}
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
                results = list(map(_of_fast, batch.encodings))
        for encoding in results:
            self._check_tables(encoding)
            if pairs is not None and not self.segments:
                _check_separated(encoding)
        if not rendered:
            return [_with_doubled(encoding) for encoding in results]
        # special tokens, and those that a vocabulary has for chats alone (``<|start_header_id|>``)
        added = tokenizer.added_tokens_decoder.items()
        control = _special_ids(tokenizer) | {number for number, token in added if token.special}
        return [encoding.with_special([token in control for token in encoding.ids]) for encoding in results]

    def _refuse_images(self, ids: Sequence[int]) -> None:
        if self.image_token in ids:
            token = self.tokenizer.convert_ids_to_tokens(self.image_token)
            raise TextError(
                f"the text has the token {token!r}, in place of which the model reads an image; attnviz measures it on "
                "text alone."
            )

    def _check_tables(self, encoding: Encoding) -> None:
        self._refuse_images(encoding.ids)
        token = max(encoding.ids, default=0)
        kind = max(encoding.type_ids, default=0)
        if token >= self.vocabulary_size:
            raise _beyond(token, self.vocabulary_size)
        if self.segments and self.token_types is not None and kind >= self.token_types:
            has = "one token type" if self.token_types == 1 else f"{self.token_types} token types"
            raise TextError(
                f"this model has {has} only, but the text has tokens of type {kind}; expected one text without a pair, "
                "or a BERT with two token types."
            )


def reader_of(checkpoint: Checkpoint) -> TextReader:
    """How a model reads texts."""
    return TextReader(
        tokenizer=checkpoint.tokenizer,
        vocabulary_size=int(checkpoint.config.vocab_size),
        max_positions=checkpoint.positions,
        segments=checkpoint.architecture.segments,
        sink_first=checkpoint.architecture.causal,
        token_types=getattr(checkpoint.config, "type_vocab_size", None),
        has_words=checkpoint.architecture.has_words,
        limit=checkpoint.limit,
        image_token=checkpoint.image_token,
    )


def tokenize(
    checkpoint: Checkpoint,
    text: str,
    pair: str | None = None,
    truncate: bool = False,
    target: bool = False,
    rendered: bool = False,
) -> Tokens:
    """Tokenize a text, a pair, a target or a chat; see :meth:`TextReader.tokenize`."""
    reader = reader_of(checkpoint)
    if target and getattr(checkpoint.config, "decoder_vocab_size", None):
        reader = replace(reader, vocabulary_size=int(checkpoint.config.decoder_vocab_size))
    return reader.tokenize(text, pair, truncate, target, rendered)


def documents(checkpoint: Checkpoint, inputs: Mapping[str, Any]) -> list[tuple[str, str | None, Tokens]]:
    """The documents of what a tokenizer returned: text, pair or None, and tokens of each.

    UsageError for inputs that cannot be divided into documents; TextError for a document that is too long.
    """
    padding, *ends = (getattr(checkpoint.tokenizer, f"{name}_token_id", None) for name in ("pad", "bos", "eos"))
    divided = documents_of(
        inputs,
        first_position=first_position(checkpoint.architecture, checkpoint.config),
        decodes=bool(checkpoint.stacks),
        padding=padding,
        least_padding=2 if padding in ends else 1,
    )
    reader = reader_of(checkpoint)
    return [reader.as_given(*document) for document in divided]


def encodings(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    truncate: bool = False,
    rendered: bool = False,
) -> Sequence[Encoding]:
    """The tokenizer's own encodings, checked; see :meth:`TextReader.encodings`.

    ``truncate`` cuts texts that are longer than the model; ``rendered`` are chats.
    """
    return reader_of(checkpoint).encodings(texts, pairs, checkpoint.positions if truncate else None, rendered=rendered)


def unknown_note_of(checkpoint: Checkpoint, n_unknown: int, n_tokens: int, where: str = "") -> str:
    """A sentence on unknown tokens among those of several texts, or ''."""
    tokenizer = checkpoint.tokenizer
    label = tokenizer.convert_ids_to_tokens(unknown_id(tokenizer)) if n_unknown else None
    return unknown_note(n_unknown, n_tokens, label, where)


def tokens_of_ids(tokenizer: Any, ids: Sequence[int], sink_first: bool = False) -> tuple[str, Tokens]:
    """The text of generated ids, and its tokens."""
    named = zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True)  # a model may have rows beyond these
    pieces = [f"<id {token}>" if piece is None else piece for token, piece in named]
    encoding = decoded_pieces(ids, pieces, _special_ids(tokenizer), decoder(tokenizer))
    text = str(encoding.text)
    return text, _tokens(tokenizer, encoding, [text], sink_first)


def _of_fast(encoded: Any) -> Encoding:
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


def language_prefix(tokenizer: Any) -> list[int]:
    """The ids that every target of a tokenizer with languages begins with (NLLB: that of the language; Whisper)."""
    if not hasattr(tokenizer, "tgt_lang") and not hasattr(tokenizer, "prefix_tokens"):
        return []
    n_tokens = len(tokenizer)
    reader = TextReader(tokenizer, vocabulary_size=n_tokens, max_positions=n_tokens, segments=False, sink_first=False)
    [encoding] = reader.encodings([""], target=True)
    ids = encoding.ids
    return list(ids[: ids.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in ids else ids)


def _of_two_models(tokenizer: Any, text: str, target: bool, cut: dict[str, Any]) -> Encoding:
    """Encode with one of Marian's two SentencePiece models, which give no offsets; pieces mark where words begin."""
    ids = tokenizer(**{"text_target" if target else "text": text}, **cut, verbose=False)["input_ids"]
    vocabulary = tokenizer.target_encoder if target and tokenizer.separate_vocabs else tokenizer.encoder
    names = {number: piece for piece, number in vocabulary.items()}
    pieces = [names.get(token, f"id {token}") for token in ids]
    return decoded_pieces(
        ids, pieces, _special_ids(tokenizer), lambda parts: "".join(parts).replace(SPACE, " ").removeprefix(" ")
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


def _special_ids(tokenizer: Any) -> set[int]:
    return set(tokenizer.all_special_ids) - {unknown_id(tokenizer)}


def lost_segments(encoding: Encoding, n_segments: int) -> bool:
    """Whether one of the segments has no token that is not special."""
    return len({segment for segment in encoding.sequence_ids if segment is not None}) < n_segments


def _rough_cut(text: str, encoding: Encoding, segment: int, n_tokens: int) -> str:
    """A text cut after ``n_tokens``, since the library takes hours and gigabytes to truncate a long pair at once."""
    tokens = zip(encoding.offsets, encoding.sequence_ids, strict=True)
    ends = [end for (_, end), of in tokens if of == segment]
    return text if len(ends) <= n_tokens else text[: ends[n_tokens - 1]]


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


def _check_text(text: object, name: str) -> None:
    if not isinstance(text, str):
        raise TextError(f"expected the {name} as a string, found {type(text).__name__}.")
    if not text.strip():
        raise TextError(f"the {name} is {'blank' if text else 'empty'}; expected at least one word.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        character = text[error.start]
        is_byte = "\udc80" <= character <= "\udcff"
        byte = character.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")[0]
        raise TextError(
            f"the {name} is not valid UTF-8: found byte 0x{byte:02x} at character {error.start}; "
            "expected text encoded as UTF-8."
        ) from error


def _check_separated(encoding: Encoding) -> None:
    """Raise TextError unless a special token stands between the two segments."""
    if (0, 1) in pairwise(segment for segment, _ in groupby(encoding.sequence_ids)):
        raise TextError(
            "a pair was given, but this architecture has no sentence segments, and its tokenizer puts nothing between "
            "two texts; expected one text: join the two yourself, or choose a BERT checkpoint."
        )


def _tokens(
    tokenizer: Any, encoding: Encoding, texts: Sequence[str], sink_first: bool, has_words: bool = True
) -> Tokens:
    words = word_numbers(encoding, texts, has_words)
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
    special = tuple(segment is None for segment in encoding.sequence_ids)
    return Tokens(
        ids=tuple(encoding.ids),
        labels=tuple(labels),
        special=special,
        sink=tuple(is_special or (sink_first and not position) for position, is_special in enumerate(special)),
        words=tuple(words),
        segments=tuple(encoding.sequence_ids),
        offsets=tuple(encoding.offsets),
        type_ids=None,
        word_labels=tuple(visible(decode(parts)) for parts in word_pieces.values()),
        unknown_id=unknown_id(tokenizer),
        spelled=encoding.text,
    )
