"""What ``attnviz --help`` and the help of each command say, at two widths."""

import re
import shlex

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from attnviz.cli.program import app
from attnviz.options import GROUPS, MEASUREMENT, PICTURES

COMMANDS = tuple("heads compare profile explain outputs ablate patch rollout why circuits check card models".split())
OF_MODELS = ("Text and model", "Output")
"""The groups of ``models``, which neither measures nor draws."""


def helped(*words: str, width: int) -> str:
    done = CliRunner().invoke(app, [*words, "--help"], terminal_width=width)
    assert done.exit_code == 0, done.output
    return done.stdout


def parsed_examples(text: str) -> list[str]:
    """The commands of a help's examples, which follow its usage and first sentence, each with a few words."""
    usage, sentence, examples, *_ = text.split("\n\n")
    assert usage.startswith("Usage: ")
    assert sentence.endswith(".")
    title, *pieces = re.split(r"\n  (?=\S)", examples)
    lines, what = zip(*[piece.split("\n", 1) for piece in pieces], strict=True)
    assert title == "Examples:"
    assert 2 <= len(lines) <= 4
    assert all(words.endswith(".") for words in what)
    found = []
    for line in lines:
        program, name, *words = shlex.split(line)
        assert program == "attnviz"
        get_command(app).commands[name].make_context(name, words)  # type: ignore[attr-defined]
        found.append(name)
    return found


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_is_whole_and_has_groups_metavars_and_examples_that_parse(command: str, width: int):
    text = helped(command, width=width)
    assert "…" not in text
    assert "..." not in text.replace("]...", "").replace("}...", "")  # of the usage line
    assert "<" not in text  # no types where a metavar says what goes in
    assert "x>=" not in text
    assert max(map(len, text.splitlines())) <= width
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    lacks = {"check": PICTURES, "circuits": MEASUREMENT}
    groups = [group for group in GROUPS if group != lacks.get(command)]
    assert titles == ["Examples", *(OF_MODELS if command == "models" else groups)]
    assert set(parsed_examples(text)) == {command}


@pytest.mark.parametrize("width", [80, 60])
def test_help_of_the_program_has_a_whole_sentence_for_each_command(width: int):
    text = helped(width=width)
    assert "…" not in text
    assert "..." not in text.replace("[ARGS]...", "")
    assert max(map(len, text.splitlines())) <= width
    assert {"heads", "compare", "profile"} <= set(parsed_examples(text))
    sentences = re.split(r"\n  (?=\w)", text.rpartition("Commands:\n")[2])
    assert [sentence.split()[0] for sentence in sentences] == list(COMMANDS)
    assert all(sentence.strip().endswith(".") for sentence in sentences)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_options(shell: str):
    typed = {"_ATTNVIZ_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for words, offered in (("attnviz rol", "rollout"), ("attnviz heads --sel", "--select")):
        line = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_TYPER_COMPLETE_ARGS": words}
        done = CliRunner().invoke(app, [], prog_name="attnviz", env=typed | line)
        assert offered in done.stdout


def test_the_script_for_completion_is_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    done = CliRunner().invoke(app, ["--show-completion"], prog_name="attnviz")
    assert "complete -o default -F _attnviz_completion attnviz" in done.stdout
