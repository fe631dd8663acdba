"""Patterns of an analysis as pictures and pages take them: pooled, packed, with their axes and hidden cells."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.analysis.findings import HeadFindings
from attnviz.analysis.result import Analysis, Part, PatternView
from attnviz.figures.matrix import Array, PooledPattern
from attnviz.inputs.prompt import Positions, Prompt, merge_subwords
from attnviz.measures.statistics import TextContext
from attnviz.models.head_ids import HeadId
from attnviz.models.sources import BUILT_IN
from attnviz.options import typed
from attnviz.page.page import PackedPattern, axis_entry
from attnviz.wording import counted


def pooled_patterns(
    shown: PatternView, heads: Iterable[HeadFindings], factor: int
) -> Iterator[tuple[HeadFindings, Array]]:
    """Yield each head with its pooled pattern: of ``factor`` × ``factor`` weights the largest, NaN if all hidden."""
    n_queries, n_keys = len(shown.units), len(shown.keys)
    hidden = dict[int | None, NDArray[np.bool_]]()  # by window, the only difference between the masks of a text
    for head, pooled in shown.read(heads, PooledPattern, n_queries, n_keys, factor):
        window = shown.context_of(head.id.layer).window
        if window not in hidden:
            hidden[window] = hidden_cells(shown, head.id.layer, factor)
        yield head, np.where(hidden[window], np.nan, pooled.cells)


def hidden_cells(shown: Part, layer: int, factor: int) -> NDArray[np.bool_]:
    """Cells of a layer's pooled patterns in which its mask hides every key: later ones, those beyond a window."""
    seen = PooledPattern(len(shown.units), len(shown.keys), factor)
    for first, allowed in shown.allowed(layer):
        seen.add(first, allowed)
    hidden: NDArray[np.bool_] = seen.cells == 0
    return hidden


def packed_patterns(part: Part, ids: Iterable[HeadId]) -> Iterator[tuple[HeadId, PackedPattern]]:
    """The patterns of those of these heads that are of a part, in the page's format."""
    heads = [part.head(id) for id in ids if id.layer in part.layers]
    return ((head.id, pattern) for head, pattern in part.read(heads, PackedPattern, part.context.causal))


def pattern_entry(packed: str, rows: int, columns: int, context: TextContext) -> dict[str, Any]:
    """``Packed`` as in ``attnviz/page/patterns.js``, with what the mask of its layer hides."""
    mask = {"triangle": context.causal, "window": context.window}
    return {"rows": rows, "columns": columns, "data": packed, **mask}


def axis_of(part: Part) -> dict[str, Any]:
    """The tokens of the rows, with the words that they merge into; or the words."""
    return axis_with(part, part.units, part.rows)


def axis_with(part: Part, units: Positions, tokens: Prompt) -> dict[str, Any]:
    """These tokens of a part, with the words that they merge into; or the words."""
    whole_units = part.analysis.options.words or tokens.intervals is not None
    words = None if whole_units else merge_subwords(tokens, True)
    return axis_entry(units, [tokens.segments[members[0]] for members in units.members], words)


def command_options(analysis: Analysis) -> list[str]:
    """Command-line options that give the same numbers."""
    model, target = analysis.checkpoint, analysis.target
    spans = () if analysis.spans is None else analysis.spans.spans
    others = asdict(analysis.options) | {
        "revision": None if model.names[0] in BUILT_IN else model.revision or None,
        "dtype": str(model.dtype).removeprefix("torch."),
        "source_language": getattr(model.tokenizer, "src_lang", None),
        "target_language": getattr(model.tokenizer, "tgt_lang", None),
        "spans": [f"{span.name}={span.given}" for span in spans if span.given],
        **analysis.tokens.asked[1],
        "target": None if target is None or target.generated else target.text,
        "max_new_tokens": target and target.max_new_tokens,
    }
    return [*model.model_options, *typed(others)]


def kept_note(kept: int, total: int, budget: int, ranked: str) -> str:
    """Note on patterns left out of the page, or ''; ``ranked`` says which ones come first."""
    if kept == total:
        return ""
    return (
        f"Patterns of {kept} of {counted(total, 'head')} are on this page, those selected (--select) or {ranked}, to "
        f"keep it below {budget / 1_000_000:g} MB; all have their statistics."
    )
