"""Model, text and unit of a result, as titles, notes and captions state them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnviz.wording import counted, ordinal, quoted, visible

if TYPE_CHECKING:
    from matplotlib.colors import Normalize

    from attnviz.figures.matrix import Array

# the heads of an encoder-decoder, in the squares of a figure
STACK_LEGEND = "E: encoder, D: decoder, X: cross-attention, from the target (rows) to the source, stretched to squares"


@dataclass(frozen=True)
class FigureContext:
    """Model, text and unit of a result."""

    model: str  # its short name, safe to show
    texts: tuple[str, ...]  # one, or both of a pair; empty for a corpus
    n: int  # positions of the patterns; 0 without patterns
    unit: str = "token"  # ``token`` or ``word``
    dropped: str = ""  # note on positions left out of pictures, or ''
    # of source and target (the last text) in cross-attention, in words: ``6 tokens``; else empty
    sizes: tuple[str, ...] = ()
    generated: str = ""  # text that the model wrote after it, or ''
    n_generated: int = 0  # tokens of ``generated``
    n_rows: int = 0  # rows of the patterns if only of some positions; 0 for all

    @property
    def quotes(self) -> str:
        return " / ".join(quoted(text) for text in self.texts) + self._continued

    @property
    def _continued(self) -> str:
        return f" + generated {quoted(self.generated.strip())}" if self.n_generated else ""

    @property
    def text_line(self) -> str:
        """The first note of a figure: ``“The cat ran away” (6 tokens)``; of source and target ``… → …``."""
        if self.sizes:
            source, target = self.sizes
            last = quoted(self.texts[-1])
            return f"{' / '.join(map(quoted, self.texts[:-1]))} ({source}) → {last} ({target})"
        return f"{self.quotes} ({self._size})"

    @property
    def _size(self) -> str:
        count = self.n_generated if self.unit == "token" else counted(self.n_generated, "token")
        last = f", the last {count} generated" if self.n_generated else ""
        rows = f", the {'row' if self.n_rows == 1 else 'rows'} of {self.n_rows} alone" if self.n_rows else ""
        return f"{counted(self.n, self.unit)}{last}{rows}"

    @property
    def without_script(self) -> str:
        from attnviz.figures.fonts import without_script

        return without_script(self.quotes)

    @property
    def drawn_line(self) -> str:
        """:attr:`text_line` in pictures: of texts in a script that no installed font has, their sizes alone."""
        if not self.without_script:
            return self.text_line
        if self.sizes:
            return " → ".join(f"a text of {size}" for size in self.sizes)
        return f"{'a text' if len(self.texts) == 1 else 'two texts'} of {self._size}"

    @property
    def subject(self) -> str:  # the end of a caption's first part: ``minilm on “The cat ran away”``
        first = len(self.texts) - bool(self.sizes)
        sides = (self.texts[:first], self.texts[first:])
        return (
            f"{self.model} on {' → '.join(' and '.join(map(quoted, side)) for side in sides if side)}{self._continued}"
        )

    def notes(self, *more: str) -> tuple[str, ...]:
        """The notes of a figure: the text, what was dropped, and more; empty ones are left out."""
        dropped = f"{capital(self.dropped)}." if self.dropped else ""
        return tuple(note for note in (capital(self.drawn_line), dropped, *more) if note)

    def caption_and_notes(
        self, what: str, *facts: str, caption_only: Sequence[str] = (), first_note: str = ""
    ) -> dict[str, Any]:
        """Caption and notes of a figure, as its plan takes them; facts stand in both, empty ones are left out.

        Args:
            what: the caption's first line: what is shown of which model and text.
            facts: sentences, or parts of one, without a capital and a full stop.
            caption_only: details of the caption alone, such as its colours.
            first_note: in place of :attr:`drawn_line`.
        """
        noted = self.notes(*(f"{capital(fact.removesuffix('.'))}." for fact in facts if fact))
        caption = caption_of(what, *facts, *caption_only, self.dropped, self.without_script)
        return {"caption": caption, "notes": (first_note or noted[0], *noted[1:])}

    def label_interval_note(self, every: int) -> str:
        """What a figure says of labels left out: ``every 4th token is named``, or ''."""
        return "" if every == 1 else f"every {ordinal(every)} {self.unit} is named"

    def pooled(self, factor: int) -> str:
        """What a figure says of cells that stand for several weights, or ''."""
        if factor == 1:
            return ""
        return f"each cell is the largest of {factor} × {factor} weights (pooled for drawing only)"


def hatched_in_words(*patterns: "Array") -> str:
    """What a caption says of the cells of patterns that are NaN, and so hatched, or ''."""
    return "hatched: cells that the mask forbids" if any(np.isnan(cells).any() for cells in patterns) else ""


def norm_in_words(norm: "Normalize", end: str = "") -> str:
    """The ends of the colours of a norm from 0, or of a logarithmic one, for a caption; ``end``: the upper in words."""
    low, high = float(norm.vmin or 0.0), float(norm.vmax or 0.0)
    return f"{'logarithmic colours' if low else 'colours'} from {low:g} to {end or f'{high:g}'}"


def caption_of(what: str, *details: str) -> str:
    """A sentence, and on a second line, which can be cut, its details; empty ones are left out."""
    facts = [fact.strip().removesuffix(".") for fact in details if fact.strip()]
    first = f"{what.strip().removesuffix('.')}."
    return f"{first}\nDetails: {'; '.join(facts)}." if facts else first


def with_models(caption: str, models: Iterable[dict[str, Any]]) -> str:
    """A caption with a last line: full name and revision of each model, and how heads are numbered.

    ``models`` are entries of a document. Without a revision the hash of the weights says which model it is.
    """
    named = []
    for model in models:
        digest = model.get("weights_sha256")
        revision = model.get("revision") or (f"weights with SHA-256 {digest[:12]}…" if digest else "")
        name = model.get("full_name") or visible(model["name"])
        named.append(f"{name} ({visible(revision)})" if revision else name)
    return f"{caption}\nModel: {' and '.join(dict.fromkeys(named))}. Layers and heads count from 0."


def capital(text: str) -> str:
    """The text with a capital letter in front."""
    return text[:1].upper() + text[1:]
