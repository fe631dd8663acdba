"""--table: the CSV file as a table of a paper, in LaTeX and Markdown."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

import attnviz
from attnviz.commands.profile.show import paper_table_of
from attnviz.models.sources import find_checkpoint
from attnviz.present.documents import LATEX_CAPTIONS
from attnviz.present.fields import Table, plain
from attnviz.present.latex import latex
from attnviz.present.paper_tables import paper_table, text_width
from attnviz.present.published import DESCRIBING
from attnviz.present.report import views_of
from attnviz.present.view import ViewOptions
from attnviz.profiles.store import find_profile, read_profile
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
    text = paper_table("md", Table("", plain(*columns), rows), (), "Some heads.", "tab:some")
    assert "| head | cosine | n | layer baseline |" in text
    assert "| --- | ---: | ---: | ---: |" in text
    assert "| L0H0 | 0.0035 | 7 |  |" in text  # the baseline of a share of uniform attention is none
    assert "| L0H1 | −0.0001 | 8 | 0.50 |" in text


@pytest.mark.parametrize(("role", "is_said"), [("sink", True), ("induction", False)])
def test_a_role_that_only_describes_is_said_to_and_numbers_are_written_as_elsewhere(role: str, is_said: bool):
    rows = [{"role": role, "score": 0.74, "untrained": 0.085, "n": 26332, "holds": True}]
    text = paper_table("md", Table("", plain(*rows[0]), rows), (), "Some heads.", "tab:some")
    assert f"| {role} | 0.74 | 0.09 | 26,332 | True |" in text
    assert (DESCRIBING in text) == is_said


def tex_of(rows: list[dict[str, Any]], caption: str = "Heads.") -> str:
    return paper_table("tex", Table("", plain(*rows[0]), rows), (), caption, "tab:h")


def test_a_table_longer_than_a_page_is_several_with_one_caption():
    rows = [{"id": f"L0H{i}", "sink": 0.5} for i in range(2000)]
    long = tex_of(rows)
    parts = long.count(r"\begin{table}")
    assert [long.count(part) for part in (r"\caption{", r"\label{tab:h}", r"\ref{tab:h}")] == [1, 1, parts - 1]
    assert (parts > 1, long.count(r" & 0.50 \\")) == (True, 2000)
    assert refused(long) == ""


def test_ends_of_an_interval_and_the_name_of_a_guess_stand_with_their_number():
    row = {"id": "L0H0", "score": 0.71, "low": 0.6, "high": 0.8, "baseline": 0.4, "baseline_name": "chance"}
    text = tex_of([row, row | {"low": None, "high": None}])
    header, first, second = re.findall(r"^(?:head|L0).*", text, re.M)
    assert (header.count(" & "), "score [low, high]" in header, "baseline name" in text) == (2, True, False)
    assert first == r"L0H0 & 0.71 [0.60, 0.80] & 0.40 chance \\"
    assert second == r"L0H0 & 0.71 & 0.40 chance \\"
    alone = tex_of([{"id": "L0H0", "gain_low": 0.1, "gain_high": 0.5}])
    assert "head & gain" in alone
    assert "L0H0 & {[0.10, 0.50]}" in alone


@pytest.mark.parametrize(
    ("length", "environment", "breaks", "kept"),
    [(1, "table", False, 4), (9, "table", True, 4), (35, "table*", True, 4), (70, "table", True, 3)],
)
def test_a_table_is_as_wide_as_its_columns_need(length: int, environment: str, breaks: bool, kept: int):
    row = {"id": "L0H0", "what": " ".join(["entropy"] * min(length, 9)), "n": 7, "last": "x" * length}
    text = tex_of([row])
    assert f"\\begin{{{environment}}}" in text
    assert (r"\parbox[t]" in text) == breaks
    assert text.partition(r"\midrule")[2].count(" & ") == kept - 1
    assert ("last" in text.partition(r"\label")[0]) == (kept < 4)  # the caption says what is left out


def test_the_caption_says_how_many_heads_are_listed_of_how_many():
    analysis = hand_made()
    whole, one = (analysis.paper_table(ViewOptions(table="md", select=select)) for select in ((), ("L0H0",)))
    assert "listed" not in whole
    assert f"1 of {len(analysis.heads)} heads listed" in one


TRANSPARENT = re.compile(r"\\ifdefined\\Umathcode [^\\]*\\else (\[[^]]*\])\\fi\{\}")
ALLOWED = re.compile(r"[\x20-\x7e\n–—‘’“”…À-ÏÑ-ÖØ-Ýß-ïñ-öø-ýÿŒœŁłŠšŽžČčĆćŃńŚśŹźŻżŘřĚěŮůŐőŰűĞğİıŞş]*")
"""What pdfLaTeX prints without a package: all of it was compiled by the first of these tests."""


# Classes of papers: the standard one, and what matters of ACL's and of NeurIPS' styles, which are not in TeX Live.
PLAIN = r"\documentclass{article}\usepackage{booktabs}"
TWO_COLUMNS = r"\documentclass[twocolumn]{article}\usepackage{booktabs}"
LETTERS_OF_11 = r"\documentclass[11pt]{article}\usepackage{booktabs}"
ACL = (
    r"\documentclass[11pt,twocolumn]{article}\usepackage{times,latexsym,booktabs}\setlength\textwidth{16cm}"
    r"\setlength\textheight{24.7cm}\setlength\columnsep{.6cm}\usepackage{hyperref}"
)
NEURIPS = (
    r"\documentclass{article}\usepackage{times,booktabs}\setlength\textwidth{5.5in}\setlength\textheight{9in}"
    r"\usepackage{hyperref}"
)
CLASSES = {"article": PLAIN, "two columns": TWO_COLUMNS, "11 points": LETTERS_OF_11, "ACL": ACL, "NeurIPS": NEURIPS}


def refused(*contents: str, begin: str = PLAIN, wrong: str = "^!") -> str:
    """What pdfLaTeX says against these, below the packages that the guide names; without it the characters it lacks."""
    if shutil.which("pdflatex") is None:
        return "".join(ALLOWED.sub("", TRANSPARENT.sub(r"\1", content)) for content in contents)
    with tempfile.TemporaryDirectory() as folder:
        lines = [begin, r"\begin{document}Text.", *contents, r"\end{document}"]
        Path(folder, "a.tex").write_text("\n\n".join(lines), encoding="utf-8")
        call = ["pdflatex", "-interaction=nonstopmode", "-no-shell-escape", "a.tex"]
        done = subprocess.run(call, check=False, cwd=folder, capture_output=True, timeout=60)
        log = done.stdout.decode(errors="replace")
        return "\n".join(line for line in log.splitlines() if re.search(wrong, line)) or "!" * done.returncode


def test_all_characters_that_are_left_alone_and_all_that_are_replaced_compile():
    plain = "".join(map(chr, range(0x20, 0x250))) + "–—‘’“”…"
    every = plain + "−×→←↑‖≤≥≠≈±·√∞∑°ᵀ␣λΣμω⁻⁶₁猫が\u05d0🦄ᶠ½ﬁ\u0301\n\n\x1b--''"
    assert refused(latex(every), rf"\begin{{figure}}\caption{{{latex(every)}}}\end{{figure}}") == ""
    assert latex("Σ|λ| − 10⁻⁶ 猫") == (
        r"$\Sigma$\textbar{}$\lambda$\textbar{} $-$ 10$^{-6}$ \ifdefined\Umathcode 猫\else [U+732B]\fi{}"
    )


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdfLaTeX")
@pytest.mark.parametrize("kind", CLASSES)
def test_no_table_is_too_wide_or_too_long_for_a_paper(kind: str):
    tables = [result_of(command).paper_table(ViewOptions(table="tex")) for command in MEASURES]
    rows = [{"id": f"L{i}H0", "what": "the same words " * (i % 3 + 1), "n": i} for i in range(70)]
    tables.append(tex_of(rows, "A caption. " * 60))
    tables.append(paper_table_of(find_profile(find_checkpoint("minilm"), "*", print), "tex", ["syntactic"]))
    tables = [f"{table}\\clearpage" for table in tables]
    assert refused(*tables, begin=CLASSES[kind], wrong=r"^!|Overfull .hbox|Float too large") == ""


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdfLaTeX")
@pytest.mark.parametrize("font", ["", r"\usepackage{times}"])
def test_texts_are_no_wider_than_was_reckoned(font: str):
    texts = [
        "0.55 [0.52, 0.59]",
        "previous-token",
        "dep→head",
        "the cat that i saw",
        "L11H8",
        "W_Q [CLS] 猫",
        "untrained",
    ]
    begin = rf"\documentclass[11pt]{{article}}{font}"
    boxes = [rf"\sbox0{{\footnotesize {latex(text)}}}\typeout{{!\the\wd0}}" for text in texts]
    widths = [float(width) for width in re.findall(r"^!([\d.]+)pt", refused(*boxes, begin=begin), re.M)]
    assert len(widths) == len(texts)
    for text, width in zip(texts, widths, strict=True):
        assert width <= text_width(text) <= 1.45 * width


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
    assert table.count(r" \\" + "\n") == passing + table.count(r"\toprule")
    assert f"; {passing} of {len(result.roles):,} rows listed" in table
    stored = paper_table_of(read_profile(tmp_path), "tex")
    assert stored.partition(r"\toprule")[2] == table.partition(r"\toprule")[2]
    assert refused(stored) == ""


@needs_minilm
@needs_parser
def test_heads_that_a_role_selected_are_listed_with_that_role():
    analysis = attnviz.analyze("The cat that I saw ran away from the dog and ate my fish")
    table = analysis.paper_table(ViewOptions(table="md", select=("obj",)))
    header, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if re.match(r"\| (head|L)", line)]
    assert len(rows) > 2
    assert {row[header.index("relation")] for row in rows} == {"obj"}
    (entry,) = [head for head in analysis.document(select=("obj",))["heads"] if head["id"] == "L2H1"]
    assert entry["role"]["name"] != "syntactic:obj"  # the document says what it does most clearly
