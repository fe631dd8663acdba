"""Pictures of attention weights from any library: the views of ``attnviz heads``, never called verified."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.analysis.result import Analysis, AttentionSource, Options
from attnviz.arguments import as_found, as_list, is_whole
from attnviz.commands.heads.measure import TextMeasures, across, judged, text_context
from attnviz.errors import UsageError
from attnviz.inputs.prompt import Prompt, TargetTokens, tokens_of_labels
from attnviz.measures.measure import LayerRows
from attnviz.models.head_ids import Stack, layer_of, number_of, one_stack
from attnviz.options import checked
from attnviz.present.documents import Entry
from attnviz.reference.tolerances import Tolerance
from attnviz.run.checks import LayerCheck, Verification
from attnviz.wording import counted, visible

_EXPECTED = (
    "expected weights of the shape [n, n], [n_heads, n, n] or [n_layers, n_heads, n, n], or as a model returns them: "
    "[batch, n_heads, n, n] for each layer, of generate() a tuple of these for each step; found"
)

# How caches of TransformerLens and JSON of servers name a layer, and its weights.
_LAYER = re.compile(r"(?:blocks\.|layer[_ .]?)?([0-9]{1,4})(?:\.attn\.hook_pattern)?")
_WEIGHTS = ("attention", "attentions", "attn", "weights", "pattern", "heads")

_ROUNDING = 1e-2  # how far above 1 a row may sum, in half precision


@dataclass(frozen=True)
class GivenAttention(AttentionSource):
    """Given weights, and what pictures and tables ask of the model that they are of; level 0: nothing was compared."""

    name: str
    kinds: tuple[Stack, ...]  # one: all of its layers
    patterns: dict[int, Tensor]  # by layer, [n_heads, n_queries, n_keys]
    tokens: tuple[Prompt, Prompt]  # of rows and columns
    notes: tuple[str, ...] = ()
    revision: str | None = None
    encoder_only: bool = False

    @property
    def short_name(self) -> str:
        return visible(self.name)

    @property
    def dtype(self) -> torch.dtype:
        return self.patterns[self.layers[0]].dtype

    @property
    def layers(self) -> Sequence[int]:
        return self.kinds[0].layers

    def layer_of(self, layer: object) -> int:
        """The layer with this number; UsageError where there is none."""
        return layer_of(layer, self.kinds, self.name)

    def head_counts(self, layer: int) -> tuple[int, int]:  # noqa: ARG002 # all layers are alike
        """Heads, and KV heads: as many, since nothing says that some share keys."""
        return self.kinds[0].n_heads, self.kinds[0].n_heads

    @property
    def verification(self) -> Verification:
        checks = tuple(LayerCheck(layer, len(pattern), 0.0, 0.0, 1.0) for layer, pattern in self.patterns.items())
        return Verification(Tolerance(0.0, 0.0, "nothing was compared"), checks, level=0)

    def tokens_of(self, layer: int) -> tuple[Prompt, Prompt]:  # noqa: ARG002 # they are of all layers
        """The tokens of rows and columns."""
        return self.tokens

    def rows(self, layer: int, heads: Sequence[int] | None = None) -> Iterator[SimpleNamespace]:
        """All rows of a layer, of all or some heads, at once."""
        pattern = self.patterns[layer] if heads is None else self.patterns[layer][list(heads)]
        n_queries, n_keys = pattern.shape[-2:]
        yield SimpleNamespace(in_float32=pattern[None], first=0, n_queries=n_queries, n_keys=n_keys)

    def activation(self, name: str, layer: int) -> Tensor:
        """Raise UsageError: there is no model to read it from."""
        raise UsageError(
            f"weights alone were given, without the {name} of layer {layer}: expected pattern(head), or analyze(...) "
            "with the model."
        )


@dataclass(frozen=True, repr=False, eq=False)
class RawAttention(Analysis):
    """Attention weights to look at; made by :func:`draw`. It has what an :class:`Analysis` has, and nothing verified.

    Pictures, tables and files say so; ``verification.level`` is 0.
    """

    noun: ClassVar[str] = "Attention"

    @property
    def model_entry(self) -> Entry:
        """Name and shape, for a document."""
        model = self.checkpoint
        return {"name": model.name, "n_layers": number_of(model.layers[-1]) + 1, "n_heads": self.parts[0].shape[1]}

    @property
    def in_words(self) -> str:
        n_layers, n_heads = self.parts[0].shape
        shape = f"{counted(n_layers, 'layer')} × {counted(n_heads, 'head')}"
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
    patterns, numbers, n_steps = _read(weights, layers, batch, keys is not None)
    n_queries, n_keys = patterns.shape[2:]
    kept = kept_rows = _kept(mask, batch, n_keys, n_steps if keys is None else 0)
    if keys is not None:
        kept_rows = torch.ones(n_queries, dtype=torch.bool)
    rows = _labels(tokens, "rows", kept_rows, n_more=int(n_steps > 0))  # the last new token was never read
    columns = None if keys is None else _labels(keys, "columns", kept)
    patterns = patterns[:, :, kept_rows][..., kept]
    _check(patterns, numbers)
    return _drawn(patterns, numbers, rows, columns, name)


def _drawn(
    patterns: Tensor, numbers: Sequence[int], rows: tuple[str, ...], columns: tuple[str, ...] | None, name: str
) -> RawAttention:
    """The analysis of weights within one text, or from the target in the rows to the source in the columns."""
    n_heads, target, options = patterns.shape[1], None, Options()
    causal = columns is not None or (len(rows) > 1 and not bool(patterns.triu(1).any()))
    read = queries = tokens_of_labels(rows, causal)
    context, kind = text_context(queries, causal, options), one_stack(numbers, n_heads)
    if columns is not None:
        read, target = tokens_of_labels(columns, False), TargetTokens(queries.source.text, queries, generated=False)
        context = across(context, text_context(read, False, options))
        kind = Stack("X", "cross-attention", 0, numbers[-1] + 1, n_heads)
        kind = replace(kind, own=tuple(map(kind.layer, numbers)))
    measured = TextMeasures(context, {})
    by_layer = dict(zip(kind.layers, patterns, strict=True))
    for layer, pattern in by_layer.items():
        measured.statistics.update(LayerRows(layer, pattern[None]))
    given: Any = GivenAttention(name, (kind,), by_layer, (queries, read))
    return RawAttention(
        checkpoint=given,
        tokens=read,
        context=context,
        verified=given,
        heads=tuple(judged(measured)),
        parse=None,
        syntax_note="weights were given, not a text.",
        options=options,
        target=target,
    )


def _kept(mask: Any, batch: int | None, n: int, n_steps: int) -> Tensor:
    """Which of n tokens a mask shows, boolean [n]; of a generation it may be of the prompt alone."""
    if mask is None:
        return torch.ones(n, dtype=torch.bool)
    rows = _real_array(mask, "a mask").bool()
    rows = rows[None] if rows.ndim == 1 else rows
    lengths = {n, n - n_steps + 1, n + 1} if n_steps else {n}
    if rows.ndim != 2 or rows.shape[1] not in lengths or not rows.any():
        raise UsageError(f"expected a mask of {n} tokens with 1 for those that are shown, found {as_found(mask)}.")
    row = batch if len(rows) > 1 else 0
    if row is None or not 0 <= row < len(rows):
        raise UsageError(f"expected the mask of one text, [n], or batch as its index, found {len(rows)} rows.")
    return pad(rows[row], (0, max(0, n - rows.shape[1])), value=True)[:n]


def _labels(tokens: Iterable[str], name: str, kept: Tensor, n_more: int = 0) -> tuple[str, ...]:
    """The labels of rows or columns, without padding, from the tokens of all and perhaps ``n_more``."""
    what = "a list of tokens as strings, such as tokenizer.convert_ids_to_tokens(ids) gives"
    given, n = as_list(tokens, what), len(kept)
    if not all(isinstance(token, str) for token in given):
        raise UsageError(f"expected {what}, found {as_found(tokens)}.")
    if len(given) not in (n, n + n_more):
        raise UsageError(
            f"expected a token for each of the {n} {name} of the weights, padding included, found {len(given)}."
        )
    return tuple(visible(token) for token, is_kept in zip(given, kept, strict=False) if is_kept)


def _check(patterns: Tensor, layers: Sequence[int]) -> None:
    """Raise UsageError for the first row that is none of attention weights, and say where it is."""
    sums = patterns.sum(-1)
    fits = patterns.isfinite().all(-1) & (patterns >= 0).all(-1) & (sums <= 1 + _ROUNDING)
    if fits.all():
        return
    layer, head, query = place = tuple((~fits).nonzero()[0].tolist())
    below = patterns[place][~(patterns[place] >= 0)]  # not a number, too
    found = f"{float(below[0]):.4g}" if len(below) else f"a row that sums to {float(sums[place]):.4g}"
    raise UsageError(
        f"expected attention weights, from 0 to 1, whose rows sum to at most 1, found {found} at "
        f"L{layers[layer]}H{head}, query #{query}; give softmax(scores)."
    )


def _read(
    weights: Any, layers: Sequence[int] | None, batch: int | None, between_texts: bool
) -> tuple[Tensor, list[int], int]:
    """The weights of one text, the numbers of their layers, and the steps of a generation; 0 steps of one pass.

    Weights are [n_layers, n_heads, n_queries, n_keys], on the CPU, in float32 or wider. ``between_texts``: whether keys
    are of another text.

    Raises:
        UsageError: another shape, no real numbers, several texts and no index.
    """
    steps, is_generated = _steps_of(getattr(weights, "cache_dict", weights))  # TransformerLens has one
    if not steps[0]:
        raise UsageError(
            "expected attention weights, found none: models that transformers loads with sdpa return no weights; load "
            'the model with attn_implementation="eager".'
        )
    patterns, numbers = [], list(steps[0])
    for number in numbers:
        of_layer = [_of_one_text(step.get(number), batch) for step in steps]
        patterns.append(_joined(of_layer, between_texts) if is_generated else of_layer[0])
    shapes = sorted({tuple(pattern.shape) for pattern in patterns})
    if len(shapes) > 1:
        raise UsageError(f"expected layers of one shape, found {' and '.join(str(list(shape)) for shape in shapes)}.")
    if not between_texts and shapes[0][1] != shapes[0][2]:
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
    return torch.stack(patterns), numbers, len(steps) if is_generated else 0


def _steps_of(weights: Any) -> tuple[list[dict[int, Any]], bool]:
    """The weights of each step, by layer in order; and whether these are the steps of a generation, or one pass."""
    several = weights if isinstance(weights, list | tuple) else ()
    if isinstance(weights, Mapping) or (several and all(isinstance(layer, Mapping) for layer in several)):
        return [dict(sorted(_by_layer(weights).items()))], False
    if several and all(map(_is_pass, several)):
        return list(map(_numbered, several)), True
    if _is_pass(weights):
        return [_numbered(weights)], False
    array = _real_array(weights)
    if array.ndim > 5 or 0 in array.shape:
        raise UsageError(f"{_EXPECTED} {list(array.shape)}.")
    return [_numbered(array[(None,) * max(0, 4 - array.ndim)])], False


def _numbered(layers: Iterable[Any]) -> dict[int, Any]:
    """Layers by their place, without those that have no attention."""
    return {number: layer for number, layer in enumerate(layers) if layer is not None}


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
