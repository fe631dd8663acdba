"""Pieces of words, as tokenizers mark them and as figures and tables show them.

The one place that knows these marks: ``##`` in WordPiece, ``Ġ`` in byte-level BPE, ``▁`` in SentencePiece.
"""

import re
from collections.abc import Sequence
from typing import Any

from attnviz.model.wording import visible

CONTINUES = "##"
"""Before a piece that continues a word, whatever the tokenizer."""

SPACE = "▁"
"""SentencePiece's stand-in for a space, at the beginning of words."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""SentencePiece's name of a byte, where the vocabulary lacks a character."""


def vocabulary_labels(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Entries of the vocabulary, out of any text, as figures and tables show tokens.

    Whether an entry continues a word cannot be seen from a text here: where the tokenizer marks the beginning of
    words, one without that mark that begins with a letter or digit does. Rows of the embedding matrix that the
    tokenizer does not name are shown as ``id 50300``.
    """
    decode = decoder(tokenizer)
    added = set(tokenizer.get_added_vocab())
    marked = "".join(decode(["a", "Ġa"])) == "a a" or SPACE in repr(tokenizer.backend_tokenizer.decoder)

    def label(token: int, piece: str | None) -> str:
        if piece is None:
            return f"id {token}"
        if piece in added or not marked:
            return visible(piece)
        continues = not piece.startswith(("Ġ", SPACE)) and decode([piece])[:1].isalnum()
        return f"{CONTINUES * continues}{visible(decode([piece]))}"

    return [label(token, tokenizer.convert_ids_to_tokens(token)) for token in ids]


def decoder(tokenizer: Any) -> Any:
    """A function from the pieces of one token or word to the text that they stand for."""
    backend = getattr(tokenizer, "backend_tokenizer", None)  # Marian's has none, but two SentencePiece models
    kind = SPACE if backend is None else f"{backend.decoder!r} {backend.pre_tokenizer!r}"
    added = set(tokenizer.get_added_vocab())  # written as they are, whatever the alphabet of the rest

    def wordpiece(pieces: Sequence[str]) -> str:
        return "".join(piece.removeprefix(CONTINUES) if len(piece) > 2 else piece for piece in pieces)

    def byte_level(pieces: Sequence[str]) -> str:
        data = b"".join(_bytes_of(piece, piece in added) for piece in pieces)
        return _without_leading_space(data.decode("utf-8", "backslashreplace"))

    def metaspace(pieces: Sequence[str]) -> str:
        data = b"".join(
            bytes.fromhex(byte[1]) if (byte := _BYTE.fullmatch(piece)) else piece.encode() for piece in pieces
        )
        return _without_leading_space(data.decode("utf-8", "backslashreplace").replace(SPACE, " "))

    if "ByteLevel" in kind:
        return byte_level
    return metaspace if SPACE in kind else wordpiece


def _bytes_of(piece: str, added: bool) -> bytes:
    return piece.encode() if added else b"".join(_BYTES.get(character, character.encode()) for character in piece)


def _without_leading_space(text: str) -> str:
    return text[1:] if len(text) > 1 and text[0] == " " and text.strip() else text


def _byte_level_alphabet() -> dict[str, bytes]:
    """The printable stand-in of every byte in byte-level BPE (Radford et al. 2019), inverted."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): bytes([byte]) for byte in plain}
    return alphabet | {chr(256 + i): bytes([byte]) for i, byte in enumerate(others)}


_BYTES = _byte_level_alphabet()
