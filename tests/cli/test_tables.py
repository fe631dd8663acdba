"""The tables of ``attnviz heads``, by the names of their columns; how any table fits its width; what is printed."""

import csv
import io
import re
import sys
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnviz.analysis.result import Analysis
from attnviz.cli.terminal import print_results, progress
from attnviz.errors import OutputError
from attnviz.figures.page import format_number
from attnviz.language.syntax import Arc
from attnviz.measures.decisions import Decision
from attnviz.measures.intervals import Estimate
from attnviz.models.head_ids import HeadId
from attnviz.present.documents import CAPTIONS, caption_files, csv_text
from attnviz.present.fields import Field, Table, interval_field, plain_value
from attnviz.present.tables import plain_text
from attnviz.present.view import ViewOptions
from attnviz.wording import counted, percent, rounded, signed
from tests.support.captions import read_captions
from tests.support.hand_made import PARSE, by_design, first_pattern, hand_made, previous_pattern
from tests.support.printed import rows_in, tables_in
from tests.support.results import result_of
from tests.support.stored import PROFILE, profile_of, role


def tables_of(analysis: Analysis, **choices: Any) -> list[Table[Any]]:
    return list(tables_in(analysis.tables(ViewOptions(**choices))))


def rows_of(analysis: Analysis, title: str, by: str = "Head", **choices: Any) -> dict[str, dict[str, str]]:
    """The rows of a table by the first word of a cell."""
    rows = rows_in(analysis.tables(ViewOptions(**choices)), title)
    return {row[by].split()[0]: row for row in rows}


def all_heads(analysis: Analysis, **choices: Any) -> dict[str, dict[str, str]]:
    return rows_of(analysis, "Heads (", verbose=True, **({"top": 0} | choices))


def patterns_of(analysis: Analysis) -> dict[str, dict[str, str]]:
    return rows_of(analysis, "Patterns", "Pattern", verbose=True, top=0)


def first_lines(analysis: Analysis, **choices: Any) -> str:
    return " ".join(analysis.report(width=170, **choices).split())


def analysis_of(*patterns: torch.Tensor, profile: Any = None) -> Analysis:
    """One layer on twelve tokens, of which the first is special."""
    return hand_made(labels="abcdefghijkl", special=(0,), patterns=torch.stack(patterns)[None], profile=profile)


def test_every_number_of_a_head_stands_in_its_column_with_uniform_attention_below():
    rows = all_heads(hand_made())
    expected = {
        **{"Label": "current-token?", "Score": "0.73", "Baseline": "0.25", "n": "4", "Sink": "0.31"},
        **{"Entropy": "0.81", "Conf": "0.58", "Conf, content": "0.75", "Distance": "0.83"},
        **{"Distance, content": "0.25", "Prev": "0.27", "Curr": "0.73", "Next": "0.00", "Local": "1.00", "Long": "–"},
    }
    assert rows["L1H1"] == {"Head": "L1H1", **expected}
    uniform = {"Sink": "0.33", "Entropy": "1.79", "Prev": "0.19", "Curr": "0.25", "Next": "0.19", "Local": "0.62"}
    uniform |= {"Conf": "0.17", "Conf, content": "0.25", "Distance": "1.94", "Distance, content": "1.25"}
    assert {name: value for name, value in rows["uniform"].items() if value not in ("", "–", "uniform")} == uniform
    sink = patterns_of(hand_made())["sink"]
    assert (sink["Strongest heads"], sink["Baseline"]) == ("L1H0 1.00  L0H1 0.33  L1H1 0.31  L0H0 0.25", "0.33")
    assert (sink["which"], sink["n"], sink["Show"]) == ("uniform", "4", "–")


@pytest.mark.parametrize(("top", "listed"), [(3, 3), (0, 4)])
def test_what_is_left_out_is_counted(top, listed):
    assert len(all_heads(hand_made(), top=top)) == listed + 1  # uniform attention
    (heads,) = [table for table in tables_of(hand_made(), verbose=True, top=top) if table.title.startswith("Heads (")]
    assert ("1 more head" in heads.caption) == (listed < 4)


TWO_AWAY = torch.eye(6)[[0, 3, 4, 1, 2, 5]]


