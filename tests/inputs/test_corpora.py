"""Corpora read as a stream: what is kept, every rule of the three formats, every message."""

import hashlib
import os
import re
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnviz.errors import CorpusError, UsageError
from attnviz.inputs.prompt import Text
from attnviz.inputs.reading import Parser, find_parser, open_corpus, read_texts, ready
from attnviz.language.syntax import Arc
from tests.conftest import SHARED
from tests.support.parsed import FakeParser

pytest.importorskip("conllu", reason="needs the extra profile")

TREEBANK = SHARED / "ud" / "en_ewt-ud-dev.conllu"
GAP = SHARED / "gap" / "gap-development.tsv"
HEADER = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"
TEXT = 'Ann "met" Zoë; she smiled.'


def word(number="1", form="w", head="0", relation="root"):
    return f"{number}\t{form}\t_\t_\t_\t_\t{head}\t{relation}\t_\t_\n"


def row(text=TEXT, pronoun="she", at="15", a="Ann", a_at="0", a_right="TRUE", b="Zoë", b_at="10", b_right="FALSE"):
    return "\t".join(["development-1", text, pronoun, at, a, a_at, a_right, b, b_at, b_right, "http://x"]) + "\n"


CAT = word("1", "The", "2", "det") + word("2", "cat", "3", "nsubj") + word("3", "ran")
DOG = word("1", "Dogs", "2", "nsubj") + word("2", "bark") + word("3", "!", "2", "punct")


@pytest.fixture
def corpus(tmp_path):
    """A function that writes a corpus, from text or bytes, and opens it."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return open_corpus(path)

    return write


@pytest.fixture
def examples(corpus):
    return lambda *rows, header=HEADER: list(read_texts(corpus("t.tsv", "\n".join([header, ""]) + "".join(rows))))


def words_of(sentence):
    return [sentence.text[start:end] for start, end in sentence.spans]


def read_until_error(items):
    """What was handed over before the error, and the error's message: one line."""
    before = []
    with pytest.raises(CorpusError) as caught:
        before.extend(items)
    assert len(str(caught.value).splitlines()) == 1
    return before, str(caught.value)


def test_the_suffix_tells_the_kind_and_the_hash_is_the_files(corpus):
    for name, kind in (("a.conllu", "conllu"), ("a.txt", "txt"), ("A.b.TXT", "txt"), ("a.csv", "table")):
        found = corpus(name, "text\ncontent\n")
        assert (found.path.name, found.kind) == (name, kind)
        assert found.sha256 == hashlib.sha256(b"text\ncontent\n").hexdigest()
    opened = corpus("a.txt", "One.\nTwo.\nThree.\n")
    assert [text.text for text in read_texts(opened, 2)] == ["One.", "Two."]
    assert list(read_texts(opened, 0)) == []


def test_what_is_no_corpus_or_cannot_be_read_is_refused(tmp_path, monkeypatch):
    for name in ("a.xlsx", "a.conllu.gz", ".txt", "a.txt"):
        (tmp_path / name).write_text("content")
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    for name in ("a.xlsx", "a.conllu.gz", ".txt", "folder.txt", "none.txt", "pipe.txt"):
        with pytest.raises(CorpusError, match=re.escape(name)):
            open_corpus(tmp_path / name)
    opened = open_corpus(tmp_path / "a.txt")
    monkeypatch.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    for read in (lambda: open_corpus(opened.path), lambda: next(read_texts(opened))):
        with pytest.raises(CorpusError, match=r"a\.txt"):
            read()


def test_a_treebank_without_conllu_is_refused_and_the_rest_reads(corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "conllu", None)
    with pytest.raises(CorpusError, match=r"attnviz\[profile\]"):
        next(read_texts(corpus("a.conllu", CAT)))
    assert [found.text for found in read_texts(corpus("a.txt", "One.\n"))] == ["One."]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.txt", "One.\n", "Three.\n"),
        ("a.conllu", CAT + "\n# text = ", CAT),
        ("a.tsv", HEADER + "\n" + row() + "development-2\t", row()),
    ],
)
def test_what_is_not_utf8_is_an_error_with_file_line_and_byte(corpus, name, before, after):
    opened = corpus(name, before.encode() + "Zoë ".encode() + b"\xe2\x82 \n" + after.encode())
    found, message = read_until_error(read_texts(opened))
    assert message.startswith(f"{opened.path}:{before.count(chr(10)) + 1}: ")
    assert "byte 0xe2" in message
    assert f" character {len(before.rpartition(chr(10))[2]) + 5} " in message
    assert len(found) == 1


