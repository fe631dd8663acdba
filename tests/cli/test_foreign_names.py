"""Names of others on the terminal: no escape sequence, no mark that turns the line round, no format, no markup."""

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import attnviz
from attnviz.cli.program import app
from attnviz.measures.patterns import PatternSpec
from tests.support.corpora import sentences, treebank

HOSTILE = "{x}{0}[b]\x1b[31m\u202e\u2066\u05d0\u05d1"
NAME = re.compile(r"\{x\}\{0\}\[b\]\\x1b\[31m\\u202e")
TEXT = "the cat that i saw ran away \u05d0\u05d1 , the cat ran"

pytestmark = pytest.mark.usefixtures("fresh_plugins", "undrawn")


@pytest.fixture
def place(tmp_path: Path, bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with models and corpora of hostile names, and a pattern whose words are hostile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    shutil.copytree(bert_folder, f"bert{HOSTILE}")
    shutil.copytree(Path(attnviz.__file__).parent / "data" / "tiny-gpt2", f"gpt2{HOSTILE}")
    sentences(tmp_path / f"{HOSTILE}.txt", 2)
    treebank(tmp_path / f"{HOSTILE}.conllu", 24)
    Path("claims.toml").write_text(f'text = "{TEXT}"\n[[claim]]\nhead = "L0H0"\nlabel = "sink"\n', encoding="utf-8")
    attnviz.register(PatternSpec("two_back", "two-back", lambda text: text.distances == -2, HOSTILE, "local"))
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, [*words], color=True)  # as on a terminal: click leaves escapes alone


BERT, GPT2, OUT = ("-m", f"bert{HOSTILE}"), ("-m", f"gpt2{HOSTILE}"), ("-o", f"out{HOSTILE}")
LINES = {
    "heads": ("heads", TEXT, *BERT, "--top", "0", "--figures", "map", "--map", "two-back", *OUT),
    "each-line": ("heads", f"{HOSTILE}.txt", "--each-line", *BERT, "--no-syntax", "--figures", "none", *OUT),
    "ablate": ("ablate", TEXT, *GPT2, "--select", "L2", *OUT),
    "compare": ("compare", TEXT, *BERT, *BERT, *OUT),
    "corpus": ("compare", "--corpus", f"{HOSTILE}.txt", *BERT, *BERT, *OUT),
    "explain": ("explain", TEXT, *BERT, *OUT),
    "outputs": ("outputs", TEXT, *GPT2, *OUT),
    "rollout": ("rollout", TEXT, *BERT, *OUT),
    "why": ("why", TEXT, "--head", "L1H0", *GPT2, *OUT),
    "circuits": ("circuits", *GPT2, *OUT),
    "profile": ("profile", f"{HOSTILE}.conllu", *BERT, "--limit", "8", "--no-control", *OUT),
    "card": ("card", "L0H0", f"{HOSTILE}.conllu", *GPT2, "--ablate", "--limit", "8", *OUT),
    "cards": ("card", "--all", f"{HOSTILE}.conllu", *GPT2, "--repeats", "--limit", "8", *OUT),
    "check": ("check", "claims.toml", *BERT, *OUT),
    "models": ("models", f"./bert{HOSTILE}", *OUT),
    "verify": ("models", f"./bert{HOSTILE}", "--verify", *OUT),
    "no figure": ("heads", TEXT, *BERT, "--figures", HOSTILE),
    "no option": ("heads", TEXT, f"--{HOSTILE}"),
    "no command": (HOSTILE,),
    "no theme": ("heads", TEXT, "--theme", HOSTILE),
}


QUICK = ("heads", "each-line", "models", "no figure", "no option", "no command", "no theme")


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, id=name, marks=[pytest.mark.thorough] * (name not in QUICK)) for name, words in LINES.items()],
)
def test_no_foreign_name_steers_the_terminal_or_is_a_format(place: Path, words: tuple[str, ...]):
    done = run(*words)
    assert isinstance(done.exception, SystemExit | None), done.exception
    expected = 2 if words[-1] == HOSTILE or words[-1] == f"--{HOSTILE}" else 1 if words[0] == "check" else 0
    assert done.exit_code == expected, done.output
    assert [mark for mark in "\x1b\u202e\u2066\u2067\u2069" if mark in done.output] == []
    assert NAME.search(done.output)
