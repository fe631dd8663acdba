"""The positions of a text that a caller names: by a token, or by its number."""

import difflib
import re
from collections.abc import Sequence

from attnviz.arguments import is_whole
from attnviz.errors import UsageError
from attnviz.model.wording import visible

__all__ = ["find_positions", "only_position"]

_SHORT_ENOUGH_TO_LIST = 20


def find_positions(labels: Sequence[str], token: str | int) -> tuple[int, ...]:
    """The positions of a token: all that show its text, or the one with its number.

    Args:
        labels: [n], the texts of the positions as shown.
        token: one of these texts, or ``#3`` or 3 for position 3, counted from 0. A text goes before a number.

    Raises:
        UsageError: the text has no such token, or it is neither a string nor a whole number.
    """
    if is_whole(token):
        if not 0 <= token < len(labels):
            raise UsageError(f"the text has positions 0 to {len(labels) - 1}, found {token}.")
        return (int(token),)
    if not isinstance(token, str):
        raise UsageError(
            "expected a token of the text, '#' and its position such as '#3', or that position as a whole number, "
            f"found {token!r}."
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


def only_position(labels: Sequence[str], token: str | int) -> int:
    """The one position of a token; arguments and errors as for :func:`find_positions`.

    Raises:
        UsageError: also where the token stands in the text several times.
    """
    positions = find_positions(labels, token)
    if len(positions) > 1:
        some = ", ".join(f"#{position}" for position in positions[:6]) + (", …" if len(positions) > 6 else "")
        raise UsageError(
            f"the token “{visible(str(token))}” stands in the text {len(positions)} times, at {some}; name one."
        )
    return positions[0]
