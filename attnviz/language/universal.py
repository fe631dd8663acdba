"""Maps ClearNLP trees to Universal Dependencies (Nivre et al. 2020), which treebanks use.

spaCy's English pipelines label as ClearNLP does (Choi & Palmer 2012). Trees differ, too: in ClearNLP a preposition
stands between a verb and its object, ``be`` is the head of its predicate, and each conjunct depends on the one before.
All of this is mapped, so that relations of texts and treebanks are comparable. What ClearNLP does not distinguish
stays: names (``flat``) are ``compound``, ``list`` and most of ``parataxis`` are sentences of their own.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAMES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data/relations.json").read_text("utf-8"))

# The 37 relations of Universal Dependencies, without subtypes: in English words, the usual dependent and its head.
RELATIONS = {name: tuple(ends) for name, ends in _NAMES["relations"].items()}

SUBTYPES = {name: tuple(ends) for name, ends in _NAMES["subtypes"].items()}  # that say more than their relation
PLURALS: dict[str, str] = _NAMES["plurals"]  # of those words for dependents that have one
LABELS: dict[str, str] = _NAMES["clearnlp"]  # those that Universal Dependencies lacks; shared ones keep their names

_BE = {"be", "am", "is", "are", "was", "were", "been", "being", "'s", "'re", "'m", "’s", "’re", "’m", "ai"}
_CAUSATIVES = {"let", "lets", "letting", "make", "makes", "made", "making"}
_PLACES = {"here", "there", "where"}
_NOMINAL = {"NOUN", "PROPN", "PRON", "NUM", "SYM", "DET"}
_ADPOSITIONS = {"ADP", "SCONJ"}
_OBJECTS = {"pobj", "pcomp"}
_MODIFIERS = {"prep", "agent", "dative", "advmod", "prt", "mark", "quantmod"}


def relation_words(relation: str, direction: str | None) -> str:
    """What a head that finds a relation does: ``object→verb`` for obj from the dependent to its head; or ''."""
    ends = SUBTYPES.get(relation, RELATIONS.get(relation.partition(":")[0]))
    if ends is None or direction not in ("dependent_to_head", "head_to_dependent"):
        return ""
    return "→".join(ends if direction == "dependent_to_head" else ends[::-1])


def is_clear(labels: Iterable[str]) -> bool:
    """Whether a parser's labels are ClearNLP's."""
    return {"dobj", "pobj"} <= set(labels)


def is_universal(labels: Iterable[str]) -> bool:
    """Whether all of a parser's labels are relations of Universal Dependencies, subtypes included."""
    return {label.lower().partition(":")[0].partition("||")[0] for label in labels} - {""} <= RELATIONS.keys()


