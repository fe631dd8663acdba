"""--table: the CSV file as a table of a paper, in LaTeX and Markdown."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

import attnviz
from attnviz.commands.profile.show import paper_table_of
from attnviz.present.documents import LATEX_CAPTIONS, paper_table
from attnviz.present.latex import latex
from attnviz.present.report import views_of
from attnviz.present.view import ViewOptions
from attnviz.profiles.store import read_profile
from tests.conftest import needs_minilm, needs_parser
from tests.support.families import first_of
from tests.support.hand_made import by_design, hand_made
from tests.support.results import MEASURES, result_of


@pytest.mark.parametrize(
    ("kind", "between", "end", "name"), [("tex", " & ", r" \\", r"my\_model"), ("md", " | ", " |", "my_model")]
)
def test_the_table_has_the_numbers_of_the_csv_file(kind: str, between: str, end: str, name: str):
    analysis = hand_made(name="my_model")
    text = analysis.paper_table(ViewOptions(table=kind))
    for row in analysis.table(ViewOptions()).csv_rows()[1]:
        assert f"{row['id']}{between}{row['label']}" in text
        assert f"{between}{row['label_n']}{end}" in text
    assert name in text


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
    assert ("question mark" in table) == marked


def test_a_column_shows_two_digits_of_its_largest_number_and_an_empty_one_is_left_out():
    columns = ("id", "cosine", "loss", "n", "layer_baseline")
    values = [("L0H0", 0.00349, None, 7, 1.0), ("L0H1", -9.7e-05, None, 8, 0.5)]
    rows = [dict(zip(columns, each, strict=True)) for each in values]
    text = paper_table("md", columns, rows, "Some heads.", "tab:some")
    assert "| id | cosine | n | layer baseline |" in text
    assert "| --- | ---: | ---: | ---: |" in text
    assert "| L0H0 | 0.0035 | 7 |  |" in text  # the baseline of a share of uniform attention is none
    assert "| L0H1 | −0.0001 | 8 | 0.50 |" in text


def test_a_table_longer_than_a_page_can_break():
    rows = [{"id": f"L0H{i}", "sink": 0.5} for i in range(51)]
    short, long = (paper_table("tex", ("id", "sink"), some, "Heads.", "tab:h") for some in (rows[:-1], rows))
    assert "longtable" not in short
    assert [long.count(part) for part in (r"{longtable}", r"\caption{", r"\label{tab:h}", r"\endhead")] == [2, 1, 1, 1]
    assert long.count(r" & 0.50 \\") == 51


def test_the_caption_says_how_many_heads_are_listed_of_how_many():
    analysis = hand_made()
    whole, one = (analysis.paper_table(ViewOptions(table="md", select=select)) for select in ((), ("L0H0",)))
    assert "listed" not in whole
    assert f"1 of {len(analysis.heads)} heads listed" in one


TRANSPARENT = re.compile(r"\\ifdefined\\Umathcode [^\\]*\\else (\[[^]]*\])\\fi\{\}")
ALLOWED = re.compile(r"[\x20-\x7e\n–—‘’“”…À-ÏÑ-ÖØ-Ýß-ïñ-öø-ýÿŒœŁłŠšŽžČčĆćŃńŚśŹźŻżŘřĚěŮůŐőŰűĞğİıŞş]*")
"""What pdfLaTeX prints without a package: all of it was compiled by the first of these tests."""


def refused(*contents: str) -> str:
    """What pdfLaTeX says against these, below the packages that the guide names; without it the characters it lacks."""
    if shutil.which("pdflatex") is None:
        return "".join(ALLOWED.sub("", TRANSPARENT.sub(r"\1", content)) for content in contents)
    with tempfile.TemporaryDirectory() as folder:
        begin = r"\documentclass{article}\usepackage{booktabs, longtable}\begin{document}"
        lines = [begin, *contents, r"\end{document}"]
        Path(folder, "a.tex").write_text("\n\n".join(lines), encoding="utf-8")
        call = ["pdflatex", "-interaction=nonstopmode", "-no-shell-escape", "a.tex"]
        done = subprocess.run(call, check=False, cwd=folder, capture_output=True, timeout=60)
        log = done.stdout.decode(errors="replace")
        return "\n".join(line for line in log.splitlines() if line.startswith("!")) or "!" * done.returncode


def test_all_characters_that_are_left_alone_and_all_that_are_replaced_compile():
    plain = "".join(map(chr, range(0x20, 0x250))) + "–—‘’“”…"
    every = plain + "−×→←↑‖≤≥≠≈±·√∞∑°ᵀ␣λΣμω⁻⁶₁猫が\u05d0🦄ᶠ½ﬁ\u0301\n\n\x1b--''"
    assert refused(latex(every), rf"\begin{{figure}}\caption{{{latex(every)}}}\end{{figure}}") == ""
    assert latex("Σ|λ| − 10⁻⁶ 猫") == (
        r"$\Sigma$\textbar{}$\lambda$\textbar{} $-$ 10$^{-6}$ \ifdefined\Umathcode 猫\else [U+732B]\fi{}"
    )


@pytest.mark.parametrize("command", first_of(MEASURES, "heads", "ablate"))
def test_captions_and_tables_of_every_command_compile(command: str, tmp_path: Path, undrawn: None):
    result = result_of(command)
    result.save(tmp_path, figures=["all"] if views_of(command) else (), table="tex")
    captions = tmp_path / LATEX_CAPTIONS
    written = [path.read_text(encoding="utf-8") for path in tmp_path.glob("*.tex") if path != captions]
    if captions.exists():
        written.append(f"\\begin{{figure}}\n{captions.read_text(encoding='utf-8')}\n\\end{{figure}}")
    assert written
    assert refused(*written) == ""


@pytest.mark.thorough
def test_a_profile_lists_roles_that_pass_without_thresholds_and_so_does_a_stored_one(tmp_path: Path):
    result = result_of("profile")
    result.save(tmp_path, figures=())
    passing = sum(role.holds for role in result.roles)
    table = result.paper_table(ViewOptions(table="tex"))
    assert 0 < passing < len(result.roles)
    assert table.count(r" \\" + "\n") == passing + 1 + 2 * ("longtable" in table)
    assert f"; {passing} of {len(result.roles):,} rows listed" in table
    stored = paper_table_of(read_profile(tmp_path), "tex")
    assert stored.partition(r"\toprule")[2] == table.partition(r"\toprule")[2]
    assert refused(stored) == ""


@needs_minilm
@needs_parser
def test_heads_that_a_role_selected_are_listed_with_that_role():
    analysis = attnviz.analyze("The cat that I saw ran away from the dog and ate my fish")
    table = analysis.paper_table(ViewOptions(table="md", select=("obj",)))
    header, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if re.match(r"\| (id|L)", line)]
    assert len(rows) > 2
    assert {row[header.index("role")] for row in rows} == {"syntactic:obj"}
    (entry,) = [head for head in analysis.document(select=("obj",))["heads"] if head["id"] == "L2H1"]
    assert entry["role"]["name"] != "syntactic:obj"  # the document says what it does most clearly
