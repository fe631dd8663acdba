"""Maps ClearNLP trees to Universal Dependencies (Nivre et al. 2020), which treebanks use.

spaCy's English pipelines label as ClearNLP does (Choi & Palmer 2012). Trees differ, too: in ClearNLP a preposition
stands between a verb and its object, ``be`` is the head of its predicate, and each conjunct depends on the one before.
All of this is mapped, so that relations of texts and treebanks are comparable. What ClearNLP does not distinguish
stays: names (``flat``) are ``compound``, ``list`` and most of ``parataxis`` are sentences of their own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

RELATIONS = {
    "acl": ("clause", "noun"), "advcl": ("adverbial clause", "verb"), "advmod": ("adverb", "modified word"),
    "amod": ("adjective", "noun"), "appos": ("apposition", "noun"), "aux": ("auxiliary", "main verb"),
    "case": ("preposition", "noun"), "cc": ("and, or, but", "conjunct"), "ccomp": ("clause as object", "verb"),
    "clf": ("classifier", "number"), "compound": ("part of a compound", "its main word"),
    "conj": ("conjunct", "first conjunct"), "cop": ("copula (be)", "predicate"), "csubj": ("clause as subject", "verb"),
    "dep": ("unspecified dependent", "its head"), "det": ("determiner", "noun"),
    "discourse": ("interjection", "main verb"), "dislocated": ("dislocated word", "main verb"),
    "expl": ("expletive (there, it)", "verb"), "fixed": ("later word", "first word of a fixed phrase"),
    "flat": ("later word", "first word of a name"), "goeswith": ("later piece", "first piece of a word written apart"),
    "iobj": ("indirect object", "verb"), "list": ("later item", "first item of a list"),
    "mark": ("subordinator (that, to, if)", "verb"), "nmod": ("modifying noun", "noun"),
    "nsubj": ("subject", "verb"), "nummod": ("number", "noun"), "obj": ("object", "verb"),
    "obl": ("noun of a prepositional phrase", "verb"), "orphan": ("remnant of an ellipsis", "another remnant"),
    "parataxis": ("clause set beside", "main verb"), "punct": ("punctuation", "main word"),
    "reparandum": ("slip of the tongue", "its repair"), "root": ("main word of a sentence", "nothing"),
    "vocative": ("person addressed", "main verb"), "xcomp": ("verb or predicate without a subject", "verb"),
}  # fmt: skip
"""The 37 relations of Universal Dependencies, without subtypes: in English words, the usual dependent and its head."""

SUBTYPES = {
    "acl:relcl": ("relative clause", "noun"), "aux:pass": ("passive auxiliary", "main verb"),
    "compound:prt": ("particle", "verb"), "nmod:poss": ("possessor", "noun"),
    "nsubj:pass": ("subject of a passive", "verb"), "obl:agent": ("agent of a passive", "verb"),
}  # fmt: skip
"""Subtypes that say more than their relation."""

LABELS = {
    "acomp": "xcomp", "agent": "obl:agent", "attr": "xcomp", "auxpass": "aux:pass", "csubjpass": "csubj:pass",
    "dative": "iobj", "dobj": "obj", "intj": "discourse", "meta": "dep", "neg": "advmod", "npadvmod": "obl:unmarked",
    "nsubjpass": "nsubj:pass", "oprd": "xcomp", "pcomp": "advcl", "pobj": "obl", "poss": "nmod:poss",
    "preconj": "cc:preconj", "predet": "det:predet", "prep": "obl", "prt": "compound:prt", "quantmod": "advmod",
    "relcl": "acl:relcl", "ROOT": "root",
}  # fmt: skip
"""Labels of ClearNLP that Universal Dependencies lacks; shared labels keep their names."""

_BE = {"be", "am", "is", "are", "was", "were", "been", "being", "'s", "'re", "'m", "’s", "’re", "’m", "ai"}
_CAUSATIVES = {"let", "lets", "letting", "make", "makes", "made", "making"}
_PLACES = {"here", "there", "where"}
_NOMINAL = {"NOUN", "PROPN", "PRON", "NUM", "SYM", "DET"}
_ADPOSITIONS = {"ADP", "SCONJ"}
_OBJECTS = {"pobj", "pcomp"}
_MODIFIERS = {"prep", "agent", "dative", "advmod", "prt", "mark", "quantmod"}


@dataclass
class Node:
    """A word of a parse: ``head`` is the index of its head (its own for the root), ``pos`` its universal tag."""

    text: str
    pos: str
    head: int
    label: str


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


def to_universal(words: Sequence[tuple[str, str, int, str]]) -> list[Node]:
    """Map a parse in ClearNLP's labels to Universal Dependencies.

    Each word is its text, universal part of speech, index of its head (its own for a root), label. Words keep their
    order, and each sentence its words.
    """
    ends = [reach for index, reach in enumerate(accumulate(_reaches(words), max)) if reach == index]
    mapped = list[Node]()
    for end in ends:  # sentence by sentence
        first = len(mapped)
        nodes = [Node(text, pos, head - first, label) for text, pos, head, label in words[first : end + 1]]
        mapped += [replace(node, head=node.head + first) for node in _mapped(nodes)]
    return mapped


def _reaches(words: Sequence[tuple[str, str, int, str]]) -> list[int]:
    """The last index of each word's arcs, to its head or from its dependents."""
    reaches = [max(index, head) for index, (_, _, head, _) in enumerate(words)]
    for index, (_, _, head, _) in enumerate(words):
        reaches[head] = max(reaches[head], index)
    return reaches


