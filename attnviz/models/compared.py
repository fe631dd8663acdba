"""Two models side by side: what tells them apart, and whether shapes, weights and classes are the same."""

import torch

from attnviz.errors import UsageError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.reproduced import config_in
from attnviz.models.sources import Source
from attnviz.wording import counted, visible


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
    of_layers = (
        f"{counted(kind.n_layers, f'{kind.name} layer'.strip())} of {counted(kind.n_heads, 'head')}"
        for kind in architecture.kinds(config)
    )
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


def same_weights(first: Checkpoint, second: Checkpoint) -> bool:
    """Whether the weights are equal, except for parameters that the files lack, which are random in each."""
    if first.weights_sha256 is not None and first.weights_sha256 == second.weights_sha256:
        return True
    mine, other = (dict(side.model.named_parameters()) for side in (first, second))
    return mine.keys() == other.keys() and all(
        a is b or (a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu()))
        for a, b in ((weights, other[name]) for name, weights in mine.items())
    )


def why_not_compared(a: Checkpoint, b: Checkpoint) -> str:
    """Reason why the decisions of two models cannot be compared, or ''."""
    if a.classifier is None or b.classifier is None or a.why_no_classes or b.why_no_classes:
        return a.why_no_classes or b.why_no_classes
    if a.classifier.labels == b.classifier.labels:
        return ""
    return f"A has the classes {a.classifier.listed}; B has {b.classifier.listed}"