NO_TREES = ["# text = nothing\n\n \n# more\n", "1-2\tw" + "\t_" * 8 + "\n0.1\tw" + "\t_" * 8 + "\n"]


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("a.txt", ["", "\ufeff \n\r\n\t\n"]),
        ("a.conllu", ["", *NO_TREES]),
        ("a.tsv", [HEADER + "\n", HEADER + "\n" + row(a_right="FALSE")]),
    ],
)
def test_an_empty_corpus_is_refused(corpus, name, contents):
    for content in contents:
        with pytest.raises(CorpusError, match="empty"):
            next(read_texts(corpus(name, content)))


@pytest.mark.parametrize(
    ("name", "start", "one"),
    [("a.txt", "", "A sentence. " * 10 + "\n"), ("a.conllu", "", CAT + "\n"), ("a.tsv", HEADER + "\n", row())],
)
@pytest.mark.draws
def test_memory_does_not_grow_with_the_corpus(corpus, name, start, one):
    count = 200_000 // len(one)
    opened = corpus(name, start + one * count)
    peaks = []
    for _ in range(4):  # the least counts: imports, caches and other threads of the process only add to it
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_texts(opened)) == count
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert min(peaks) < 100_000 < count * len(one)


def test_text_is_a_sentence_a_line_without_blank_lines_and_white_space(corpus):
    opened = corpus("a.txt", "\ufeff  The cat ran. \r\n\r\n \t \nIt\u2028fled\x0cfar.\n\nNo line end")
    found = list(read_texts(opened))
    lines = [("The cat ran.", 1, 0), ("It\u2028fled\x0cfar.", 4, 1), ("No line end", 6, 2)]
    assert [(sentence.text, sentence.place.line, sentence.number) for sentence in found] == lines
    assert str(found[0].place) == f"{opened.path}:1"


NO_COLUMNS = "Plain text, and rather a lot of it, on what is not a line of a treebank."


@pytest.mark.parametrize(
    ("lines", "line", "found"),
    [
        ("1\tcat\n", 1, r"2 in '1\tcat'"),
        (NO_COLUMNS + "\n", 1, f"1 in {NO_COLUMNS!r}"),
        (word().strip() + "\t_\n", 1, "11 in "),
        *((word(number), 1, repr(number)) for number in ("2", "01", "١", " #", "4-3")),
        (word("9" * 5000), 1, f"'{'9' * 60}"),
        (word() + word("3"), 2, "'3'"),
        (word() + "#\n" + word(), 3, "'1'"),
        (word(form=""), 1, "none"),
        *((word(head=head), 1, repr(head)) for head in ("2", "1.0", "٠", "\x1b[2J")),
        (word(head="1"), 1, "the word itself"),
        (word(head="9" * 5000), 1, f"'{'9' * 60}"),
        ("# text\n" + word() + word("2", head="3"), 3, "'3'"),
        (word(relation="_"), 1, "'_'"),
    ],
)
def test_a_broken_treebank_is_an_error_at_its_line_after_what_came_before(corpus, lines, line, found):
    for before in ("", CAT + "\n"):
        opened = corpus("a.conllu", before + lines + "\n" + DOG)
        read, said = read_until_error(read_texts(opened))
        assert said.startswith(f"{opened.path}:{before.count(chr(10)) + line}: ")
        assert f"found {found}" in said
        assert [sentence.text for sentence in read] == ["The cat ran"][: bool(before)]


FORMS = st.text(st.characters(codec="utf-8", exclude_characters="\t\n"), min_size=1, max_size=8).filter(str.strip)
RELATIONS = st.sampled_from(["nsubj", "acl:relcl", "punct", "PUNCT", "punct:x", "punctual", "root", "root:y", "det"])
COMMENTS = st.sampled_from(["", "# text = x\n", "#\n", "# global.columns = ID FORM\n"])


@st.composite
def trees(draw):
    forms = draw(st.lists(FORMS, min_size=1, max_size=6))
    heads = [draw(st.sampled_from([h for h in range(len(forms) + 1) if h != i])) for i in range(1, len(forms) + 1)]
    return forms, heads, [draw(RELATIONS) for _ in forms]


