"""The interactive page: packed data in one HTML file, under a content security policy.

A weight p is kept as round(255 sqrt(p)): its error is about sqrt(p) / 255 at most, 0.004 for a weight of 1 and less
for all others, where rounding p itself would lose every weight of a long text. Bytes are deflated and written in
base64, a head at a time, so that a browser inflates only what it shows.

Data is text to the browser (``application/json``, every ``<`` escaped), and the script writes it with ``textContent``
alone; the policy names the hashes of the page's own script and style, and allows no network.
"""

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnviz.figures.families import FAMILIES, UNNAMED, brief_name, families_of_label
from attnviz.figures.style import THEMES, Style
from attnviz.inputs.prompt import Positions
from attnviz.wording import right_to_left, visible

BUDGET, NOTEBOOK_BUDGET = 20_000_000, 4_000_000  # bytes of all patterns on a page, at most, and on one in a notebook
ERROR = 0.004  # the largest error of a weight on the page
_DENSEST = 8  # least bytes per cell of a packed pattern, by experience, unless it hardly counts at all
K = TypeVar("K", bound=tuple[int, ...])
_SHARED = ("patterns.js", "scene.js", "pictures.js", "dom.js")
# the script's modules by command, '' of all others; each after those that it imports
MODULES = {
    "explain": (*_SHARED, "steps.js", "explain.js"),
    "": (*_SHARED, "spans.js", "heads.js", "head.js", "examples.js", "page.js"),
}

_IMPORT = re.compile(r"^import\s[^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?function|const|class)", re.MULTILINE)


class PackedPattern:
    """One pattern in the page's format, deflated chunk by chunk; of a ``triangle`` only the keys up to each query."""

    def __init__(self, triangle: bool) -> None:
        self._triangle = triangle
        self._done: list[bytes] = []
        self._deflate = zlib.compressobj(strategy=zlib.Z_RLE)  # bytes hardly repeat but in runs: 6 × as fast, smaller

    def add(self, first: int, rows: Tensor) -> None:
        """The next rows, [rows, n_keys], from query ``first`` on; of a triangle, hidden keys at the end may lack."""
        roots: NDArray[np.uint8] = np.rint(255 * np.sqrt(rows.clamp(0, 1).float().numpy())).astype(np.uint8)
        kept = roots[np.tri(len(roots), roots.shape[1], first, dtype=bool)] if self._triangle else roots
        self._done.append(self._deflate.compress(kept.tobytes()))

    def text(self) -> str:
        """The whole pattern in base64."""
        return b64encode(b"".join(self._done) + self._deflate.flush()).decode("ascii")


def pack(
    ranked: Sequence[K],
    patterns: Callable[[Sequence[K]], Iterator[tuple[K, Sequence[PackedPattern]]]],
    cells: int,
    budget: int = BUDGET,
) -> dict[K, list[str]]:
    """Pack the patterns of as many heads as the budget of bytes has room for, at least of one.

    ``ranked`` are ids, the most important first. ``patterns`` gets ids in their own order and yields each with its
    patterns, one a side. ``cells``: weights of a head, at most.
    """
    tried = ranked[: max(1, _DENSEST * budget // max(1, cells))]
    packed = {head: [side.text() for side in sides] for head, sides in patterns(sorted(tried))}
    kept: dict[K, list[str]] = {}
    for head in tried:
        budget -= sum(map(len, packed[head]))
        if budget < 0 and kept:
            break
        kept[head] = packed[head]
    return kept


def axis_entry(units: Positions, segments: Sequence[int | None], words: Positions | None = None) -> dict[str, Any]:
    """The positions that rows or columns of patterns are named by.

    ``segments`` say which text of a pair each is of, None of special tokens; ``words`` are those that tokens merge
    into, None where units are words already.
    """
    entry = {
        "unit": units.name,
        "labels": list(units.labels),
        "sink": [int(sink) for sink in units.sink],
        "segments": list(segments),
        "rtl": right_to_left("".join(label for label, sink in zip(units.labels, units.sink, strict=True) if not sink)),
    }
    if units.name == "word":
        entry["tokens"] = [(members[0], members[-1]) for members in units.members]
    if words is not None:
        entry["words"] = {
            "labels": list(words.labels),
            "sink": [int(sink) for sink in words.sink],
            "members": [list(members) for members in words.members],
        }
    return entry


def families_entry() -> dict[str, dict[str, str]]:
    """Colour and marker of each family, by name."""
    return {family.name: family._asdict() for family in FAMILIES}


def label_entry(shown: str, label: str, *, mark: str = "", seen: bool | None = True) -> dict[str, Any]:
    """How a label or role stands on the page, as in the figures: ``shown`` whole, and short with a ``mark``.

    ``seen``: whether its mark is filled; None for half.
    """
    families = families_of_label(label)
    return {
        "label": visible(shown),
        "short": visible(brief_name(label)) + ("" if label == UNNAMED.name else mark),
        "family": families[-1].name,
        "kinds": [family.name for family in families],
        "seen": seen,
    }


def colours_entry() -> dict[str, dict[str, str]]:
    """The figures' 256 colours of weights and of differences in hexadecimal, by theme."""

    def hexadecimal(colours: Any) -> str:
        values: NDArray[np.uint8] = np.rint(255 * colours(np.arange(256))[:, :3]).astype(np.uint8)
        return values.tobytes().hex()

    return {
        theme: {
            "weights": hexadecimal(Style(theme).colour_map()),
            "differences": hexadecimal(Style(theme).diverging_map()),
        }
        for theme in THEMES
    }


def packed_numbers(numbers: Tensor) -> dict[str, Any]:
    """A tensor as the page reads it: its shape, and its numbers in float32, in base64."""
    content = numbers.float().numpy().astype("<f4").tobytes()
    return {"shape": list(numbers.shape), "data": b64encode(content).decode("ascii")}


def short_float(value: float | None) -> float | None:
    """Round to the digits that the page shows."""
    return None if value is None else round(float(value), 5)


def statistic_entry(
    key: str, title: str, reading: str, unit: str, uniform: Iterable[float | None], values: Iterable[float | None]
) -> dict[str, Any]:
    """A statistic of every head, beside its value under uniform attention for each kind of attention."""
    numbers = {"uniform": list(map(short_float, uniform)), "values": list(map(short_float, values))}
    return {"key": key, "title": title, "reading": reading, "unit": unit, **numbers}


def page_html(data: dict[str, Any], theme: str = "light") -> str:
    """The page of ``PageData`` in ``patterns.js`` (or ``LayerData``); ``light`` is as the system prefers.

    Colours and families are those of the figures, in every page.
    """
    data = {"colours": colours_entry(), "families": families_entry(), **data}
    style = _source("page.css")
    script = script_text(data["command"] if data["command"] in MODULES else "")
    parts = {
        "policy": f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'",
        "theme": "dark" if theme == "dark" else "auto",
        "style": style,
        "script": script,
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("page.html"))


@cache
def script_text(command: str = "") -> str:
    """All modules of a page joined, since one that is opened from disk cannot import files."""
    modules = (_IMPORT.sub("", _source(name)) for name in MODULES[command])
    return "\n".join(_EXPORT.sub("", module) for module in modules)


def _source(name: str) -> str:
    return (files("attnviz.page") / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}"
