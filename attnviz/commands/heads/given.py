"""Pictures of attention weights from any library: the views of ``attnviz heads``, never called verified."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from attnviz.arguments import as_found, as_list, is_whole
from attnviz.commands.heads.analysis import Analysis, Options, Target
from attnviz.commands.heads.findings import HeadFindings
from attnviz.commands.heads.measure import judged
from attnviz.errors import UsageError
from attnviz.inputs.prompt import merge_subwords, tokens_of_labels, told_apart
from attnviz.measures.patterns import MaskInput
from attnviz.measures.statistics import HeadStatistics, TextContext
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families import ARCHITECTURES
from attnviz.models.families.bert_gpt2 import Bert
from attnviz.models.head_ids import HeadId, Stack, number_of, numbers_in_words
from attnviz.options import checked
from attnviz.reference.tolerances import Tolerance
from attnviz.run.checks import LayerCheck, Verification
from attnviz.wording import counted, visible

if TYPE_CHECKING:
    from attnviz.present.fields import NamedTable
    from attnviz.present.view import ViewOptions


_EXPECTED = (
    "expected weights of the shape [n, n], [n_heads, n, n] or [n_layers, n_heads, n, n], or as a model returns them: "
    "[batch, n_heads, n, n] for each layer, of generate() a tuple of these for each step; found"
)

# How caches of TransformerLens and JSON of servers name a layer, and its weights.
_LAYER = re.compile(r"(?:blocks\.|layer[_ .]?)?([0-9]{1,4})(?:\.attn\.hook_pattern)?")
_WEIGHTS = ("attention", "attentions", "attn", "weights", "pattern", "heads")

_ROUNDING = 1e-2  # how far above 1 a row may sum, in half precision


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
    patterns, numbers, steps = _read(weights, layers, batch, keys is not None)
    n_queries, n_keys = patterns.shape[2:]
    n_more = int(steps > 0)  # the last new token, which was never read
    kept = _kept(mask, batch, n_keys, steps if keys is None else 0)
    kept_rows = kept if keys is None else None
    if kept_rows is not None:
        patterns = patterns[:, :, torch.tensor(kept_rows)]
    if kept is not None:
        patterns = patterns[..., torch.tensor(kept)]
    rows = _labels(tokens, "rows", n_queries, kept_rows, n_more)
    _check(patterns, numbers)
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
    rows = _real_array(mask, "a mask").bool()
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


def _check(patterns: Tensor, layers: Sequence[int]) -> None:
    """Raise UsageError for the first number that is no attention weight, and say where it is."""
    sums, found = patterns.sum(-1), ""
    wrong = (~patterns.isfinite() | (patterns < 0)).nonzero()
    too_large = (sums > 1 + _ROUNDING).nonzero()
    if len(wrong):
        layer, head, query, key = place = tuple(wrong[0].tolist())
        found = f"{float(patterns[place]):.4g} at L{layers[layer]}H{head}, query #{query}, key #{key}"
    elif len(too_large):
        layer, head, query = place = tuple(too_large[0].tolist())
        found = f"a row that sums to {float(sums[place]):.4g} at L{layers[layer]}H{head}, query #{query}"
    if found:
        raise UsageError(
            f"expected attention weights, from 0 to 1, whose rows sum to at most 1, found {found}; give "
            "softmax(scores)."
        )


def _read(
    weights: Any, layers: Sequence[int] | None, batch: int | None, between_texts: bool
) -> tuple[Tensor, list[int], int]:
    """The weights of one text, the numbers of their layers, and the steps of a generation; 0 steps of one pass.

    Weights are [n_layers, n_heads, n_queries, n_keys], on the CPU, in float32 or wider.

    Args:
        weights: of one of the shapes that the message names; None stands for a layer without attention.
        layers: numbers of the layers; default their places.
        batch: the index of the text.
        between_texts: whether keys are of another text.

    Raises:
        UsageError: another shape, no real numbers, several texts and no index.
    """
    weights = getattr(weights, "cache_dict", weights)  # of TransformerLens
    of_layers = isinstance(weights, list | tuple) and all(isinstance(layer, Mapping) for layer in weights)
    if isinstance(weights, Mapping) or (of_layers and weights):
        by_layer = _by_layer(weights)
        layers = sorted(by_layer) if layers is None else layers
        weights = [_real_array(by_layer[number]) for number in sorted(by_layer)]
    steps, n_steps = [weights], 0
    if isinstance(weights, list | tuple) and weights and all(map(_is_pass, weights)):
        steps, n_steps = list(weights), len(weights)
    elif not _is_pass(weights):
        array = _real_array(weights)
        steps = [list(array[(None,) * max(0, 4 - array.ndim)])]
        if array.ndim > 4 or 0 in array.shape:
            raise UsageError(f"{_EXPECTED} {list(array.shape)}.")
    numbers = [number for number, layer in enumerate(steps[0]) if layer is not None]
    if not numbers:
        raise UsageError(
            "expected attention weights, found none: models that transformers loads with sdpa return no weights; load "
            'the model with attn_implementation="eager".'
        )
    if n_steps:
        patterns = [_joined([_of_one_text(step[number], batch) for step in steps], between_texts) for number in numbers]
    else:
        patterns = [_of_one_text(steps[0][number], batch) for number in numbers]
    shapes = sorted({tuple(pattern.shape) for pattern in patterns})
    if len(shapes) > 1:
        raise UsageError(f"expected layers of one shape, found {' and '.join(str(list(shape)) for shape in shapes)}.")
    if not between_texts and patterns[0].shape[1] != patterns[0].shape[2]:
        raise UsageError(
            f"{_EXPECTED} {list(shapes[0][1:])}; cross-attention also takes keys=, the tokens of its columns."
        )
    if layers is not None:
        listed = list(layers) if isinstance(layers, Sequence) and not isinstance(layers, str) else []
        in_order = all(is_whole(number) and number >= 0 for number in listed) and sorted(set(listed)) == listed
        if not in_order or len(listed) != len(numbers):
            raise UsageError(
                f"expected a number for each of {len(numbers)} layers, in order, such as [3, 7], found "
                f"{as_found(layers)}."
            )
        numbers = list(map(int, listed))
    return torch.stack(patterns), numbers, n_steps


def _by_layer(given: Any) -> dict[int, Any]:
    """The weights of each layer, of a mapping or of JSON of one object a layer; UsageError for other forms."""
    if isinstance(given, Mapping):
        names = {key: _LAYER.fullmatch(str(key)) for key in given}
        numbered = [(int(name[1]), given[key]) for key, name in names.items() if name]
    else:
        numbered = [
            (number, entry[name])
            for entry in given
            for key, number in entry.items()
            for name in _WEIGHTS
            if key.startswith("layer") and is_whole(number) and name in entry
        ]
    n_layers = len(numbered) if isinstance(given, Mapping) else len(given)
    if not 0 < len(dict(numbered)) == len(numbered) == n_layers:
        raise UsageError(
            'expected weights as {"layer_0": …}, as [{"layer": 0, "attention": …}, …] with each layer once, as a cache '
            "of TransformerLens (blocks.0.attn.hook_pattern), or .attentions of a model's output, found the keys "
            f"{as_found(list(given if isinstance(given, Mapping) else given[0]))}."
        )
    return {number: heads for number, heads in numbered if heads is not None}


def _is_pass(weights: Any) -> bool:
    """Whether these are arrays, one a layer; None of a layer without attention."""
    return isinstance(weights, list | tuple) and all(layer is None or hasattr(layer, "ndim") for layer in weights)


def _real_array(given: Any, what: str = "attention weights") -> Tensor:
    """A tensor on the CPU, in float32 or wider; UsageError, with ``what``, for anything but real numbers."""
    try:
        if isinstance(given, np.ma.MaskedArray):  # torch would take what is masked, too
            raise TypeError("masked values")
        array = torch.as_tensor(given).detach().cpu()
        if array.is_complex() or array.is_nested or array.is_quantized or array.layout is not torch.strided:
            raise TypeError("other numbers, or another layout")
    except (TypeError, ValueError, RuntimeError) as error:
        dtype = f" of {given.dtype}" if hasattr(given, "dtype") else ""
        raise UsageError(
            f"expected {what} as a dense array of real numbers, found {type(given).__name__}{dtype}."
        ) from error
    return array if array.dtype == torch.float64 else array.float()


def _of_one_text(layer: Any, batch: int | None) -> Tensor:
    """The weights of one text, [n_heads, n_queries, n_keys], from those of a layer with or without a batch axis."""
    weights = _real_array(layer)
    shape = list(weights.shape)
    n_texts = len(weights) if weights.ndim == 4 else 1
    if weights.ndim not in (3, 4) or 0 in shape:
        raise UsageError(f"{_EXPECTED} a layer of {shape}.")
    if batch is None and n_texts > 1:
        raise UsageError(
            f"expected the weights of one text, found a batch of {n_texts}: give its index, batch=0 to "
            f"batch={n_texts - 1}; the beams of a search are not followed."
        )
    if batch is not None and not 0 <= batch < n_texts:
        raise UsageError(f"expected batch as an index from 0 to {n_texts - 1}, found {batch}.")
    return weights if weights.ndim == 3 else weights[batch or 0]


def _joined(steps: Sequence[Tensor], between_texts: bool) -> Tensor:
    """The pattern of a layer, [n_heads, n_queries, n_keys], from its rows in each step of a generation."""
    n_heads, n_prompt, n_keys = steps[0].shape
    n = n_prompt + len(steps) - 1
    whole = steps[0].new_zeros(n_heads, n, n_keys if between_texts else n)
    for number, step in enumerate(steps):
        end, rows, keys = n_prompt + number, step.shape[1], step.shape[2]
        if rows not in (1, end):
            raise UsageError(f"expected of step {number} of the generation one row, or all {end}, found {rows}.")
        if between_texts:
            whole[:, end - rows : end] = step
        elif keys >= end and not step[..., end:].any():  # a static cache has keys that are not filled yet
            whole[:, end - rows : end, :end] = step[..., :end]
        elif keys < end:  # a window
            whole[:, end - rows : end, end - keys : end] = step
        else:
            raise UsageError(f"expected of step {number} of the generation {end} keys, found {keys}.")
    return whole