def written(tree, comment, others):
    """A tree in CoNLL-U, with a comment and, where asked for, multiword tokens and empty nodes between."""
    lines = [comment]
    for i, (form, head, relation) in enumerate(zip(*tree, strict=True), 1):
        between = [f"{i}-{i + 1}\t{form}" + "\t_" * 8 + "\n"] if others else []
        after = [f"{i}.1\t{form}" + "\t_" * 8 + "\n"] if others else []
        lines += [*between, word(str(i), form, str(head), relation), *after]
    return "".join(lines) + "\n"


@pytest.mark.draws
@settings(max_examples=30)
@given(
    st.lists(st.tuples(trees(), COMMENTS, st.booleans()), min_size=1, max_size=4),
    st.sampled_from(["", "\ufeff"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\n", "\n \t\n"]),
)
@example([((["a\rb", "#", "  c  d "], [3, 0, 2], ["nsubj", "root", "det"]), "", True)], "\ufeff", "\n", "")
def test_what_is_written_is_read(tmp_path_factory, made_up, start, line_end, end):
    path = tmp_path_factory.getbasetemp() / "round-trip.conllu"
    content = start + "".join(written(*each) for each in made_up).rstrip("\n") + end
    path.write_bytes(content.replace("\n", line_end).encode())
    found = list(read_texts(open_corpus(path)))
    assert [words_of(sentence) for sentence in found] == [[form.strip() for form in tree[0]] for tree, _, _ in made_up]
    assert [sentence.number for sentence in found] == list(range(len(made_up)))
    for sentence, ((forms, heads, relations), _, _) in zip(found, made_up, strict=True):
        assert sentence.text == " ".join(form.strip() for form in forms)
        arcs = [Arc(i, head - 1, relations[i]) for i, head in enumerate(heads) if head]
        assert sentence.arcs == tuple(a for a in arcs if a.relation.lower().split(":")[0] not in ("punct", "root"))
        assert content.split("\n")[sentence.place.line - 1].removeprefix(start).startswith("1\t")


def test_an_example_is_a_pronoun_and_two_names_by_their_characters(examples):
    (found,) = examples(row(a_right="FALSE"), row(), row(b_right="TRUE"))  # one right name alone
    assert found.text == TEXT
    assert words_of(found) == ["she", "Ann", "Zoë"]
    assert (found.answer, found.place.line, found.number) == (0, 3, 1)


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (row(at="14"), "found ' sh'"),
        (row(a_at="1"), "found 'nn '"),
        (row(at="15", a_right="FALSE", b="Bo"), "found 'Zo'"),
        (row(pronoun=""), "column Pronoun"),
        *((row(**{name: value}), f"found '{value[:60]}") for name, value in
          (("at", "x"), ("a_at", "-3"), ("b_at", "1" * 5000), ("a_right", "yes"))),
        (row(text="a\tb"), "found 12"),
        ("cut off\n", "found 1"),
    ],
)  # fmt: skip
def test_a_broken_row_is_an_error_at_its_line_after_what_came_before(corpus, bad, word):
    opened = corpus("a.tsv", f"{HEADER}\n{row()}{bad}{row()}")
    found, said = read_until_error(read_texts(opened))
    assert said.startswith(f"{opened.path}:3: ")
    assert word in said
    assert [each.place.line for each in found] == [2]


class Pipeline(FakeParser):
    """A spaCy pipeline with a version, and the texts that it was asked to parse."""

    meta = {**FakeParser.meta, "version": "1.2"}  # noqa: RUF012


MET = "Old Ann met Zoë Day, who saw that she was ill ."
MET_TREE = [
    ("Old", 1, "amod"), ("Ann", 2, "nsubj"), ("met", 2, "ROOT"), ("Zoë", 2, "obj"), ("Day", 3, "nsubj"),
    (",", 6, "punct"), ("who", 7, "nsubj"), ("saw", 3, "acl:relcl"), ("that", 10, "mark"), ("she", 10, "nsubj:pass"),
    ("was", 7, "ccomp"), ("ill", 10, "xcomp"), (".", 2, "punct"),
]  # fmt: skip


