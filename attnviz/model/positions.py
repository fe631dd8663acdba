"""The positions of a text that a caller names: by a token, or by its number."""

import difflib
from collections.abc import Sequence

from attnviz.arguments import is_whole
from attnviz.errors import UsageError
from attnviz.model.tokens import Units
from attnviz.model.wording import visible

_SHORT_ENOUGH_TO_LIST = 20
_LONGEST_NUMBER = 10


def find_positions(units: Units, token: str | int) -> tuple[int, ...]:
    """The positions of one token or word of a text.

    Args:
        units: what the text is made of.
        token: a token or a whole word as the text has it, in any case where no other has that very case; ``cat#2`` for
            its second occurrence, needed where there are several; ``#3`` or 3 for position 3, counted from 0.

    Returns:
        one position; of a word of several pieces all of them.

    Raises:
        UsageError: the text has no such token, or several; or it is neither a string nor a whole number.
    """
    n = len(units)
    if is_whole(token):
        if not 0 <= token < n:
            raise UsageError(f"the text has positions 0 to {n - 1}, found {token}.")
        return (int(token),)
    if not isinstance(token, str):
        raise UsageError(
            "expected a token of the text, '#' and its position such as '#3', or that position as a whole number, "
            f"found {token!r}."
        )
    if found := _occurrences(units, token):
        if len(found) > 1:
            raise UsageError(_several(token, found))
        return found[0]
    text, _, digits = token.rpartition("#")
    if digits.isascii() and digits.isdecimal() and len(digits) < _LONGEST_NUMBER:
        number = int(digits)
        if not text and number < n:
            return (number,)
        if text and (found := _occurrences(units, text)):
            if 1 <= number <= len(found):
                return found[number - 1]
            times = "once" if len(found) == 1 else f"{len(found)} times"
            raise UsageError(
                f"the token “{visible(text)}” stands in the text {times}, found {visible(token)}: occurrences count "
                f"from {visible(text)}#1."
            )
    raise UsageError(_unknown(units, token))


def only_position(units: Units, token: str | int) -> int:
    """The one position of a token; of a word of several pieces its last, at which the word is whole.

    Arguments and errors as for :func:`find_positions`.
    """
    return find_positions(units, token)[-1]


def text_at(units: Units, positions: Sequence[int]) -> str:
    """The text at some positions: the word that they make up, or the token at the first of them."""
    return next((text for text, whole in units.wholes if whole == tuple(positions)), units.labels[positions[0]])


def _occurrences(units: Units, text: str) -> list[tuple[int, ...]]:
    """The positions of each token or word with this text, in order; in another case where none has this one."""
    named = [*((label, (place,)) for place, label in enumerate(units.labels)), *units.wholes]
    exact = [positions for label, positions in named if label == text]
    return sorted(exact or [positions for label, positions in named if label.casefold() == text.casefold()])


def _several(token: str, found: list[tuple[int, ...]]) -> str:
    shown = visible(token)
    some = ", ".join(f"{shown}#{number} (#{at[0]})" for number, at in enumerate(found[:6], start=1))
    more = ", …" if len(found) > 6 else ""
    return f"the token “{shown}” stands in the text {len(found)} times; name one: {some}{more}."


def _unknown(units: Units, token: str) -> str:
    distinct = list(dict.fromkeys(units.labels))
    near = difflib.get_close_matches(token, distinct, n=5, cutoff=0.5)
    if len(distinct) <= _SHORT_ENOUGH_TO_LIST:
        known = f"one of {', '.join(distinct)}"
    else:
        known = "a token as figures show it" + (f" (near: {', '.join(near)})" if near else "")
    return f"no token “{visible(token)}” in the text: expected {known}, or a position from #0 to #{len(units) - 1}."
