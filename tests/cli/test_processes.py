"""The program as a process: what it imports, its streams, its locale, and signals from the first import to the end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import attnviz
from attnviz.cli import main
from attnviz.cli.program import app
from attnviz.commands.heads import views
from attnviz.signals import SIGNALS
from tests.conftest import SENTENCE
from tests.support.forked import forked, needs_fork

COMMANDS = [command.callback.__name__ for command in app.registered_commands]
ROOT = str(Path(attnviz.__file__).parents[1])
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "PYTHONPATH": ROOT, **environment}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=given)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return process(sys.executable, "-c", code, **environment)


def shell(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program with streams as only a shell makes them."""
    return process("sh", "-c", f'"$0" "$@" {redirection}', sys.executable, "-m", "attnviz", *arguments)


@pytest.fixture
def started(here, bert_folder, monkeypatch):
    """A function that starts ``attnviz heads`` on the tiny BERT in a process of its own with these streams."""
    monkeypatch.setattr(sys, "argv", ["attnviz", "heads", SENTENCE, "-m", str(bert_folder), "-o", "out", "--no-syntax"])

    def start(stdout, stderr, *arguments, locale=""):
        sys.argv += arguments
        return forked(main, stdout, stderr, locale)

    return start


# --- what is imported

RUNS = (
    "import sys\n"
    "from typer.testing import CliRunner\n"
    "from attnviz.cli.program import app\n"
    "for line in {lines}:\n"
    "    done = CliRunner().invoke(app, line)\n"
    "    assert done.exit_code == 0, done.output\n"
    "    print(line[0], *sorted({heavy} & set(sys.modules)))\n"
)


def test_help_and_the_models_of_papers_import_nothing_heavy(tmp_path):
    heavy = {"torch", "transformers", "matplotlib", "numpy", "spacy", "safetensors"}
    lines = [*([name, "--help"] for name in COMMANDS), ["models", "gpt2-xl"], ["models", "bert-base", "--json"]]
    code = RUNS.format(lines=lines, heavy=heavy)
    done = python(code, HF_HUB_CACHE=str(tmp_path / "nowhere"), XDG_CACHE_HOME=str(tmp_path))
    assert (done.stdout.split(), done.stderr) == ([line[0] for line in lines], "")


@pytest.mark.thorough
def test_without_figures_no_command_imports_matplotlib(here, bert_folder):
    (here / "corpus.txt").write_text(f"{SENTENCE}\nThe dog ran\n")
    runs = {
        "heads": [SENTENCE, "--no-syntax"],
        "explain": [SENTENCE],
        "outputs": [SENTENCE],
        "rollout": [SENTENCE],
        "why": [SENTENCE, "--head", "L0H0"],
        "circuits": [],
        "card": ["L0H0", SENTENCE, "--no-syntax"],
        "compare": [SENTENCE, "-m", str(bert_folder), "--no-syntax"],
        "profile": ["corpus.txt", "--no-store", "--no-control", "--no-syntax"],
    }
    common = ["-m", str(bert_folder), "--figures", "none", "-q"]
    lines = [[name, *arguments, *common, "-o", name] for name, arguments in runs.items()]
    done = python(RUNS.format(lines=lines, heavy={"matplotlib"}))
    assert (done.stderr, done.stdout.split()) == ("", list(runs))


def test_matplotlib_neither_asks_for_a_display_nor_tells_of_its_folder(here):
    (here / "file").write_text("")
    code = (
        "import sys; sys.argv = ['attnviz', '--version']\n"
        "from attnviz.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "import matplotlib.figure; matplotlib.figure.Figure().savefig('a.png')\n"
    )
    done = python(code, MPLBACKEND="bogus", MPLCONFIGDIR=str(here / "file" / "none"))
    assert (done.returncode, done.stderr, Path("a.png").is_file()) == (0, "", True)


# --- streams and locales


@pytest.mark.parametrize(
    ("line", "redirection", "code"),
    [("--version", ">&- 2>&-", 0), ("--version", ">/dev/full", 1), ("heads --help", ">/dev/full", 1)],
)
@needs_full
def test_help_and_version_survive_any_stream(line, redirection, code):
    done = shell(redirection, *line.split())
    assert (done.returncode, done.stderr.count("\n"), "Traceback" in done.stderr) == (code, code, False)


