"""What ``attnviz --help`` and the help of each command say."""

import re
import shlex

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from attnviz.cli.program import app
from attnviz.options import GROUPS, MEASUREMENT, PICTURES

COMMANDS = tuple("heads compare profile explain outputs ablate patch rollout why circuits check card models".split())
LACKS = {"check": {PICTURES}, "circuits": {MEASUREMENT}, "models": {MEASUREMENT, PICTURES}}


def helped(*words: str, width: int) -> str:
    done = CliRunner().invoke(app, [*words, "--help"], terminal_width=width)
    assert done.exit_code == 0, done.output
    assert "…" not in done.stdout
    assert "..." not in re.sub(r"[\]}]\.\.\.", "", done.stdout)  # of the usage line
    assert max(map(len, done.stdout.splitlines())) <= width
    return done.stdout


def parsed_examples(text: str) -> list[str]:
    """The commands of a help's examples, which follow its usage and first sentence, each with a few words."""
    usage, _, examples, *_ = text.split("\n\n")
    assert usage.startswith("Usage: ")
    title, *pieces = re.split(r"\n  (?=\S)", examples)
    lines = [piece.partition("\n")[0] for piece in pieces]
    assert (title, 2 <= len(lines) <= 4) == ("Examples:", True)
    names = []
    for line in lines:
        program, name, *words = shlex.split(line)
        assert program == "attnviz"
        get_command(app).commands[name].make_context(name, words)  # type: ignore[attr-defined]
        names.append(name)
    return names


@pytest.mark.parametrize("width", [60, pytest.param(80, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_is_whole_and_has_groups_metavars_and_examples_that_parse(command: str, width: int):
    text = helped(command, width=width)
    assert "<" not in text  # no types where a metavar says what goes in
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles == ["Examples", *(group for group in GROUPS if group not in LACKS.get(command, ()))]
    assert set(parsed_examples(text)) == {command}


def test_help_of_the_program_has_every_command():
    text = helped(width=60)
    assert {"heads", "compare", "profile"} <= set(parsed_examples(text))
    assert re.findall(r"^  (\w+)", text.rpartition("Commands:\n")[2], re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_options(shell: str):
    typed = {"_ATTNVIZ_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for words, offered in (("attnviz rol", "rollout"), ("attnviz heads --sel", "--select")):
        line = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_TYPER_COMPLETE_ARGS": words}
        done = CliRunner().invoke(app, [], prog_name="attnviz", env=typed | line)
        assert offered in done.stdout
