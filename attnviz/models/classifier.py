"""The head of a checkpoint that makes classes of texts or of tokens, and the positions whose final states it reads."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from attnviz.arguments import check_kind
from attnviz.errors import UsageError
from attnviz.models.families.base import Architecture
from attnviz.wording import shortened, visible

TEXT, TOKEN, SPAN = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
NEXT = "ForNextSentencePrediction"
# What a head is for, by the end of the name of transformers' class, in words.
TASKS = {
    TEXT: "sequence classification",
    TOKEN: "token classification",
    SPAN: "question answering",
    NEXT: "next sentence prediction",
}

_LISTED, _LONGEST = 12, 30  # classes that a message lists, and letters of each


@dataclass(frozen=True)
class Classifier:
    """A head for sequence classification, next sentences, tokens, or start and end of an answer in the text."""

    # makes logits [.., n_classes] of the final state [.., d_model] at :meth:`position`: linear maps, and in BERT and
    # its relatives an activation between them; without dropout
    head: nn.Sequential
    labels: tuple[str, ...]  # of the classes, as the config has them
    causal: bool  # whether it reads the last token; else the first
    padding: int | None  # id of the padding token, which is never the last
    why_no_classes: str  # reason why its outputs are not exclusive classes, or ''
    task: str = TEXT  # one of :data:`TASKS`

    @property
    def linear(self) -> bool:
        """Whether logits are linear in the final state."""
        return len(self.head) == 1

    @property
    def activation(self) -> str:
        """The activation inside it, by name; empty where it is linear."""
        names = {"Tanh": "tanh", "ReLU": "ReLU", "GELUActivation": "GELU"}
        kind = "" if self.linear else type(self.head[1]).__name__
        return names.get(kind, kind)

    def position(self, ids: Sequence[int]) -> int:
        """Position that a head for texts reads, in one [n]: the first token, or the last without padding."""
        if not self.causal:
            return 0
        return max((position for position, token in enumerate(ids) if token != self.padding), default=0)

    def number(self, label: str | int) -> int:
        """The index of a class by its name, in any letter case, or its number; UsageError for none or several."""
        check_kind("a class", label, str | int)
        name = str(label).strip()
        matching = [number for number, known in enumerate(self.labels) if known == name]
        matching = matching or [n for n, known in enumerate(self.labels) if known.casefold() == name.casefold()]
        if not matching and name.isascii() and name.isdecimal() and len(name) < 10 and int(name) < len(self.labels):
            matching = [int(name)]
        if len(matching) > 1:
            raise UsageError(f"expected one class, found {len(matching)} with this name: {self.listed}.")
        if not matching:
            raise UsageError(
                f"the model has no class {visible(name)!r}; it has: {self.listed}. Give a class by its name or its "
                "number."
            )
        return matching[0]

    @property
    def listed(self) -> str:
        """The classes with their numbers, the first dozen."""
        listed = [f"{shortened(visible(label), _LONGEST)} ({i})" for i, label in enumerate(self.labels[:_LISTED])]
        if len(self.labels) > _LISTED:
            listed.append(f"and {len(self.labels) - _LISTED} more")
        return ", ".join(listed)


def classification_class(architecture: Architecture) -> str:
    """Name of transformers' class with a sequence-classification head."""
    return architecture.class_prefix + TEXT


def task_of(architecture: Architecture, config: Any, class_names: Collection[str]) -> str:
    """What the head of a model with one of these classes is for; '' for others and encoder-decoders."""
    if architecture.stacks(config):
        return ""
    return next((task for task in TASKS if architecture.class_prefix + task in class_names), "")


def classifier_of(architecture: Architecture, model: nn.Module) -> Classifier | None:
    """The head of a model for classes of texts or tokens; None for other models and encoder-decoders."""
    config = model.config
    task = task_of(architecture, config, [base.__name__ for base in type(model).__mro__])
    if not task:
        return None
    steps = {TOKEN: architecture.token_steps, SPAN: architecture.span_steps, NEXT: architecture.next_steps}
    head = architecture.class_head(model) if task == TEXT else architecture.head_of(model, steps[task])
    if not isinstance(head, nn.Sequential):
        return None
    last: Any = head[-1]
    fixed = {SPAN: ("start", "end"), NEXT: ("next sentence", "random sentence")}.get(task, ())
    names: Any = dict(enumerate(fixed)) or getattr(config, "id2label", None) or {}
    labels = tuple(str(names.get(i, f"LABEL_{i}")) for i in range(last.out_features))
    problem = getattr(config, "problem_type", None)
    why_not = ""
    if task != SPAN and len(labels) < 2:
        why_not = "its head gives one number, not classes (num_labels=1)"
    elif task != SPAN and problem in ("regression", "multi_label_classification"):
        why_not = f"the outputs of its head are not classes of which one is right (problem_type={problem!r})"
    return Classifier(
        head=head,
        labels=labels,
        causal=architecture.causal,
        padding=getattr(config, "pad_token_id", None),
        why_no_classes=why_not,
        task=task,
    )
