"""Texts, counts and numbers as figures, tables and captions write them."""

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from attnviz.printable import ISOLATES, escaped

_LONGEST_QUOTE = 90
_ROUNDING = 1e-6
_LEFT_TO_RIGHT, _RIGHT_TO_LEFT, _END = "\u2066", "\u2067", "\u2069"  # isolates, which no font needs to have


def visible(text: str) -> str:
    """The text with every character that cannot be seen written as an escape, spaces as ``␣``."""
    shown = escaped(text)
    return shown.replace(" ", "␣") if shown and not shown.strip(" ") else shown


def quoted(text: str) -> str:
    """The text in quotation marks, shortened, invisible characters escaped, isolated."""
    return f"“{isolated(shortened(visible(text), _LONGEST_QUOTE))}”"


def shortened(text: str, longest: int) -> str:
    """The text, cut to ``longest`` characters with an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def shortened_token(token: str, longest: int) -> str:
    """A token or word, cut in the middle to ``longest`` characters: ``electro…ically``."""
    kept = max(0, longest - 1)
    return token if len(token) <= longest else f"{token[: kept - kept // 2]}…{token[len(token) - kept // 2 :]}"


def counted(n: int, unit: str) -> str:
    """A count with its noun in the plural: ``1 token``, ``9 tokens``, ``2,001 tokens``."""
    return f"{n:,} {unit}{'' if n == 1 else 's'}"


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``11th``, …"""  # noqa: D415
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def percent(share: float | None) -> str:
    """A share in whole per cent, without a minus before 0, and 100 % of nothing less; a dash for None."""
    if share is not None and 0.995 <= share < 1 - _ROUNDING:
        return f"{math.floor(1000 * share) / 10} %"
    return "–" if share is None else f"{rounded(100 * share, 0)} %"


def percents(shares: Sequence[float]) -> list[str]:
    """Shares in per cent, ``73``: with decimals only where one else reads as another, or as 0 or 100, ``99.96``."""
    written = dict[float, str]()
    for digits in range(9):
        written = {share: rounded(100 * share, digits) for share in (0.0, *shares, 1.0)}
        if len({*written.values()}) == len(written):
            break
    return [written[share] for share in shares]


def rounded(value: float | None, digits: int = 2) -> str:
    """A number with ``digits`` decimals and a true minus sign, none before 0: ``−0.08``; a dash for None or NaN."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) else text.removeprefix("-")


def span(ends: Iterable[float | None] | None, digits: int = 2) -> str:
    """Both ends of a range: ``0.12–0.34``; a dash where there is none."""
    known = [end for end in ends or () if end is not None]
    return "–".join(rounded(end, digits) for end in known) or "–"


def bracketed(ends: Iterable[float] | None, write: Callable[[float], str]) -> str:
    """Both ends of an interval: ``[0.12, 0.34]``; ``not known`` where there is none."""
    return "not known" if ends is None else f"[{', '.join(map(write, ends))}]"


def signed(value: float | None) -> str:
    """Two decimals with a sign: ``+0.31``, ``−0.08``; small: ``+0.0012``; 0.00 without one; a dash for None or NaN."""
    text = amount(value) if value is not None and _ROUNDING <= abs(value) < 0.005 else rounded(value)
    return f"+{text}" if text[0].isdecimal() and float(text) else text


def error(value: float) -> str:
    """A rounding error with two digits."""
    return f"{value:.1e}" if value else "0 (bit for bit)"


def amount(value: float) -> str:
    """A number in about three digits with a true minus sign: ``−0.0123``, ``1.4e-05``."""
    if value == 0:
        return "0"
    size = abs(value)
    text = f"{size:.1e}" if size < 0.0005 else f"{size:.4f}" if size < 0.1 else f"{size:.3f}"
    return f"−{text}" if value < 0 else text


def abbreviated(count: int | None) -> str:
    """``110M`` as the paper has it, ``124.4M`` as counted; below two billion in millions, unless in round tenths."""
    if count is None:
        return "–"
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size and (letter != "B" or count >= 2 * size or count % 10**8 == 0):
            return f"{count / size:.1f}".removesuffix(".0") + letter
    return str(count)


def right_to_left(text: str) -> bool:
    """Whether the first letter that has a direction, outside isolates, is of a script such as Arabic."""
    depth = 0
    for character in "" if text.isascii() else text:
        if character in ISOLATES:
            depth = max(0, depth - 1) if character == _END else depth + 1
        elif depth == 0 and (direction := unicodedata.bidirectional(character)) in ("L", "R", "AL"):
            return direction != "L"
    return False


def isolated(text: str) -> str:
    """The text in Unicode isolates if it has right-to-left letters: it keeps its order, ``##`` stands right."""
    if text.isascii() or not any(unicodedata.bidirectional(character) in ("R", "AL") for character in text):
        return text
    return f"{_RIGHT_TO_LEFT if right_to_left(text) else _LEFT_TO_RIGHT}{text}{_END}"
