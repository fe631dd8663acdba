"""Style of figures: theme, scale and width; and their files, without dates, so that equal figures are equal files."""

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from attnviz.arguments import as_found, check_kind, did_you_mean
from attnviz.errors import UsageError
from attnviz.models.libraries import first_line

if TYPE_CHECKING:  # a run without figures knows the style and does not import matplotlib
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap, Normalize
    from matplotlib.figure import Figure

DPI = 150  # resolution of figures, in whose pixels their layout is measured
FORMATS = ("png", "svg", "pdf")  # file formats of figures

DEFAULT_FAMILY = "DejaVu Sans"  # of texts; ships with matplotlib, so figures look the same on every machine
_chosen: list[str | None] = []  # the families that are used in place of it, the innermost last

FAINTEST = 1e-4  # the weight at the light end of a logarithmic scale; smaller ones look the same

# ``auto``: by the length of the text (:meth:`Style.scaled_for`); 0 to 1, the same for every head; from 0 to the
# head's own largest weight; or logarithmic, the same for every head
SCALES = ("auto", "shared", "per-head", "log")

# tokens, or words, beyond which most weights are too small to be seen on a scale from 0 to 1: their mean is 1/n
MOSTLY_WHITE = 40


class Greys:
    """The greys of a theme."""

    paper: str
    ink: str  # of texts
    muted: str  # of texts that matter less
    frame: str


# by name; all greys, as indexed PNGs need
THEMES = {
    "light": {"paper": "#ffffff", "ink": "#222222", "muted": "#8a8a8a", "frame": "#9a9a9a"},
    "dark": {"paper": "#141414", "ink": "#ececec", "muted": "#9a9a9a", "frame": "#6e6e6e"},
}

# of found and missed, by theme: the green and the vermilion of Okabe and Ito (2008), made darker or brighter
_VERDICTS = {"light": ("#00805c", "#d55e00"), "dark": ("#33d6a6", "#ff8c42")}
MISSED_DASHES = (0, (2.2, 1.4))  # dash pattern of missed pairs; found ones are solid
TEXT_SIZE = 7.0  # size of notes and legends in points; titles are larger, labels in cells smaller, all in proportion
_SMALLEST, _LARGEST = 4.0, 40.0
_UNITS = {"in": 1.0, "": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}
NAMED_WIDTHS = {"column": "3.3in", "page": "6.9in"}  # of a paper in two columns
_NARROWEST, _WIDEST = 2.0, 40.0
_LEAST_ROOM = 2.0  # inches that a figure is laid out in, at least


