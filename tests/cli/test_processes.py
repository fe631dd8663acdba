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
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that runs this code of ours."""
    root = str(Path(attnviz.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": root, **environment},
    )  # fmt: skip


def shell(redirection: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program in a process, with streams as only a shell makes them."""
    root = str(Path(attnviz.__file__).parents[1])
    return subprocess.run(
        ["sh", "-c", f'"$0" "$@" {redirection}', sys.executable, "-m", "attnviz", *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": root, **environment},
    )  # fmt: skip


@pytest.fixture
def started(here, bert_folder, monkeypatch):
    """A function that starts ``attnviz heads`` on the tiny BERT in a process of its own with these streams."""
    monkeypatch.setattr(sys, "argv", ["attnviz", "heads", SENTENCE, "-m", str(bert_folder), "-o", "out", "--no-syntax"])

    def start(stdout, stderr, *arguments, locale=""):
        sys.argv += arguments
        return forked(main, stdout, stderr, locale)

    return start


# --- what is imported


def test_help_and_the_models_of_papers_import_nothing_heavy(tmp_path):
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from attnviz.cli.program import app\n"
        "heavy = ('torch', 'transformers', 'matplotlib', 'numpy', 'spacy', 'safetensors', 'huggingface_hub')\n"
        f"lines = [[name, '--help'] for name in {COMMANDS}]\n"
        "for line in [*lines, ['models', 'gpt2-xl'], ['models', 'bert-base', 'gpt3-175b', '--json']]:\n"
        "    assert CliRunner().invoke(app, line).exit_code == 0\n"
        "    assert not set(heavy) & set(sys.modules) - ({'huggingface_hub'} if 'models' in line else set()), line\n"
        "print(len(lines))\n"
    )
    done = python(code, HF_HUB_CACHE=str(tmp_path / "nowhere"), XDG_CACHE_HOME=str(tmp_path))
    assert (done.stdout, done.stderr) == (f"{len(COMMANDS)}\n", "")