@dataclass(eq=False)
class _Word:
    """A word while its tree changes; a root is its own head, and no child of its own."""

    text: str
    pos: str
    label: str
    index: int
    head: "_Word" = field(init=False)
    children: list["_Word"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.head = self

    @property
    def is_root(self) -> bool:
        return self.head is self

    def labelled(self, *labels: str) -> list["_Word"]:
        """The children with these labels, in the order of the text."""
        return sorted((child for child in self.children if child.label in labels), key=lambda child: child.index)

    def move(self, head: "_Word") -> None:
        """Hang the word on another one, or make it a root."""
        if not self.is_root:
            self.head.children.remove(self)
        self.head = head
        if not self.is_root:
            head.children.append(self)

    def lift(self, child: "_Word", kept: Sequence["_Word"] = ()) -> None:
        """Make a child the head of this word, with its label; other children but those kept move to it, too."""
        child.label = self.label
        child.move(child if self.is_root else self.head)
        for other in list(self.children):
            if other not in kept:
                other.move(child)
        self.move(child)


def to_universal(words: Sequence[tuple[str, str, int, str]]) -> list[tuple[int, str]]:
    """Map a parse in ClearNLP's labels to Universal Dependencies: the new head and label of each word.

    Each word is its text, universal part of speech, index of its head (its own for a root), label. Sentences keep
    their words.
    """
    tree = [_Word(text, pos, label, index) for index, (text, pos, _, label) in enumerate(words)]
    for word, (_, _, head, _) in zip(tree, words, strict=True):
        word.move(tree[head])
    inner_first = [word for word in tree if word.is_root]
    for word in inner_first:  # grows while it is read
        inner_first += sorted(word.children, key=lambda child: child.index)
    inner_first.reverse()
    for step in _STEPS:
        for word in inner_first:
            step(word)
    relations = []
    for word in tree:
        label = LABELS.get(word.label, word.label)
        if word.label == "npadvmod" and word.head.pos in _NOMINAL:
            label = "nmod:unmarked"
        elif word.label == "aux" and word.text.lower() == "to":
            label = "mark"
        relations.append((word.head.index, label))
    return relations


def _attach_coordinator(word: _Word) -> None:
    """``a <- and``, ``a <- b`` becomes ``b <- and``: a coordinator depends on the conjunct after it."""
    after = [other for other in word.head.labelled("conj") if other.index > word.index]
    if word.label == "cc" and word.head.index < word.index and after:
        word.move(after[0])


def _flatten_conjuncts(word: _Word) -> None:
    """``a <- b <- c`` becomes ``a <- b``, ``a <- c``."""
    if word.label == "conj" and not word.is_root:
        head = word.head
        while head.label == "conj" and not head.is_root:
            head = head.head
        word.move(head)


def _raise_object(clause: _Word) -> None:
    """``let <- know <- me`` becomes ``let <- know``, ``let <- me``: the subject of an infinitive is an object."""
    subjects = clause.labelled("nsubj")
    if clause.label != "ccomp" or clause.is_root or not subjects:
        return
    marks = [child.text.lower() for child in clause.labelled("aux", "mark")]
    if marks == ["to"] or (not marks and clause.head.text.lower() in _CAUSATIVES):
        clause.label = "xcomp"
        subjects[0].label = "dobj"
        subjects[0].move(clause.head)


def _share_object(preposition: _Word) -> None:
    """``to <- from <- work`` in "to and from work": the object moves to the first preposition."""
    if preposition.label == "prep" and not preposition.labelled(*_OBJECTS):
        for conjunct in preposition.labelled("conj"):
            if objects := conjunct.labelled(*_OBJECTS):
                objects[0].move(preposition)
                return


def _lift_object(preposition: _Word) -> None:
    """``sat <- on <- mat`` becomes ``sat <- mat <- on``."""
    objects = preposition.labelled(*_OBJECTS)
    if not objects or (preposition.pos in ("VERB", "AUX") and preposition.label not in _MODIFIERS):
        return
    is_clause = objects[0].label == "pcomp"
    preposition.label = _label_of_object(preposition, objects[0])
    preposition.lift(objects[0], [child for child in preposition.labelled("conj") if child.pos in _ADPOSITIONS])
    preposition.label = "mark" if is_clause else "case"


def _label_of_object(preposition: _Word, first: _Word) -> str:
    """The label of an object that is attached to the governor of its preposition."""
    governor = preposition.head
    if preposition.label in _OBJECTS:
        return first.label  # "from under the bed": the outer one is lifted next
    if preposition.label not in _MODIFIERS or preposition.is_root:
        return preposition.label  # that of a root, of a conjunct
    if governor.label in (*_MODIFIERS, *_OBJECTS) and governor.pos in _ADPOSITIONS:
        return first.label  # "out of the house": likewise
    if preposition.label == "agent":
        return "obl:agent"
    if first.label == "pcomp":
        return "acl" if governor.pos in _NOMINAL else "advcl"
    return "nmod" if governor.pos in _NOMINAL else "obl"


def _lift_predicate(verb: _Word) -> None:
    """``is <- happy`` becomes ``happy <- is``, with the verb's label and dependents."""
    if verb.text.lower() not in _BE or verb.label in ("aux", "auxpass"):
        return
    linked = verb.labelled("attr", "acomp")
    if any(child.text.lower() == "there" for child in verb.labelled("expl")):
        for child in linked[:1]:
            child.label = "nsubj"  # there is a cat
        return
    if not linked and not verb.labelled("ccomp", "xcomp", "oprd", "csubj"):  # where something is: in the house, here
        linked = [
            child
            for child in verb.labelled("obl", "advmod")
            if (child.index > verb.index if child.label == "obl" else child.text.lower() in _PLACES)
        ][:1]
    if linked:
        verb.lift(linked[-1])
        verb.label = "cop"


def _lift_speech(clause: _Word) -> None:
    """``said <- left`` becomes ``left <- said`` where what was said comes first: "I left," he said."""
    said = clause.head
    is_speech = clause.label == "ccomp" and clause.index < said.index and said.text.lower() not in _BE
    if is_speech and not clause.labelled("mark"):
        said.lift(clause, [child for child in said.children if child.index > clause.index])
        said.label = "parataxis"


# Each is applied to every word, dependents first, before the next step.
_STEPS = (
    _attach_coordinator,
    _flatten_conjuncts,
    _raise_object,
    _share_object,
    _lift_object,
    _lift_predicate,
    _lift_speech,
)