@dataclass(frozen=True)
class Style(Greys):
    """Theme, scale, width and font of figures.

    Everything is laid out at its own size, in a width that is :attr:`room`, and its file is magnified to the chosen
    width or size of text.

    Raises:
        UsageError: an unknown theme, scale or font, or an impossible width or size.
    """

    theme: str = "light"  # or ``dark``
    scale: str = "auto"  # one of :data:`SCALES`
    width: float | str | None = None  # on the page, in inches or as ``3.3in``, ``column``; None to fit the content
    bare: bool = False  # no title and no notes, for papers with their own captions
    font_size: float | None = None  # of notes, in points; others in proportion; default 7, or what fills the width
    font: str | None = None  # an installed family, or a font file; characters that it lacks are drawn in others
    inches: float | None = field(init=False, default=None)  # the width
    fills: bool = field(init=False, default=False)
    file_format: str = field(init=False, default="png")  # of the file that a figure is for

    def __post_init__(self) -> None:
        for setting, expected in {"theme": str, "scale": str, "bare": bool, "font": str | None}.items():
            check_kind(setting, getattr(self, setting), expected)
        for kind, name, known in (("theme", self.theme, tuple(THEMES)), ("scale", self.scale, SCALES)):
            if name not in known:
                raise UsageError(f"unknown {kind} {name!r}: expected one of {', '.join(known)}.")
        inches = parse_width(self.width) if isinstance(self.width, str) else self.width
        size = self.font_size
        for what, unit, or_text, value, least, most in (
            ("width", "inches", ", or a text such as '84mm'", inches, _NARROWEST, _WIDEST),
            ("font size", "points", "", size, _SMALLEST, _LARGEST),
        ):
            if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
                raise UsageError(f"expected a {what} in {unit}{or_text}, found {as_found(value)}.")
            if value is not None and not least <= value <= most:
                raise UsageError(f"expected a {what} of {least:g} to {most:g} {unit}, found {as_found(value)}.")
        if size is not None and inches is not None and inches * TEXT_SIZE / size < _LEAST_ROOM:
            most = math.floor(10 * inches * TEXT_SIZE / _LEAST_ROOM) / 10
            raise UsageError(
                f"a font size of {size:g} does not fit in {inches:g} inches: expected at most {most:g}, or a larger "
                "width."
            )
        vars(self).update(THEMES[self.theme], inches=inches)
        if self.font is not None:
            vars(self).update(font=installed(self.font))

    @property
    def room(self) -> float | None:  # width in inches that a figure is laid out in; None for that of its content
        if self.inches is None or self.fills:
            return None
        return self.inches / self._by_text

    @property
    def _by_text(self) -> float:
        return 1.0 if self.font_size is None else self.font_size / TEXT_SIZE

    @property
    def is_plain(self) -> bool:
        return self.font is None and self.font_size is None and not self.fills

    def filling(self) -> "Style":
        """The style for what is smaller than the chosen width: laid out as without one, then magnified."""
        return self._with(fills=True)

    def for_file(self, file_format: str) -> "Style":
        """The style for figures in files of this format."""
        return self._with(file_format=file_format)

    @property
    def vector(self) -> bool:  # whether figures are for vector files
        return self.file_format != "png"

    def magnified(self, width: float) -> float:
        """How many times larger a figure that was laid out in this width is in its file."""
        return self._by_text if self.inches is None else self.inches / width

    def _with(self, **changes: Any) -> "Style":
        changed = copy(self)
        vars(changed).update(changes)
        return changed

    @contextmanager
    def in_font(self) -> Iterator[None]:
        """Draw and measure texts in the font of the style while the block runs."""
        _chosen.append(self.font)
        try:
            yield
        finally:
            _chosen.pop()

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
        # weights of a few hundredths already differ from the paper
        stops = [(0, self.paper), (0.08, "#12365f"), (0.25, "#08519c")]
        stops += [(0.5, "#3182bd"), (0.75, "#9ecae1"), (1, "#f7fbff")]
        return LinearSegmentedColormap.from_list("attnviz-dark", stops)

    def diverging_map(self) -> "LinearSegmentedColormap":
        """Diverging colours: teal below 0, the paper's for 0, orange above; blue is for weights alone."""
        from matplotlib.colors import LinearSegmentedColormap

        less, more = ("#01665e", "#b35806") if self.theme == "light" else ("#5ab4ac", "#f1a340")
        return LinearSegmentedColormap.from_list(f"attnviz-diverging-{self.theme}", [less, self.paper, more])

    def scaled_for(self, n: int = 0, linear: str = "shared") -> "Style":
        """Resolve the scale ``auto``: logarithmic above :data:`MOSTLY_WHITE` positions, else ``linear``."""
        return self._with(scale="log" if n > MOSTLY_WHITE else linear) if self.scale == "auto" else self

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


@cache
def installed(font: object) -> str:
    """The family of this name, or of this font file; UsageError if there is none."""
    from matplotlib.font_manager import fontManager
    from matplotlib.ft2font import FT2Font

    if not isinstance(font, str) or not font.strip():
        raise UsageError(f"expected a font as the name of a family, or a file, found {as_found(font)}.")
    if Path(font).suffix.lower() in (".ttf", ".otf", ".ttc"):
        try:
            family = FT2Font(font).family_name
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"expected a font file, found {font!r}, which cannot be read: {first_line(error)}."
            ) from error
        fontManager.addfont(font)
        return str(family)
    families = {entry.name for entry in fontManager.ttflist}
    found = next((name for name in families if name.lower() == font.strip().lower()), None)
    if found is None:
        meant = did_you_mean(font, sorted(families))
        raise UsageError(
            f"no font {font!r} is installed: expected a family, such as {DEFAULT_FAMILY}, or a file.{meant}"
        )
    return found


def base_families() -> list[str]:
    """The font in use, and the default one for characters that it lacks."""
    return list(dict.fromkeys(filter(None, [*_chosen[-1:], DEFAULT_FAMILY])))


PLAIN = Style()  # the default style: light, scale by the text's length, width of the content