def name_at(*words):
    """A text with the spans of these words of MET, the pronoun first."""
    starts = [MET.index(word) for word in words]
    spans = tuple((start, start + len(word)) for start, word in zip(starts, words, strict=True))
    return Text(MET, spans, number=7, answer=1)


def test_a_parser_gives_words_and_relations_without_root_and_punctuation():
    parser = Parser(Pipeline({MET: MET_TREE}, ("nsubj", "obj", "acl:relcl")))
    assert parser.name == "xx_fake 1.2"
    found = parser(Text(MET, number=7))
    assert words_of(found) == [word for word, _, _ in MET_TREE]
    scored = [(place, *word[1:]) for place, word in enumerate(MET_TREE) if word[2] not in ("ROOT", "punct")]
    assert found.arcs == tuple(Arc(*arc) for arc in scored)
    assert (found.number, found.answer, found.subjects) == (7, None, None)


@pytest.mark.parametrize(
    ("names", "subjects"),
    [
        (("Ann", "Zoë"), (True, False)),
        (("Zoë", "Old Ann"), (False, True)),  # one word of a name is enough
        (("Zoë Day", "she"), (False, True)),  # a subject within the name itself is none; nsubj:pass is one
        (("Old", "ill"), (False, False)),
    ],
)
def test_subjects_of_examples_are_names_with_a_word_that_is_the_subject_of_another_word(names, subjects):
    text = name_at("who", *names)
    found = Parser(Pipeline({MET: MET_TREE})).with_subjects(text)
    assert found.subjects == subjects
    assert (found.spans, found.arcs, found.answer, found.number) == (text.spans, (), 1, 7)


def test_sentences_without_trees_are_parsed_and_trees_of_another_size_left_out():
    parser = Parser(Pipeline({MET: MET_TREE}))
    plain = Text(MET)
    assert (ready(plain, None), ready(plain, parser)) == (plain, parser(plain))
    sizes = {n: Text("a " * n, tuple((2 * i, 2 * i + 1) for i in range(n))) for n in (2, 3, 60, 61)}
    assert [n for n, text in sizes.items() if ready(text, parser) is text] == [3, 60]
    assert [n for n, text in sizes.items() if ready(text, None) is None] == [2, 61]


def test_a_parser_is_looked_for_only_where_it_has_something_to_do(corpus, monkeypatch):
    asked = []
    monkeypatch.setattr("attnviz.inputs.reading.load_parser", lambda name: asked.append(name) or Pipeline({}))
    assert find_parser([corpus("t.conllu", CAT)], None) is None
    with pytest.raises(UsageError):
        find_parser([corpus("t.conllu", CAT)], "xx_fake")
    for name, content in (("t.txt", "a cat"), ("t.tsv", HEADER)):
        assert find_parser([corpus("t.conllu", CAT), corpus(name, content)], "xx_fake").name == "xx_fake 1.2"
    assert asked == ["xx_fake"] * 2


@pytest.mark.skipif(not TREEBANK.is_file(), reason="needs the treebank in ../shared/data/ud")
@pytest.mark.draws
def test_the_development_treebank_is_read_as_others_count_it():
    found = list(read_texts(open_corpus(TREEBANK)))
    assert len(found) == 2001
    plain = [line.split("\t") for line in TREEBANK.read_text(encoding="utf-8").splitlines()]
    forms = [columns[1] for columns in plain if columns[0].isdigit()]
    assert [form for sentence in found for form in words_of(sentence)] == forms
    offsets = {}
    for sentence in found:
        if 3 <= len(sentence.spans) <= 60:
            for arc in sentence.arcs:
                offsets.setdefault(arc.relation.split(":")[0], Counter())[arc.head - arc.dependent] += 1
    for relation, offset, share in (("det", 1, 0.591), ("obj", -2, 0.361), ("case", 1, 0.379), ("nsubj", 1, 0.337)):
        ((best, count),) = offsets[relation].most_common(1)
        assert best == offset
        assert count / offsets[relation].total() == pytest.approx(share, abs=5e-4)


@pytest.mark.skipif(not GAP.is_file(), reason="needs GAP in ../shared/data/gap")
def test_the_published_examples_are_read_as_others_count_them():
    found = list(read_texts(open_corpus(GAP)))
    assert Counter(each.answer for each in found) == {0: 874, 1: 925}
    assert sum(each.place.line <= 1001 for each in found) == 899
