"""A parser's own labels as those of Universal Dependencies (Nivre et al. 2020), which treebanks use.

spaCy's English pipelines label as ClearNLP does (Choi & Palmer 2012). Not only names differ: there a preposition stands
between a verb and its object, ``be`` heads what it links, and each conjunct hangs on the one before. All of it is
changed here, so that a relation of a text and one of a treebank are the same thing. What ClearNLP does not tell apart
stays as it is: names (``flat``) are ``compound``, ``list`` and most of ``parataxis`` are sentences of their own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

RELATIONS = frozenset(
    "acl advcl advmod amod appos aux case cc ccomp clf compound conj cop csubj dep det discourse dislocated expl fixed "
    "flat goeswith iobj list mark nmod nsubj nummod obj obl orphan parataxis punct reparandum root vocative "
    "xcomp".split()
)
"""The 37 relations of Universal Dependencies, without subtypes."""

LABELS = {
    "acomp": "xcomp", "agent": "obl:agent", "attr": "xcomp", "auxpass": "aux:pass", "csubjpass": "csubj:pass",
    "dative": "iobj", "dobj": "obj", "intj": "discourse", "meta": "dep", "neg": "advmod", "npadvmod": "obl:unmarked",
    "nsubjpass": "nsubj:pass", "oprd": "xcomp", "pcomp": "advcl", "pobj": "obl", "poss": "nmod:poss",
    "preconj": "cc:preconj", "predet": "det:predet", "prep": "obl", "prt": "compound:prt", "quantmod": "advmod",
    "relcl": "acl:relcl", "ROOT": "root",
}  # fmt: skip
"""ClearNLP's labels that Universal Dependencies does not have; what both have keeps its name."""

_BE = {"be", "am", "is", "are", "was", "were", "been", "being", "'s", "'re", "'m", "’s", "’re", "’m", "ai"}
_CAUSATIVES = {"let", "lets", "letting", "make", "makes", "made", "making"}
_PLACES = {"here", "there", "where"}
_NOMINAL = {"NOUN", "PROPN", "PRON", "NUM", "SYM", "DET"}
_ADPOSITIONS = {"ADP", "SCONJ"}
_OBJECTS = {"pobj", "pcomp"}
_MODIFIERS = {"prep", "agent", "dative", "advmod", "prt", "mark", "quantmod"}


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


def is_universal(labels: Iterable[str]) -> bool:
    """Whether all of a parser's labels are relations of Universal Dependencies, subtypes included."""
    return {label.lower().partition(":")[0].partition("||")[0] for label in labels} - {""} <= RELATIONS


def to_universal(words: Sequence[tuple[str, str, int, str]]) -> list[Node]:
    """The tree of a parse in ClearNLP's labels, in those of Universal Dependencies.

    Of each word of a text: its text, universal part of speech, place of its head (its own for a root), label. The same
    words come back in the same order, with a tree of the same words for each tree.
    """
    ends = [reach for place, reach in enumerate(accumulate(_reaches(words), max)) if reach == place]
    mapped = list[Node]()
    for end in ends:  # sentence by sentence
        first = len(mapped)
        nodes = [Node(text, pos, head - first, label) for text, pos, head, label in words[first : end + 1]]
        mapped += [replace(node, head=node.head + first) for node in _mapped(nodes)]
    return mapped


def _reaches(words: Sequence[tuple[str, str, int, str]]) -> list[int]:
    """Of each word the last place that an arc from it, or to it, spans."""
    reaches = [max(place, head) for place, (_, _, head, _) in enumerate(words)]
    for place, (_, _, head, _) in enumerate(words):
        reaches[head] = max(reaches[head], place)
    return reaches


def _mapped(nodes: list[Node]) -> list[Node]:
    inner_first = _inner_first(nodes)
    for step in _STEPS:
        for place in inner_first:
            step(nodes, place)
    for node in nodes:
        if node.label == "npadvmod" and nodes[node.head].pos in _NOMINAL:
            node.label = "nmod:unmarked"
        is_infinitive = node.label == "aux" and node.text.lower() == "to"
        node.label = "mark" if is_infinitive else LABELS.get(node.label, node.label)
    return nodes


def _inner_first(nodes: Sequence[Node]) -> list[int]:
    """Every place after all that hang on it."""
    children: dict[int, list[int]] = {}
    for place, node in enumerate(nodes):
        if node.head != place:
            children.setdefault(node.head, []).append(place)
    order = [place for place, node in enumerate(nodes) if node.head == place]
    for place in order:  # grows while it is read
        order += children.get(place, [])
    return order[::-1]


def _children(nodes: Sequence[Node], place: int, *labels: str) -> list[int]:
    """What hangs on a word, by these labels; without any, all."""
    return [
        other
        for other, node in enumerate(nodes)
        if node.head == place and other != place and (not labels or node.label in labels)
    ]


def _lift(nodes: Sequence[Node], place: int, child: int, kept: Sequence[int] = ()) -> None:
    """A child takes the place and the label of its head, which then hangs on it, as do its children but those kept."""
    node = nodes[place]
    nodes[child].head, nodes[child].label = (child if node.head == place else node.head), node.label
    for other in _children(nodes, place):
        if other not in kept:
            nodes[other].head = child
    node.head = child


