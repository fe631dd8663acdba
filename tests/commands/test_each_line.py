"""``attnviz heads --each-line`` and ``attnviz.analyze_each``: several texts in one run."""

import csv
import json
import os
from itertools import count, islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import attnviz
from attnviz.cli import terminal
from attnviz.cli.program import app
from attnviz.commands.heads import texts as texts_measure
from attnviz.errors import TextError
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.tolerances import SUMS_32

LINES = ("the cat that i saw ran away", "the dog ran away and the house ran", "he was in a tree")
TOO_LONG = "the cat " * 30


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bert_folder: Path) -> Any:
    """Runs ``attnviz heads x.txt --each-line`` on these lines."""
    monkeypatch.chdir(tmp_path)

    def invoke(lines: str, *options: str, name: str = "x.txt") -> Result:
        Path(name).write_text(lines, encoding="utf-8")
        words = ["heads", name, "--each-line", "-m", os.path.relpath(bert_folder), "-o", "out", "--no-syntax", *options]
        return CliRunner().invoke(app, words)

    return invoke


def document() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path("out/heads-texts.json").read_text(encoding="utf-8"))
    return content


def test_the_spread_is_that_of_the_texts_alone():
    model, tokenizer = sharp_bert(), bert_tokenizer()
    result = attnviz.analyze_each(LINES, model, tokenizer=tokenizer, syntax=False)
    alone = [attnviz.analyze(text, model, tokenizer=tokenizer, syntax=False) for text in LINES]
    for head in result.heads:
        entropies = [analysis.head(head.id).statistics["entropy"] for analysis in alone]
        spread = head.statistics["entropy"]
        assert (spread.n, spread.min, spread.max) == (3, min(entropies), max(entropies))
        assert spread.mean == pytest.approx(fmean(entropies))
        assert spread.sd == pytest.approx(stdev(entropies))
        assert head.uniform["entropy"] == pytest.approx(fmean(each.context.uniform["entropy"] for each in alone))
        labels = [analysis.head(head.id).label for analysis in alone]
        assert head.labels == {label: labels.count(label) for label in labels}
        assert head.labels[head.label] == max(head.labels.values())
    causal = attnviz.analyze_each(LINES[:1], sharp_gpt2(), tokenizer=gpt2_tokenizer(), syntax=False).head("L0H0")
    nothing = causal.statistics["next"]  # no token sees the next one
    assert (nothing.n, nothing.mean, nothing.sd, nothing.min) == (0, None, None, None)
    assert causal.statistics["entropy"].sd is None
    assert result.verification.pattern_error == max(each.verification.pattern_error for each in alone)


@pytest.mark.usefixtures("undrawn")
def test_every_text_has_a_folder_and_a_line_and_blank_lines_are_skipped(run: Any, bert_folder: Path):
    text = f"{LINES[0]}\n\n  \n{LINES[1]}\n{LINES[0]}\n"
    assert run(text, "--figures", "none").exit_code == 0
    files = {"heads-texts.csv", "heads-texts.json", "heads.jsonl"}
    assert {path.name for path in Path("out").glob("[!.]*")} == files
    done = run(text, "--figures", "page", "--save-attention")
    assert done.exit_code == 0, done.output
    content = document()
    assert [(line["line"], line["text"]) for line in content["lines"]] == [(1, LINES[0]), (4, LINES[1]), (5, LINES[0])]
    folders = [line["folder"] for line in content["lines"]]
    assert folders[0] == folders[2] != folders[1]
    assert folders[0].startswith("the-cat-that-i-saw-ran-away-")
    assert {path.name for path in Path("out").iterdir() if path.is_dir()} == set(folders)
    assert all(
        Path(f"out/{folder}/{name}").exists() for folder in folders for name in ("heads.html", "attention.safetensors")
    )
    written = json.loads(Path(f"out/{folders[1]}/heads.json").read_text(encoding="utf-8"))
    alone = attnviz.analyze(LINES[1], bert_folder, syntax=False).document()
    assert written["heads"] == json.loads(json.dumps(alone["heads"]))
    assert files <= set(content["files"])
    with Path("out/heads-texts.csv").open(encoding="utf-8") as file:
        sink = next(row for row in csv.DictReader(file) if (row["id"], row["statistic"]) == ("L2H1", "sink"))
    of_head = next(head for head in content["heads"] if head["id"] == "L2H1")
    assert float(sink["mean"]) == of_head["statistics"]["sink"]["mean"]


