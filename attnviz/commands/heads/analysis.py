"""The whole chain, for the command line and for Python alike: text and model to verified findings."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from attnviz.arguments import check_texts
from attnviz.attention.verify import VerifiedLayer, verify_attention
from attnviz.commands.heads.findings import HeadFindings, Options
from attnviz.commands.heads.results import Analysis
from attnviz.errors import UsageError
from attnviz.figures.figure_sets import FIGURES, check_figures
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId
from attnviz.model.opening import Model, open_checkpoint
from attnviz.model.sources import Source
from attnviz.model.tokens import Tokens, merge_units
from attnviz.patterns.profile_store import StoredProfile, find_profile, model_shape
from attnviz.patterns.published import published_heads
from attnviz.patterns.statistics import Frame, measure
from attnviz.patterns.syntax import Parse, load_parser, parse_texts, relation_accuracy
from attnviz.patterns.verdicts import judge, label_of
from attnviz.progress import Progress, tell

__all__ = ["FIGURES", "Analysis", "analyze", "check_figures"]

_FARTHEST = 1_000_000


def analyze(
    text: str,
    model: Model = "minilm",
    *,
    tokenizer: Any = None,
    pair: str | None = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    words: bool = False,
    local_window: int = 1,
    long_range_from: int = 4,
    syntax: bool = True,
    parser: str | None = None,
    truncate: bool = False,
    profile: bool = True,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Analysis:
    """Recompute every attention head of a model on a text, verify it, and measure what it does.

    Args:
        text: one text.
        model: a built-in name (``minilm``), a checkpoint's folder, a hub id, a Source found before, or
            a model in memory: of transformers, or the ``checkpoint`` of an earlier analysis. It runs
            where and as it is; if it was loaded with sdpa or flash attention it is switched to eager
            attention for the one forward pass, because only eager attention gives a pattern to compare
            with, and switched back. Its train mode, too.
        tokenizer: of a model in memory; a fast one.
        pair: a second segment (BERT).
        revision: branch, tag or commit of a hub id.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``.
        words: merge word pieces: sum over the pieces attended to, mean over those attending.
        local_window: largest distance that counts as local, in tokens (or words).
        long_range_from: smallest distance that counts as long-range, likewise.
        syntax: measure syntactic patterns where spaCy and a pipeline are installed.
        parser: the spaCy pipeline to use; default an installed English one.
        truncate: cut a text that is longer than the model instead of raising.
        profile: look for a stored profile of the weights, the user's or a shipped one, whose verdicts take precedence
            for labels of relations; there is none of a model in memory, whose weights may have changed.
        progress: told of every layer verified.
        warn: told of a stored profile that cannot be used; default a Python warning.

    Returns:
        tokens, verified patterns, statistics, verdicts and figures.

    Raises:
        AttnvizError: see :mod:`attnviz.errors` for the kinds; VerificationError where the heads do
            not reproduce the model.
    """
    _check_types(model, device, local_window=local_window, long_range_from=long_range_from)
    if not (0 <= local_window <= _FARTHEST and 1 <= long_range_from <= _FARTHEST):
        raise UsageError(
            f"expected local_window >= 0 and long_range_from >= 1 (both at most {_FARTHEST}), "
            f"found {local_window} and {long_range_from}."
        )
    check_texts(text, pair, "analyze one text at a time")
    if parser is not None and not syntax:
        raise UsageError(f"the parser {parser!r} was named, but syntax was switched off; give one or the other.")
    checkpoint, source = open_checkpoint(model, tokenizer, revision, device, dtype)
    stored = _stored_profile(source, checkpoint, warn or _warn) if profile and source is not None else None
    tell(progress, "verifying", 0, checkpoint.n_layers)
    tokens = checkpoint.tokenize(text, pair, truncate)
    texts = [text] if pair is None else [text, pair]
    parse, note = (
        _parse(texts, tokens, parser) if syntax else (None, "it was switched off (--no-syntax, syntax=False).")
    )
    units = merge_units(tokens, words)
    causal = checkpoint.architecture.causal
    ids = [tuple(tokens.ids[i] for i in unit) for unit in units.members]
    frame = Frame.of(units, ids, causal, local_window, long_range_from)
    heads: list[HeadFindings] = []

    def reduce(layer: VerifiedLayer) -> None:
        heads.extend(_judged(layer, frame, parse, stored))
        tell(progress, "verifying", layer.check.layer + 1, checkpoint.n_layers)

    attention = verify_attention(checkpoint, tokens, reduce)
    return Analysis(
        text=text,
        pair=pair,
        checkpoint=checkpoint,
        tokens=tokens,
        frame=frame,
        attention=attention,
        heads=tuple(heads),
        parse=parse,
        syntax_note=note,
        options=Options(words, local_window, long_range_from),
        profile=stored,
        published=published_heads(
            checkpoint.name, checkpoint.architecture.name, checkpoint.n_layers, checkpoint.n_heads, checkpoint.revision
        ),
    )


def _check_types(model: object, device: object, **numbers: object) -> None:
    """Refuse what Python takes and the rest of the chain would stumble over."""
    if not isinstance(model, str | Path | Source | Checkpoint | nn.Module):
        raise UsageError(f"expected a model by name or path, or one in memory, found {model!r}.")
    if not isinstance(device, str | None):
        raise UsageError(f"expected a device by name, such as 'cpu' or 'cuda:0', found {device!r}.")
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise UsageError(f"expected {name} as a whole number, found {number!r}.")


def _stored_profile(source: Source, checkpoint: Checkpoint, warn: Callable[[str], None]) -> StoredProfile | None:
    architecture = checkpoint.architecture.name
    shape = model_shape(architecture, checkpoint.n_layers, checkpoint.n_heads, checkpoint.d_model)
    return find_profile(source, shape, warn)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=5)  # at the caller of analyze()


def _parse(texts: Sequence[str], tokens: Tokens, parser: str | None) -> tuple[Parse | None, str]:
    pipeline = load_parser(parser)
    if pipeline is None:
        return None, "no spaCy pipeline with a dependency parser is installed (pip install 'attnviz[syntax]')."
    return parse_texts(pipeline, texts, tokens), ""


def _judged(
    layer: VerifiedLayer, frame: Frame, parse: Parse | None, stored: StoredProfile | None
) -> Iterator[HeadFindings]:
    statistics = measure(layer, frame)
    relations = relation_accuracy(layer, parse) if parse else []
    for head in range(layer.check.heads_compared):
        of_head = {name: values[head] for name, values in statistics.items()}
        patterns = judge(of_head, frame, relations, head)
        id = HeadId(layer.check.layer, head)
        profile = None if stored is None else stored.of(id)
        yield HeadFindings(id, of_head, tuple(patterns), label_of(patterns, profile), profile)
