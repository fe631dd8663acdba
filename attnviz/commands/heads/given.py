"""Pictures of attention weights from any library: the views of ``attnviz heads``, never called verified."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from attnviz.arguments import as_found, as_list, is_whole
from attnviz.commands.heads.analysis import Analysis, Options, Target
from attnviz.commands.heads.findings import HeadFindings
from attnviz.commands.heads.measure import judged
from attnviz.commands.heads.weights import Weights, read_weights, real_array
from attnviz.errors import UsageError
from attnviz.measures.patterns import MaskInput
from attnviz.measures.statistics import HeadStatistics, TextContext
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families import ARCHITECTURES
from attnviz.models.families.base import Architecture
from attnviz.models.families.bert_gpt2 import Bert
from attnviz.models.head_ids import HeadId, Stack, number_of, numbers_in_words
from attnviz.models.tokens import Tokens, merge_subwords, tokens_of_labels, told_apart
from attnviz.options import checked
from attnviz.reference.tolerances import Tolerance
from attnviz.trace.checks import LayerCheck, Verification
from attnviz.wording import counted, visible

if TYPE_CHECKING:
    from attnviz.present.fields import NamedTable
    from attnviz.present.view import ViewOptions


@dataclass(frozen=True, repr=False, eq=False)
class RawAttention(Analysis):
    """Attention weights to look at; made by :func:`draw`. It has what an :class:`Analysis` has, and nothing verified.

    Pictures, tables and files say so; ``verification.level`` is 0.
    """

    def select(self, selections: str | HeadId | Iterable[str | HeadId] = ()) -> list[HeadFindings]:
        """The selected heads; UsageError where none of them is there."""
        found = super().select(selections)
        if not found:
            layers = ", ".join(dict.fromkeys(head.id.layer_name for head in self.heads))
            raise UsageError(
                f"expected heads of the layers {layers}, which have attention, found {as_found(selections)}."
            )
        return found

    def _document(self, figures: Sequence[str], choices: "ViewOptions", table: "NamedTable[Any]") -> dict[str, Any]:
        """The document of an analysis, of a model of which nothing else is known."""
        document = super()._document(figures, choices, table)
        known = {name: document["model"][name] for name in ("name", "n_layers", "n_heads")}
        return document | {"model": known}

    def __repr__(self) -> str:
        layers = {head.id.layer for head in self.heads}
        shape = f"{counted(len(layers), 'layer')} × {counted(self.shape[1], 'head')}"
        rows = "" if self.context.source is None else f"{len(self.context.units)} × "
        return f"<RawAttention of {shape} on {rows}{counted(len(self.context.keys), 'token')}, not verified>"


@checked
def draw(
    weights: Any,
    tokens: Iterable[str],
    *,
    keys: Iterable[str] | None = None,
    mask: Any = None,
    layers: Sequence[int] | None = None,
    batch: int | Sequence[int] | None = None,
    name: str = "attention",
) -> RawAttention:
    """Pictures of any attention weights, from any library: grid, heatmaps, lines, page.

    Nothing is compared with a model, and every picture says so. Labels are computed from the weights as they are given.

    >>> import attnviz
    >>> drawing = attnviz.draw([[1.0, 0.0], [0.5, 0.5]], ["the", "cat"])
    >>> drawing
    <RawAttention of 1 layer × 1 head on 2 tokens, not verified>

    Args:
        weights: [n_layers, n_heads, n, n], [n_heads, n, n] or [n, n], row = query, column = key; with a batch
            [n_layers, batch, n_heads, n, n]; a tensor, an array or nested lists. Or what transformers returns: the
            ``attentions`` of a forward pass, or those of ``generate(output_attentions=True)``, a tuple for each step,
            which become one pattern of prompt and new tokens. The last new token has no row: the model never read it.
        tokens: of the rows, as they are to be shown; of a generation with or without the last new token. Those such as
            ``[CLS]`` or ``<s>`` count as special, and in causal weights (0 after the diagonal) the first one as a sink.
        keys: of cross-attention, the tokens of the columns.
        mask: 0 for padding, [n] or [batch, n]; of cross-attention, of its columns; of a generation, perhaps of the
            prompt alone. Padding is left out; ``tokens`` may have it or not.
        layers: their numbers, where only some layers of a model have attention; default their places. A tuple may hold
            None for a layer without.
        batch: the index of the text. Of a beam search ``output.beam_indices[0]``: the beams change places.
        name: of the model, for titles.

    Raises:
        UsageError: weights of another shape, not finite, negative, or with rows that sum to more than 1; another
            number of tokens; several texts and no index.
    """
    given = read_weights(weights, layers, batch, keys is not None)
    n_queries, n_keys = given.patterns.shape[2:]
    n_more = int(given.steps > 0)  # the last new token, which was never read
    if keys is None:
        kept = _kept(mask, batch, n_keys, given.steps)
        given = given.without_padding(kept, kept)
        return _within_text(given, _labels(tokens, "rows", n_queries, kept, n_more), name)
    kept = _kept(mask, batch, n_keys, 0)
    given = given.without_padding(None, kept)
    columns = _labels(keys, "columns", n_keys, kept)
    return _between_texts(given, _labels(tokens, "rows", n_queries, None, n_more), columns, name)


def _kept(mask: Any, batch: int | Sequence[int] | None, n: int, steps: int) -> list[bool] | None:
    """Which of n tokens a mask shows, of a generation perhaps of the prompt alone; None without a mask."""
    if mask is None:
        return None
    rows = real_array(mask, "a mask").bool()
    rows = rows[None] if rows.ndim == 1 else rows
    lengths = {n, n - steps + 1, n + 1} if steps else {n}
    if rows.ndim != 2 or rows.shape[1] not in lengths or not rows.any():
        raise UsageError(f"expected a mask of {n} tokens with 1 for those that are shown, found {as_found(mask)}.")
    at = 0
    if len(rows) > 1:
        if not is_whole(batch) or not 0 <= batch < len(rows):
            raise UsageError(f"expected the mask of one text, [n], or batch as its index, found {len(rows)} rows.")
        at = batch
    shown = rows[at].tolist()
    return [*shown, *[True] * n][:n]


def _labels(tokens: Iterable[str], of: str, n: int, kept: Sequence[bool] | None, n_more: int = 0) -> tuple[str, ...]:
    """The labels of n rows or columns, without padding, from the tokens of all and perhaps ``n_more``."""
    what = "a list of tokens as strings, such as tokenizer.convert_ids_to_tokens(ids) gives"
    given = as_list(tokens, what)
    if not all(isinstance(token, str) for token in given):
        raise UsageError(f"expected {what}, found {as_found(tokens)}.")
    if len(given) not in (n, n + n_more):
        padding = "" if kept is None else ", padding included"
        raise UsageError(f"expected a token for each of the {n} {of} of the weights{padding}, found {len(given)}.")
    labels = [visible(token) for token in given[:n]]
    return tuple(labels if kept is None else compress(labels, kept))


def _within_text(given: Weights, labels: tuple[str, ...], name: str) -> RawAttention:
    """Attention within one text."""
    given.check()
    causal = len(labels) > 1 and not bool(given.patterns.triu(1).any())
    read = tokens_of_labels(labels, causal)
    units = merge_subwords(read, words=False)
    context = TextContext(units, causal, MaskInput(units.labels, told_apart(read.ids, read.unknown_id), causal))
    model = _model(name, ARCHITECTURES["gpt2" if causal else "bert"], given)
    return _analysis(given, given.layers, model, read, context)


def _between_texts(given: Weights, labels: tuple[str, ...], columns: tuple[str, ...], name: str) -> RawAttention:
    """Attention of one text, the target, to another, the source."""
    given.check()
    target, source = tokens_of_labels(labels, True), tokens_of_labels(columns, False)
    context = TextContext(merge_subwords(target, False), False, None, merge_subwords(source, False))
    model = _model(name, _CrossAttention(), given)
    (stack,) = model.stacks
    read = Target(" ".join(labels), target, False, len(labels), context, context)
    return replace(_analysis(given, list(map(stack.layer, given.layers)), model, source, context), target=read)


def _analysis(
    given: Weights, layers: Sequence[int], model: Checkpoint, tokens: Tokens, context: TextContext
) -> RawAttention:
    """The analysis of weights of these layers."""
    verified: Any = _Given(dict(zip(layers, given.patterns, strict=True)))
    measured = HeadStatistics(context, given.patterns.shape[1])
    for layer, pattern in verified.patterns.items():
        measured.begin(layer)
        measured.add(0, pattern)
    return RawAttention(
        text=" ".join(tokens.labels),
        pair=None,
        checkpoint=model,
        tokens=tokens,
        context=context,
        verified=verified,
        heads=tuple(judged([measured], None, {}, context, None)),
        parse=None,
        syntax_note="weights were given, not a text.",
        options=Options(),
    )


class _CrossAttention(Bert):
    """A model of cross-attention alone."""

    def stacks(self, config: Any) -> tuple[Stack, ...]:
        """One stack."""
        return (Stack("X", "cross-attention", 0, config.num_hidden_layers, config.num_attention_heads),)


def _model(name: str, architecture: Architecture, given: Weights) -> Checkpoint:
    """What pictures ask of a model: its name, its kind, and how many layers and heads it has."""
    n_layers, n_heads = given.layers[-1] + 1, given.patterns.shape[1]
    model: Any = nn.Linear(1, 1)
    model.config = SimpleNamespace(
        num_hidden_layers=n_layers, num_attention_heads=n_heads, hidden_size=n_heads, n_layer=n_layers, n_head=n_heads
    )
    return Checkpoint(name, None, architecture, model, None)


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

    patterns: dict[int, Tensor]  # by layer, [n_heads, n_queries, n_keys]

    @property
    def verification(self) -> Verification:
        """Level 0."""
        checks = tuple(LayerCheck(layer, len(pattern), 0.0, 0.0, 1.0) for layer, pattern in self.patterns.items())
        return Verification(Tolerance(0.0, 0.0, "nothing was compared"), checks, level=0)

    def rows(self, layer: int, heads: Sequence[int] | None = None) -> Iterator[_Rows]:
        """All rows of a layer, of all or some heads."""
        if layer not in self.patterns:
            known = numbers_in_words("layer", map(number_of, self.patterns))
            raise UsageError(f"there is no attention of layer {number_of(layer)}: expected {known}.")
        pattern = self.patterns[layer] if heads is None else self.patterns[layer][list(heads)]
        yield _Rows(pattern[None], *pattern.shape[-2:])