def _attach_coordinator(nodes: Sequence[Node], place: int) -> None:
    """``a <- and``, ``a <- b`` becomes ``b <- and``: a coordinator hangs on the conjunct that follows it."""
    node = nodes[place]
    if node.label == "cc" and node.head < place:
        after = (other for other in _children(nodes, node.head, "conj") if other > place)
        node.head = next(after, node.head)


def _flatten_conjuncts(nodes: Sequence[Node], place: int) -> None:
    """``a <- b <- c`` becomes ``a <- b``, ``a <- c``."""
    node = nodes[place]
    if node.label == "conj" and node.head != place:
        while nodes[node.head].label == "conj" and nodes[node.head].head != node.head:
            node.head = nodes[node.head].head


def _raise_object(nodes: Sequence[Node], place: int) -> None:
    """``let <- know <- me`` becomes ``let <- know``, ``let <- me``: the subject of an infinitive is an object."""
    clause = nodes[place]
    subjects = _children(nodes, place, "nsubj")
    if clause.label != "ccomp" or clause.head == place or not subjects:
        return
    marks = [nodes[child].text.lower() for child in _children(nodes, place, "aux", "mark")]
    if marks == ["to"] or (not marks and nodes[clause.head].text.lower() in _CAUSATIVES):
        clause.label = "xcomp"
        nodes[subjects[0]].head, nodes[subjects[0]].label = clause.head, "dobj"


def _share_object(nodes: Sequence[Node], place: int) -> None:
    """``to <- from <- work`` in "to and from work": the object is the first preposition's, too."""
    if nodes[place].label == "prep" and not _children(nodes, place, *_OBJECTS):
        for conjunct in _children(nodes, place, "conj"):
            if objects := _children(nodes, conjunct, *_OBJECTS):
                nodes[objects[0]].head = place
                return


def _lift_object(nodes: Sequence[Node], place: int) -> None:
    """``sat <- on <- mat`` becomes ``sat <- mat <- on``."""
    preposition, objects = nodes[place], _children(nodes, place, *_OBJECTS)
    if not objects or (preposition.pos in ("VERB", "AUX") and preposition.label not in _MODIFIERS):
        return
    first, is_clause = objects[0], nodes[objects[0]].label == "pcomp"
    preposition.label = _label_of_object(nodes, place, first)
    others = [child for child in _children(nodes, place, "conj") if nodes[child].pos in _ADPOSITIONS]
    _lift(nodes, place, first, others)
    preposition.label = "mark" if is_clause else "case"


def _label_of_object(nodes: Sequence[Node], place: int, first: int) -> str:
    """What an object is to the governor of its preposition."""
    preposition, governor = nodes[place], nodes[nodes[place].head]
    if preposition.label in _OBJECTS:
        return nodes[first].label  # "from under the bed": the outer one is lifted next
    if preposition.label not in _MODIFIERS or preposition.head == place:
        return preposition.label  # that of a root, of a conjunct
    if governor.label in (*_MODIFIERS, *_OBJECTS) and governor.pos in _ADPOSITIONS:
        return nodes[first].label  # "out of the house": likewise
    if preposition.label == "agent":
        return "obl:agent"
    if nodes[first].label == "pcomp":
        return "acl" if governor.pos in _NOMINAL else "advcl"
    return "nmod" if governor.pos in _NOMINAL else "obl"


def _lift_predicate(nodes: Sequence[Node], place: int) -> None:
    """``is <- happy`` becomes ``happy <- is``, with the label that the verb had and what hung on it."""
    verb = nodes[place]
    if verb.text.lower() not in _BE or verb.label in ("aux", "auxpass"):
        return
    linked = _children(nodes, place, "attr", "acomp")
    if any(nodes[child].text.lower() == "there" for child in _children(nodes, place, "expl")):
        for child in linked[:1]:
            nodes[child].label = "nsubj"  # there is a cat
    elif predicates := linked or _places(nodes, place):
        _lift(nodes, place, predicates[-1])
        verb.label = "cop"


def _places(nodes: Sequence[Node], place: int) -> list[int]:
    """The first child by which ``be`` says where something is: ``in the house``, ``here``."""
    if _children(nodes, place, "ccomp", "xcomp", "oprd", "csubj"):
        return []
    after = [child for child in _children(nodes, place, "obl") if child > place]
    adverbs = [child for child in _children(nodes, place, "advmod") if nodes[child].text.lower() in _PLACES]
    return sorted(after + adverbs)[:1]


def _lift_speech(nodes: Sequence[Node], place: int) -> None:
    """``said <- left`` becomes ``left <- said`` where what was said comes first: "I left," he said."""
    clause, said = nodes[place], nodes[place].head
    is_speech = clause.label == "ccomp" and place < said and nodes[said].text.lower() not in _BE
    if is_speech and not _children(nodes, place, "mark"):
        _lift(nodes, said, place, [child for child in _children(nodes, said) if child > place])
        nodes[said].label = "parataxis"


_STEPS = (
    _attach_coordinator,
    _flatten_conjuncts,
    _raise_object,
    _share_object,
    _lift_object,
    _lift_predicate,
    _lift_speech,
)
"""Each is done for every word, inner ones first, before the next one."""
