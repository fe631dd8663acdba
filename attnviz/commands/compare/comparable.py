"""Which two analyses can be compared head by head and weight by weight."""

import torch

from attnviz.commands.heads.measure import Analysis
from attnviz.errors import TextError, UsageError
from attnviz.model.tokens import merge_units
from attnviz.model.wording import counted

__all__ = ["check_comparable", "same_texts"]


def check_comparable(first: Analysis, second: Analysis) -> None:
    """Refuse two sides that cannot be compared.

    Raises:
        TextError: other tokens of the same text; texts of different length.
        UsageError: no analyses; other architectures, layers, heads or options; another text and another model at once.
    """
    for side in (first, second):
        if not isinstance(side, Analysis):
            raise UsageError(f"expected two analyses, as attnviz.analyze returns them, found {type(side).__name__}.")
    _check_models(first, second)
    _check_options(first, second)
    if _same_tokens(first, second):
        return
    if same_texts(first, second):
        other = _first_other_token(first, second)
        raise TextError(f"the models read the text differently: {other}; expected models with the same tokenizer.")
    if not _same_weights(first, second):
        raise UsageError(
            "both the text and the model differ, so that no difference could be put down to either; expected "
            "the same text (token by token) for two models, or the same model for two texts."
        )
    _check_lengths(first, second)


def same_texts(first: Analysis, second: Analysis) -> bool:
    """Whether both sides read one text, or one pair of texts."""
    return (first.text, first.pair) == (second.text, second.pair)


def _check_models(first: Analysis, second: Analysis) -> None:
    a, b = first.checkpoint, second.checkpoint
    shapes = [
        f"{side.architecture.name} with {counted(side.n_layers, 'layer')} of {counted(side.n_heads, 'head')}"
        for side in (a, b)
    ]
    if shapes[0] != shapes[1]:
        raise UsageError(
            f"the models cannot be compared head by head: {a.name} is {shapes[0]}, {b.name} is {shapes[1]}; expected "
            "the same architecture with as many layers and heads, such as a model before and after fine-tuning."
        )


def _check_options(first: Analysis, second: Analysis) -> None:
    if first.options != second.options:
        raise UsageError(
            f"the two sides were analysed with different options, {first.options} and {second.options}; "
            "expected the same."
        )
    if (first.parse is None) != (second.parse is None):
        side, analysis = ("B", second) if first.parse else ("A", first)
        raise UsageError(
            "one side was analysed with syntax and the other without, so that their labels cannot be compared; "
            "expected both with, or both without (--no-syntax, syntax=False). "
            f"Why {side} has no relations: {analysis.syntax_note}"
        )


def _check_lengths(first: Analysis, second: Analysis) -> None:
    a, b, unit = len(first.units), len(second.units), first.units.name
    if a == b:
        return
    lengths = f"the texts have {a} and {b} {unit}s"
    if special := sum(first.units.special):
        lengths += f", {special} special tokens included"
    words = [len(merge_units(side.tokens, True)) for side in (first, second)]
    advice = "replace tokens or words, but add and remove none"
    if unit == "token" and words[0] == words[1]:
        advice = f"word by word they are equally long ({words[0]}): compare words (--words, words=True)"
    elif unit == "token":
        advice += f" (as words, --words, they have {words[0]} and {words[1]})"
    raise TextError(f"{lengths}; expected as many in both: {advice}.")


def _same_tokens(first: Analysis, second: Analysis) -> bool:
    a, b = first.tokens, second.tokens
    same = (a.ids, a.labels, a.type_ids) == (b.ids, b.labels, b.type_ids)
    return same and first.units.members == second.units.members


def _first_other_token(first: Analysis, second: Analysis) -> str:
    sides = [list(zip(side.tokens.labels, side.tokens.ids, strict=True)) for side in (first, second)]
    for position, (a, b) in enumerate(zip(*sides, strict=False)):
        if a != b:
            return f"at position {position} found {a[0]!r} (id {a[1]}) and {b[0]!r} (id {b[1]})"
    if len(sides[0]) != len(sides[1]):
        return f"found {len(sides[0])} and {len(sides[1])} tokens"
    return "found the same tokens with other segments or words"


def _same_weights(first: Analysis, second: Analysis) -> bool:
    a, b = first.checkpoint.model, second.checkpoint.model
    if a is b:
        return True
    mine, other = dict(a.named_parameters()), dict(b.named_parameters())
    return mine.keys() == other.keys() and all(
        weights.dtype == other[name].dtype and torch.equal(weights.cpu(), other[name].cpu())
        for name, weights in mine.items()
    )
