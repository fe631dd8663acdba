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
        typed = ["heads", text, "-m", str(model), "-o", str(out), "--no-syntax", *arguments]
        return runner.invoke(app, typed, **options)

    return run


def names_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def written(name="heads.json"):
    return json.loads(Path("out", name).read_text(encoding="utf-8"))


def assert_refused(result, code, *parts):
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert [part for part in parts if part not in " ".join(result.stderr.split())] == []
    assert "Traceback" not in result.stderr
    assert not Path("out").exists()


def test_a_run_writes_pictures_of_all_heads_and_prints_tables(heads):
    result = heads("--save-attention")
    assert result.exit_code == 0, result.output
    drawn = [f"heads/L0{i}H0{j}.png" for i in range(3) for j in range(4)]
    documents = ["attention.safetensors", "captions.md", "captions.tex", "heads.csv", "heads.html", "heads.json"]
    assert names_in("out") == [".attnviz.json", *documents, *drawn, "overview.png"]
    assert "all 12 heads" in result.stdout
    assert (result.stderr.count("\n"), "out/heads.html" in result.stderr) == (1, True)
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
def test_special_tokens_are_dropped_from_pictures_only(heads):
    heads("--figures", "none", "--select", "L0H0")
    before = written()
    heads("--drop-special", "--select", "L0H0", "--figures", "overview")
    assert written()["heads"] == before["heads"]
    assert "special tokens dropped" in Path("out/captions.md").read_text()


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


@pytest.mark.parametrize(("data", "word"), [(b"", "empty"), (b" \n\t\n", "blank"), (b"caf\xe9 noir", "0xe9")])
def test_standard_input_that_is_no_text_is_refused(heads, data, word):
    assert_refused(heads("--quiet", text="-", input=data), 1, word)  # errors are printed all the same


HOSTILE = [
    "[/b] [bold]the[/bold] cat",
    "$\\frac$ %s {} {0} <b>&amp;</b>",
    "the\x00cat\x07",
    "\x1b[31mcat\x1b[0m \x1b]0;title\x07",
    "🦄 cat 猫 مرحبا cafe\u0301 ﬁ",
    "the\u202ecat\u2066 \u200b the\r\ncat\tran",
]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_run_through_and_steer_no_terminal(heads, gpt2_folder, text):
    result = heads("--figures", "lines", "--select", "L0H0", model=gpt2_folder, text=text, color=True)
    assert result.exit_code == 0, result.exception
    assert written()["text"] == text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", result.stdout + result.stderr)


# --- refusals that need more than a command line, and interruptions


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_is_refused(heads):
    assert_refused(heads("-d", "cuda"), 1, "'cuda'")


@pytest.mark.parametrize("name", ["out", "out/overview.png"])
def test_a_folder_that_is_not_ours_is_refused_before_the_model_is_run(heads, monkeypatch, name):
    monkeypatch.setattr("attnviz.analyze", lambda *_, **__: pytest.fail("the model was run"))
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("mine")
    result = heads()
    assert (result.exit_code, result.stdout, "out" in result.stderr) == (1, "", True)
    assert (names_in("."), Path(name).read_text()) == ([name], "mine")


def test_a_working_folder_that_was_removed_is_one_message(bert_folder, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = runner.invoke(app, ["heads", SENTENCE, "-m", str(bert_folder), "-o", str(tmp_path / "out")])
    assert_refused(result, 1, "working folder")


def test_a_signal_ends_the_command_and_nothing_is_written(heads, monkeypatch, signals_heard):
    def stopped(*_, **__):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("attnviz.commands.heads.views.heatmap_files", stopped)
    assert_refused(heads(), 130, "interrupted")


# --- the real model, and a stored profile


@pytest.mark.usefixtures("undrawn")
@needs_minilm
def test_minilm_is_the_default_its_heads_are_verified_and_its_shipped_profile_is_shown(here):
    typed = ["heads", SENTENCE, "--no-syntax", "--figures", "heads", "--select", "L2H8,L0H2"]
    result = runner.invoke(app, typed, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    (folder,) = Path("attnviz-out/minilm").iterdir()
    assert folder.name.startswith("the-cat-that-i-saw-ran-away-")
    found = json.loads((folder / "heads.json").read_text())
    assert (found["model"]["name"], found["model"]["n_layers"], found["model"]["n_heads"]) == ("minilm", 6, 12)
    assert found["verification"]["heads_compared"] == 72
    assert {"heads/L00H02.png", "heads/L02H08.png"} < set(names_in(folder))
    assert re.search(r"L0H2 .* previous +1\.00 +0\.06 +26,332 +yes \(1\.00\)", result.stdout)
    assert max(map(len, result.stdout.splitlines())) <= 100


INDUCTION = {"id": "L1H2", "role": "induction"}


def test_a_stored_profile_is_shown_beside_the_texts_own_evidence(heads, bert_folder):
    store_profile(document_for(bert_folder, [INDUCTION]), "2026-11-22")
    result = heads("--figures", "none", "--top", "0")
    assert re.search(r"L1H2 .* induction .*0\.90 +0\.20", result.stdout), result.output
    assert written()["profile"]["source"] == "yours"
    assert [head["id"] for head in written()["heads"] if head["profile"]] == ["L1H2"]


def test_a_damaged_profile_is_one_line_on_standard_error_and_the_run_goes_on(heads, bert_folder):
    store_profile(document_for(bert_folder, [INDUCTION]), "2026-11-22")[0].write_text("{")
    result, quiet = (heads("--figures", "none", "--json", *options) for options in ((), ("--quiet",)))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["profile"] is None
    assert (quiet.stdout, quiet.stderr) == (result.stdout, "")
    assert (result.stderr.count("\n"), "damaged" in result.stderr) == (2, True)
