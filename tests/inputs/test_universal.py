"""Trees in ClearNLP's labels as Universal Dependencies: each change by hand, any tree stays a tree."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.inputs.reading import open_corpus, read_texts
from attnviz.language.parsers import load_parser, parsed_words
from attnviz.language.universal import (
    LABELS,
    RELATIONS,
    SUBTYPES,
    is_clear,
    is_universal,
    relation_words,
    to_universal,
)
from tests.conftest import SHARED, needs_parser

POS = {
    **dict.fromkeys("the a".split(), "DET"),
    **dict.fromkeys("cat mat house dog man book roof work idea teacher poet bed room king ann joe tom".split(), "NOUN"),
    **dict.fromkeys("he she it i me him what who this they".split(), "PRON"),
    **dict.fromkeys("on in of by to from out before under with".split(), "ADP"),
    **dict.fromkeys("and or".split(), "CCONJ"),
    **dict.fromkeys("happy tall tired bad".split(), "ADJ"),
    **dict.fromkeys("here there not yesterday".split(), "ADV"),
    **dict.fromkeys("is was be been being".split(), "AUX"),
}
"""Universal parts of speech; all other words are verbs."""


def mapped(tree: str) -> str:
    """``word/label/head`` of each word, the head by its word, mapped and written in the same way."""
    parts = [part.split("/") for part in tree.split()]
    names = [part[0] for part in parts]
    assert len(set(names)) == len(names)
    words = [(name, POS.get(name, "VERB"), names.index(head), label) for name, label, head in parts]
    found = to_universal(words)
    return " ".join(f"{name}/{label}/{names[head]}" for name, (head, label) in zip(names, found, strict=True))


CHANGES = """
a preposition under a verb:
    cat/nsubj/sat sat/ROOT/sat on/prep/sat the/det/mat mat/pobj/on
    cat/nsubj/sat sat/root/sat on/case/mat the/det/mat mat/obl/sat
a preposition under a noun:
    cat/nsubj/ran on/prep/cat mat/pobj/on ran/ROOT/ran
    cat/nsubj/ran on/case/mat mat/nmod/cat ran/root/ran
out of:
    ran/ROOT/ran out/prep/ran of/prep/out the/det/house house/pobj/of
    ran/root/ran out/case/house of/case/house the/det/house house/obl/ran
from under:
    came/ROOT/came from/prep/came under/pcomp/from the/det/bed bed/pobj/under
    came/root/came from/case/bed under/case/bed the/det/bed bed/obl/came
what hangs on a preposition:
    not/neg/on on/prep/sat mat/pobj/on sat/ROOT/sat
    not/advmod/mat on/case/mat mat/obl/sat sat/root/sat
an agent:
    cat/nsubjpass/chased was/auxpass/chased chased/ROOT/chased by/agent/chased dog/pobj/by
    cat/nsubj:pass/chased was/aux:pass/chased chased/root/chased by/case/dog dog/obl:agent/chased
a dative without to:
    she/nsubj/gave gave/ROOT/gave him/dative/gave a/det/book book/dobj/gave
    she/nsubj/gave gave/root/gave him/iobj/gave a/det/book book/obj/gave
a dative with to:
    she/nsubj/gave gave/ROOT/gave book/dobj/gave to/dative/gave him/pobj/to
    she/nsubj/gave gave/root/gave book/obj/gave to/case/him him/obl/gave
a clause under a preposition, of a verb:
    they/nsubj/left left/ROOT/left before/prep/left eating/pcomp/before book/dobj/eating
    they/nsubj/left left/root/left before/mark/eating eating/advcl/left book/obj/eating
a clause under a preposition, of a noun:
    the/det/idea idea/nsubj/left of/prep/idea eating/pcomp/of left/ROOT/left
    the/det/idea idea/nsubj/left of/mark/eating eating/acl/idea left/root/left
a copula in such a clause:
    idea/ROOT/idea of/prep/idea being/pcomp/of happy/acomp/being
    idea/root/idea of/mark/happy being/cop/happy happy/acl/idea
a preposition without an object:
    the/det/man man/nsubj/left i/nsubj/spoke spoke/relcl/man of/prep/spoke left/ROOT/left
    the/det/man man/nsubj/left i/nsubj/spoke spoke/acl:relcl/man of/obl/spoke left/root/left
a preposition that is the root:
    in/ROOT/in the/det/house house/pobj/in
    in/case/house the/det/house house/root/house
