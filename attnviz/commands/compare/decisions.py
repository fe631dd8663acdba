"""What two classifiers decide for the same texts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from attnviz.measures.decisions import class_number, decide
from attnviz.models.checkpoint import Checkpoint
from attnviz.texts.batches import EncodedText


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
        decided = list(map(decide, models, items))
        flips = [a.label != b.label for a, b in zip(*decided, strict=True)]
        for item, a, b, flip in zip(items[0], *decided, flips, strict=True):
            source, label = item.source, None
            if source.label is not None:
                label = classifier.labels[class_number(classifier, source)]
            text, line = source.text if flip else "", source.place and source.place.line
            self.texts.append(TextDecisions(source.number, line, label, a.label, b.label, text))
        return flips

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
