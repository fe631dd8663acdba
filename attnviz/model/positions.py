"""The positions of a text that a caller names: by a token, or by its number."""

import difflib
import re
from collections.abc import Sequence

from attnviz.errors import UsageError
from attnviz.model.wording import visible

__all__ = ["find_positions"]

_SHORT_ENOUGH_TO_LIST = 20


def find_positions(labels: Sequence[str], token: str) -> tuple[int, ...]:
    """The positions of a token: all that show its text, or the one with its number.

    Args:
        labels: [n], the texts of the positions as shown.
        token: one of these texts, or ``#3`` for position 3, counted from 0. A text goes before a number.

    Raises:
        UsageError: the text has no such token, or it is no string.
    """
    if not isinstance(token, str):
        number = isinstance(token, int) and not isinstance(token, bool)
        example = (
            f"write '#{token}' for the token at position {token}" if number and token >= 0 else "write 'cat' or '#2'"
        )
        raise UsageError(
            f"expected the token that lines start from (from_token) as a string, its text or '#' and its position, "
            f"found {token!r}: {example}."
        )
    found = tuple(position for position, label in enumerate(labels) if label == token)
    if found:
        return found
    numbered = re.fullmatch(r"#([0-9]{1,9})", token)
    if numbered is not None and int(numbered[1]) < len(labels):
        return (int(numbered[1]),)
    distinct = list(dict.fromkeys(labels))
    near = difflib.get_close_matches(token, distinct, n=5, cutoff=0.5)
    if len(distinct) <= _SHORT_ENOUGH_TO_LIST:
        known = f"one of {', '.join(distinct)}"
    else:
        known = "a token as figures show it" + (f" (near: {', '.join(near)})" if near else "")
    raise UsageError(
        f"no token “{visible(token)}” in the text: expected {known}, or a position from #0 to #{len(labels) - 1}."
    )
