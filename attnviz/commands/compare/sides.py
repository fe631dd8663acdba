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
    targets = [side.target for side in (first, second) if side.target is not None]
    if len({(target.tokens.ids, target.tokens.labels) for target in targets}) == 2:
        texts = [quoted(target.text) for target in targets]
        if targets[0].text == targets[1].text:
            raise TextError("the models read the target as different tokens; expected models with the same tokenizer.")
        raise TextError(
            f"the decoders read different targets, {' and '.join(texts)}; expected the same on both sides: --target "
            "(target=...)."
        )
    a, b = first.tokens, second.tokens
    same = (a.ids, a.labels, a.type_ids) == (b.ids, b.labels, b.type_ids)
    if same and first.units.members == second.units.members:
        return
    if (first.text, first.pair) == (second.text, second.pair):
        found = f"found {len(a)} and {len(b)} tokens, with the same names but other ids, segments, words or sinks"
        for position, labels in enumerate(zip(a.labels, b.labels, strict=False)):
            if labels[0] != labels[1]:
                found = f"at position {position} found {labels[0]!r} and {labels[1]!r}"
                break
        raise TextError(f"the models read the text differently: {found}; expected models with the same tokenizer.")
    if not _same_weights(first.checkpoint, second.checkpoint):
        raise UsageError(
            "both the text and the model differ, so that no difference could be put down to either; expected "
            "the same text (token by token) for two models, or the same model for two texts."
        )
    n, n_other, unit = len(first.units), len(second.units), first.units.name
    if n != n_other:
        words, words_of_other = (len(merge_subwords(tokens, True)) for tokens in (a, b))
        advice = "replace tokens or words, but add and remove none"
        if unit == "token" and words == words_of_other:
            advice = f"word by word they are equally long ({words}): compare words (--words, words=True)"
        raise TextError(f"the texts have {n} and {n_other} {unit}s; expected as many in both: {advice}.")


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


def shape_of(model: Checkpoint | Source) -> str:
    """Architecture, layers and heads in words; of a source its config says so."""
    if isinstance(model, Source):
        config, architecture = config_in(model.folder, torch.float32)
        config = getattr(config, "text_config", config)  # of a model that also reads images
    else:
        config, architecture = model.config, model.architecture
    sizes = [(f"{stack.name} layer", stack.n_layers, stack.n_heads) for stack in architecture.stacks(config)]
    sizes = sizes or [("layer", len(architecture.attending(config)), int(config.num_attention_heads))]
    of_layers = (f"{counted(n_layers, name)} of {counted(n_heads, 'head')}" for name, n_layers, n_heads in sizes)
    return f"{architecture.name} with {', '.join(of_layers)}"


def check_shapes(a: Checkpoint | Source, b: Checkpoint | Source) -> None:
    """Raise UsageError unless architectures, layers and heads are the same."""
    shapes = shape_of(a), shape_of(b)
    if shapes[0] != shapes[1]:
        raise UsageError(
            f"the models cannot be compared head by head: {a.name} is {shapes[0]}, {b.name} is {shapes[1]}; expected "
            "the same architecture with as many layers and heads, such as a model before and after fine-tuning, or a "
            "file of texts (--corpus, compare_corpus), over which they are compared role by role."
        )


def _same_weights(first: Checkpoint, second: Checkpoint) -> bool:
    """Whether the weights are equal, except for parameters that the files lack, which are random in each."""
    if first.weights_sha256 is not None and first.weights_sha256 == second.weights_sha256:
        return True
    mine, other = (dict(side.model.named_parameters()) for side in (first, second))
    return mine.keys() == other.keys() and all(
        a is b or (a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu()))
        for a, b in ((weights, other[name]) for name, weights in mine.items())
    )


def quoted_text(side: Analysis) -> str:
    """Quote the text, and the second one of a pair."""
    return " + ".join(quoted(text) for text in (side.text, side.pair) if text is not None)


def why_not_compared(a: Checkpoint, b: Checkpoint) -> str:
    """Reason why the decisions of two models cannot be compared, or ''."""
    if a.classifier is None or b.classifier is None or a.why_no_classes or b.why_no_classes:
        return a.why_no_classes or b.why_no_classes
    if a.classifier.labels == b.classifier.labels:
        return ""
    return f"A has the classes {a.classifier.listed}; B has {b.classifier.listed}"
