"""What a text is measured with: options, contexts, and the target that the decoder of an encoder-decoder reads."""

from dataclasses import dataclass

from attnviz.attention.generation import MOST_NEW_TOKENS, target_tokens
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.tokens import Tokens, Units, merge_units
from attnviz.patterns.registry import PATTERNS, MaskInput, masks_of
from attnviz.patterns.statistics import TextContext

__all__ = ["MOST_NEW_TOKENS", "Options", "Target", "context_of", "read_target"]


@dataclass(frozen=True)
class Options:
    """What was asked for, as far as it changes numbers.

    Attributes:
        words: merge the pieces of words.
        local_window: largest distance that counts as local, in tokens (words with ``words``).
        long_range_from: smallest distance that counts as long-range, likewise.
    """

    words: bool = False
    local_window: int = 1
    long_range_from: int = 4


@dataclass(frozen=True)
class Target:
    """What the decoder of an encoder-decoder reads.

    Attributes:
        text: the target, as given or generated.
        tokens: the decoder's input: a start token and the target without its last token. Position q predicts q + 1.
        generated: whether the model wrote it, by greedy generation.
        longest: in tokens, of what it may generate.
        context: of the decoder's attention to itself.
        cross: of its attention to the source.
    """

    text: str
    tokens: Tokens
    generated: bool
    longest: int
    context: TextContext
    cross: TextContext


def read_target(
    checkpoint: Checkpoint,
    tokens: Tokens,
    source: Units,
    given: str | None,
    options: Options,
    *,
    truncate: bool,
    max_new_tokens: int | None,
) -> Target:
    """The target that was given, or one that the model writes.

    Args:
        checkpoint: an encoder-decoder.
        tokens: the source.
        source: its units.
        given: the target; None for greedy generation.
        options: as for the source.
        truncate: cut a target that is longer than the model instead of raising.
        max_new_tokens: of generation, at most; default 40.

    Raises:
        TextError: see :func:`attnviz.model.tokens.tokenize`.
    """
    text, read, generated = target_tokens(checkpoint, tokens, given, truncate, max_new_tokens)
    context = context_of(read, True, options)
    nowhere = dict.fromkeys(spec.statistic for spec in PATTERNS)  # patterns are of places in one text
    cross = TextContext(context.units, False, nowhere, source)
    longest = MOST_NEW_TOKENS if max_new_tokens is None else max_new_tokens
    return Target(text, read, generated, longest, context, cross)


def context_of(tokens: Tokens, causal: bool, options: Options) -> TextContext:
    """The context of attention within one text: units, and the masks of patterns among them."""
    units = merge_units(tokens, options.words)
    ids = [tuple(tokens.ids[i] for i in unit) for unit in units.members]
    window, far = options.local_window, options.long_range_from
    return TextContext(units, causal, masks_of(MaskInput(units.labels, ids, causal, window, far)))
