"""What a classifier decides for a text."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnviz.errors import CorpusError
from attnviz.inputs.batches import collate
from attnviz.inputs.lines import naming_row
from attnviz.inputs.prompt import Prompt, Text
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.classifier import Classifier
from attnviz.reference.attention import upcast
from attnviz.run.edit import answering, run_model, running
from attnviz.run.stream import check_logits
from attnviz.wording import quoted, rounded


class Decision(NamedTuple):
    """The most probable class of a text."""

    label: str
    probability: float
    logits: tuple[float, ...]  # of all classes
    right: bool | None = None  # whether it is the text's label; None without one

    @property
    def in_words(self) -> str:
        """``“good” (0.93), which is right``."""
        verdicts = {None: "", True: ", which is right", False: ", which is wrong"}
        return f"{quoted(self.label)} ({rounded(self.probability)}){verdicts[self.right]}"


def decisions(classifier: Classifier, states: Tensor, labels: Sequence[int | None]) -> list[Decision]:
    """What it decides for texts, of the final states where it reads them, [n_texts, d_model].

    ``labels``: the right class of each text; None where it is not known.
    """
    logits = upcast(classifier.head(states))
    largest, classes = (of_texts.tolist() for of_texts in logits.softmax(-1).max(-1))
    return [
        Decision(classifier.labels[number], probability, tuple(of_text), None if label is None else number == label)
        for number, probability, of_text, label in zip(classes, largest, logits.tolist(), labels, strict=True)
    ]


@contextmanager
def deciding(model: Checkpoint, tokens: Prompt, label: int | None = None) -> Iterator[list[Decision]]:
    """What a classifier decides for a text, from the pass inside the block; nothing for other models.

    VerificationError where its head alone is not what the whole model does with the output of that pass.
    """
    decided = list[Decision]()
    classifier = model.classifier
    if classifier is None or model.why_no_classes:
        yield decided
        return
    forward, thread, outputs = model.model.forward, get_ident(), list[Any]()

    @wraps(forward)
    def kept(*args: Any, **kwargs: Any) -> Any:
        if get_ident() != thread:
            return forward(*args, **kwargs)
        if not decided:  # later the same output, without a second pass
            outputs.append(forward(*args, **kwargs))
        return outputs[-1]

    with answering(model.model, kept):
        yield decided
        position = [classifier.position(tokens.ids)]
        states = outputs[-1][0][0, position]
        with torch.no_grad():
            decided += decisions(classifier, states, [label])
        check_logits(model, tokens.model_inputs(model.device), states, position)


def decide(model: Checkpoint, items: Sequence[Prompt]) -> list[Decision]:
    """Let a classifier decide for a batch of texts.

    VerificationError where its head alone, on the longest text, is not what the whole model does.
    """
    classifier = model.classifier
    assert classifier is not None
    inputs, positions = collate(model, items).inputs, [classifier.position(item.ids) for item in items]
    with running(model):
        states = run_model(model, inputs)[range(len(items)), positions]
        decided = decisions(classifier, states, [None] * len(items))
    longest = max(range(len(items)), key=lambda text: len(items[text]))  # it has no padding
    alone = slice(longest, longest + 1)
    check_logits(model, {name: rows[alone] for name, rows in inputs.items()}, states[alone], positions[alone])
    return decided


def class_number(classifier: Classifier, text: Text) -> int:
    """The index of the class that is the text's label; CorpusError where the classifier has none of this name."""
    try:
        with naming_row(text.place):
            return classifier.number(text.label or "")
    except CorpusError as error:
        raise CorpusError(f"{error} A header of columns is text and label.") from error


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

    def add(self, models: Sequence[Checkpoint], items: Sequence[Sequence[Prompt]]) -> list[bool]:
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