def _mapped(nodes: list[Node]) -> list[Node]:
    inner_first = _inner_first(nodes)
    for step in _STEPS:
        for index in inner_first:
            step(nodes, index)
    for node in nodes:
        if node.label == "npadvmod" and nodes[node.head].pos in _NOMINAL:
            node.label = "nmod:unmarked"
        is_infinitive = node.label == "aux" and node.text.lower() == "to"
        node.label = "mark" if is_infinitive else LABELS.get(node.label, node.label)
    return nodes


def _inner_first(nodes: Sequence[Node]) -> list[int]:
    """All indices, dependents before their heads."""
    children: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        if node.head != index:
            children.setdefault(node.head, []).append(index)
    order = [index for index, node in enumerate(nodes) if node.head == index]
    for index in order:  # grows while it is read
        order += children.get(index, [])
    return order[::-1]


def _children(nodes: Sequence[Node], index: int, *labels: str) -> list[int]:
    """The dependents of a word with these labels; without labels, all."""
    return [
        other
        for other, node in enumerate(nodes)
        if node.head == index and other != index and (not labels or node.label in labels)
    ]


def _lift(nodes: Sequence[Node], index: int, child: int, kept: Sequence[int] = ()) -> None:
    """Make a child the head of its head, with its label; other children but those kept move to it, too."""
    node = nodes[index]
    nodes[child].head, nodes[child].label = (child if node.head == index else node.head), node.label
    for other in _children(nodes, index):
        if other not in kept:
            nodes[other].head = child
    node.head = child


def _attach_coordinator(nodes: Sequence[Node], index: int) -> None:
    """``a <- and``, ``a <- b`` becomes ``b <- and``: a coordinator depends on the conjunct after it."""
    node = nodes[index]
    if node.label == "cc" and node.head < index:
        after = (other for other in _children(nodes, node.head, "conj") if other > index)
        node.head = next(after, node.head)


def _flatten_conjuncts(nodes: Sequence[Node], index: int) -> None:
    """``a <- b <- c`` becomes ``a <- b``, ``a <- c``."""
    node = nodes[index]
    if node.label == "conj" and node.head != index:
        while nodes[node.head].label == "conj" and nodes[node.head].head != node.head:
            node.head = nodes[node.head].head