@pytest.mark.draws
@pytest.mark.usefixtures("undrawn")
def test_rows_are_three_files_that_keep_ids_and_labels(run: Any):
    texts = [f"the {'cat ' * (number % 5)}ran" for number in range(60)]
    rows = "".join(f"r{number},{text},{number % 2},1999\n" for number, text in enumerate(texts))
    done = run(f"id,sentence,label,year\n{rows}", "--table", "md", name="x.csv")
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) <= 22 + len(texts)  # a row a text comes before the tables
    assert "year" in done.stdout  # a column that was not read
    written = {path.name for path in Path("out").glob("[!.]*")}
    assert written == {"heads-texts.csv", "heads-texts.json", "heads-texts.md", "heads.jsonl"}
    assert Path("out/heads-texts.md").read_text(encoding="utf-8").count("\n| L") == 12  # a row a head
    lines = list(map(json.loads, Path("out/heads.jsonl").read_text(encoding="utf-8").splitlines()))
    expected = [(f"r{number}", str(number % 2), number + 2) for number in range(len(texts))]
    assert [(line["id"], line["label"], line["line"]) for line in lines] == expected
    alone = attnviz.analyze(texts[3], sharp_bert(), tokenizer=bert_tokenizer(), syntax=False).head("L2H1")
    head = next(head for head in lines[3]["heads"] if head["id"] == "L2H1")
    assert (head["label"], head["entropy"]) == (alone.label, pytest.approx(alone.statistics["entropy"], abs=SUMS_32))
    assert [line["id"] for line in document()["lines"]] == [line["id"] for line in lines]


@pytest.mark.parametrize(
    ("lines", "options", "code", "message"),
    [
        (f"{LINES[0]}\n\n{TOO_LONG}\n", [], 1, "x.txt:3: "),
        ("\n \n", [], 1, "empty"),
        (LINES[0], ["--pair", "a"], 2, "--pair"),
        (LINES[0], ["--text-column", "text"], 2, "--text-column"),
        (LINES[0], ["--figures", "nonsense"], 2, "'nonsense'"),
        (LINES[0], ["--select", "obj"], 2, "'obj'"),
    ],
)
def test_what_cannot_be_read_is_one_line_before_anything_is_written(
    run: Any, lines: str, options: list[str], code: int, message: str
):
    done = run(lines, *options)
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path("out").exists()


def test_a_file_of_texts_is_not_taken_for_a_chat(tmp_path: Path):
    (tmp_path / "x.txt").write_text("the cat ran\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["heads", "--chat", str(tmp_path / "x.txt"), "--each-line", "-m", "no-model"])
    assert (done.exit_code, "x.txt" in done.stderr) == (2, True)


@pytest.mark.parametrize("texts", [[], [LINES[0], TOO_LONG], [1.5], "gone.txt", "trees.conllu"])
def test_what_are_no_texts_is_refused(texts: Any):
    with pytest.raises(attnviz.AttnvizError):
        attnviz.analyze_each(texts, sharp_bert(), tokenizer=bert_tokenizer())


@pytest.mark.parametrize(("error", "code"), [(attnviz.VerificationError("layer 0"), 3), (KeyboardInterrupt(), 130)])
def test_an_error_at_a_line_leaves_nothing(run: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int):
    read = texts_measure.Reader.read

    def wrong(self: Any, prompt: Any, *more: Any) -> Any:
        if prompt.source.text == LINES[2]:
            raise error
        return read(self, prompt, *more)

    monkeypatch.setattr(texts_measure.Reader, "read", wrong)
    done = run("\n".join(LINES), "--figures", "none")
    assert done.exit_code == code
    assert ("x.txt:3: layer 0" in done.stderr) == (code == 3)
    assert not Path("out").exists()


def test_each_row_is_printed_before_the_next_text_is_measured(run: Any, monkeypatch: pytest.MonkeyPatch):
    read_each = texts_measure.Reader.read_each

    def interrupted(*given: Any) -> Any:
        yield from islice(read_each(*given), 2)
        raise TextError("the third text")

    whole = run("\n".join(LINES)).stdout.splitlines()
    assert [row.startswith(f"x.txt:{number}: ") for number, row in enumerate(whole[:4], 1)] == [True] * 3 + [False]
    assert "x.txt:1: " not in run("\n".join(LINES), "--json").stdout
    monkeypatch.setattr(texts_measure.Reader, "read_each", interrupted)
    assert run("\n".join(LINES)).stdout.splitlines() == whole[:2]


@pytest.mark.parametrize("quiet", [False, True])
def test_where_no_terminal_shows_a_bar_progress_is_told_in_lines(
    quiet: bool, run: Any, monkeypatch: pytest.MonkeyPatch
):
    minutes = count(0, 60)
    monkeypatch.setattr(terminal.time, "monotonic", lambda: float(next(minutes)))
    done = run("\n".join(LINES), *["--quiet"] * quiet)
    assert ("2 of 3" in done.stderr) is not quiet
    assert ("x.txt:1: " in done.stdout) is not quiet
