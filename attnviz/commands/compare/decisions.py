"""What two classifiers decide for the same texts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from attnviz.commands.ablate.inputs import LABELLED, inputs_of
from attnviz.models.checkpoint import Checkpoint
from attnviz.reference.attention import upcast
from attnviz.run.edit import run_model, running
from attnviz.run.stream import check_logits
from attnviz.texts.batches import EncodedText, collate


class Decision(NamedTuple):
    """The most probable class of a text."""

    label: str
    probability: float


class TextDecisions(NamedTuple):
    """What A and B decide for a text of a corpus."""

    number: int  # of the text in the corpus, from 0
    line: int | None  # of its file
    label: str | None  # the right class, where the corpus has it
    a: str
    b: str
    text: str  # empty where both decide alike, so that a long corpus takes no memory

    @property
    def flips(self) -> bool:
        return self.a != self.b


class DecisionTally:
    """The decisions for all texts."""

    def __init__(self) -> None:
        self.texts: list[TextDecisions] = []

    def add(self, models: Sequence[Checkpoint], items: Sequence[Sequence[EncodedText]]) -> list[bool]:
        """Let A and B decide for texts, of which both have items; returns for which they decide differently."""
        classifier = models[0].classifier
        assert classifier is not None
        decided = [
            decide(model, collate(model, of_model).inputs, [item.ids for item in of_model])
            for model, of_model in zip(models, items, strict=True)
        ]
        for item, (a, _), (b, _) in zip(items[0], *decided, strict=True):
            source, label = item.source, None
            if source.label is not None:
                label = classifier.labels[inputs_of(models[0], item, LABELLED, 0)[0].labels[0]]
            text = source.text if a != b else ""
            self.texts.append(TextDecisions(source.number, source.place and source.place.line, label, a, b, text))
        return [a != b for (a, _), (b, _) in zip(*decided, strict=True)]

    def state(self) -> dict[str, Any]:
        """To save."""
        return {"texts": [tuple(text) for text in self.texts]}

    def merge(self, state: dict[str, Any]) -> None:
        """Add those of another process or an earlier run."""
        self.texts += [TextDecisions(*text) for text in state["texts"]]


def why_not_compared(a: Checkpoint, b: Checkpoint) -> str:
    """Reason why the decisions of two models cannot be compared, or ''."""
    if a.classifier is None or b.classifier is None or a.why_no_classes or b.why_no_classes:
        return a.why_no_classes or b.why_no_classes
    if a.classifier.labels == b.classifier.labels:
        return ""
    return f"A has the classes {a.classifier.listed}; B has {b.classifier.listed}"


def decide(model: Checkpoint, inputs: dict[str, Tensor], ids: Sequence[Sequence[int]]) -> list[Decision]:
    """What a classifier decides for a batch of texts with these ids.

    VerificationError where its head alone, on the longest text, is not what the whole model does.
    """
    classifier = model.classifier
    assert classifier is not None
    positions = [classifier.position(of_text) for of_text in ids]
    with running(model):
        states = run_model(model, inputs)[range(len(ids)), positions]
        largest, classes = upcast(classifier.head(states)).softmax(-1).max(-1)
    longest = max(range(len(ids)), key=lambda text: len(ids[text]))  # it has no padding
    alone = slice(longest, longest + 1)
    check_logits(model, {name: rows[alone] for name, rows in inputs.items()}, states[alone], positions[alone])
    return [Decision(classifier.labels[n], share) for n, share in zip(classes.tolist(), largest.tolist(), strict=True)]