def test_what_cannot_be_measured_is_a_dash_and_not_zero():
    for name in ("induction", "long-range", "duplicate-token"):
        assert [patterns_of(hand_made())[name][column] for column in ("Baseline", "n", "Show")] == ["–", "0", "–"]
    (unnamed, _) = all_heads(hand_made(patterns=TWO_AWAY[None, None])).values()
    assert [unnamed[name] for name in ("Label", "Score", "Baseline", "n")] == ["unnamed?", "–", "–", "4"]
    alone = hand_made(labels=("[CLS]", "[SEP]"), special=(0, 1), patterns=by_design(2)[:1, :1])
    (head, _) = all_heads(alone).values()
    assert [head[name] for name in ("Label", "n", "Sink", "Entropy", "Conf")] == ["too short", "0", "–", "0.00", "1.00"]
    assert [head[name] for name in ("Conf, content", "Distance", "Distance, content")] == ["–", "0.50", "–"]


def test_heads_stand_by_the_error_reduction_of_what_named_them_then_those_without_a_label():
    patterns = torch.cat([TWO_AWAY[None], by_design(6).reshape(4, 6, 6), TWO_AWAY[None]])[None]
    # previous, broad and sink 1, current (0.73 - 0.25) / 0.75; two name nothing
    assert [*all_heads(hand_made(patterns=patterns))] == ["L0H1", "L0H2", "L0H3", "L0H4", "L0H0", "L0H5", "uniform"]


def test_relations_stand_with_direction_offset_and_n_those_of_one_or_two_instances_in_the_document_only():
    nsubj = patterns_of(hand_made(parse=replace(PARSE, arcs=PARSE.arcs * 3)))["nsubj"]
    assert [nsubj[name] for name in ("Pattern", "Baseline", "which", "n")] == ["nsubj head→dep", "1.00", "+1", "3"]
    assert nsubj["Strongest heads"].startswith("L0H0 1.00  L1H1 1.00")
    arcs = (*[Arc(0, 1, "det")] * 3, *[Arc(1, 2, "nsubj")] * 2, Arc(3, 2, "advmod"))
    analysis = hand_made(parse=replace(PARSE, arcs=arcs))
    assert {*patterns_of(analysis)} & {"det", "nsubj", "advmod"} == {"det"}
    assert {pattern["name"] for pattern in analysis.document()["heads"][0]["patterns"]} >= {"det", "nsubj", "advmod"}


OBJ = replace(PARSE, arcs=(Arc(2, 1, "obj"),))


@pytest.mark.parametrize(("parse", "here"), [(None, "not parsed"), (PARSE, "too few"), (OBJ, "none here")])
def test_label_and_role_stand_in_tables_of_their_own(parse, here):
    """The label is that without a profile; the role says what it does on a text that may lack what it is about."""
    found = hand_made(profile=PROFILE, parse=parse)
    assert all_heads(found) == all_heads(hand_made(parse=parse))
    for choices in ({}, {"verbose": True, "top": 0}):
        rows = rows_of(found, "Heads to look at", **choices)
        assert [rows["L0H1"][name] for name in ("Name", "Score", "Guess", "On this text")] == [
            "nsubj",
            "0.70",
            "0.40",
            here,
        ]
    assert [rows["L1H0"][name] for name in ("Name", "Score", "Guess")] == ["", "", ""]


def test_the_summary_counts_heads_by_kind_and_layer_and_names_the_best_of_each():
    analysis = hand_made(patterns=torch.cat([by_design(6), by_design(6)], 1))
    for count in ("4 of 8 heads look at", "2 spread over", "2 rest on"):
        assert count in first_lines(analysis)
    summary = analysis.document()["summary"]
    assert (summary["heads"], summary["n"], summary["layers"][1]["sink"]) == (8, 4, 2)
    kinds = {kind: entry["heads"] for kind, entry in summary["kinds"].items()}
    assert {kind: heads for kind, heads in kinds.items() if heads} == {"sink": 2, "local": 4, "broad": 2}
    assert summary["kinds"]["local"]["labels"] == {"previous-token": 2, "current-token": 2}
    assert (summary["kinds"]["local"]["best"]["id"], summary["kinds"]["unnamed"]["best"]) == ("L0H0", None)


@pytest.mark.parametrize("profile", [None, PROFILE])
def test_the_first_screen_is_at_most_22_lines_and_no_two_columns_have_one_title(profile: Any):
    analysis = hand_made(patterns=by_design(6).repeat(4, 8, 1, 1), profile=profile)
    assert len(analysis.report(width=100).splitlines()) < 22  # the last one says where to look
    assert len(analysis.report(width=100, verbose=True).splitlines()) > 30
    (first,) = tables_of(analysis)
    assert len(first.rows) <= 7
    (asked_for,) = tables_of(analysis, maps=("local",))
    assert "Local" in [column.heading for column in asked_for.columns]
    for table in (first, *tables_of(analysis, verbose=True)):
        titles = [column.header for column in table.columns]
        assert len(set(titles)) == len(titles) > 1


