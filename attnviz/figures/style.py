"""Style of figures: theme, scale and width; and their files.

PNG, SVG and PDF have no dates, so that equal figures are equal files.
"""

import io
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from attnviz.arguments import as_found
from attnviz.errors import UsageError

if TYPE_CHECKING:  # a run without figures knows the style and does not import matplotlib
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap, Normalize
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
"""File formats of figures."""

DPI = 150
"""Resolution of figures, in whose pixels their layout is measured."""

_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "attnviz"},
    "pdf": {"CreationDate": None, "Creator": "attnviz"},
}

FAINTEST = 1e-4
"""The weight at the light end of a logarithmic scale; smaller ones look the same."""

SCALES = ("auto", "shared", "per-head", "log")
"""``auto``: by the length of the text (:meth:`Style.scaled_for`); 0 to 1, the same for every head; from 0 to the head's
own largest weight; or logarithmic, the same for every head."""

MOSTLY_WHITE = 40
"""Tokens, or words, beyond which most weights are too small to be seen on a scale from 0 to 1: their mean is 1/n."""


@dataclass(frozen=True)
class Theme:
    """The greys of a figure: paper, text, muted text, and frames."""

    paper: str
    ink: str
    muted: str
    frame: str


THEMES = {
    "light": Theme("#ffffff", "#222222", "#8a8a8a", "#9a9a9a"),
    "dark": Theme("#141414", "#ececec", "#9a9a9a", "#6e6e6e"),
}
"""By name; all greys, as indexed PNGs need."""

_VERDICTS = {"light": ("#00805c", "#d55e00"), "dark": ("#33d6a6", "#ff8c42")}
"""Of found and missed, by theme: the green and the vermilion of Okabe and Ito (2008), made darker or brighter."""

MISSED_DASHES = (0, (2.2, 1.4))
"""Dash pattern of missed pairs; found ones are solid."""

_UNITS = {"in": 1.0, "": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}
_NARROWEST, _WIDEST = 2.0, 40.0


@dataclass(frozen=True, init=False)
class Style:
    """Theme, scale and width of figures; attributes as the arguments, the width in inches or None."""

    theme: str = "light"
    scale: str = "auto"
    width: float | None = None
    bare: bool = False

    def __init__(
        self,
        theme: str = "light",
        scale: str = "auto",
        width: float | str | None = None,
        bare: bool = False,
    ) -> None:
        """Check the style.

        Args:
            theme: ``light`` or ``dark``.
            scale: one of :data:`SCALES`.
            width: of a figure on the page, in inches or as ``3.3in``, ``84mm``; None to fit its content.
            bare: no title and no notes, for papers with their own captions.

        Raises:
            UsageError: an unknown theme or scale, or an impossible width.
        """
        for kind, name, known in (("theme", theme, tuple(THEMES)), ("scale", scale, SCALES)):
            if name not in known:
                raise UsageError(f"unknown {kind} {name!r}: expected one of {', '.join(known)}.")
        inches = parse_width(width) if isinstance(width, str) else width
        if inches is not None and (isinstance(inches, bool) or not isinstance(inches, Real)):
            raise UsageError(f"expected a width in inches, or a text such as '84mm', found {as_found(inches)}.")
        if inches is not None and not _NARROWEST <= inches <= _WIDEST:
            raise UsageError(f"expected a width of {_NARROWEST:g} to {_WIDEST:g} inches, found {inches:g}.")
        vars(self).update(theme=theme, scale=scale, width=inches, bare=bool(bare))

    @property
    def greys(self) -> Theme:
        """Paper, ink, muted text and frames."""
        return THEMES[self.theme]

    def verdict(self, found: bool) -> str:
        """The colour of pairs that a head finds, or misses."""
        return _VERDICTS[self.theme][not found]

    def colour_map(self) -> "ListedColormap | LinearSegmentedColormap":
        """Colours from the paper's for 0 to the strongest blue: dark on light paper, bright on dark."""
        from matplotlib import colormaps
        from matplotlib.colors import LinearSegmentedColormap, ListedColormap

        if self.theme == "light":
            blues = colormaps["Blues"](np.linspace(0, 1, 256))
            blues[0] = 1.0
            return ListedColormap(blues, name="attnviz")
        colours = [self.greys.paper, "#12365f", "#08519c", "#3182bd", "#9ecae1", "#f7fbff"]
        positions = (0, 0.08, 0.25, 0.5, 0.75, 1)  # weights of a few hundredths already differ from the paper
        stops = list(zip(positions, colours, strict=True))
        return LinearSegmentedColormap.from_list("attnviz-dark", stops)

    def diverging_map(self) -> "LinearSegmentedColormap":
        """Diverging colours: blue below 0, the paper's for 0, orange above; safe for colour blindness."""
        from matplotlib.colors import LinearSegmentedColormap

        less, more = ("#2166ac", "#b35806") if self.theme == "light" else ("#67a9cf", "#f1a340")
        return LinearSegmentedColormap.from_list(f"attnviz-diverging-{self.theme}", [less, self.greys.paper, more])

    def scaled_for(self, n: int = 0, linear: str = "shared") -> "Style":
        """Resolve the scale ``auto`` for weights between a number of positions.

        It becomes logarithmic above :data:`MOSTLY_WHITE`, else ``linear``; without a number, for values that are no
        weights, always the latter.
        """
        return replace(self, scale="log" if n > MOSTLY_WHITE else linear) if self.scale == "auto" else self

    def why_log(self, n: int) -> str:
        """Note that ``auto`` has become logarithmic, or ''."""
        adapted = self.scale == "auto" and n > MOSTLY_WHITE
        return "logarithmic colours, since most weights of a text this long are near 0" if adapted else ""

    def norm(self, largest: float = 1.0) -> "Normalize":
        """Norm from weights to 0-1; ``largest`` is its end if each head has its own scale."""
        from matplotlib.colors import LogNorm, Normalize

        if self.scale == "log":
            return LogNorm(FAINTEST, 1.0, clip=True)
        return Normalize(0.0, largest if self.scale == "per-head" and largest > 0 else 1.0, clip=True)