@needs_fork
def test_a_text_is_read_as_utf8_in_any_locale_and_a_pipe_gets_plain_text_with_stand_ins(started):
    sys.argv[2] = "na\udcc3\udcafve cat"  # the bytes of "naïve cat", as Python reads arguments in the locale C
    with Path("stdout").open("wb") as stdout, Path("stderr").open("wb") as stderr:
        child = started(stdout.fileno(), stderr.fileno(), "--figures", "none", locale="C")
        child.join(100)
    assert (child.exitcode, Path("stderr").read_text().count("\n")) == (0, 1)
    assert json.loads(Path("out/heads.json").read_text(encoding="utf-8"))["text"] == "naïve cat"
    printed = Path("stdout").read_bytes()
    assert b"Checked: all 12 heads" in printed
    assert b"?" in printed
    assert b"\x1b" not in printed
    assert max(printed) < 128


@needs_fork
@needs_full
@pytest.mark.parametrize("stream", ["closed pipe", "full disk"])
def test_the_files_are_complete_where_results_cannot_be_printed(started, stream):
    if stream == "closed pipe":  # which ends quietly
        reading, stdout = os.pipe()
        os.close(reading)
    else:
        stdout = os.open("/dev/full", os.O_WRONLY)
    with Path("stderr").open("wb") as stderr:
        child = started(stdout, stderr.fileno(), "--figures", "none", "--json")
        child.join(100)
    os.close(stdout)
    said = Path("stderr").read_text()
    assert (child.exitcode, "cannot print" in said) == ((0, False) if stream == "closed pipe" else (1, True))
    assert sorted(path.name for path in Path("out").iterdir()) == [".attnviz.json", "heads.csv", "heads.json"]


# --- signals

DEFAULT = "import signal, sys\nfor each in (signal.SIGINT, signal.SIGHUP): signal.signal(each, signal.SIG_DFL)\n"
STARTING = """
import importlib.abc
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "{module}":
            signal.raise_signal({number})
sys.meta_path.insert(0, Finder())
sys.argv = ["attnviz", "models", "bert-base"]
from attnviz.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "number"),
    [("typer", SIGNALS[0]), ("attnviz.cli.heads", SIGNALS[1]), ("attnviz.commands.models", SIGNALS[-1])],
)
def test_a_signal_while_the_program_starts_is_an_interruption(module, number):
    done = python(DEFAULT + STARTING.format(number=int(number), module=module))
    assert (done.returncode, done.stdout) == (130, "")
    assert re.fullmatch(r"attnviz: interrupted.*\n", done.stderr)


@pytest.mark.parametrize(("ignored", "number"), [(signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)])
def test_a_signal_interrupts_unless_it_was_ignored_from_the_start(ignored, number):
    """As SIGINT is in a background job."""
    done = python(
        f"{DEFAULT}signal.signal({int(ignored)}, signal.SIG_IGN)\n"
        + STARTING.format(number=int(number), module="attnviz.commands.models")
    )
    assert (done.returncode, bool(done.stdout)) == ((0, True) if number == ignored else (130, False))


@needs_fork
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_while_drawing_exits_with_130_without_traceback_or_files(started, monkeypatch, number):
    original = views.heatmap_files

    def slow(*arguments: Any) -> Any:
        for data in original(*arguments):
            sys.stderr.write("drawing\n")
            sys.stderr.flush()
            time.sleep(0.2)
            yield data

    monkeypatch.setattr(views, "heatmap_files", slow)
    reading, writing = os.pipe()
    with Path("stdout").open("wb") as stdout, os.fdopen(reading) as stderr:
        child = started(stdout.fileno(), writing, "--figures", "heads")
        os.close(writing)
        assert stderr.readline() == "drawing\n"
        assert list(Path().glob(".out-new-*"))  # it had begun to write
        os.kill(child.pid, number)
        os.kill(child.pid, signal.SIGTERM)  # timeout and systemd send two
        said = stderr.read()
        child.join(100)
    assert (child.exitcode, Path("stdout").read_text()) == (130, "")
    assert ("attnviz: interrupted" in said, "Traceback" in said) == (True, False)
    assert not [path for path in Path().iterdir() if path.is_dir()]