def test_heads_that_cannot_be_told_apart_are_counted_and_not_named():
    alike = hand_made(patterns=by_design(6)[:1, :1].repeat(2, 6, 1, 1))
    assert patterns_of(alike)["previous-token"]["Strongest heads"] == "12 heads 1.00"


RESTING, PREVIOUS = 0.75 * first_pattern(12) + 0.25 * previous_pattern(12), previous_pattern(12)


def test_a_head_is_counted_as_a_sink_and_for_what_it_does_otherwise():
    analysis = analysis_of(RESTING, PREVIOUS)
    assert [head.label for head in analysis.heads] == ["sink; previous-token", "previous-token"]
    kinds = {kind: entry["heads"] for kind, entry in analysis.document()["summary"]["kinds"].items()}
    assert (kinds["sink"], kinds["local"], kinds["unnamed"]) == (1, 2, 0)
    for named in ("sink", "previous-token", "local"):
        assert "L0H0" in [str(head.id) for head in analysis.select([named])]


@pytest.mark.parametrize("width", [60, 80])
def test_labels_and_roles_are_never_cut(width: int):
    roles = [replace(role("syntactic:conj", 0.7, 0.4), direction="dependent_to_head", n=12345), role("sink", 0.65, 0.1)]
    profile = profile_of({"L0H0": roles, "L0H1": [role("previous-token", 0.9, 0.1)]})
    text = analysis_of(RESTING, PREVIOUS, profile=profile).report(width=width, top=0)
    assert re.search(r"sink; .*\n.*previous-token", text)
    assert [part in text for part in ("…", "conj", "beside")] == [False, True, True]
    text = analysis_of(RESTING, PREVIOUS, profile=profile).report(width=width)
    assert [part in text for part in ("…", "conj ", "12,345", "previous ")] == [False, True, True, True]


def test_heads_selected_by_a_role_show_that_role_the_best_first():
    """Whatever other roles they have; a relation found in both directions says which head finds which."""
    to_verb, to_object = {"direction": "dependent_to_head"}, {"direction": "head_to_dependent"}
    det = role("syntactic:det", 0.9, 0.4, **to_verb)
    profile = profile_of(
        {
            "L0H0": [det, role("syntactic:obj", 0.6, 0.4, **to_object)],
            "L0H1": [role("syntactic:obj", 0.5, 0.4, **to_verb)],
            "L1H0": [det, role("syntactic:obj", 0.7, 0.4, **to_verb)],
        }
    )
    rows = rows_of(hand_made(profile=profile), "Heads", select=("obj",)).items()
    found = [(head, row["Over the corpus"].split()[-1], row["Name"], row["Score"]) for head, row in rows]
    expected = [("L1H0", "verb", "0.70"), ("L0H0", "object", "0.60"), ("L0H1", "verb", "0.50")]
    assert found == [(head, end, "obj", score) for head, end, score in expected]


def test_the_farthest_heads_come_first_whatever_their_long_range_score():
    """L0H0 spreads over far tokens, L0H1 chooses tokens 5 away, L0H2 the previous token, L0H3 rests on the sink."""
    positions = torch.arange(12)
    far = ((positions[:, None] - positions).abs() >= 6).double()
    at_5 = torch.eye(12)[[*range(5, 12), *range(2, 7)]]
    analysis = analysis_of(far / far.sum(1, keepdim=True), at_5, PREVIOUS, first_pattern(12))
    assert analysis.head("L0H0").statistics["long_range"] < analysis.head("L0H1").statistics["long_range"]
    lines = analysis.report(width=170, top=0).splitlines()
    (line,) = [line for line in lines if line.startswith("Farthest")]
    assert re.findall(r"L0H\d", line) == ["L0H0", "L0H1"]


def test_a_text_too_short_for_labels_has_a_sentence_instead_of_tables_unless_they_are_asked_for():
    analysis = hand_made(labels=("[CLS]", "a", "[SEP]"), special=(0, 2), patterns=by_design(3))
    assert "1 token besides sinks" in first_lines(analysis)
    assert tables_of(analysis) == tables_of(analysis, maps=("sink",)) == []
    assert len(tables_of(analysis, select=("L0H0",))) == 1
    assert "too short" in first_lines(analysis, top=5)


def test_the_clearest_of_a_kind_is_so_by_its_own_score():
    """A sink that also attends to the previous token is no clearer sink for it."""
    analysis = analysis_of(0.7 * first_pattern(12) + 0.3 * PREVIOUS, 0.85 * first_pattern(12) + 0.15 / 12)
    assert [head.label for head in analysis.heads] == ["sink; previous-token", "sink"]
    assert analysis.document()["summary"]["kinds"]["sink"]["best"]["id"] == "L0H1"


