"""Pictures of attention weights from any library: the views of ``attnviz heads``, never called verified."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn

from attnviz.arguments import as_found
from attnviz.commands.heads.analysis import Analysis, Options
from attnviz.commands.heads.findings import HeadFindings
from attnviz.errors import UsageError
from attnviz.judge.verdicts import judge, label_of
from attnviz.measures.patterns import MaskInput
from attnviz.measures.statistics import HeadStatistics, TextContext
from attnviz.measures.sums import copy_to_host
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families import ARCHITECTURES
from attnviz.models.head_ids import HeadId
from attnviz.models.tokens import Tokens, merge_subwords, told_apart
from attnviz.models.wording import counted, visible
from attnviz.options import checked
from attnviz.reference.tolerances import Tolerance
from attnviz.trace.checks import LayerCheck, Verification

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnviz.figures.style import Style
    from attnviz.options import DrawingOptionNames

_SPECIAL = re.compile(r"(?!\[UNK\]|<unk>)(\[[A-Z]+\]|<[^<>\s]+>)")
"""Tokens that are taken for special ones: ``[CLS]``, ``<s>``, ``<|endoftext|>``; one that is unknown is of the text."""

_ROUNDING = 1e-2
"""How far above 1 a row may sum, in half precision."""


@dataclass(frozen=True, repr=False)
class RawAttention:
    """Attention weights to look at; made by :func:`draw`. In a notebook it shows its overview."""

    _analysis: Analysis

    def figure(self, name: str = "", style: "Style | None" = None, **choices: "Unpack[DrawingOptionNames]") -> "Figure":
        """A new figure: ``overview``, ``heads``, ``lines``, ``map``, ``mean`` or ``text``; see ``Analysis.figure``."""
        return self._analysis.figure(name, style, **choices)

    def draw(
        self, name: str, ax: "Axes", style: "Style | None" = None, **choices: "Unpack[DrawingOptionNames]"
    ) -> "Artist":
        """Draw one picture on matplotlib Axes of your own; see :meth:`figure`."""
        return self._analysis.draw(name, ax, style, **choices)

    def page(self, style: "Style | None" = None, **choices: "Unpack[DrawingOptionNames]") -> str:
        """The interactive page as one HTML document."""
        return self._analysis.page(style, **choices)

    def _repr_html_(self) -> str:
        return self._analysis.picture_html()

    def __repr__(self) -> str:
        n_layers, n_heads = self._analysis.shape
        shape = f"{counted(n_layers, 'layer')} × {counted(n_heads, 'head')}"
        return f"<RawAttention of {shape} on {counted(len(self._analysis.tokens), 'token')}, not verified>"


@checked
def draw(weights: Any, tokens: Sequence[str], *, name: str = "attention") -> RawAttention:
    """Pictures of any attention weights, from any library: grid, heatmaps, lines, page.

    Nothing is compared with a model, and every picture says so. Labels are computed from the weights as they are given.

    >>> import attnviz
    >>> drawing = attnviz.draw([[1.0, 0.0], [0.5, 0.5]], ["the", "cat"])
    >>> drawing
    <RawAttention of 1 layer × 1 head on 2 tokens, not verified>

    Args:
        weights: [n_layers, n_heads, n, n], [n_heads, n, n] or [n, n], row = query, column = key; a tensor, an array,
            nested lists, or the ``attentions`` that a model of transformers returns for one text.
        tokens: n of them, as they are to be shown. Those such as ``[CLS]`` or ``<s>`` count as special, and in causal
            weights (0 after the diagonal) the first one as a sink.
        name: of the model, for titles.

    Raises:
        UsageError: weights of another shape, not finite, negative, or with rows that sum to more than 1; another
            number of tokens.
    """
    patterns, labels = _patterns(weights), _labels(tokens)
    n_layers, n_heads, n, _ = patterns.shape
    if len(labels) != n:
        raise UsageError(f"expected a token for each of the {n} rows of the weights, found {len(labels)}.")
    causal = n > 1 and not bool(patterns.triu(1).any())
    read = _tokens(labels, causal)
    units = merge_subwords(read, words=False)
    context = TextContext(units, causal, MaskInput(units.labels, told_apart(read.ids, read.unknown_id), causal))
    attention: Any = _Given(patterns)
    heads = tuple(_findings(patterns, context))
    text = " ".join(labels)
    model, note = _model(name, causal, n_layers, n_heads), "weights were given, not a text."
    return RawAttention(Analysis(text, None, model, read, context, attention, heads, None, note, Options()))


def _patterns(weights: Any) -> Tensor:
    """The weights as [n_layers, n_heads, n, n] on the CPU, in float32 or wider."""
    try:
        if isinstance(weights, list | tuple) and weights and isinstance(weights[0], Tensor):
            weights = torch.stack([layer[0] if layer.ndim == 4 and len(layer) == 1 else layer for layer in weights])
        given = torch.as_tensor(weights).detach().cpu()
        if given.is_complex():
            raise TypeError("complex numbers")
    except (TypeError, ValueError, RuntimeError) as error:
        of = f" of {weights.dtype}" if hasattr(weights, "dtype") else ""
        raise UsageError(
            f"expected attention weights as an array of real numbers, found {type(weights).__name__}{of}."
        ) from error
    patterns = given.double() if given.dtype == torch.float64 else given.float()
    patterns = patterns[(None,) * max(0, 4 - patterns.ndim)]
    shape = list(given.shape)
    if patterns.ndim != 4 or patterns.shape[-1] != patterns.shape[-2] or not patterns.numel():
        raise UsageError(
            f"expected weights of the shape [n_layers, n_heads, n, n], [n_heads, n, n] or [n, n], found {shape}."
        )
    if found := _no_weights(patterns):
        raise UsageError(f"expected attention weights, from 0 to 1, whose rows sum to at most 1, found {found}")
    return patterns


def _no_weights(patterns: Tensor) -> str:
    """The first number that is no attention weight, and where it is; or ''."""
    sums = patterns.sum(-1)
    wrong = (~patterns.isfinite() | (patterns < 0)).nonzero()
    if len(wrong):
        layer, head, query, key = at = tuple(wrong[0].tolist())
        return f"{float(patterns[at]):.4g} at L{layer}H{head}, query #{query}, key #{key}; give softmax(scores)."
    wrong = (sums > 1 + _ROUNDING).nonzero()
    if len(wrong):
        layer, head, query = at = tuple(wrong[0].tolist())
        return f"a row that sums to {float(sums[at]):.4g} at L{layer}H{head}, query #{query}; give softmax(scores)."
    return ""


def _labels(tokens: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in tokens):
        raise UsageError(f"expected a list of tokens as strings, found {as_found(tokens)}.")
    return tuple(visible(token) for token in tokens)


def _tokens(labels: tuple[str, ...], causal: bool) -> Tokens:
    special = tuple(_SPECIAL.fullmatch(label) is not None for label in labels)
    numbers = iter(range(len(labels)))
    words = tuple(None if each else next(numbers) for each in special)
    types = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return Tokens(
        ids=tuple(types[label] for label in labels), labels=labels, special=special,
        sink=tuple(each or (causal and not position) for position, each in enumerate(special)), words=words,
        segments=tuple(None if each else 0 for each in special), offsets=((0, 0),) * len(labels), type_ids=None,
        word_labels=tuple(label for label, each in zip(labels, special, strict=True) if not each),
        unknown_id=types.get("[UNK]", types.get("<unk>")),
    )  # fmt: skip


def _findings(patterns: Tensor, context: TextContext) -> Iterator[HeadFindings]:
    """Statistics and labels of the weights as given."""
    measured = HeadStatistics(context, patterns.shape[1])
    for layer, pattern in enumerate(patterns):
        measured.begin(layer)
        measured.add(0, pattern)
    copy_to_host([measured])
    for layer, statistics in measured.results().items():
        for head in range(patterns.shape[1]):
            id, of_head = HeadId(layer, head), {name: values[head] for name, values in statistics.items()}
            verdicts = judge(of_head, context, (), id)
            yield HeadFindings(id, of_head, tuple(verdicts), label_of(verdicts, context.n_non_sink))


def _model(name: str, causal: bool, n_layers: int, n_heads: int) -> Checkpoint:
    """What pictures ask of a model: its name and how many heads it has."""
    model: Any = nn.Linear(1, 1)
    model.config = SimpleNamespace(
        num_hidden_layers=n_layers, num_attention_heads=n_heads, hidden_size=n_heads, n_layer=n_layers, n_head=n_heads
    )
    return Checkpoint(name, None, ARCHITECTURES["gpt2" if causal else "bert"], model, None)


@dataclass(frozen=True)
class _Rows:
    """A layer's weights, in the form of verified rows."""

    wide: Tensor
    n_queries: int
    n_keys: int
    first: int = 0


@dataclass(frozen=True)
class _Given:
    """Given weights in the place of verified attention: level 0, since nothing was compared."""

    patterns: Tensor

    @property
    def verification(self) -> Verification:
        """Level 0."""
        checks = tuple(LayerCheck(layer, self.patterns.shape[1], 0.0, 0.0, 1.0) for layer in range(len(self.patterns)))
        return Verification(Tolerance(0.0, 0.0, "nothing was compared"), checks, level=0)

    def rows(self, layer: int, heads: Sequence[int] | None = None) -> Iterator[_Rows]:
        """All rows of a layer, of all or some heads."""
        pattern = self.patterns[layer] if heads is None else self.patterns[layer, list(heads)]
        yield _Rows(pattern[None], *pattern.shape[-2:])