def parse_width(text: str) -> float:
    """Inches from ``3.3in``, ``84mm``, ``240pt``, a number of inches, or a name; UsageError for anything else."""
    text = NAMED_WIDTHS.get(text.strip(), text)
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(in|cm|mm|pt|)\s*", text)
    if match is None:
        raise UsageError(f"expected a width such as column, page, 3.3in, 84mm or 240pt, found {as_found(text)}.")
    return float(match[1]) * _UNITS[match[2]]


def text_colour(style: Style, setting: str = "text.color") -> str:
    """Colour of texts outside the cells, which may stand on the caller's page.

    In the light theme, the default, a caller's setting of matplotlib takes precedence, such as that of
    ``dark_background``; else it is the theme's ink.
    """
    from matplotlib import rcParams, rcParamsDefault

    known: tuple[Any, Any] = rcParams, rcParamsDefault
    theirs, default = (str(settings[setting]) for settings in known)
    if style.theme != "light" or theirs == default or theirs in ("auto", "inherit"):
        return style.ink
    return theirs


def file_dpi(style: Style) -> int:
    """Resolution of a PNG as laid out: :data:`DPI`, or twice that with a chosen width."""
    return DPI if style.room is None else 2 * DPI


def figure_bytes(figure: "Figure", file_format: str, style: Style = PLAIN) -> bytes:
    """A figure as a file, magnified as the style says; a PNG by a whole multiple, to twice :data:`DPI` or more."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    canvas = FigureCanvasAgg(figure)
    larger = style.magnified(figure.get_figwidth())
    with figure_style():
        if file_format == "png":
            dpi = file_dpi(style)
            of_column = figure.get_figwidth() < 4 and not style.bare  # fine enough for print
            times = 1 if style.is_plain and not of_column else math.ceil(2 * DPI * larger / dpi - 0.01)
            figure.set_dpi(dpi * times)
            canvas.draw()
            picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])  # an alpha channel says nothing
            return png_bytes(picture, figure.dpi / larger)
        buffer, before = io.BytesIO(), figure.dpi
        if file_format == "pdf":
            _write_pdf(figure, buffer, larger)
        else:  # of its own canvas, since savefig draws everything twice
            FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": "attnviz"})
        figure.set_dpi(before)
    if file_format == "pdf" or abs(larger - 1) <= 0.001:
        return buffer.getvalue()

    def grown(size: re.Match[bytes]) -> bytes:
        return b'%s="%.6gpt"' % (size[1], float(size[2]) * larger)

    prolog, tag, drawing = buffer.getvalue().partition(b"<svg")
    size, box, rest = drawing.partition(b"viewBox")  # which stays, so that the same drawing is shown larger
    return prolog + tag + re.sub(rb'(width|height)="([\d.]+)pt"', grown, size) + box + rest


def _write_pdf(figure: "Figure", buffer: io.BytesIO, larger: float) -> None:
    """The figure on a larger page, by a transformation before all else, as matplotlib's own canvas writes it."""
    from matplotlib.backends.backend_mixed import MixedModeRenderer
    from matplotlib.backends.backend_pdf import Op, PdfFile, RendererPdf

    figure.set_dpi(72)
    width, height = figure.get_size_inches()
    file = PdfFile(buffer, metadata={"CreationDate": None, "Creator": "attnviz"})
    file.newPage(width * larger, height * larger)
    if abs(larger - 1) > 0.001:
        file.output(larger, 0, 0, larger, 0, 0, Op.concat_matrix)
    renderer: Any = MixedModeRenderer(figure, width, height, DPI, RendererPdf(file, DPI, height, width))
    figure.draw(renderer)
    renderer.finalize()
    file.finalize()
    file.close()


def png_bytes(picture: Image.Image, dpi: float, **options: Any) -> bytes:
    """A picture as a PNG with resolution and software in its metadata; ``options`` are Pillow's."""
    buffer = io.BytesIO()
    maker = PngInfo()
    maker.add_text("Software", "attnviz")
    picture.save(buffer, "png", dpi=(dpi, dpi), pnginfo=maker, **options)
    return buffer.getvalue()


@contextmanager
def figure_style() -> Iterator[None]:
    """Matplotlib's defaults, whatever the user's settings; text stays text, and ids in SVG come from a fixed salt."""
    from matplotlib import style

    ours = {"svg.hashsalt": "attnviz", "svg.fonttype": "none", "pdf.fonttype": 42, "font.family": base_families()}
    with style.context(["default", ours]):
        yield
