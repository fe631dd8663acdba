"""Whether a text looks like a language: its script, its common words, or program code.

A parser gives any text a tree, one in another language, too, and the tree then means nothing. Common words are spaCy's
stop words, which it has for some 75 languages without any model. A text is refused where its letters are of another
script, where at least two of its words are common in another language only and three times as many as are common in
the parser's only, or where it is full of the signs of code; texts of fewer than eight words for their script alone.
"""

import importlib.util
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

LEAST_WORDS = 8
"""Shorter texts are refused for their script alone: a name or a quotation can be half of their words."""

COMMON_SHARE = 0.25
"""Where more of the words are common in the parser's language, no other is asked; 0.45 is usual for English."""

LEAST_FOREIGN, TIMES_OWN = 2, 3
"""Words common in another language only that a refusal takes, and how many for each that is common in the parser's only
(both attnviz's own choice: 2 of 1,087 sentences of at least eight words of the English Web Treebank are refused)."""

CODE_SHARE = 0.15
"""Share of chunks between white space that look like code, two at least, from which on a text is code (own choice)."""

_NAMES = {
    "en": "English", "zh": "Chinese", "es": "Spanish", "pt": "Portuguese", "ru": "Russian", "ja": "Japanese",
    "vi": "Vietnamese", "tr": "Turkish", "ko": "Korean", "fr": "French", "de": "German", "it": "Italian",
    "id": "Indonesian", "pl": "Polish", "uk": "Ukrainian", "nl": "Dutch", "ro": "Romanian", "hu": "Hungarian",
    "el": "Greek", "cs": "Czech", "sv": "Swedish", "ca": "Catalan", "fi": "Finnish", "hr": "Croatian", "da": "Danish",
    "nb": "Norwegian", "lt": "Lithuanian", "sl": "Slovenian", "mk": "Macedonian",
}  # fmt: skip
"""Languages that a text may be taken for; of two that fit alike, the first, which has more speakers."""

_MORE_SCRIPTS = {"ja": {"CJK", "KATAKANA"}, "ko": {"CJK"}, "sr": {"LATIN"}}
_LEAST_STOP_WORDS = 50
_NO_LETTER = re.compile(r"[\W\d_]+")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_ADDRESS = re.compile(r"\S*(?:://|www\.|@\w)\S*|<[^<>\s]+@[^<>\s]+>")
_TOKEN = re.compile(r"\w+|[^\w\s]+")
_CODE = re.compile(
    r"""[A-Za-z]_\w+(?!\.\w)\b               # snake_case, but no name of a file
    |\w\.[A-Za-z]\w*\(                       # a.method(
    |[A-Za-z_]\w*\((?!s\)|es\)|ed\))         # call(, but not word(s)
    |\w\[ |\(\) |:: |</ |/> |\):$ |[{}]
    |\w=[\w"'({\[]
    |^(?:[=!<>+*/%&|^-]=|[-=]>|&&|\|\||:=|[=+|])$
    |^\#[a-z] |^["']?\$[A-Za-z{(] |\\[a-zA-Z] |^<[a-z]+>? |^"\w+":$
    |^(?:def|elif|lambda|const|void)$""",
    re.VERBOSE,
)


def unlike(text: str, language: str) -> str:
    """Why a text does not look like one of a language, in words; empty where it may be one.

    The language is a code as spaCy has it (``en``); nothing is unlike one of which spaCy has no stop words.
    """
    common = _common_words(language)
    if not common:
        return ""
    return _other_script(text, language) or _code(text) or _other_words(text, language)


def nearest_language(text: str, languages: Sequence[str]) -> str:
    """The first of these languages (codes), unless another one's script or common words fit the text better.

    The text may be of any length; half a sentence may be enough, since nothing is refused here.
    """
    fitting = [code for code in languages if not _other_script(text, code)] or list(languages)
    first, *others = fitting
    rival = _rival(_words(text), first, others)
    return first if rival is None else rival[0]


def language_name(code: str) -> str:
    """The name of a language, or its code where that is rare."""
    return _NAMES.get(code, f"language {code!r}")


def _other_script(text: str, language: str) -> str:
    scripts = Counter(map(_script, filter(str.isalpha, text)))
    of_language = _scripts(language)
    foreign = {script: count for script, count in scripts.items() if script not in of_language}
    if not of_language or 2 * sum(foreign.values()) <= scripts.total():
        return ""
    most = max(foreign, key=lambda script: foreign[script])
    return f"{sum(foreign.values())} of its {scripts.total()} letters are of another script ({most.capitalize()})"


def _code(text: str) -> str:
    chunks = _ADDRESS.sub(" ", text).split()
    if sum(len(_TOKEN.findall(chunk)) for chunk in chunks) < LEAST_WORDS:
        return ""
    signs = sum(_CODE.search(chunk) is not None for chunk in chunks)
    return "it looks like program code" if signs >= 2 and signs >= CODE_SHARE * len(chunks) else ""


def _other_words(text: str, language: str) -> str:
    words = _words(text)
    common = sum(word in _common_words(language) for word in words)
    if len(words) < LEAST_WORDS or common > COMMON_SHARE * len(words):
        return ""
    rival = _rival(words, language, _NAMES)
    if rival is None:
        return ""
    other, only = rival
    return f"{only} of its {len(words)} words are common in {language_name(other)} and not in {language_name(language)}"


def _rival(words: Sequence[str], own: str, others: Iterable[str]) -> tuple[str, int] | None:
    """The language whose own common words are clearly more in a text than those of one, and how many they are."""
    mine, best, largest = _common_words(own), None, 0
    for other in others:
        theirs = _common_words(other)
        only = sum(word in theirs and word not in mine for word in words)
        against = sum(word in mine and word not in theirs for word in words)
        clear = other != own and only >= LEAST_FOREIGN and only >= TIMES_OWN * against
        if clear and only - against > largest:
            best, largest = (other, only), only - against
    return best


def _words(text: str) -> list[str]:
    """Words between white space, in small letters, without numbers, addresses and names of files."""
    chunks = (re.sub(r"^\W+|\W+$", "", chunk) for chunk in text.lower().split())
    return [part for chunk in chunks if _WORD.fullmatch(chunk) for part in _NO_LETTER.split(chunk)]


@cache
def _script(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").partition(" ")[0]


@cache
def _scripts(language: str) -> set[str]:
    """The scripts of a language's common words; empty where it has none."""
    counts = Counter(map(_script, "".join(_common_words(language))))
    return {script for script, count in counts.items() if count > 0.05 * counts.total()} | (
        _MORE_SCRIPTS.get(language, set()) if counts else set()
    )


@cache
def _common_words(language: str) -> frozenset[str]:
    """The stop words of a language, in parts as :func:`_words` has them; empty where spaCy has few or none."""
    spacy = importlib.util.find_spec("spacy")
    if spacy is None or spacy.origin is None:
        return frozenset()
    file = Path(spacy.origin).parent / "lang" / language / "stop_words.py"
    if not file.is_file():
        return frozenset()
    # the file alone: its package builds a tokenizer, which takes seconds for some languages
    spec = importlib.util.spec_from_file_location(f"stop_words_{language}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parts = {part for word in module.STOP_WORDS for part in _NO_LETTER.split(word.lower()) if part}
    return frozenset(parts) if len(parts) >= _LEAST_STOP_WORDS else frozenset()