PLAIN = Style()
"""The default style: light, scale by the text's length, width of the content."""


def parse_width(text: str) -> float:
    """Inches from ``3.3in``, ``8.4cm``, ``84mm``, ``240pt`` or a bare number of inches.

    Raises:
        UsageError: it is none of these.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(in|cm|mm|pt|)\s*", text)
    if match is None:
        raise UsageError(f"expected a width such as 3.3in, 8.4cm, 84mm or 240pt, found {as_found(text)}.")
    return float(match[1]) * _UNITS[match[2]]


def outer_ink(style: Style, setting: str = "text.color") -> str:
    """Colour of texts outside the cells, which may stand on the caller's page.

    In the light theme, the default, a caller's setting of matplotlib takes precedence, such as that of
    ``dark_background``; else it is the theme's ink.
    """
    from matplotlib import rcParams, rcParamsDefault

    known: tuple[Any, Any] = rcParams, rcParamsDefault
    theirs, default = (str(each[setting]) for each in known)
    if style.theme != "light" or theirs == default or theirs in ("auto", "inherit"):
        return style.greys.ink
    return theirs


def file_dpi(style: Style) -> int:
    """Resolution of a PNG: :data:`DPI`, or twice that with a chosen width."""
    return DPI if style.width is None else 2 * DPI


def figure_bytes(figure: "Figure", file_format: str, style: Style = PLAIN) -> bytes:
    """A figure as a file of one of :data:`FORMATS`; PNGs at :func:`file_dpi`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    canvas = FigureCanvasAgg(figure)
    with figure_style():
        if file_format == "png":
            figure.set_dpi(file_dpi(style))
            canvas.draw()
            picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])  # an alpha channel says nothing
            return png_bytes(picture, figure.dpi)
        metadata = _METADATA[file_format]
        figure.savefig(buffer, format=file_format, metadata=metadata, facecolor=figure.get_facecolor())
    return buffer.getvalue()


def png_bytes(picture: Image.Image, dpi: float, **options: Any) -> bytes:
    """A picture as a PNG with resolution and software in its metadata; ``options`` are Pillow's."""
    buffer, maker = io.BytesIO(), PngInfo()
    maker.add_text("Software", "attnviz")
    picture.save(buffer, "png", dpi=(dpi, dpi), pnginfo=maker, **options)
    return buffer.getvalue()


def figure_style() -> AbstractContextManager[None]:
    """Matplotlib's defaults plus settings for reproducible files, whatever the user's settings.

    SVG and PDF keep their text as text; ids in SVG come from a fixed salt.
    """
    from matplotlib import style

    ours: dict[str, Any] = {"svg.hashsalt": "attnviz", "svg.fonttype": "none", "pdf.fonttype": 42}
    return style.context(["default", ours])