def test_heads_with_a_role_over_the_corpus_stand_first_and_say_what_this_text_shows_of_it():
    rows = rows_of(hand_made(profile=profile_of({"L1H1": [role("previous-token", 0.5, 0.4)]})), "Heads to look at")
    assert [*rows][:2] == ["L1H1", "L0H0"]
    assert (rows["L1H1"]["Score"], rows["L1H1"]["On this text"]) == ("0.50", "no (0.27)")
    assert (rows["L0H0"]["Score"], rows["L0H0"]["On this text"]) == ("", "previous (1.00)")


@pytest.mark.parametrize(
    ("head", "roles", "parse", "shown"),
    [
        ("L0H0", [role("previous-token", 0.9, 0.1)], PARSE, "yes (1.00)"),
        ("L1H0", [role("sink", 0.9, 0.1)], PARSE, "yes (1.00)"),
        ("L1H0", [role("previous-token", 0.9, 0.1)], PARSE, "mostly sinks"),
        ("L0H0", [replace(role("syntactic:nsubj", 0.7, 0.4), direction="head_to_dependent")], PARSE, "too few"),
        ("L0H0", [role("syntactic:nsubj", 0.7, 0.4)], OBJ, "none here"),
        ("L0H0", [role("syntactic:nsubj", 0.7, 0.4)], None, "not parsed"),
        ("L0H0", [role("coreference", 0.7, 0.4)], PARSE, "corpus only"),
        ("L0H0", [role("induction", 0.7, 0.4)], PARSE, "none here"),
    ],
)
def test_what_this_text_shows_of_a_role_is_said_and_what_it_cannot_show(head: str, roles: Any, parse: Any, shown: str):
    analysis = hand_made(profile=profile_of({head: roles}), parse=parse)
    assert rows_of(analysis, "Heads to look at")[head]["On this text"] == shown


# --- any table

ROWS = [("a long name of a head", 0.25), ("b", 0.5)]
COLUMNS = [
    Field[tuple[str, float]]("Name", lambda row: row[0]),
    Field("Score above all", lambda row: row[1], "0–1"),
    Field("Detail", lambda row: row[1] + 1, detail=True),
    Field("Last", lambda row: row[1] + 2),
]


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
    lines = [line.rstrip() for line in plain_text(Table("Title", COLUMNS, ROWS), width).splitlines()]
    assert row in lines
    assert max(map(len, lines)) <= width
    assert " ".join(lines).endswith(f": {left_out}.") == bool(left_out)


@pytest.mark.parametrize(("top", "listed"), [(1, ROWS[:1]), (2, ROWS), (0, ROWS), (None, ROWS)])
def test_the_first_rows_are_counted_and_the_file_that_has_all_is_named(top: int | None, listed: Any):
    first = Table("Heads", COLUMNS, ROWS, name="heads").first(top, "heads.csv", order="the largest first")
    assert (first.rows, first.name, "heads.csv" in first.caption) == (listed, "heads", len(listed) < 2)
    assert first.title.startswith("Heads (1 of 2, " if len(listed) < 2 else "Heads (2, ")


def test_rows_may_be_the_entries_of_the_document():
    table = Table("", [Field("Head", name="id"), Field(name="score")], [{"id": "L0H0", "score": 0.5}])
    assert table.entries() == table.rows
    assert [cell.plain for column in table.cells() for cell in column] == ["L0H0", "0.50"]


def test_a_value_is_found_by_its_name_or_path_and_none_where_a_part_of_it_is_none():
    row = SimpleNamespace(best={"head": HeadId(1, 2)}, none=None)
    assert Field[Any](value="best.head", name="id").value_for(row) == HeadId(1, 2)
    assert Field[Any](value="none.head").value_for(row) is None
    assert Field[Any](name="a.b").value_for({"a.b": 1}) == 1
    assert Field[Any](name="b").value_for({"a.b": 1}) is None
    with pytest.raises(AttributeError):
        Field[Any](name="misspelt").value_for(row)


def test_a_column_is_headed_by_its_title_or_its_name_in_words():
    assert Field[Any](name="total_effect", unit="nats").header == "Total effect\n(nats)"
    assert Field[Any]("n", name="label_n").heading == "n"