two prepositions with an object each:
    sat/ROOT/sat in/prep/sat house/pobj/in and/cc/in on/conj/in roof/pobj/on
    sat/root/sat in/case/house house/obl/sat and/cc/roof on/case/roof roof/conj/house
two prepositions with one object:
    walks/ROOT/walks to/prep/walks and/cc/to from/conj/to work/pobj/from
    walks/root/walks to/case/work and/cc/from from/conj/to work/obl/walks
be with an adjective, lifted to the root:
    she/nsubj/is is/ROOT/is not/neg/is happy/acomp/is
    she/nsubj/happy is/cop/happy not/advmod/happy happy/root/happy
be with nouns:
    he/nsubj/is is/ROOT/is a/det/teacher teacher/attr/is and/cc/teacher poet/conj/teacher
    he/nsubj/teacher is/cop/teacher a/det/teacher teacher/root/teacher and/cc/poet poet/conj/teacher
be in a clause:
    said/ROOT/said he/nsubj/been has/aux/been been/ccomp/said happy/acomp/been here/advmod/been
    said/root/said he/nsubj/happy has/aux/happy been/cop/happy happy/ccomp/said here/advmod/happy
be with a place:
    she/nsubj/is is/ROOT/is in/prep/is the/det/house house/pobj/in
    she/nsubj/house is/cop/house in/case/house the/det/house house/root/house
be with here:
    it/nsubj/is is/ROOT/is here/advmod/is
    it/nsubj/here is/cop/here here/root/here
a question:
    what/attr/is is/ROOT/is this/nsubj/is
    what/root/what is/cop/what this/nsubj/what
there is:
    there/expl/is is/ROOT/is a/det/cat cat/attr/is in/prep/is house/pobj/in
    there/expl/is is/root/is a/det/cat cat/nsubj/is in/case/house house/obl/is
be as an auxiliary:
    he/nsubj/running is/aux/running running/ROOT/running
    he/nsubj/running is/aux/running running/root/running
another verb than be:
    he/nsubj/seems seems/ROOT/seems happy/acomp/seems
    he/nsubj/seems seems/root/seems happy/xcomp/seems
to with an infinitive:
    i/nsubj/want want/ROOT/want to/aux/go go/xcomp/want
    i/nsubj/want want/root/want to/mark/go go/xcomp/want
an infinitive with a subject:
    i/nsubj/want want/ROOT/want him/nsubj/go to/aux/go go/ccomp/want
    i/nsubj/want want/root/want him/obj/want to/mark/go go/xcomp/want
let me know:
    let/ROOT/let me/nsubj/know know/ccomp/let
    let/root/let me/obj/let know/xcomp/let
a clause with a subject of its own:
    said/ROOT/said he/nsubj/came came/ccomp/said
    said/root/said he/nsubj/came came/ccomp/said
speech that comes first:
    i/nsubj/left left/ccomp/said he/nsubj/said said/ROOT/said
    i/nsubj/left left/root/left he/nsubj/said said/parataxis/left
a chain of conjuncts:
    tom/nsubj/ran ann/conj/tom and/cc/ann joe/conj/ann ran/ROOT/ran
    tom/nsubj/ran ann/conj/tom and/cc/joe joe/conj/tom ran/root/ran
a coordinator before its head stays there:
    and/cc/came he/nsubj/came came/ROOT/came or/cc/came went/conj/came
    and/cc/came he/nsubj/came came/root/came or/cc/went went/conj/came
a conjunct that is lifted:
    came/ROOT/came and/cc/came is/conj/came happy/acomp/is
    came/root/came and/cc/happy is/cop/happy happy/conj/came
names alone:
    they/nsubj/called called/ROOT/called him/dobj/called king/oprd/called yesterday/npadvmod/called
    they/nsubj/called called/root/called him/obj/called king/xcomp/called yesterday/obl:unmarked/called
"""
"""What changes, a tree in ClearNLP's labels, and the same in those of Universal Dependencies."""


@pytest.mark.parametrize(
    "change", re.findall(r"^(.+):\n +(.+)\n +(.+)", CHANGES, re.MULTILINE), ids=lambda change: change[0]
)
def test_each_change_by_hand(change: tuple[str, str, str]):
    _, clear, universal = change
    assert mapped(clear) == universal


