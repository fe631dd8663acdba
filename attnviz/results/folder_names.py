"""What a folder of results is called by default: the beginning of its text, and a hash that tells texts apart."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

_LONGEST = 40
"""Characters of a text in the name of its folder."""


def text_folder(texts: Sequence[str], corpora: Sequence[Path] = ()) -> str:
    """``TEXT-HASH``: the beginning of the texts and of the corpora's names; the hash is of all texts and all places."""
    words = _slug(" ".join([*texts, *(corpus.stem for corpus in corpora)]))
    places = "\0".join([*texts, *(str(corpus.absolute()) for corpus in corpora)])
    digest = hashlib.sha256(places.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{words or 'text'}-{digest}" if places else "repeats"


def _slug(text: str) -> str:
    """The words of a text in small letters with hyphens between, as far as they can be part of a file's name here."""
    writable = text.lower().encode(sys.getfilesystemencoding(), "ignore").decode(sys.getfilesystemencoding())
    words = "".join(character if character.isalnum() else " " for character in writable).split()
    return "-".join(words)[:_LONGEST].strip("-")
