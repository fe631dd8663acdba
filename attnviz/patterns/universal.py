"""A parser's own labels as those of Universal Dependencies (Nivre et al. 2020), which treebanks use.

spaCy's English pipelines label as ClearNLP does (Choi & Palmer 2012): besides other names, a preposition stands between
a verb and its object there, ``be`` heads what it links, and each conjunct hangs on the one before. Here all of it is
changed, so that a relation of a text and one of a treebank are the same thing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["LABELS", "Node", "is_clear", "to_universal"]

LABELS = {
    "acomp": "xcomp", "agent": "obl:agent", "attr": "xcomp", "auxpass": "aux:pass", "csubjpass": "csubj:pass",
    "dative": "iobj", "dobj": "obj", "intj": "discourse", "meta": "dep", "neg": "advmod", "npadvmod": "obl:unmarked",
    "nsubjpass": "nsubj:pass", "oprd": "xcomp", "pcomp": "advcl", "pobj": "obl", "poss": "nmod:poss",
    "preconj": "cc:preconj", "predet": "det:predet", "prep": "advmod", "prt": "compound:prt", "quantmod": "advmod",
    "relcl": "acl:relcl",
}  # fmt: skip
"""ClearNLP's labels that Universal Dependencies does not have; what both have keeps its name."""

_BE = {"be", "am", "is", "are", "was", "were", "been", "being", "'s", "'re", "'m", "’s", "’re", "’m", "ai"}
_NOMINAL = {"NOUN", "PROPN", "PRON", "NUM"}
_OBJECTS = {"pobj", "pcomp"}


@dataclass
class Node:
    """A word of a parse: ``head`` is the place of its head (its own for the root), ``pos`` its universal tag."""

    text: str
    pos: str
    head: int
    label: str


def is_clear(labels: Iterable[str]) -> bool:
    """Whether a parser with these labels speaks ClearNLP's; others are left as they are."""
    return {"dobj", "pobj"} <= set(labels)


def to_universal(words: Sequence[tuple[str, str, int, str]]) -> list[Node]:
    """The tree of a parse in ClearNLP's labels, in those of Universal Dependencies.

    Args:
        words: of one text: text, universal part of speech, place of the head (its own for a root), label.
    """
    nodes = [Node(*word) for word in words]
    for place in reversed(range(len(nodes))):  # the inner of two prepositions, "out of", first
        _lift_object(nodes, place)
    for place in range(len(nodes)):
        _lift_complement(nodes, place)
    for place in range(len(nodes)):
        _flatten_conjuncts(nodes, place)
    for place, node in enumerate(nodes):
        if node.label == "cc":
            after = (other for other in range(place + 1, len(nodes)) if nodes[other].label == "conj")
            node.head = next((other for other in after if nodes[other].head == node.head), node.head)
        is_infinitive = node.label == "aux" and node.text.lower() == "to"
        node.label = "mark" if is_infinitive else LABELS.get(node.label, node.label)
    return nodes


def _children(nodes: Sequence[Node], place: int) -> list[int]:
    return [other for other, node in enumerate(nodes) if node.head == place and other != place]


def _lift_object(nodes: Sequence[Node], place: int) -> None:
    """``sat <- on <- mat`` becomes ``sat <- mat -> on``."""
    preposition = nodes[place]
    objects = [child for child in _children(nodes, place) if nodes[child].label in _OBJECTS]
    if preposition.label not in ("prep", "agent", "dative") or not objects:
        return
    first, governor = objects[0], nodes[preposition.head]
    clause, nominal = nodes[first].label == "pcomp", governor.pos in _NOMINAL
    label = ("acl" if nominal else "advcl") if clause else "nmod" if nominal else "obl"
    if preposition.label == "agent":
        label = "obl:agent"
    nested = governor.label in ("prep", "agent", "dative")
    nodes[first].head, nodes[first].label = preposition.head, "pobj" if nested else label
    for child in _children(nodes, place):
        if child != first and nodes[child].label not in ("cc", "conj"):
            nodes[child].head = first
    preposition.head, preposition.label = first, "mark" if clause else "case"


def _lift_complement(nodes: Sequence[Node], place: int) -> None:
    """``is <- happy`` becomes ``happy -> is``, with the label that the verb had and what hung on it."""
    verb = nodes[place]
    linked = [child for child in _children(nodes, place) if nodes[child].label in ("attr", "acomp")]
    if verb.text.lower() not in _BE or verb.label in ("aux", "auxpass") or not linked:
        return
    first = linked[-1]
    if any(nodes[child].label == "expl" for child in _children(nodes, place)):
        nodes[first].label = "nsubj"  # there is a cat
        return
    is_root = verb.head == place
    nodes[first].head, nodes[first].label = (first if is_root else verb.head), verb.label
    for child in _children(nodes, place):
        nodes[child].head = first
    verb.head, verb.label = first, "cop"


def _flatten_conjuncts(nodes: Sequence[Node], place: int) -> None:
    """``a <- b <- c`` becomes ``a <- b``, ``a <- c``."""
    node = nodes[place]
    while node.label == "conj" and nodes[node.head].label == "conj" and nodes[node.head].head != place:
        node.head = nodes[node.head].head
