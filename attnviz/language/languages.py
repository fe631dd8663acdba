"""Guesses whether a text is in a language: by script, by common words, and by signs of program code.

A parser also gives a tree to a text in another language, which is then meaningless. Common words are spaCy's
stop words; the limits are attnviz's own choice, and are measured on English.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

LEAST_WORDS = 6
"""Fewest lower-case words by which a text is judged; a name or a title has fewer."""

LEAST_COMMON = 0.15
"""Least share of common words among these; 0.58 is usual for English."""

CODE_SHARE = 0.15
"""Share of chunks between white space that look like code at which a text counts as code, at least two of six."""

_WORD = re.compile(r"[^\W\d_]+")
_ADDRESS = re.compile(r"\S*(?:://|www\.|@)\S*")
_CODE = re.compile(r"\w\((?!s\)|es\)|ed\))|\w_\w+(?!\.\w)\b|\w=\w|[{}]|\):$|^(?:[-=!<>+*/&|]*=|&&|\|\|)$")
_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")


def unlike(text: str, language: str) -> str:
    """Reason why a text is not in a language (spaCy's code, ``en``), or ''.

    Always '' for languages without stop words in spaCy. For languages other than English common words count only if
    more of them are English.
    """
    if not _common_words(language):
        return ""
    if _of_other_script(text, language):
        return "most of its letters are of another script"
    chunks = _ADDRESS.sub("", text).split()
    signs = sum(_CODE.search(chunk) is not None for chunk in chunks)
    if len(chunks) >= LEAST_WORDS and signs >= max(2, CODE_SHARE * len(chunks)):
        return "it looks like program code"
    words = [word for chunk in chunks for word in _WORD.findall(chunk) if word.islower()]
    common, english = (sum(word in _common_words(code) for word in words) for code in (language, "en"))
    if len(words) < LEAST_WORDS or common >= LEAST_COMMON * len(words) or (language != "en" and english <= common):
        return ""
    return f"{common} of its {len(words)} lower-case words are common in the pipeline's language"


def nearest_language(text: str, languages: Sequence[str]) -> str:
    """The first language (code) of the text's script, unless another one has at least two more common words."""
    words = _WORD.findall(text.lower())
    fitting = [code for code in languages if not _of_other_script(text, code)] or list(languages)
    common = {code: sum(word in _common_words(code) for word in words) for code in fitting}
    best = max(fitting, key=lambda code: common[code])
    return best if common[best] >= common[fitting[0]] + 2 else fitting[0]


def _of_other_script(text: str, language: str) -> bool:
    letters = [letter for letter in text if letter.isalpha()]
    scripts = {_script(letter) for word in _common_words(language) for letter in word}
    return bool(scripts) and 2 * sum(_script(letter) in scripts for letter in letters) < len(letters)


@cache
def _script(letter: str) -> str:
    name = unicodedata.name(letter, "UNKNOWN").partition(" ")[0].partition("-")[0]
    return "ASIAN" if name in _ASIAN else name


@cache
def _common_words(language: str) -> frozenset[str]:
    """The stop words of a language, in parts without apostrophes; empty where spaCy has none."""
    from spacy.util import get_lang_class

    try:
        words = get_lang_class(language).Defaults.stop_words
    except ImportError:
        return frozenset()
    return frozenset(part for word in words for part in _WORD.findall(word.lower()))
