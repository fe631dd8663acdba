"""Pictures of attention weights from any library: the views of ``attnviz heads``, never called verified."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from attnviz.arguments import as_found, as_list
from attnviz.commands.heads.analysis import Analysis, Options, Target
from attnviz.commands.heads.findings import HeadFindings
from attnviz.commands.heads.measure import judged
from attnviz.commands.heads.weights import check_weights, read_weights, real_array
from attnviz.errors import UsageError
from attnviz.measures.patterns import MaskInput
from attnviz.measures.statistics import HeadStatistics, TextContext
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families import ARCHITECTURES
from attnviz.models.families.bert_gpt2 import Bert
from attnviz.models.head_ids import HeadId, Stack, number_of, numbers_in_words
from attnviz.models.tokens import merge_subwords, tokens_of_labels, told_apart
from attnviz.options import checked
from attnviz.reference.tolerances import Tolerance
from attnviz.run.checks import LayerCheck, Verification
from attnviz.wording import counted, visible

if TYPE_CHECKING:
    from attnviz.present.fields import NamedTable
    from attnviz.present.view import ViewOptions


@dataclass(frozen=True, repr=False, eq=False)
class RawAttention(Analysis):
    """Attention weights to look at; made by :func:`draw`. It has what an :class:`Analysis` has, and nothing verified.

    Pictures, tables and files say so; ``verification.level`` is 0.
    """

    noun: ClassVar[str] = "Attention"

    def select(self, selections: str | HeadId | Iterable[str | HeadId] = ()) -> list[HeadFindings]:
        """The selected heads; UsageError where none of them is there."""
        heads = super().select(selections)
        if not heads:
            layers = ", ".join(dict.fromkeys(head.id.layer_name for head in self.heads))
            raise UsageError(
                f"expected heads of the layers {layers}, which have attention, found {as_found(selections)}."
            )
        return heads

    def _document(self, figures: Sequence[str], choices: "ViewOptions", table: "NamedTable[Any]") -> dict[str, Any]:
        document = super()._document(figures, choices, table)
        return document | {"model": {name: document["model"][name] for name in ("name", "n_layers", "n_heads")}}

    @property
    def in_words(self) -> str:
        layers = {head.id.layer for head in self.heads}
        shape = f"{counted(len(layers), 'layer')} × {counted(self.shape[1], 'head')}"
        rows = "" if self.context.source is None else f"{len(self.context.units)} × "
        return f"of {shape} on {rows}{counted(len(self.context.keys), 'token')}, not verified"


@checked
def draw(
    weights: Any,
    tokens: Iterable[str],
    *,
    keys: Iterable[str] | None = None,
    mask: Any = None,
    layers: Sequence[int] | None = None,
    batch: int | None = None,
    name: str = "attention",
) -> RawAttention:
    """Pictures of any attention weights, from any library: grid, heatmaps, lines, page.

    Nothing is compared with a model, and every picture says so. Labels are computed from the weights as they are given.

    >>> import attnviz
    >>> drawing = attnviz.draw([[1.0, 0.0], [0.5, 0.5]], ["the", "cat"])
    >>> drawing
    <RawAttention of 1 layer × 1 head on 2 tokens, not verified>

    Args:
        weights: [n_layers, n_heads, n, n], [n_heads, n, n] or [n, n], row = query, column = key; a tensor, an array or
            nested lists. Or what transformers returns: the ``attentions`` of a forward pass, or those of a greedy
            ``generate(output_attentions=True)``, a tuple for each step, which become one pattern of prompt and new
            tokens. The last new token has no row: the model never read it. Beams change places, and are not followed.
            Or a cache of TransformerLens, or JSON by layer: {"layer_0": heads} or [{"layer": 0, "attention": heads}].
        tokens: of the rows, as they are to be shown; of a generation with or without the last new token. Those such as
            ``[CLS]`` or ``<s>`` count as special, and in causal weights (0 after the diagonal) the first one as a sink.
        keys: of cross-attention, the tokens of the columns.
        mask: 0 for padding, [n] or [batch, n]; of cross-attention, of its columns; of a generation, perhaps of the
            prompt alone. Padding is left out; ``tokens`` may have it or not.
        layers: their numbers, where only some layers of a model have attention; default their places. A tuple may hold
            None for a layer without.
        batch: the index of the text.
        name: of the model, for titles.

    Raises:
        UsageError: weights of another shape, not finite, negative, or with rows that sum to more than 1; another
            number of tokens; several texts and no index.
    """
    patterns, numbers, steps = read_weights(weights, layers, batch, keys is not None)
    n_queries, n_keys = patterns.shape[2:]
    n_more = int(steps > 0)  # the last new token, which was never read
    kept = _kept(mask, batch, n_keys, steps if keys is None else 0)
    kept_rows = kept if keys is None else None
    if kept_rows is not None:
        patterns = patterns[:, :, torch.tensor(kept_rows)]
    if kept is not None:
        patterns = patterns[..., torch.tensor(kept)]
    rows = _labels(tokens, "rows", n_queries, kept_rows, n_more)
    check_weights(patterns, numbers)
    by_layer = dict(zip(numbers, patterns, strict=True))
    return _drawn(by_layer, rows, None if keys is None else _labels(keys, "columns", n_keys, kept), name)


def _drawn(
    patterns: dict[int, Tensor], rows: tuple[str, ...], columns: tuple[str, ...] | None, name: str
) -> RawAttention:
    """The analysis of weights within one text, or from the target in the rows to the source in the columns."""
    n_layers, n_heads = max(patterns) + 1, len(next(iter(patterns.values())))
    model: Any = nn.Linear(1, 1)
    model.config = SimpleNamespace(
        num_hidden_layers=n_layers, num_attention_heads=n_heads, hidden_size=n_heads, n_layer=n_layers, n_head=n_heads
    )
    if columns is None:
        causal = len(rows) > 1 and not any(bool(pattern.triu(1).any()) for pattern in patterns.values())
        read, target = tokens_of_labels(rows, causal), None
        units = merge_subwords(read, words=False)
        context = TextContext(units, causal, MaskInput(units.labels, told_apart(read.ids, read.unknown_id), causal))
        checkpoint = Checkpoint(name, None, ARCHITECTURES["gpt2" if causal else "bert"], model, None)
    else:
        read, of_target = tokens_of_labels(columns, False), tokens_of_labels(rows, True)
        context = TextContext(merge_subwords(of_target, False), False, None, merge_subwords(read, False))
        checkpoint = Checkpoint(name, None, _CrossAttention(), model, None)
        target = Target(text=" ".join(rows), tokens=of_target, generated=False, context=context, cross=context)
        patterns = {checkpoint.stacks[0].layer(number): pattern for number, pattern in patterns.items()}
    verified: Any = GivenPatterns(patterns)
    measured = HeadStatistics(context, n_heads)
    for layer, pattern in patterns.items():
        measured.begin(layer)
        measured.add(0, pattern)
    return RawAttention(
        text=" ".join(read.labels),
        pair=None,
        checkpoint=checkpoint,
        tokens=read,
        context=context,
        verified=verified,
        heads=tuple(judged([measured], None, {}, context, None)),
        parse=None,
        syntax_note="weights were given, not a text.",
        options=Options(),
        target=target,
    )


def _kept(mask: Any, batch: int | None, n: int, steps: int) -> list[bool] | None:
    """Which of n tokens a mask shows, of a generation perhaps of the prompt alone; None without a mask."""
    if mask is None:
        return None
    rows = real_array(mask, "a mask").bool()
    rows = rows[None] if rows.ndim == 1 else rows
    lengths = {n, n - steps + 1, n + 1} if steps else {n}
    if rows.ndim != 2 or rows.shape[1] not in lengths or not rows.any():
        raise UsageError(f"expected a mask of {n} tokens with 1 for those that are shown, found {as_found(mask)}.")
    row = batch if len(rows) > 1 else 0
    if row is None or not 0 <= row < len(rows):
        raise UsageError(f"expected the mask of one text, [n], or batch as its index, found {len(rows)} rows.")
    return [*rows[row].tolist(), *[True] * n][:n]


def _labels(tokens: Iterable[str], name: str, n: int, kept: Sequence[bool] | None, n_more: int = 0) -> tuple[str, ...]:
    """The labels of n rows or columns, without padding, from the tokens of all and perhaps ``n_more``."""
    what = "a list of tokens as strings, such as tokenizer.convert_ids_to_tokens(ids) gives"
    given = as_list(tokens, what)
    if not all(isinstance(token, str) for token in given):
        raise UsageError(f"expected {what}, found {as_found(tokens)}.")
    if len(given) not in (n, n + n_more):
        padding = "" if kept is None else ", padding included"
        raise UsageError(f"expected a token for each of the {n} {name} of the weights{padding}, found {len(given)}.")
    labels = [visible(token) for token in given[:n]]
    return tuple(labels if kept is None else compress(labels, kept))


class _CrossAttention(Bert):
    def stacks(self, config: Any) -> tuple[Stack, ...]:
        return (Stack("X", "cross-attention", 0, config.num_hidden_layers, config.num_attention_heads),)


@dataclass(frozen=True)
class _Rows:
    in_float32: Tensor
    n_queries: int
    n_keys: int
    first: int = 0


@dataclass(frozen=True)
class GivenPatterns:
    """Given weights in the place of verified attention: level 0, since nothing was compared."""

    patterns: dict[int, Tensor]  # by layer, [n_heads, n_queries, n_keys]

    @property
    def verification(self) -> Verification:
        checks = tuple(LayerCheck(layer, len(pattern), 0.0, 0.0, 1.0) for layer, pattern in self.patterns.items())
        return Verification(Tolerance(0.0, 0.0, "nothing was compared"), checks, level=0)

    def rows(self, layer: int, heads: Sequence[int] | None = None) -> Iterator[_Rows]:
        """All rows of a layer, of all or some heads."""
        if layer not in self.patterns:
            known = numbers_in_words("layer", map(number_of, self.patterns))
            raise UsageError(f"there is no attention of layer {number_of(layer)}: expected {known}.")
        pattern = self.patterns[layer] if heads is None else self.patterns[layer][list(heads)]
        yield _Rows(pattern[None], *pattern.shape[-2:])