def _raise_object(nodes: Sequence[Node], index: int) -> None:
    """``let <- know <- me`` becomes ``let <- know``, ``let <- me``: the subject of an infinitive is an object."""
    clause = nodes[index]
    subjects = _children(nodes, index, "nsubj")
    if clause.label != "ccomp" or clause.head == index or not subjects:
        return
    marks = [nodes[child].text.lower() for child in _children(nodes, index, "aux", "mark")]
    if marks == ["to"] or (not marks and nodes[clause.head].text.lower() in _CAUSATIVES):
        clause.label = "xcomp"
        nodes[subjects[0]].head, nodes[subjects[0]].label = clause.head, "dobj"


def _share_object(nodes: Sequence[Node], index: int) -> None:
    """``to <- from <- work`` in "to and from work": the object moves to the first preposition."""
    if nodes[index].label == "prep" and not _children(nodes, index, *_OBJECTS):
        for conjunct in _children(nodes, index, "conj"):
            if objects := _children(nodes, conjunct, *_OBJECTS):
                nodes[objects[0]].head = index
                return


def _lift_object(nodes: Sequence[Node], index: int) -> None:
    """``sat <- on <- mat`` becomes ``sat <- mat <- on``."""
    preposition, objects = nodes[index], _children(nodes, index, *_OBJECTS)
    if not objects or (preposition.pos in ("VERB", "AUX") and preposition.label not in _MODIFIERS):
        return
    first, is_clause = objects[0], nodes[objects[0]].label == "pcomp"
    preposition.label = _label_of_object(nodes, index, first)
    others = [child for child in _children(nodes, index, "conj") if nodes[child].pos in _ADPOSITIONS]
    _lift(nodes, index, first, others)
    preposition.label = "mark" if is_clause else "case"


def _label_of_object(nodes: Sequence[Node], index: int, first: int) -> str:
    """The label of an object that is attached to the governor of its preposition."""
    preposition, governor = nodes[index], nodes[nodes[index].head]
    if preposition.label in _OBJECTS:
        return nodes[first].label  # "from under the bed": the outer one is lifted next
    if preposition.label not in _MODIFIERS or preposition.head == index:
        return preposition.label  # that of a root, of a conjunct
    if governor.label in (*_MODIFIERS, *_OBJECTS) and governor.pos in _ADPOSITIONS:
        return nodes[first].label  # "out of the house": likewise
    if preposition.label == "agent":
        return "obl:agent"
    if nodes[first].label == "pcomp":
        return "acl" if governor.pos in _NOMINAL else "advcl"
    return "nmod" if governor.pos in _NOMINAL else "obl"


def _lift_predicate(nodes: Sequence[Node], index: int) -> None:
    """``is <- happy`` becomes ``happy <- is``, with the verb's label and dependents."""
    verb = nodes[index]
    if verb.text.lower() not in _BE or verb.label in ("aux", "auxpass"):
        return
    linked = _children(nodes, index, "attr", "acomp")
    if any(nodes[child].text.lower() == "there" for child in _children(nodes, index, "expl")):
        for child in linked[:1]:
            nodes[child].label = "nsubj"  # there is a cat
    elif predicates := linked or _locations(nodes, index):
        _lift(nodes, index, predicates[-1])
        verb.label = "cop"


def _locations(nodes: Sequence[Node], index: int) -> list[int]:
    """The first child by which ``be`` says where something is: ``in the house``, ``here``."""
    if _children(nodes, index, "ccomp", "xcomp", "oprd", "csubj"):
        return []
    after = [child for child in _children(nodes, index, "obl") if child > index]
    adverbs = [child for child in _children(nodes, index, "advmod") if nodes[child].text.lower() in _PLACES]
    return sorted(after + adverbs)[:1]


def _lift_speech(nodes: Sequence[Node], index: int) -> None:
    """``said <- left`` becomes ``left <- said`` where what was said comes first: "I left," he said."""
    clause, said = nodes[index], nodes[index].head
    is_speech = clause.label == "ccomp" and index < said and nodes[said].text.lower() not in _BE
    if is_speech and not _children(nodes, index, "mark"):
        _lift(nodes, said, index, [child for child in _children(nodes, said) if child > index])
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
"""Each is applied to every word, dependents first, before the next step."""
