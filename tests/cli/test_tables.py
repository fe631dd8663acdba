"""The tables of ``attnviz heads`` as text."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.tables import head_tables
from attnviz.figures import families
from attnviz.figures.families import FAMILIES
from attnviz.language.syntax import Arc
from attnviz.present.fields import Field
from attnviz.present.tables import RowTable, plain_text
from attnviz.present.view import ViewOptions
from tests.support.hand_made import PARSE, by_design, hand_made
from tests.support.results import result_of
from tests.support.stored import PROFILE, profile_of, role


def thrice(*arcs):
    """A parse with three instances of each arc, below which relations are not listed."""
    return replace(PARSE, arcs=arcs * 3)


def lines_of(analysis, **options):
    return [line.rstrip() for line in analysis.report(**{"width": 80, "top": 0, **options}).splitlines()]


def text_of(analysis, **options):
    return "\n".join(lines_of(analysis, **options)) + "\n"


def row_of(analysis, first, **options):
    (row,) = [line for line in lines_of(analysis, **options) if line.startswith(first + " ")]
    return row.split()


def head_rows(analysis, **options):
    lines = lines_of(analysis, **options)
    end = next(i for i, line in enumerate(lines) if line.startswith("uniform"))
    start = next(i for i, line in enumerate(lines) if line.startswith("Heads ("))
    return [line.split()[0] for line in lines[start:end] if line.startswith("L")]


def test_the_tables_of_heads_and_patterns_stand_below_what_was_verified():
    text = text_of(hand_made())
    places = [
        text.index(part) for part in ("Verified", "On this text", "Heads to look at", "\nHeads (4", "\nPatterns (")
    ]
    assert places == sorted(places)
    numbers = "0.73 0.25 4 0.31 0.81 0.58 0.75 0.83 0.25 0.27 0.73 0.00 1.00 –"
    assert row_of(hand_made(), "L1H1", width=170) == f"L1H1 current-token? {numbers}".split()
    assert row_of(hand_made(), "uniform", width=170) == "uniform 0.33 1.79 0.19 0.25 0.19 0.62 –".split()
    assert row_of(hand_made(), "sink            L1H0")[1:] == "L1H0 1.00 L0H1 0.33 L1H1 0.31 0.33 uniform 4 –".split()


@pytest.mark.parametrize(("top", "count", "listed"), [(3, "3 of 4", 3), (0, "4", 4)])
def test_what_is_left_out_is_counted(top, count, listed):
    text = text_of(hand_made(), top=top)
    assert f"Heads ({count}," in text
    assert ("1 more head left out" in text) == (listed < 4)
    assert len(head_rows(hand_made(), top=top)) == listed


TWO_AWAY = torch.eye(6)[[0, 3, 4, 1, 2, 5]][None, None]
NO_CONTENT = {"labels": ("[CLS]", "[SEP]"), "special": (0, 1), "patterns": by_design(2)[:1, :1]}


@pytest.mark.parametrize(
    ("changes", "width", "row"),
    [
        ({}, 80, "induction no copy of an earlier token – 0 –"),
        ({}, 80, "long-range not measurable on this text – 0 –"),
        ({"patterns": TWO_AWAY}, 120, "L0H0 unnamed? – – 4"),
        (NO_CONTENT, 170, "L0H0 too short – – 0 – 0.00 1.00 – 0.50 – – – – – –"),
    ],
)
def test_what_cannot_be_measured_is_a_dash_and_not_zero(changes, width, row):
    first, *cells = row.split()
    assert row_of(hand_made(**changes), first, width=width)[: len(cells) + 1] == [first, *cells]


def test_heads_stand_by_the_error_reduction_of_what_named_them_then_those_without_a_label():
    two_away = torch.eye(6)[[0, 3, 4, 1, 2, 5]]
    patterns = torch.cat([two_away[None], by_design(6).reshape(4, 6, 6), two_away[None]]).reshape(1, 6, 6, 6)
    # previous, broad and sink 1, current (0.73 - 0.25) / 0.75; two name nothing
    assert head_rows(hand_made(patterns=patterns)) == ["L0H1", "L0H2", "L0H3", "L0H4", "L0H0", "L0H5"]


def test_relations_stand_with_direction_offset_and_n_those_of_one_or_two_instances_in_the_document_only():
    analysis = hand_made(parse=thrice(*PARSE.arcs))
    assert row_of(analysis, "nsubj") == ["nsubj", "head→dep", "L0H0", "1.00", "L1H1", "1.00", "1.00", "+1", "3", "–"]
    arcs = (*[Arc(0, 1, "det")] * 3, *[Arc(1, 2, "nsubj")] * 2, Arc(3, 2, "advmod"))
    analysis = hand_made(parse=replace(PARSE, arcs=arcs))
    shown = [line.split()[0] for line in lines_of(analysis) if line]
    assert [name for name in shown if name in ("det", "nsubj", "advmod")] == ["det"]
    assert {pattern["name"] for pattern in analysis.document()["heads"][0]["patterns"]} >= {"det", "nsubj", "advmod"}


OBJ = replace(PARSE, arcs=(Arc(2, 1, "obj"),))


@pytest.mark.parametrize(("parse", "here"), [(None, " (not parsed)"), (PARSE, ""), (OBJ, " (not here)")])
def test_label_and_role_stand_in_columns_of_their_own(parse, here):
    """The label is that without a profile; the role says where the text does not have what it is about."""
    assert row_of(hand_made(), "L0H1", width=120)[1:5] == ["broad?", "1.00", "–", "4"]
    lines = lines_of(hand_made(profile=PROFILE, parse=parse), width=200)
    row = next(line.split() for line in lines if line.startswith("L0H1 "))
    assert row[1:5] == ["broad?", "1.00", "–", "4"]
    role = f"nsubj dep→head{here}".split()
    assert row[5 : 7 + len(role)] == [*role, "0.70", "0.40"]
    assert next(line for line in lines if line.startswith("L1H0 ")).split()[5:7] == ["unnamed", "–"]


def test_the_summary_counts_heads_by_kind_and_layer_and_names_the_best_of_each():
    analysis = hand_made(patterns=torch.cat([by_design(6), by_design(6)], 1))
    text = " ".join(text_of(analysis, width=100).split())
    for count in ("4 local (L0H0 previous-token 1.00)", "0 syntactic", "2 sink (L1H0 1.00)", "0 unnamed"):
        assert count in text
    best = next(line.split() for line in lines_of(analysis, width=100) if line.startswith("local "))
    assert best == "local L0H0 previous-token? 1.00 0.19 3".split()
    summary = analysis.document()["summary"]
    assert (summary["heads"], summary["n"], summary["layers"][1]["sink"]) == (8, 4, 2)
    kinds = {kind: entry["heads"] for kind, entry in summary["kinds"].items()}
    assert {kind: heads for kind, heads in kinds.items() if heads} == {"sink": 2, "local": 4, "broad": 2}
    assert summary["kinds"]["local"]["labels"] == {"previous-token": 2, "current-token": 2}
    assert (summary["kinds"]["local"]["best"]["id"], summary["kinds"]["unnamed"]["best"]) == ("L0H0", None)


def test_a_pattern_of_any_family_of_figures_has_a_place_in_the_summary(monkeypatch):
    analysis = hand_made(patterns=torch.cat([by_design(6), by_design(6)], 1))
    semantic = next(family for family in FAMILIES if family.name == "semantic")
    known = families.families_of_label
    monkeypatch.setattr(
        families, "families_of_label", lambda name: [semantic] if name == "previous-token" else known(name)
    )
    assert analysis.document()["summary"]["kinds"]["other"]["heads"] == 2
    assert "2 semantic (L0H0 previous-token 1.00)" in text_of(analysis, width=100)


@pytest.mark.parametrize("profile", [None, PROFILE])
def test_the_first_screen_is_at_most_22_lines_and_no_two_columns_have_one_title(profile: Any):
    analysis = hand_made(patterns=by_design(6).repeat(4, 8, 1, 1), profile=profile)
    lines = analysis.report(width=100).splitlines()
    assert len(lines) < 22  # the last one says where to look
    assert len(analysis.report(width=100, verbose=True).splitlines()) > 30
    assert sum(line.startswith(("local ", "sink ", "broad ", "syntactic ", "long-range ")) for line in lines) <= 10
    asked_for = analysis.report(width=100, maps=["local"]).splitlines()
    assert any(line.startswith("Kind") and " Local " in f"{line} " for line in asked_for)
    for verbose in (False, True):
        drawn = [each for each in head_tables(analysis, ViewOptions(verbose=verbose)) if isinstance(each, RowTable)]
        titles = [[column.header for column in table.columns] for table in drawn]
        assert titles
        assert [len(set(each)) for each in titles] == [len(each) for each in titles]


def test_heads_that_cannot_be_told_apart_are_counted_and_not_named():
    patterns = by_design(6)[:1, :1].repeat(2, 6, 1, 1)
    assert row_of(hand_made(patterns=patterns), "previous-token")[1:4] == ["12", "heads", "1.00"]


def table_of(width: int, **choices: Any) -> list[str]:
    columns = [
        Field[tuple[str, float]]("Name", lambda row: row[0]),
        Field("Score above all", lambda row: row[1], "0–1"),
        Field("Detail", lambda row: row[1] + 1, detail=True),
        Field("Last", lambda row: row[1] + 2),
    ]
    rows = [("a long name of a head", 0.25), ("b", 0.5)]
    return [line.rstrip() for line in plain_text(RowTable("Title", columns, rows, **choices), width).splitlines()]


@pytest.mark.parametrize(
    ("width", "row", "left_out"),
    [
        (46, "a long name of a head   0.25    1.25  2.25", ""),
        (40, "a long name of a head  0.25   1.25 2.25", ""),
        (34, "a long name of a  0.25   1.25 2.25", ""),
        (27, "a long name of a  0.25 2.25", "Detail"),
        (22, "a long name of a  0.25", "Detail; Last"),
    ],
)
def test_a_narrow_table_stands_closer_breaks_texts_then_leaves_columns_out_and_never_breaks_numbers(
    width: int, row: str, left_out: str
):
    lines = table_of(width)
    assert row in lines
    assert max(map(len, lines)) <= width
    assert " ".join(lines).endswith(f"Too narrow here for: {left_out}.") == bool(left_out)


def test_a_line_below_the_rule_and_a_caption_stand_below_the_rows():
    lines = table_of(60, last=["uniform", 0.1, 1.1, 2.1], caption="and so on")
    assert [line.split()[0] for line in lines[-4:] if line] == ["b", "uniform", "and"]


def resting(profile: Any = PROFILE) -> Analysis:
    """An analysis in which a head of two rests on the first token and attends to the previous one otherwise."""
    rests = 0.75 * torch.eye(12)[[0] * 12] + 0.25 * torch.eye(12)[[0, *range(11)]]
    patterns = torch.stack([rests, torch.eye(12)[[0, *range(11)]]])[None]
    return hand_made(labels="abcdefghijkl", special=(0,), patterns=patterns, profile=profile)


def test_a_head_is_counted_as_a_sink_and_for_what_it_does_otherwise():
    analysis = resting()
    assert [head.label for head in analysis.heads] == ["sink; previous-token", "previous-token"]
    kinds = {kind: entry["heads"] for kind, entry in analysis.document()["summary"]["kinds"].items()}
    assert (kinds["sink"], kinds["local"], kinds["unnamed"]) == (1, 2, 0)
    for named in ("sink", "previous-token", "local"):
        assert "L0H0" in [str(head.id) for head in analysis.select([named])]


@pytest.mark.parametrize("width", [60, 80])
def test_labels_and_roles_are_never_cut(width: int):
    roles = [replace(role("syntactic:conj", 0.7, 0.4), direction="dependent_to_head", n=12345), role("sink", 0.65, 0.1)]
    profile = profile_of({"L0H0": roles, "L0H1": [role("previous-token", 0.9, 0.1)]})
    for top in (None, 0):
        text = resting(profile).report(width=width, top=top)
        assert "…" not in text
        assert re.search(r"sink; .*\n.*previous-token", text)
        assert "conj" in text
        assert "dep→head" in text


def test_heads_selected_by_a_role_show_that_role_the_best_first():
    """Whatever other roles they have; a relation found in both directions says which head finds which."""
    to_verb, to_object = {"direction": "dependent_to_head"}, {"direction": "head_to_dependent"}
    det = role("syntactic:det", 0.9, 0.4, **to_verb)
    profile = profile_of({
        "L0H0": [det, role("syntactic:obj", 0.6, 0.4, **to_object)],
        "L0H1": [role("syntactic:obj", 0.5, 0.4, **to_verb)],
        "L1H0": [det, role("syntactic:obj", 0.7, 0.4, **to_verb)],
    })  # fmt: skip
    for top in (None, 0):  # of which the latter lists every number
        lines = lines_of(hand_made(profile=profile), top=top, select=["obj"], width=120)
        found = [re.search(r"(L\dH\d) .*obj (\S+) .*?(0\.\d\d) +0\.40", line) for line in lines]
        rows = [row.groups() for row in found if row][:3]
        assert rows == [("L1H0", "dep→head", "0.70"), ("L0H0", "head→dep", "0.60"), ("L0H1", "dep→head", "0.50")]
    assert "obj dep→head: object→verb; obj head→dep: verb→object." in lines


def test_the_farthest_heads_come_first_whatever_their_long_range_score():
    """L0H0 spreads over far tokens, L0H1 chooses tokens 5 away, L0H2 the previous token, L0H3 rests on the sink."""
    positions = torch.arange(12)
    far = ((positions[:, None] - positions).abs() >= 6).double()
    at_5 = torch.eye(12)[[*range(5, 12), *range(2, 7)]]
    patterns = torch.stack(
        [far / far.sum(1, keepdim=True), at_5, torch.eye(12)[[0, *range(11)]], torch.eye(12)[[0] * 12]]
    )[None]
    analysis = hand_made(labels="abcdefghijkl", special=(0,), patterns=patterns)
    assert analysis.head("L0H0").statistics["long_range"] < analysis.head("L0H1").statistics["long_range"]
    (line,) = [line for line in lines_of(analysis, width=170) if line.startswith("Farthest")]
    assert re.findall(r"L0H\d", line) == ["L0H0", "L0H1"]


def test_a_text_too_short_for_labels_has_a_sentence_instead_of_tables_unless_they_are_asked_for():
    analysis = hand_made(labels=("[CLS]", "a", "[SEP]"), special=(0, 2), patterns=by_design(3))
    text = text_of(analysis, top=None, width=100)
    assert "no labels" in text
    assert not [part for part in ("Heads to look at", "too short", "Patterns", "Next:") if part in text]
    assert "too short" in text_of(analysis, top=5, width=170)
    assert "L0H0" in text_of(analysis, top=None, select=["L0H0"])
    assert text_of(analysis, top=None, width=100, maps=["sink"]) == text


def test_the_clearest_of_a_kind_is_so_by_its_own_score():
    """A sink that also attends to the previous token is no clearer sink for it."""
    previous = torch.eye(12)[[0, *range(11)]]
    rests = torch.eye(12)[[0] * 12]
    patterns = torch.stack([0.7 * rests + 0.3 * previous, 0.85 * rests + 0.15 / 12])[None]
    analysis = hand_made(labels="abcdefghijkl", special=(0,), patterns=patterns)
    assert [head.label for head in analysis.heads] == ["sink; previous-token", "sink"]
    assert "2 sink (L0H1 0.86)" in " ".join(text_of(analysis).split())
    assert analysis.document()["summary"]["kinds"]["sink"]["best"]["id"] == "L0H1"


def test_of_a_kind_those_heads_stand_first_that_are_of_it_on_the_text_and_over_the_corpus():
    profile = profile_of({"L1H1": [role("previous-token", 0.5, 0.4)]})
    lines = lines_of(hand_made(profile=profile), top=None, width=120)
    assert [line.split()[1] for line in lines if line.startswith("local ")][:2] == ["L1H1", "L0H0"]


def test_a_row_of_circuits_has_the_numbers_of_all_kinds_of_composition():
    result = result_of("circuits")
    rows = {(row["id"], row["from"]): row for row in result.document()["pairs"]}
    for pair in result.pairs():
        row = rows[str(pair.id), str(pair.writer)]
        assert (row[pair.kind], row[f"{pair.kind}_deviations"]) == (pair.score, pair.deviations)


def test_no_largest_difference_is_named_where_it_may_be_rounding():
    result = result_of("compare")
    assert "none" not in result.report(width=170)
    assert replace(result, floor=2.0).report(width=170, top=0).count("none") == len(result.heads)
