"""The command line: options, exit codes, messages, and which stream gets what."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from attnviz.cli import main
from attnviz.cli.program import app
from attnviz.commands.heads import views
from attnviz.present.documents import read_captions
from attnviz.profiles.store import store_profile
from attnviz.signals import SIGNALS
from attnviz.version import __version__
from tests.conftest import SENTENCE, needs_minilm, needs_parser
from tests.support.forked import forked, needs_fork
from tests.support.stored import document_for

runner = CliRunner()
COMMANDS = [command.callback.__name__ for command in app.registered_commands]


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


@pytest.fixture
def process(here, bert_folder):
    """A function that runs ``python -m attnviz heads`` in a process of its own, as ``heads`` does here."""

    def run(*arguments, text=SENTENCE, **options):
        words = ["heads", text, "-m", str(bert_folder), "-o", "out", "--no-syntax", "--figures", "none", *arguments]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.run([sys.executable, "-m", "attnviz", *words], check=False, timeout=120, **streams)

    return run


@pytest.fixture
def started(bert_folder, monkeypatch):
    """A function that starts the program, as ``heads`` does here, in a process of its own with these streams."""
    monkeypatch.setattr(sys, "argv", ["attnviz", "heads", SENTENCE, "-m", str(bert_folder), "-o", "out", "--no-syntax"])

    def start(stdout, stderr, *arguments, locale=""):
        sys.argv += arguments
        return forked(main, stdout, stderr, locale)

    return start


def names_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


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


# --- help and version


def test_the_version_is_printed():
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"attnviz {__version__}\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_the_commands(flag):
    result = runner.invoke(app, [flag])
    assert result.exit_code == 0
    assert "Usage: attnviz [OPTIONS] COMMAND [ARGS]..." in result.stdout
    assert re.search(r"^  heads +\S", result.stdout, re.MULTILINE)


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from attnviz.cli.program import app\n"
        f"assert [CliRunner().invoke(app, [name, '--help']).exit_code for name in {COMMANDS}] == {[0] * 8}\n"
        "heavy = ('torch', 'transformers', 'matplotlib', 'numpy', 'spacy', 'safetensors', 'huggingface_hub')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_figures_no_command_imports_matplotlib(here, bert_folder):
    (here / "corpus.txt").write_text(f"{SENTENCE}\nThe dog ran\n")
    runs = [
        ["heads", SENTENCE, "--no-syntax"],
        ["heads", "corpus.txt", "--each-line", "--no-syntax"],
        ["heads", SENTENCE, "--no-syntax", "--map", "sink", "--no-figures"],
        ["heads", "corpus.txt", "--each-line", "--no-syntax", "--map", "sink", "--no-figures"],
        ["explain", SENTENCE],
        ["outputs", SENTENCE],
        ["rollout", SENTENCE],
        ["compare", SENTENCE, "-m", str(bert_folder)],
        ["profile", "corpus.txt", "--no-store"],
    ]
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from attnviz.cli.program import app\n"
        f"for number, arguments in enumerate({runs!r}):\n"
        f"    more = ['-m', {str(bert_folder)!r}, '-o', str(number), '--figures', 'none', '-q']\n"
        "    done = CliRunner().invoke(app, [*arguments, *more])\n"
        "    assert done.exit_code == 0, done.output\n"
        "    print(arguments[0], 'matplotlib' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.splitlines()) == ("", [f"{command} False" for command, *_ in runs])


def test_python_m_attnviz_is_the_command_and_names_itself_so():
    done = subprocess.run([sys.executable, "-m", "attnviz", "--help"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("Usage: ")


# --- what a run writes and prints


def test_a_run_writes_the_files_of_the_contract_and_prints_tables(heads):
    result = heads()
    assert result.exit_code == 0, result.output
    drawn = [f"heads/L0{i}H0{j}.png" for i in range(3) for j in range(4)]
    assert names_in("out") == ["captions.md", "captions.tex", "heads.csv", "heads.json", *drawn, "overview.png"]
    assert result.stdout.startswith("Verified 12 heads in 3 layers of ")
    assert "Heads (12, clearest pattern first)" in result.stdout
    assert "Patterns (the strongest heads of each, with their scores)" in result.stdout
    assert result.stderr == "Wrote 17 files to out\n"
    for path in Path("out").rglob("*.png"):
        Image.open(path).verify()


def test_json_is_the_document_of_heads_json_and_nothing_else_on_standard_output(heads):
    result = heads("--json", "--figures", "none")
    assert result.exit_code == 0
    printed, written = json.loads(result.stdout), json.loads(Path("out/heads.json").read_text())
    assert printed["model"]["n_heads"] == 4
    assert len(printed["heads"]) == 12
    assert {key: written[key] for key in printed} == printed
    assert result.stderr == "Wrote 2 files to out\n"


def test_quiet_prints_nothing(heads):
    result = heads("--quiet", "--figures", "heads", "--select", "L0H1")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert "heads/L00H01.png" in names_in("out")


def test_quiet_still_prints_errors(heads):
    assert_refused(heads("--quiet", text=" "), 1, "TEXT is empty or blank")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("selections", "expected"),
    [
        (["L*H2"], ["L0H2", "L1H2", "L2H2"]),
        (["L2H3", "L0H0"], ["L0H0", "L2H3"]),
        (["L2H3,0.0"], ["L0H0", "L2H3"]),
    ],
)
def test_a_selection_decides_what_is_drawn_and_listed(heads, selections, expected):
    result = heads(*(word for selection in selections for word in ("--select", selection)), "--json")
    found = json.loads(result.stdout)
    assert [head["id"] for head in found["heads"]] == expected
    drawn = [f"heads/L0{name[1]}H0{name[3]}.png" for name in expected]
    assert found["figures"] == ["overview.png", *drawn]
    assert len(Path("out/heads.csv").read_text().splitlines()) == 1 + len(expected)
    assert names_in("out/heads") == [Path(name).name for name in drawn]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ("none", []),
        ("overview", ["overview.png"]),
        ("heads", ["heads/L00H01.png"]),
        (
            "all",
            [
                "overview.png",
                "heads/L00H01.png",
                "lines.png",
                "map-entropy.png",
                "mean.png",
                "mean-all.png",
                "panel.png",
                "text.png",
                "heads.html",
            ],
        ),
        ("map", ["map-entropy.png"]),
        ("heads, overview", ["overview.png", "heads/L00H01.png"]),
    ],
)
def test_figures_are_chosen_by_name(heads, figures, expected):
    result = heads("--figures", figures, "--select", "L0H1", "--json")
    assert json.loads(result.stdout)["figures"] == expected
    assert names_in("out") == sorted(
        [*expected, *(["captions.md", "captions.tex"] if expected else []), "heads.csv", "heads.json"]
    )


@pytest.mark.usefixtures("undrawn")
def test_the_token_of_a_text_adds_no_lines_to_it(heads):
    result = heads("--figures", "text", "--token", "cat", "--select", "L0H1", "--json")
    assert json.loads(result.stdout)["figures"] == ["text.png"]


@pytest.mark.usefixtures("undrawn")
@needs_parser
def test_a_relation_is_drawn_outlined_and_told(heads):
    result = heads("--syntax", "--relation", "nsubj", "--figures", "heads", "--select", "L0H1", "--json")
    document = json.loads(result.stdout)
    assert document["figures"] == ["heads/L00H01.png", "relations.png"]
    assert document["heads"][0]["relation"]["name"] == "nsubj"
    assert "outlined: nsubj" in Path("out/captions.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_formats_can_be_repeated_and_a_rerun_adds_to_them(heads):
    heads("--format", "svg", "--format", "pdf", "--select", "L0H1")
    assert names_in("out") == [
        "captions.md", "captions.tex", "heads.csv", "heads.json", "heads/L00H01.pdf", "heads/L00H01.svg",
        "overview.pdf", "overview.svg",
    ]  # fmt: skip
    heads("--format", "png", "--select", "L0H1")
    assert {"overview.svg", "overview.png", "heads/L00H01.png"} <= set(names_in("out"))
    heads("--figures", "none", "--overwrite", text="the dog ran")
    assert names_in("out") == ["heads.csv", "heads.json"]


@pytest.mark.usefixtures("undrawn")
def test_options_of_a_figure_ask_for_it(heads):
    result = heads("--figures", "none", "--map", "sink,Long-Range", "--map", "sink", "--token", "the",
                   "--select", "L0H1", "--json")  # fmt: skip
    assert json.loads(result.stdout)["figures"] == ["lines.png", "map-sink.png", "map-long-range.png"]


@pytest.mark.usefixtures("undrawn")
def test_all_figures_of_a_pair_are_drawn_with_captions_and_removed_with_the_next_text(heads):
    result = heads("--pair", "the dog ran", "--figures", "all", "--select", "L0H1", "--json")
    drawn = json.loads(result.stdout)["figures"]
    assert {"pair.png", "pair/L00H01.png", "lines.png", "mean.png"} <= set(drawn)
    assert [name for name, _ in read_captions(Path("out/captions.md").read_text())] == drawn
    heads("--figures", "none", "--overwrite", text="the dog ran")
    assert names_in("out") == ["heads.csv", "heads.json"]


@pytest.mark.usefixtures("undrawn")
def test_captions_of_figures_that_stay_are_kept(heads):
    heads("--figures", "overview", "--format", "svg")
    heads("--figures", "heads", "--select", "L0H0", "--scale", "log")
    captions = dict(read_captions(Path("out/captions.md").read_text()))
    assert list(captions) == ["overview.svg", "heads/L00H00.png"]
    assert "from 0 to 1, the same for every head" in captions["overview.svg"]
    assert "logarithmic colours from 0.0001 to 1" in captions["heads/L00H00.png"]
    heads("--figures", "overview", "--format", "svg", "--scale", "per-head")
    captions = dict(read_captions(Path("out/captions.md").read_text()))
    assert "the largest weight of each head" in captions["overview.svg"]
    assert len(captions) == 2


@pytest.mark.usefixtures("undrawn")
def test_special_tokens_are_dropped_from_pictures_only(heads):
    heads("--figures", "none", "--select", "L0H0")
    before = json.loads(Path("out/heads.json").read_text())
    heads("--drop-special", "--select", "L0H0")
    after = json.loads(Path("out/heads.json").read_text())
    assert after["heads"] == before["heads"]
    for sentence in dict(read_captions(Path("out/captions.md").read_text())).values():
        assert "special tokens dropped, rows renormalised" in sentence


def test_attention_is_saved_where_it_is_asked_for(heads):
    heads("--save-attention", "--figures", "none")
    tensors = load_file("out/attention.safetensors")
    assert sorted(tensors) == ["layer.0", "layer.1", "layer.2"]
    assert tensors["layer.1"].shape == (4, 9, 9)
    torch.testing.assert_close(tensors["layer.1"].sum(-1), torch.ones(4, 9))


def test_every_text_has_a_default_folder_of_its_own(here, bert_folder):
    arguments = ["-m", str(bert_folder), "--no-syntax", "--figures", "none"]
    for text in ("The cat ran!", "the cat ran?", "the cat ran!"):
        result = runner.invoke(app, ["heads", text, *arguments])
        assert result.exit_code == 0, result.output
    first, second, third = sorted(path.name for path in Path("attnviz-out/tiny-bert").iterdir())
    assert all(re.fullmatch(r"the-cat-ran-[0-9a-f]{8}", name) for name in (first, second, third))
    name = result.stderr.removeprefix("Wrote 2 files to ").rstrip()
    assert json.loads(Path(name, "heads.json").read_text())["text"] == "the cat ran!"


@pytest.mark.usefixtures("undrawn")
def test_pictures_of_another_text_are_refused_before_the_model_is_run(heads, monkeypatch):
    assert heads("--figures", "heads", "--select", "L0H0").exit_code == 0
    monkeypatch.setattr("attnviz.analyze", lambda *_, **__: pytest.fail("the model was run"))
    result = heads("--select", "L0H0", text="the dog ran")
    assert result.exit_code == 1
    assert (
        "out holds pictures of “The cat that I saw ran away”; this run is of “the dog ran” and would remove them."
        in plain(result)
    )
    assert "--overwrite" in result.stderr


# --- texts from standard input, and hostile ones


@pytest.mark.parametrize("data", [b"the cat ran\n", b"\xef\xbb\xbfthe cat ran"], ids=["line end", "byte order mark"])
def test_a_dash_reads_standard_input_without_what_is_no_part_of_the_text(heads, data):
    result = heads("--json", "--figures", "none", text="-", input=data)
    assert json.loads(result.stdout)["text"] == "the cat ran"


@pytest.mark.parametrize("data", [b"", b" \n\t\n"])
def test_blank_standard_input_is_refused(heads, data):
    assert_refused(heads(text="-", input=data), 1, "standard input is empty or blank; expected a sentence.")


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
def test_closed_standard_input_is_refused(here, bert_folder):
    done = subprocess.run(
        f"exec '{sys.executable}' -m attnviz heads - -m '{bert_folder}' -o out <&-",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "attnviz: standard input is closed; expected a sentence on it, or as TEXT.\n"


@needs_fork
def test_a_text_is_read_as_utf8_in_any_locale_and_a_pipe_gets_plain_text_with_stand_ins(here, started):
    sys.argv[2] = "na\udcc3\udcafve cat"  # the bytes of "naïve cat", as Python reads arguments in the locale C
    with Path("stdout").open("wb") as stdout, Path("stderr").open("wb") as stderr:
        process = started(stdout.fileno(), stderr.fileno(), "--figures", "none", locale="C")
        process.join(100)
    assert (process.exitcode, Path("stderr").read_text()) == (0, "Wrote 2 files to out\n")
    assert json.loads(Path("out/heads.json").read_text(encoding="utf-8"))["text"] == "naïve cat"
    printed = Path("stdout").read_bytes()
    assert printed.startswith(b"Verified 12 heads")
    assert b"?" in printed
    assert b"\x1b" not in printed
    assert max(printed) < 128


def test_standard_input_that_is_not_utf8_is_refused_with_the_place(heads):
    result = heads(text="-", input="caf\u00e9 noir".encode("latin-1"))
    assert_refused(
        result, 1, "standard input is not valid UTF-8: found byte 0xe9 at byte 3", "iconv -f latin1 -t utf-8"
    )


def test_an_argument_that_is_not_utf8_is_refused(process):
    plain_c = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    for text, pair, locale in ((b"caf\xe9", [], plain_c), (b"cafe", [b"--pair", b"caf\xe9"], {"LC_ALL": "C.UTF-8"})):
        done = process(*pair, text=text, env={**os.environ, **locale})
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"is not valid UTF-8: found byte 0xe9 at byte 3" in done.stderr
        assert b"Traceback" not in done.stderr
        assert not Path("out").exists()


HOSTILE = [
    "[/b] [bold]the[/bold] cat",
    "$\\frac$ the $",
    "the\x00cat\x07",
    "\x1b[31mthe cat\x1b[0m \x1b]0;title\x07",
    "the 😀 🦄 cat",
    "猫 the 走",
    "مرحبا the cat",
    "the\u202ecat\u2066 \u200b",
    "the\r\ncat\tran",
    "%s %d {} {0}",
    "<b>&amp;</b>",
    "cafe\u0301 ﬁ",
]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_run_through_and_steer_no_terminal(heads, gpt2_folder, text):
    result = heads("--figures", "lines", "--select", "L0H0", model=gpt2_folder, text=text, color=True)
    assert result.exit_code == 0, result.exception
    assert json.loads(Path("out/heads.json").read_text())["text"] == text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", result.stdout + result.stderr)


ESCAPE = "\x1b[31mred"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", ESCAPE],
        ["--model", f"./{ESCAPE}"],
        ["--revision", ESCAPE],
        ["--select", ESCAPE],
        ["--figures", ESCAPE],
        ["--format", ESCAPE],
        ["--device", ESCAPE],
        ["--dtype", ESCAPE],
        ["--local-window", ESCAPE],
        ["--parser", ESCAPE],
        [f"--{ESCAPE}"],
        ["one", ESCAPE],
    ],
)
def test_no_argument_can_smuggle_an_escape_into_an_error(here, bert_folder, arguments):
    model = [] if "--model" in arguments else ["--model", str(bert_folder)]
    result = runner.invoke(app, ["heads", "the cat", *model, "-o", "out", *arguments], color=True)
    assert result.exit_code in (1, 2)
    assert "\x1b" not in result.output
    assert isinstance(result.exception, SystemExit)


def test_no_folder_name_can_smuggle_an_escape_into_the_last_line(heads):
    result = heads("--figures", "none", out=ESCAPE, color=True)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout + result.stderr


# --- refusals


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("", [], "TEXT is empty or blank; expected a sentence, or - to read standard input."),
        ("\u3000", [], "TEXT is empty or blank"),
        ("\u200b", [], "no tokens are left of the text after tokenization"),
        (SENTENCE, ["--pair", "  "], "the pair is blank; expected at least one word"),
        (SENTENCE, ["-m", "tiny-gpt2", "--pair", "b"], "this architecture has no sentence segments"),
        (SENTENCE, ["-m", "./nothing"], "expected a folder with a checkpoint at nothing, found nothing"),
        (SENTENCE, ["-m", "no-such-model"], "Type: attnviz heads TEXT --model minilm"),
    ],
)
def test_a_text_or_a_model_that_cannot_be_is_refused(heads, text, arguments, message):
    assert_refused(heads(*arguments, text=text), 1, message)


def test_a_text_that_is_too_long_is_refused_with_both_numbers_and_cut_when_asked(heads):
    long = " ".join(["cat"] * 50)
    assert_refused(heads(text=long), 1, "the text has 52 tokens, but the model has 40 positions", "--truncate")
    result = heads("--truncate", "--figures", "none", text=long)
    assert result.exit_code == 0
    assert "The text was cut: its last 12 tokens were left out (--truncate)." in plain(result)
    assert len(json.loads(Path("out/heads.json").read_text())["tokens"]) == 40


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_is_refused(heads):
    assert_refused(heads("-d", "cuda"), 1, "the device 'cuda' was asked for", "finds no CUDA GPU here")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--revision", "main"], "only a hub id has revisions"),
        (["--device", "gpu"], "unknown device 'gpu': expected one of auto, cpu, cuda, cuda:N, mps."),
        (["--dtype", "int8"], "unknown dtype 'int8': expected one of float32"),
        (["--select", "L3H0"], "names layer 3, but the model has layers 0 to 2"),
        (["--select", "nonsense"], "cannot read the selection 'nonsense': expected one of L2H8, 2.8, L2"),
        (["--select", ""], "cannot read the selection ''"),
        (["--format", "gif"], "unknown format 'gif': expected any of png, svg, pdf."),
        (
            ["--figures", "all,none"],
            "expected --figures all alone, or names with commas between (overview, heads",
        ),
        (["--figures", "heads,none"], "expected --figures none alone, or names with commas between"),
        (["--figures", "pictures"], "unknown figure 'pictures': expected any of overview, heads"),
        (["--figures", "map", "--no-figures"], "expected --figures or --no-figures, found both (--figures map)."),
        (["--figures", "pair"], "there is no figure 'pair': it shows two texts; give the second one with --pair"),
        (["--relations"], "there is no figure 'relations': the text has no parse, because it was switched off"),
        (["--figures", "overview,"], "expected names with commas between"),
        (["--scale", "linear"], "unknown scale 'linear': expected one of auto, shared, per-head, log."),
        (["--theme", "blue"], "unknown theme 'blue': expected one of light, dark."),
        (["--width", "wide"], "expected a width such as 3.3in, 8.4cm, 84mm or 240pt, found 'wide'."),
        (["--width", "1in"], "expected a width of 2 to 40 inches, found 1."),
        (["--map", "colour"], "unknown statistic 'colour' for a map: expected one of entropy, entropy_non_sink, "),
        (["--map", ""], "expected names with commas between"),
        (["--token", "zebra"], "no token “zebra” in the text: expected one of [CLS]"),
        (["--local-window", "-1"], "Invalid value for '--local-window'"),
        (["--local-window", "99999999999999999999"], "--local-window"),
        (["--long-range-from", "0"], "Invalid value for '--long-range-from'"),
        (["--long-range-from", "1000001"], "--long-range-from"),
        (["--top", "-1"], "Invalid value for '--top'"),
        (["--no-such-option"], "--no-such-option"),
        (["-m", ""], "--model is empty; expected a built-in name, a folder or a hub id."),
        (["-o", " "], "-o is empty; expected a folder (. for this one)."),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_was_expected(heads, arguments, message):
    assert_refused(heads(*arguments), 2, message)
    assert names_in(".") == []


def test_an_unknown_parser_is_refused(here, bert_folder):
    result = runner.invoke(app, ["heads", "the cat", "-m", str(bert_folder), "-o", "out", "--parser", "no_such_parser"])
    assert_refused(result, 1, "no_such_parser")


def test_wrong_usage_is_told_before_the_model_is_loaded(heads, monkeypatch):
    def never(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("attnviz.models.opening.load_checkpoint", never)
    looks = (["--scale", "x"], ["--theme", "x"], ["--width", "x"], ["--map", "x"])
    for arguments in (["--format", "gif"], ["--figures", "x"], ["--device", "gpu"], ["--dtype", "int8"], *looks):
        assert_refused(heads(*arguments), 2, "expected")


def test_an_output_path_that_is_a_file_is_refused(heads, here):
    (here / "file").write_text("mine")
    result = heads(out="file")
    assert result.exit_code == 1
    assert "cannot write to file: it is a file; expected a folder" in result.stderr
    assert (here / "file").read_text() == "mine"


def test_a_foreign_overview_is_refused_before_the_model_is_loaded(heads, here, monkeypatch):
    monkeypatch.setattr("attnviz.analyze", lambda *_, **__: pytest.fail("the model was run"))
    (here / "out").mkdir()
    (here / "out" / "overview.png").write_text("mine")
    result = heads()
    assert result.exit_code == 1
    assert "holds overview.png, which attnviz did not write" in result.stderr
    assert names_in("out") == ["overview.png"]


def test_a_wrong_scale_exits_with_3_and_writes_nothing(heads, monkeypatch):
    import attnviz.reference.attention as attention

    right = attention.attention_scores
    monkeypatch.setattr(attention, "attention_scores", lambda query, key, scale: right(query, key, 1.5 * scale))
    assert_refused(heads(), 3, "attnviz: the recomputed heads do not reproduce the model", "Nothing was written")


def test_a_bug_keeps_its_traceback(heads, monkeypatch):
    def bug(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("attnviz.commands.heads.measure.verify_attention", bug)
    assert isinstance(heads().exception, ZeroDivisionError)
    assert not Path("out").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_run_says_how_many_files_of_an_earlier_run_it_removed(heads):
    heads("--select", "L0")
    result = heads("--select", "L0H0", "--figures", "heads", "--overwrite", text="the dog ran")
    assert result.stderr.splitlines()[-1] == "Wrote 5 files to out; removed 4 files of an earlier run there"
    assert names_in("out") == ["captions.md", "captions.tex", "heads.csv", "heads.json", "heads/L00H00.png"]


# --- interruption, streams, colour


STARTING = """
import importlib.abc, signal, sys, time
for each in (signal.SIGINT, signal.SIGHUP):
    signal.signal(each, signal.SIG_DFL)
