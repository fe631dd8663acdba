"""The command ``heads`` as its users meet it: files, tables, figures, texts, profiles, and failures on the way."""

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from attnviz.cli.program import app
from attnviz.profiles.store import store_profile
from tests.conftest import SENTENCE, needs_minilm
from tests.support.captions import read_captions
from tests.support.stored import document_for

runner = CliRunner()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def heads(here, bert_folder):
    """A function that runs ``attnviz heads`` on the tiny BERT, without a parser, into ``out``."""

    def run(*arguments, model=bert_folder, text=SENTENCE, out="out", **options):
        return runner.invoke(
            app, ["heads", text, "-m", str(model), "-o", str(out), "--no-syntax", *arguments], **options
        )

    return run


def names_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def written(name="heads.json"):
    return json.loads(Path("out", name).read_text(encoding="utf-8"))


def plain(result):
    """What was printed, on one line, so that wrapping does not matter."""
    return " ".join((result.stdout + result.stderr).split())


def assert_refused(result, code, *parts):
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    for part in parts:
        assert part in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not Path("out").exists()


# --- what a run writes and prints


def test_a_run_writes_pictures_of_all_heads_and_prints_tables(heads):
    result = heads("--save-attention")
    assert result.exit_code == 0, result.output
    drawn = [f"heads/L0{i}H0{j}.png" for i in range(3) for j in range(4)]
    others = [
        ".attnviz.json",
        "attention.safetensors",
        "captions.md",
        "captions.tex",
        "heads.csv",
        "heads.html",
        "heads.json",
    ]
    assert names_in("out") == [*others, *drawn, "overview.png"]
    assert "Verified 12 heads of " in result.stdout
    assert result.stderr == "Open out/heads.html (one of 19 files; more tables: --verbose)\n"
    for path in Path("out").rglob("*.png"):
        Image.open(path).verify()
    tensors = load_file("out/attention.safetensors")
    assert sorted(tensors) == ["layer.0", "layer.1", "layer.2"]
    assert tensors["layer.1"].shape == (4, 9, 9)
    torch.testing.assert_close(tensors["layer.1"].sum(-1), torch.ones(4, 9))


@pytest.mark.usefixtures("undrawn")
def test_a_selection_decides_what_is_drawn_and_listed(heads):
    expected = ["L0H0", "L1H2", "L2H3"]
    found = json.loads(heads("--select", "L2H3,0.0", "--select", "L1H2", "--json").stdout)
    assert [head["id"] for head in found["heads"]] == expected
    drawn = [f"heads/L0{name[1]}H0{name[3]}.png" for name in expected]
    assert found["figures"] == ["overview.png", *drawn, "heads.html"]
    assert len(Path("out/heads.csv").read_text().splitlines()) == 1 + len(expected)
    assert names_in("out/heads") == [Path(name).name for name in drawn]


ALL = "overview.png heads/L00H01.png lines.png map-entropy.png mean.png text.png heads.html"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--figures none", ""),
        ("--figures overview", "overview.png"),
        ("--figures all", ALL),
        ("--figures heads,overview", "overview.png heads/L00H01.png"),
        ("--figures text --token cat", "text.png"),  # the token of a text adds no lines to it
        ("--figures none --map sink,Long-Range --map sink --token the", "lines.png map-sink.png map-long-range.png"),
        ("--format svg --format pdf", "overview.svg overview.pdf heads/L00H01.svg heads/L00H01.pdf heads.html"),
    ],
)
def test_figures_are_chosen_by_name_format_and_options_of_their_own(heads, options, expected):
    result = heads(*options.split(), "--select", "L0H1", "--json")
    assert json.loads(result.stdout)["figures"] == expected.split()
    captions = ["captions.md", "captions.tex"] if expected else []
    assert names_in("out") == sorted([*expected.split(), *captions, ".attnviz.json", "heads.csv", "heads.json"])


@pytest.mark.usefixtures("undrawn")
def test_options_that_imply_a_figure_leave_the_heatmaps_to_the_heads_to_look_at(heads, monkeypatch):
    monkeypatch.setattr("attnviz.commands.heads.views.MOST_DRAWN", 1)
    drawn = []
    for options in ("", "--map sink", "--figures heads"):
        figures = json.loads(heads(*options.split(), "--json").stdout)["figures"]
        drawn.append([name for name in figures if name.startswith("heads/")])
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.usefixtures("undrawn")
def test_special_tokens_are_dropped_from_pictures_only(heads):
    heads("--figures", "none", "--select", "L0H0")
    before = written()
    heads("--drop-special", "--select", "L0H0", "--figures", "overview,heads")
    assert written()["heads"] == before["heads"]
    for sentence in dict(read_captions(Path("out/captions.md").read_text())).values():
        assert "special tokens dropped" in sentence


def test_models_whose_folders_have_one_name_have_each_a_default_folder(here, bert_folder):
    arguments = ("heads", "the cat ran", "--no-syntax", "--figures", "none")
    for run in ("a", "b"):
        shutil.copytree(bert_folder, Path(run, "final"))
        assert runner.invoke(app, [*arguments, "-m", f"{run}/final"]).exit_code == 0
    assert runner.invoke(app, [*arguments, "-m", "./a/../b/final"]).exit_code == 0
    models = [json.loads(path.read_text())["model"]["name"] for path in Path("attnviz-out").glob("*final/*/[!.]*.json")]
    assert sorted(models) == ["./a/../b/final", "a/final"]


