"""What reaches the terminal and the tables: nothing that steers it, words that fit their numbers, streams that fail."""

import csv
import inspect
import io
import sys
from contextlib import redirect_stderr
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from attnviz.cli.program import app
from attnviz.cli.runner import Job, Run, command
from attnviz.cli.terminal import print_results, progress
from attnviz.commands.heads.summary import labels_and_roles
from attnviz.figures.page import format_number
from attnviz.options import COMMANDS, Command
from attnviz.present.documents import CAPTIONS, caption_files, csv_text
from attnviz.present.fields import Field
from attnviz.present.tables import RowTable, plain_text
from attnviz.wording import counted, percent, rounded, signed
from tests.support.captions import read_captions


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


# --- tables, CSV, captions


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
    role = SimpleNamespace(role="related", relation=None, direction=None, score=value, baseline=-0.001, n=9)
    head: Any = SimpleNamespace(id="L0H0", shown="local", role=role, role_label="related")
    told = labels_and_roles(SimpleNamespace(has_role=lambda _: True), [head])  # type: ignore[arg-type]
    assert told.endswith(" score 0.00, baseline 0.00, n = 9)")
    assert (rounded(-0.126), signed(-0.126), signed(0.126)) == ("−0.13", "−0.13", "+0.13")
    assert (signed(-0.004), signed(0.0012), signed(1.2e-5)) == ("−0.0040", "+0.0012", "+1.2e-05")


def test_what_is_not_all_is_not_100_percent():
    """2,757 of 2,769 cases are 99.57 %; a sum of shares is 1 but for rounding."""
    found = [percent(share) for share in (2757 / 2769, 0.99499, 0.9999, 1 - 1e-7, 1.0, 1.2)]
    assert found == ["99.5 %", "99 %", "99.9 %", "100 %", "100 %", "120 %"]


# --- the command line


def test_the_bar_is_on_the_terminal_while_what_a_library_prints_is_held_back(monkeypatch: pytest.MonkeyPatch):
    terminal, held = io.StringIO(), io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress(quiet=False) as tell, redirect_stderr(held):
        tell("converting", 1, 2)
        print("a library", file=sys.stderr)
        assert "converting" in terminal.getvalue()
    assert held.getvalue() == "a library\n"


# --- the process


def test_a_command_that_only_prints_has_the_options_that_it_lists_and_tells_of_no_files(monkeypatch, capsys):
    known = {option.name: option for option in COMMANDS["heads"].options}
    text, output = ([known[name] for name in names] for names in (("text", "model", "device"), ("as_json", "quiet")))
    monkeypatch.setitem(COMMANDS, "letters", Command((), text=tuple(text), output=tuple(output)))

    @command
    def letters(run: Run, text: str, device: str) -> Job:
        told, as_json = {"model": run.options["model"], "n": len(text), "device": device}, run.options["as_json"]
        return Job(lambda: print_results(told, lambda: f"{len(text)} letters\n", as_json, run.quiet))

    options: dict[str, Any] = {"text": "cat", "model": ["minilm"], "device": ["cpu"], "quiet": False}
    assert {*inspect.signature(letters).parameters} == {*options, "as_json"}
    letters(as_json=False, **options)
    letters(as_json=True, **options)
    assert capsys.readouterr().out == '3 letters\n{\n "model": "minilm",\n "n": 3,\n "device": "cpu"\n}\n'
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(typer.Exit) as stopped:
        letters(as_json=False, **options)
    assert stopped.value.exit_code == 1
    assert capsys.readouterr().err == "attnviz: cannot print the results: standard output is closed.\n"
