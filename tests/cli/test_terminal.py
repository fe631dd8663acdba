"""What reaches the terminal and the tables: nothing that steers it, words that fit their numbers, streams that fail."""

import csv
import io
import sys
from contextlib import redirect_stderr

import pytest

from attnviz.cli.terminal import print_results, progress
from attnviz.errors import OutputError
from attnviz.figures.page import format_number
from attnviz.present.documents import CAPTIONS, caption_files, csv_text
from attnviz.present.fields import Field
from attnviz.present.tables import RowTable, plain_text
from attnviz.wording import counted, percent, rounded, signed
from tests.support.captions import read_captions


@pytest.mark.parametrize("hostile", ["\x1b[31mred", "\u202eover", "a\0b", "\u2067he\u2069", "\x9b31m"])
def test_no_cell_of_a_table_steers_the_terminal(hostile: str):
    text = plain_text(RowTable("", [Field("Relation", lambda row: row)], [hostile, "[bold]nsubj"]), 80)
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
