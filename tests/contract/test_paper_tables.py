"""--table: the CSV file as a table of a paper, in LaTeX and Markdown."""

import csv
import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.errors import UsageError
from attnviz.present.documents import paper_table
from attnviz.present.view import ViewOptions
from tests.support.hand_made import by_design, hand_made


@pytest.mark.parametrize("kind", ["tex", "md"])
def test_the_table_has_the_numbers_of_the_csv_file_in_the_columns_asked_for(kind: str, tmp_path: Path):
    hand_made(name="my_model").save(tmp_path, figures=(), table=kind, columns=["sink", "id"])
    rows = list(csv.DictReader(io.StringIO((tmp_path / "heads.csv").read_text())))
    text = (tmp_path / f"heads.{kind}").read_text()
    between, end = (" & ", r" \\") if kind == "tex" else (" | ", " |")
    for row in rows:
        assert f"{float(row['sink']):.2f}{between}{row['id']}{end}" in text
    assert ("my\\_model" if kind == "tex" else "my_model") in text
    assert f"{between}id{end}" in text


@pytest.mark.parametrize(
    ("kind", "text", "marked"), [("tex", "abcdef", True), ("md", "abcdef", True), ("md", "", False)]
)
def test_labels_that_are_indications_only_are_marked_and_explained(kind: str, text: str, marked: bool):
    n = len(text) or 14
    analysis = hand_made(labels="abcdefghijklmn"[:n], special=(0,), patterns=by_design(n))
    table = analysis.paper_table(ViewOptions(table=kind))
    for head in analysis.heads:
        assert head.labelled.shown.endswith("?") == marked
        assert f" {head.labelled.shown} " in table
    assert ("A question mark: an indication only, n below 10." in table) == marked
    without = analysis.paper_table(ViewOptions(table=kind, columns=("id", "sink")))
    assert "question mark" not in without


def test_the_latex_table_has_rules_a_caption_and_a_label(tmp_path: Path):
    hand_made().save(tmp_path, figures=(), table="tex")
    text = (tmp_path / "heads.tex").read_text()
    for part in (r"\toprule", r"\midrule", r"\bottomrule", r"\caption{", r"\label{tab:attnviz-heads}", r"\end{table}"):
        assert part in text
    columns = text.split(r"\begin{tabular}{")[1].split("}")[0]
    assert columns.startswith("ll")
    assert all(line.count(" & ") == len(columns) - 1 for line in text.splitlines() if line.endswith(r" \\"))


def test_an_unknown_column_is_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(UsageError, match=r"no column 'snk'.* Did you mean sink"):
        hand_made().save(tmp_path / "out", table="md", columns=["snk"])
    assert not list((tmp_path / "out").glob("*"))


def test_a_column_shows_two_digits_of_its_largest_number_and_an_empty_one_is_left_out():
    content = "id,cosine,loss,n,layer_baseline\nL0H0,0.00349,,7,1.0\nL0H1,-9.7e-05,,8,0.5\n"
    text = paper_table(content, "md", (), "Some heads.", "tab:some")
    assert "| id | cosine | n | layer baseline |" in text
    assert "| L0H0 | 0.0035 | 7 |  |" in text  # the baseline of a share of uniform attention is none
    assert "| L0H1 | −0.0001 | 8 | 0.50 |" in text
    assert "| L0H0 |  |" in paper_table(content, "md", ("id", "loss"), "", "")


def test_a_table_longer_than_a_page_can_break():
    rows = "".join(f"L0H{i},0.5\n" for i in range(51))
    short, long = (paper_table("id,sink\n" + text, "tex", (), "Heads.", "tab:h") for text in (rows[:-10], rows))
    assert r"\begin{table}" in short
    assert "longtable" not in short
    assert r"\usepackage{booktabs, longtable}" in long
    assert r"\begin{table}" not in long
    for part in (r"\begin{longtable}{lr}", r"\caption{Heads.}", r"\label{tab:h} \\", r"\endhead", r"\end{longtable}"):
        assert long.count(part) == 1
    assert long.count(r" & 0.50 \\") == 51


def test_the_caption_says_how_many_heads_are_listed_of_how_many():
    analysis = hand_made()
    assert " listed" not in analysis.paper_table(ViewOptions(table="md"))
    n = len(analysis.heads)
    assert f"; 1 of {n} heads listed (attnviz" in analysis.paper_table(ViewOptions(table="md", select=("L0H0",)))


def test_the_caption_of_several_texts_names_no_class(bert_folder: Path):
    result = attnviz.analyze_each(["the cat ran", "a dog"], bert_folder, syntax=False)
    assert "caption{Analysis of " in result.paper_table(ViewOptions(table="tex"))


def test_other_commands_have_tables_too(tmp_path: Path, bert_folder: Path):
    sides = [attnviz.analyze(text, bert_folder, syntax=False) for text in ("the cat ran", "the dog ran")]
    comparison = attnviz.compare(*sides)
    comparison.save(tmp_path, figures=(), table="md")
    text = (tmp_path / "compare.md").read_text()
    assert "| rank | id | distance |" in text
    unsure = [head for head in comparison.heads if not head.before.certain]
    assert unsure  # of so few tokens
    assert all(f" {head.before.shown} | {head.after.shown} |" in text for head in comparison.heads)
    assert "A question mark: an indication only, n below 10." in text


def test_the_command_line_takes_names_with_commas(tmp_path: Path, bert_folder: Path):
    typed = [
        "--model",
        str(bert_folder),
        "--no-figures",
        "--table",
        "md",
        "--columns",
        "id,sink",
        "--out",
        str(tmp_path),
    ]
    assert CliRunner().invoke(app, ["heads", "the cat ran", *typed]).exit_code == 0
    assert "| id | sink |" in (tmp_path / "heads.md").read_text()