class Dying:
    def __del__(self):
        signal.raise_signal({number})
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "{module}":
            {act}
sys.meta_path.insert(0, Finder())
sys.argv = ["attnviz", "models", "bert-base"]
from attnviz.cli import main
main()
"""


STARTS = [
    ("typer", "signal.raise_signal({number})"),
    ("attnviz.cli.heads", "signal.raise_signal({number})"),
    ("attnviz.cli.heads", "exec('signal.raise_signal({number})')"),  # Python itself looks whether it passes here
    ("attnviz.cli.heads", "Dying(); time.sleep(60)"),  # Python only prints what a destructor raises
    ("attnviz.commands.models.measure", "exec('signal.raise_signal({number})')"),
    ("attnviz.commands.models.measure", "Dying(); time.sleep(60)"),
]


@pytest.mark.parametrize(
    ("module", "act", "number"), [(*start, SIGNALS[place % len(SIGNALS)]) for place, start in enumerate(STARTS)]
)
def test_a_signal_while_the_program_starts_is_an_interruption(module, act, number):
    act = act.replace("{number}", str(int(number)))
    code = STARTING.format(number=int(number), module=module, act=act)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert re.fullmatch(r"attnviz: interrupted(; nothing was written)?\.\n", done.stderr)


def test_a_signal_while_options_are_read_is_an_interruption():
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "from attnviz.cli import main, program\n"
        "program._Command.parse_args = lambda *_: signal.raise_signal(signal.SIGINT)\n"
        "sys.argv = ['attnviz', 'models', 'bert-base']; main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "attnviz: interrupted.\n")


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGHUP], ids=["background job", "nohup"])
def test_a_signal_that_was_ignored_at_the_start_stays_so_and_others_interrupt(ignored, number):
    code = (
        "import signal, sys\n"
        "for each in (signal.SIGINT, signal.SIGHUP): signal.signal(each, signal.SIG_DFL)\n"
        f"signal.signal({int(ignored)}, signal.SIG_IGN)\n"
        "from attnviz.cli import main, program\n"
        "parse = program._Command.parse_args\n"
        f"program._Command.parse_args = lambda *given: signal.raise_signal({int(number)}) or parse(*given)\n"
        "sys.argv = ['attnviz', 'models', '--help']; main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if number == ignored:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Usage: ")
    else:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "attnviz: interrupted.\n")


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_while_the_process_ends_changes_nothing(number):
    code = (
        "import atexit, signal, sys\n"
        "for each in (signal.SIGINT, signal.SIGHUP): signal.signal(each, signal.SIG_DFL)\n"
        f"atexit.register(lambda: signal.raise_signal({int(number)}))\n"
        "sys.argv = ['attnviz', '--version']\n"
        "from attnviz.cli import main; main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("attnviz ")


def test_several_signals_at_once_are_one(heads, monkeypatch, signals_heard):
    def stopped(*_, **__):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGHUP)  # as systemd sends them

    monkeypatch.setattr("attnviz.commands.heads.views.heatmap_files", stopped)
    assert_refused(heads(), 130, "attnviz: interrupted; nothing was written.")


def test_a_working_folder_that_was_removed_is_one_message(bert_folder, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = runner.invoke(app, ["heads", SENTENCE, "-m", str(bert_folder), "-o", str(tmp_path / "out")])
    assert_refused(result, 1, "attnviz: the working folder was removed", "change to one that exists")


@pytest.mark.parametrize("name", ["x" * 300, "y/" * 2500], ids=["long", "deep"])
@pytest.mark.parametrize("option", ["-o", "-m"])
def test_names_that_no_folder_can_have_are_one_message(heads, name, option):
    result = heads(out=name) if option == "-o" else heads(model=f"./{name}")
    assert result.exit_code == 1, result.exception
    assert "File name too long" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_interrupted_run_exits_with_130_and_writes_nothing(heads, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("attnviz.commands.heads.views.heatmap_files", interrupted)
    assert_refused(heads(), 130, "attnviz: interrupted; nothing was written.")


@needs_fork
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_while_drawing_exits_with_130_without_traceback_or_files(here, started, monkeypatch, number):
    (here / "out").mkdir()
    (here / "out" / "notes.txt").write_text("mine")
    original = views.heatmap_files

    def slow(*arguments):
        for data in original(*arguments):
            sys.stderr.write("drawing\n")
            sys.stderr.flush()
            time.sleep(0.2)
            yield data

    monkeypatch.setattr(views, "heatmap_files", slow)
    reading, writing = os.pipe()
    with Path("stdout").open("wb") as stdout, os.fdopen(reading) as stderr:
        process = started(stdout.fileno(), writing, "--figures", "heads")
        os.close(writing)
        assert stderr.readline() == "drawing\n"
        assert any(path.name.startswith(".attnviz-") for path in (here / "out").iterdir())  # it had begun to write
        os.kill(process.pid, number)
        said = stderr.read()
        process.join(100)
    assert (process.exitcode, Path("stdout").read_text()) == (130, "")
    assert "attnviz: interrupted; nothing was written." in said
    assert "Traceback" not in said
    assert [path.name for path in (here / "out").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_while_files_are_moved_says_that_all_were_written(heads, monkeypatch, signals_heard, number):
    replace = Path.replace
    pressed = []

    def interrupted(path, target):
        if not pressed:
            pressed.append(True)
            signal.raise_signal(number)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    result = heads("--figures", "overview")
    assert result.exit_code == 130
    assert "attnviz: interrupted; all files were written." in result.stderr
    assert names_in("out") == ["captions.md", "captions.tex", "heads.csv", "heads.json", "overview.png"]


@pytest.mark.parametrize(("variables", "coloured"), [({"FORCE_COLOR": "1"}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_follow_no_color(heads, monkeypatch, variables, coloured):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    result = heads("--figures", "none", env=variables)
    assert (re.search(r"\x1b\[[0-9;]*3[0-7]m", result.stdout) is not None) == coloured


@needs_fork
def test_a_closed_pipe_ends_quietly(here, started):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed, Path("stderr").open("wb") as stderr:
        process = started(closed.fileno(), stderr.fileno(), "--figures", "none", "--json")
        process.join(100)
    assert (process.exitcode, Path("stderr").read_text()) == (0, "Wrote 2 files to out\n")
    assert names_in("out") == ["heads.csv", "heads.json"]


@needs_fork
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_one_message_and_the_files_are_complete(here, started):
    with Path("/dev/full").open("wb") as full, Path("stderr").open("wb") as stderr:
        process = started(full.fileno(), stderr.fileno(), "--figures", "none")
        process.join(100)
    message = "attnviz: cannot print the results: No space left on device; the files in out are complete.\n"
    assert (process.exitcode, Path("stderr").read_text()) == (1, message)
    assert names_in("out") == ["heads.csv", "heads.json"]


# --- the real model


@pytest.mark.usefixtures("undrawn")
@needs_minilm
def test_minilm_is_the_default_and_its_heads_are_verified(here):
    result = runner.invoke(app, ["heads", SENTENCE, "--no-syntax", "--select", "L2H8", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["model"]["name"], found["model"]["n_layers"], found["model"]["n_heads"]) == ("minilm", 6, 12)
    assert found["verification"]["heads_compared"] == 72
    (folder,) = Path("attnviz-out/minilm").iterdir()
    assert folder.name.startswith("the-cat-that-i-saw-ran-away-")
    assert names_in(folder) == [
        "captions.md", "captions.tex", "heads.csv", "heads.json", "heads/L02H08.png", "overview.png"
    ]  # fmt: skip


@needs_minilm
@needs_parser
def test_minilm_with_a_parser_lists_relations(here):
    result = runner.invoke(app, ["heads", SENTENCE, "-o", "out", "--figures", "none"])
    assert result.exit_code == 0, result.output
    assert "Syntax: parse by en_core_web_sm" in plain(result)
    assert "5 relations with n below 3 hidden; heads.json has them." in plain(result)


# --- a stored profile

INDUCTION = {"id": "L1H2", "role": "induction"}


def test_a_stored_profile_is_shown_beside_the_texts_own_evidence(heads, bert_folder):
    store_profile(document_for(bert_folder, [INDUCTION]), "2026-11-22")
    result = heads("--figures", "none", "--top", "0")
    assert result.exit_code == 0, result.output
    assert "L1H2  induction 0.90 (0.20)" in result.stdout
    assert "(your own, measured on trees.conllu, 50 texts)" in plain(result)
    found = json.loads(Path("out/heads.json").read_text())
    assert found["profile"]["source"] == "yours"
    assert [head["id"] for head in found["heads"] if head["profile"]] == ["L1H2"]
    assert list(found)[:7] == ["attnviz", "model", "text", "pair", "options", "tokens", "verification"]
    assert list(found)[7:9] == ["summary", "heads"]


def test_no_profile_looks_for_none(heads, bert_folder):
    store_profile(document_for(bert_folder, [INDUCTION]), "2026-11-22")
    result = heads("--figures", "none", "--no-profile")
    assert result.exit_code == 0, result.output
    assert "Profile" not in result.stdout
    found = json.loads(Path("out/heads.json").read_text())
    assert found["profile"] is None
    assert {head["profile"] for head in found["heads"]} == {None}


@pytest.mark.parametrize("quiet", [False, True])
def test_a_damaged_profile_is_one_line_on_standard_error_and_the_run_goes_on(heads, bert_folder, quiet):
    store_profile(document_for(bert_folder, [INDUCTION]), "2026-11-22")[0].write_text("{")
    result = heads("--figures", "none", "--json", *(["--quiet"] if quiet else []))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["profile"] is None
    lines = result.stderr.splitlines()
    if quiet:
        assert lines == []
    else:
        assert len(lines) == 2
        assert " is damaged: found broken JSON (" in lines[0]
        assert lines[0].endswith(
            "; this stored profile was left out: make it again with attnviz profile, or delete it."
        )


@needs_minilm
def test_minilm_shows_its_shipped_profile(here):
    result = runner.invoke(app, ["heads", SENTENCE, "--no-syntax", "-o", "out", "--figures", "none"])
    assert result.exit_code == 0, result.output
    assert re.search(r"^L0H2 +previous-token \d\.\d\d \(0\.\d\d\)", result.stdout, re.MULTILINE)
    assert "(shipped with attnviz, measured on en_ewt-ud-dev.conllu" in plain(result)
    assert max(map(len, result.stdout.splitlines())) <= 80