def test_without_figures_no_command_imports_matplotlib(here, bert_folder):
    (here / "corpus.txt").write_text(f"{SENTENCE}\nThe dog ran\n")
    runs = [
        ["heads", SENTENCE, "--no-syntax"],
        ["explain", SENTENCE],
        ["outputs", SENTENCE],
        ["rollout", SENTENCE],
        ["compare", SENTENCE, "-m", str(bert_folder), "--no-syntax"],
        ["profile", "corpus.txt", "--no-store", "--no-control", "--no-syntax"],
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
    done = python(code)
    assert (done.stderr, done.stdout.splitlines()) == ("", [f"{command} False" for command, *_ in runs])


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
    assert (done.returncode, done.stderr) == (0, "")
    assert (here / "a.png").is_file()


# --- streams and locales


@pytest.mark.parametrize(
    ("line", "redirection"),
    [
        *(("--version", each) for each in (">&-", ">/dev/full", ">&- 2>&-", "2>&-")),
        ("heads --help", ">/dev/full"),
    ],
)
@needs_full
def test_help_and_version_survive_any_stream(line, redirection):
    done = shell(redirection, *line.split())
    assert done.returncode == int(redirection.startswith(">/dev/full"))
    assert done.stderr == ("attnviz: cannot print: No space left on device.\n" if redirection == ">/dev/full" else "")


def test_closed_standard_input_is_refused(here, bert_folder):
    done = shell("<&-", "heads", "-", "-m", str(bert_folder), "-o", "out")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "attnviz: standard input is closed; expected a sentence on it, or as TEXT.\n"


@needs_fork
def test_a_text_is_read_as_utf8_in_any_locale_and_a_pipe_gets_plain_text_with_stand_ins(started):
    sys.argv[2] = "na\udcc3\udcafve cat"  # the bytes of "naïve cat", as Python reads arguments in the locale C
    with Path("stdout").open("wb") as stdout, Path("stderr").open("wb") as stderr:
        process = started(stdout.fileno(), stderr.fileno(), "--figures", "none", locale="C")
        process.join(100)
    assert (process.exitcode, Path("stderr").read_text()) == (
        0,
        "Open out/heads.csv (one of 2 files; more tables: --verbose)\n",
    )
    assert json.loads(Path("out/heads.json").read_text(encoding="utf-8"))["text"] == "naïve cat"
    printed = Path("stdout").read_bytes()
    assert b"Verified 12 heads of " in printed
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
        code, said = 0, "Open out/heads.csv (one of 2 files)\n"
    else:
        stdout, code = os.open("/dev/full", os.O_WRONLY), 1
        said = "attnviz: cannot print the results: No space left on device; the files in out are complete.\n"
    with Path("stderr").open("wb") as stderr:
        process = started(stdout, stderr.fileno(), "--figures", "none", "--json")
        process.join(100)
    os.close(stdout)
    assert (process.exitcode, Path("stderr").read_text()) == (code, said)
    assert sorted(path.name for path in Path("out").iterdir()) == [".attnviz.json", "heads.csv", "heads.json"]


# --- signals

DEFAULT = "import signal, sys\nfor each in (signal.SIGINT, signal.SIGHUP): signal.signal(each, signal.SIG_DFL)\n"
STARTING = (
    DEFAULT
    + """
import importlib.abc
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "{module}":
            {act}
sys.meta_path.insert(0, Finder())
sys.argv = ["attnviz", "models", "bert-base"]
from attnviz.cli import main
main()
"""
)

STARTS = [
    ("typer", "signal.raise_signal({number})"),
    ("attnviz.cli.heads", "exec('signal.raise_signal({number})')"),  # Python itself looks whether it passes here
    ("attnviz.commands.models.measure", "exec('signal.raise_signal({number})')"),
]


@pytest.mark.parametrize(
    ("module", "act", "number"), [(*start, SIGNALS[place % len(SIGNALS)]) for place, start in enumerate(STARTS)]
)
def test_a_signal_while_the_program_starts_is_an_interruption(module, act, number):
    act = act.replace("{number}", str(int(number)))
    done = python(STARTING.format(number=int(number), module=module, act=act))
    assert (done.returncode, done.stdout) == (130, "")
    assert re.fullmatch(r"attnviz: interrupted(; nothing was written)?\.\n", done.stderr)


@pytest.mark.parametrize(
    ("ignored", "number"),
    [(None, signal.SIGINT), (signal.SIGINT, signal.SIGINT), (signal.SIGHUP, signal.SIGHUP),
     (signal.SIGINT, signal.SIGTERM)],
)  # fmt: skip
def test_a_signal_while_options_are_read_interrupts_unless_it_was_ignored_from_the_start(ignored, number):
    """As SIGINT is in a background job, and SIGHUP under nohup."""
    done = python(
        DEFAULT + (f"signal.signal({int(ignored)}, signal.SIG_IGN)\n" if ignored else "") +
        "from attnviz.cli import main, program\n"
        "parse = program._Command.parse_args\n"
        f"program._Command.parse_args = lambda *given: signal.raise_signal({int(number)}) or parse(*given)\n"
        "sys.argv = ['attnviz', 'models', '--help']; main()\n"
    )  # fmt: skip
    if number == ignored:
        assert (done.returncode, done.stderr, done.stdout[:7]) == (0, "", "Usage: ")
    else:
        assert (done.returncode, done.stdout) == (130, "")


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
        process = started(stdout.fileno(), writing, "--figures", "heads")
        os.close(writing)
        assert stderr.readline() == "drawing\n"
        assert list(Path().glob(".out-new-*"))  # it had begun to write
        os.kill(process.pid, number)
        said = stderr.read()
        process.join(100)
    assert (process.exitcode, Path("stdout").read_text()) == (130, "")
    assert "attnviz: interrupted; nothing was written." in said
    assert "Traceback" not in said
    assert not [path for path in Path().iterdir() if "out" in path.name and path.suffix != ".txt" and path.is_dir()]
