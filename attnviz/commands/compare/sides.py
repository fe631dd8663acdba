"""Checks that two sides can be compared, and names that tell them apart."""

import torch

from attnviz.commands.heads.analysis import Analysis
from attnviz.errors import TextError, UsageError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.reproduced import config_in
from attnviz.models.sources import Source
from attnviz.models.tokens import merge_subwords
from attnviz.wording import counted, quoted, visible


def check_comparable(first: Analysis, second: Analysis) -> None:
    """Check that two sides can be compared head by head and weight by weight.

    Raises:
        TextError: other tokens of the same text; texts of different length.
        UsageError: other architectures, layers, heads or options; another text and another model at once.
    """
    _check_models_and_options(first, second)
    _check_targets(first, second)
    a, b = first.tokens, second.tokens
    same = (a.ids, a.labels, a.type_ids) == (b.ids, b.labels, b.type_ids)
    if same and first.units.members == second.units.members:
        return
    if (first.text, first.pair) == (second.text, second.pair):
        other = _first_other_token(first, second)
        raise TextError(f"the models read the text differently: {other}; expected models with the same tokenizer.")
    if not _same_weights(first, second):
        raise UsageError(
            "both the text and the model differ, so that no difference could be put down to either; expected "
            "the same text (token by token) for two models, or the same model for two texts."
        )
    _check_lengths(first, second)


def model_names(first: Checkpoint, second: Checkpoint) -> tuple[str, str]:
    """The shortest names that tell two models apart."""
    models = first, second
    ways = (
        [model.short_name for model in models],
        [model.name for model in models],
        [f"{model.name} at {model.revision}" for model in models if model.revision is not None],
        [f"{model.name} in {str(model.dtype).removeprefix('torch.')}" for model in models],
    )
    a, b = next((names for names in ways if len(set(names)) == 2), ways[0])
    return visible(a), visible(b)


def check_shapes(a: Checkpoint | Source, b: Checkpoint | Source) -> None:
    """Raise UsageError unless architectures, layers and heads are the same; of a source its config says so."""
    shapes = [_shape(side) for side in (a, b)]
    if shapes[0] != shapes[1]:
        raise UsageError(
            f"the models cannot be compared head by head: {a.name} is {shapes[0]}, {b.name} is {shapes[1]}; expected "
            "the same architecture with as many layers and heads, such as a model before and after fine-tuning."
        )


def _check_models_and_options(first: Analysis, second: Analysis) -> None:
    check_shapes(first.checkpoint, second.checkpoint)
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


def _shape(model: Checkpoint | Source) -> str:
    """Architecture, layers and heads per kind of attention, in words."""
    if isinstance(model, Source):
        config, architecture = config_in(model.folder, torch.float32)
        config = getattr(config, "text_config", config)  # of a model that also reads images
    else:
        config, architecture = model.config, model.architecture
    sizes = [
        f"{counted(each.n_layers, f'{each.name} layer')} of {counted(each.n_heads, 'head')}"
        for each in architecture.stacks(config)
    ]
    n_layers, n_heads = len(architecture.attending(config)), int(config.num_attention_heads)
    sizes = sizes or [f"{counted(n_layers, 'layer')} of {counted(n_heads, 'head')}"]
    return f"{architecture.name} with {', '.join(sizes)}"


def _check_targets(first: Analysis, second: Analysis) -> None:
    """Raise TextError unless the decoders of encoder-decoders read the same target."""
    a, b = first.target, second.target
    if a is None or b is None or (a.tokens.ids, a.tokens.labels) == (b.tokens.ids, b.tokens.labels):
        return
    if a.text == b.text:
        raise TextError("the models read the target as different tokens; expected models with the same tokenizer.")
    raise TextError(
        f"the decoders read different targets, {quoted(a.text)} and {quoted(b.text)}; expected the same on both "
        "sides: --target (target=...)."
    )


def _check_lengths(first: Analysis, second: Analysis) -> None:
    a, b, unit = len(first.units), len(second.units), first.units.name
    if a == b:
        return
    words = [len(merge_subwords(side.tokens, True)) for side in (first, second)]
    advice = "replace tokens or words, but add and remove none"
    if unit == "token" and words[0] == words[1]:
        advice = f"word by word they are equally long ({words[0]}): compare words (--words, words=True)"
    raise TextError(f"the texts have {a} and {b} {unit}s; expected as many in both: {advice}.")


def _first_other_token(first: Analysis, second: Analysis) -> str:
    a, b = first.tokens.labels, second.tokens.labels
    position = next((at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), None)
    if position is not None:
        return f"at position {position} found {a[position]!r} and {b[position]!r}"
    return f"found {len(a)} and {len(b)} tokens, with the same names but other ids, segments, words or sinks"


def _same_weights(first: Analysis, second: Analysis) -> bool:
    """Whether the weights are equal, except for parameters that the files lack, which are random in each."""
    digests = {side.checkpoint.weights_sha256 for side in (first, second)}
    if len(digests) == 1 and None not in digests:
        return True
    mine, other = (dict(side.checkpoint.model.named_parameters()) for side in (first, second))
    return mine.keys() == other.keys() and all(
        a is b or (a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu()))
        for a, b in ((weights, other[name]) for name, weights in mine.items())
    )


def quoted_text(side: Analysis) -> str:
    """Quote the text, and the second one of a pair."""
    return " + ".join(quoted(text) for text in (side.text, side.pair) if text is not None)