# --- texts from standard input, and hostile ones


@pytest.mark.parametrize("data", [b"the cat ran\n", b"\xef\xbb\xbfthe cat ran"], ids=["line end", "byte order mark"])
def test_a_dash_reads_standard_input_without_what_is_no_part_of_the_text(heads, data):
    result = heads("--json", "--figures", "none", text="-", input=data)
    assert json.loads(result.stdout)["text"] == "the cat ran"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b" \n\t\n", "blank"),
        ("caf\u00e9 noir".encode("latin-1"), "byte 0xe9 at byte 3"),
    ],
)
def test_standard_input_that_is_no_text_is_refused(heads, data, message):
    assert_refused(heads("--quiet", text="-", input=data), 1, message)  # errors are printed all the same


HOSTILE = [
    "[/b] [bold]the[/bold] cat", "$\\frac$ the $", "the\x00cat\x07", "\x1b[31mthe cat\x1b[0m \x1b]0;title\x07",
    "the 😀 🦄 cat", "猫 the 走", "مرحبا the cat", "the\u202ecat\u2066 \u200b", "the\r\ncat\tran", "%s %d {} {0}",
    "<b>&amp;</b>", "cafe\u0301 ﬁ",
]  # fmt: skip


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_run_through_and_steer_no_terminal(heads, gpt2_folder, text):
    result = heads("--figures", "lines", "--select", "L0H0", model=gpt2_folder, text=text, color=True)
    assert result.exit_code == 0, result.exception
    assert written()["text"] == text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", result.stdout + result.stderr)


# --- refusals that need more than a command line


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_is_refused(heads):
    assert_refused(heads("-d", "cuda"), 1, "'cuda'")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("out", "mine", "it is a file"),
        ("out/overview.png", "mine", "holds overview.png"),
    ],
)
def test_a_folder_that_is_not_ours_is_refused_before_the_model_is_run(heads, monkeypatch, name, content, message):
    monkeypatch.setattr("attnviz.analyze", lambda *_, **__: pytest.fail("the model was run"))
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(content)
    result = heads()
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert (names_in("."), Path(name).read_text()) == ([name], content)


def test_a_working_folder_that_was_removed_is_one_message(bert_folder, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = runner.invoke(app, ["heads", SENTENCE, "-m", str(bert_folder), "-o", str(tmp_path / "out")])
    assert_refused(result, 1, "working folder was removed")


# --- interruption


def test_a_signal_ends_the_command_and_nothing_is_written(heads, monkeypatch, signals_heard):
    def stopped(*_, **__):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("attnviz.commands.heads.views.heatmap_files", stopped)
    assert_refused(heads(), 130, "attnviz: interrupted; nothing was written.")


# --- the real model


@pytest.mark.usefixtures("undrawn")
@needs_minilm
def test_minilm_is_the_default_its_heads_are_verified_and_its_shipped_profile_is_shown(here):
    result = runner.invoke(
        app, ["heads", SENTENCE, "--no-syntax", "--figures", "heads", "--select", "L2H8,L0H2"], env={"COLUMNS": "100"}
    )
    assert result.exit_code == 0, result.output
    (folder,) = Path("attnviz-out/minilm").iterdir()
    assert folder.name.startswith("the-cat-that-i-saw-ran-away-")
    found = json.loads((folder / "heads.json").read_text())
    assert (found["model"]["name"], found["model"]["n_layers"], found["model"]["n_heads"]) == ("minilm", 6, 12)
    assert found["verification"]["heads_compared"] == 72
    assert {"heads/L00H02.png", "heads/L02H08.png"} < set(names_in(folder))
    assert re.search(r"L0H2 +previous-token\? +1\.00 +0\.12 .*previous-token +1\.00 +0\.06", result.stdout)
    assert max(map(len, result.stdout.splitlines())) <= 100


# --- a stored profile

INDUCTION = {"id": "L1H2", "role": "induction"}


def test_a_stored_profile_is_shown_beside_the_texts_own_evidence(heads, bert_folder):
    store_profile(document_for(bert_folder, [INDUCTION]), "2026-11-22")
    result = heads("--figures", "none", "--top", "0")
    assert result.exit_code == 0, result.output
    assert "Corpus: random tokens" in plain(result)
    assert re.search(r"L1H2 .* induction .*0\.90 +0\.20", result.stdout)
    found = written()
    assert found["profile"]["source"] == "yours"
    assert [head["id"] for head in found["heads"] if head["profile"]] == ["L1H2"]


def test_a_damaged_profile_is_one_line_on_standard_error_and_the_run_goes_on(heads, bert_folder):
    store_profile(document_for(bert_folder, [INDUCTION]), "2026-11-22")[0].write_text("{")
    result, quiet = (heads("--figures", "none", "--json", *options) for options in ((), ("--quiet",)))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["profile"] is None
    assert result.stdout == quiet.stdout
    assert (result.stderr.count("\n"), " is damaged: " in result.stderr, quiet.stderr) == (2, True, "")