def test_a_document_has_heads_by_name_records_by_key_and_lists():
    head, estimate, decision = HeadId(1, 2), Estimate(0.5, 0.25, 1.0), Decision("good", 0.75, (0.0, 1.0))
    assert plain_value({"of": [(head, Path("a.txt"))], "damage": estimate}) == {
        "of": [["L1H2", "a.txt"]],
        "damage": {"value": 0.5, "interval": [0.25, 1.0]},
    }
    assert plain_value(decision) == {"label": "good", "probability": 0.75, "logits": [0.0, 1.0], "right": None}
    assert plain_value(Arc(0, 1, "det")) == {"dependent": 0, "head": 1, "relation": "det"}


def test_the_ends_of_an_interval_are_columns_of_their_own():
    columns = [interval_field(write=str), interval_field("b_interval", "b.ends", write=str)]
    table = Table("", columns, [{"interval": (0.0, 0.5), "b": {"ends": (1.0, 2.0)}}, {}])
    assert table.csv() == "low,high,b_low,b_high\n0.0,0.5,1.0,2.0\n,,,\n"


def test_a_line_below_the_rule_and_a_caption_stand_below_the_rows():
    text = plain_text(Table("Title", COLUMNS, ROWS, ["uniform", 0.1, 1.1, 2.1], "and so on"), 60)
    assert re.findall(r"^(b|uniform|and) ", text, re.MULTILINE) == ["b", "uniform", "and"]


def test_no_largest_difference_is_named_where_it_may_be_rounding():
    result = result_of("compare")
    assert "none" not in result.report(width=170)
    assert replace(result, floor=2.0).report(width=170, top=0).count("none") == len(result.heads)


# --- what reaches the terminal and the files


@pytest.mark.parametrize("hostile", ["\x1b[31mred", "\u202eover", "a\0b", "\u2067he\u2069", "\x9b31m"])
def test_no_cell_of_a_table_steers_the_terminal(hostile: str):
    text = plain_text(Table("", [Field("Relation", lambda row: row)], [hostile, "[bold]nsubj"]), 80)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "[bold]nsubj" in text


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_no_cell_of_a_csv_file_is_a_formula(text: str):
    cells = {"token": text, "corpus": ("=a.txt", "b.txt"), "value": -1.5}
    (row,) = csv.DictReader(io.StringIO(csv_text([*cells], [cells])))
    assert row == {"token": f"'{text}", "corpus": "'=a.txt; b.txt", "value": "-1.5"}


def test_captions_neither_strike_out_nor_link():
    captions = [("a.png", "a ~~b~~ of https://x.org/y, www.x.org, WWW.x.org and me@x.org: 1")]
    text = caption_files(captions)[CAPTIONS]
    for markup in ("~~", "https://", "www.", "WWW.", "e@x"):
        assert markup not in text
    assert "org: 1" in text
    assert read_captions(text) == captions


@pytest.mark.parametrize("value", [-0.0, -1e-9, -0.004, 0.004])
def test_no_zero_has_a_minus_wherever_signed_numbers_are_written(value):
    assert (rounded(value), signed(value / 1e4), percent(value / 10)) == ("0.00", "0.00", "0 %")
    assert (counted(1, "text"), counted(2001, "text")) == ("1 text", "2,001 texts")
    assert format_number(value) == "0.00"
    assert (rounded(-0.126), signed(-0.126), signed(0.126)) == ("−0.13", "−0.13", "+0.13")
    assert (signed(-0.004), signed(0.0012), signed(1.2e-5)) == ("−0.0040", "+0.0012", "+1.2e-05")


def test_what_is_not_all_is_not_100_percent():
    """2,757 of 2,769 cases are 99.57 %; a sum of shares is 1 but for rounding."""
    found = [percent(share) for share in (2757 / 2769, 0.99499, 0.9999, 1 - 1e-7, 1.0, 1.2)]
    assert found == ["99.5 %", "99 %", "99.9 %", "100 %", "100 %", "120 %"]


def test_the_bar_is_on_the_terminal_while_what_a_library_prints_is_held_back(monkeypatch: pytest.MonkeyPatch):
    terminal, held = io.StringIO(), io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress(quiet=False) as tell, redirect_stderr(held):
        tell("converting", 1, 2)
        print("a library", file=sys.stderr)
        assert "converting" in terminal.getvalue()
    assert held.getvalue() == "a library\n"


def test_results_that_cannot_be_printed_are_an_error(monkeypatch: pytest.MonkeyPatch, capsys):
    print_results({"n": 3}, lambda: "3 letters\n", as_json=False)
    print_results({"n": 3}, lambda: "3 letters\n", as_json=True)
    assert capsys.readouterr().out == '3 letters\n{\n "n": 3\n}\n'
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError):
        print_results({"n": 3}, lambda: "3 letters\n", as_json=False)