def test_every_label_becomes_one_of_universal_dependencies():
    assert {label.partition(":")[0] for label in [*LABELS.values(), *SUBTYPES]} <= RELATIONS.keys()
    assert len(RELATIONS) == 37
    assert to_universal([]) == []


def test_relations_have_words_in_both_directions():
    found = {direction: relation_words("obj", direction) for direction in ("dependent_to_head", "head_to_dependent")}
    assert found == {"dependent_to_head": "object→verb", "head_to_dependent": "verb→object"}
    for name, words in (("nmod:poss", "possessor→noun"), ("det:predet", "determiner→noun"), ("previous-token", "")):
        assert relation_words(name, "dependent_to_head") == words
    assert relation_words("obj", None) == relation_words("coreference", "pronoun_to_name") == ""


def test_a_vocabulary_is_told_by_its_labels():
    assert is_clear(["ROOT", "dobj", "pobj", "prep"])
    assert not is_clear(["root", "obj", "obl"])
    assert is_universal(["ROOT", "nsubj", "obl:agent", "dep", "nsubj||conj", ""])
    assert not is_universal(["ROOT", "sb", "oa"])


CLEAR = st.sampled_from([*LABELS, "conj", "cc", "aux", "nsubj", "expl", "ccomp", "advmod", "mark", "punct", ""])
TEXTS = st.sampled_from(["is", "there", "to", "let", "here", "and", "word"])
TAGS = st.sampled_from(["NOUN", "VERB", "AUX", "ADP", "SCONJ", "ADV", "ADJ", ""])


@st.composite
def forests(draw: st.DrawFn) -> list[tuple[str, str, int, str]]:
    """Any trees: each word in a random order hangs on an earlier one, or is a root."""
    n = draw(st.integers(1, 12))
    order = draw(st.permutations(range(n)))
    head = {order[0]: order[0]}
    for i, place in enumerate(order[1:], 1):
        head[place] = draw(st.sampled_from([*order[:i], place]))
    return [(draw(TEXTS), draw(TAGS), head[place], draw(CLEAR)) for place in range(n)]


def roots_of(heads: list[int]) -> list[int]:
    """For each word the root that it hangs on in the end; fails where it goes round in a circle."""
    roots = []
    for place in range(len(heads)):
        at, steps = place, 0
        while heads[at] != at:
            at, steps = heads[at], steps + 1
            assert steps <= len(heads), "a circle"
        roots.append(at)
    return roots


@given(forests())
def test_any_trees_become_trees_of_the_same_words(words: list[tuple[str, str, int, str]]):
    before = roots_of([word[2] for word in words])
    found = to_universal(words)
    after = roots_of([head for head, _ in found])
    assert all(
        (a == b) == (c == d) for a, c in zip(before, after, strict=True) for b, d in zip(before, after, strict=True)
    )
    assert len(set(before)) == len(set(after))


@given(st.lists(st.sampled_from(sorted(RELATIONS.keys() - {"aux", "cc", "conj", "root"})), min_size=1, max_size=6))
def test_a_tree_of_names_that_both_have_and_none_that_moves_stays_as_it_is(labels: list[str]):
    words = [("word", "NOUN", 0, label) for label in labels]
    assert to_universal(words) == [word[2:] for word in words]


TREEBANK = SHARED / "ud" / "en_ewt-ud-dev.conllu"


@pytest.mark.thorough
@needs_parser
@pytest.mark.skipif(not TREEBANK.is_file(), reason="needs the treebank in ../shared/data/ud")
def test_mapped_trees_agree_with_a_treebank_twice_as_often():
    """Gold relations whose words, head and base label the parser finds; 0.78 against 0.38 on all 2,001 sentences."""
    pipeline, n, own, mapped_right = load_parser(), 0, 0, 0
    for sentence in read_texts(open_corpus(TREEBANK), 150):
        words = {(word.start, word.end): word for word in parsed_words(pipeline, sentence.text)}
        spans = list(words)
        for arc in sentence.arcs:
            n, relation = n + 1, arc.relation.partition(":")[0]
            word, head = words.get(sentence.spans[arc.dependent]), sentence.spans[arc.head]
            if word is not None:
                own += (word.own_relation, spans[word.own_head]) == (relation, head)
                mapped_right += (word.relation.partition(":")[0], spans[word.head]) == (relation, head)
    assert n > 1000
    assert mapped_right / n > 0.75
    assert own / n < 0.45
