"""What ``attnviz --help`` and the help of each command say."""

import re
import shlex
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from attnviz.cli.options import GROUPS, MEASUREMENT, PICTURES
from attnviz.cli.program import app
from tests.support.command_line import PARAMETERS

COMMANDS = tuple("heads compare profile explain outputs ablate patch rollout why circuits check card models".split())
LACKS = {"check": {PICTURES}, "circuits": {MEASUREMENT}, "models": {MEASUREMENT, PICTURES}}


def helped(*words: str, width: int, flag: str = "--help") -> str:
    done = CliRunner().invoke(app, [*words, flag], terminal_width=width)
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
    text = helped(command, width=width, flag="--help-all")
    assert "<" not in text  # no types where a metavar says what goes in
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles == ["Examples", *(group for group in GROUPS if group not in LACKS.get(command, ()))]
    assert set(parsed_examples(text)) == {command}


PEOPLE_USE = "--model --device --dtype --select --figures --width --format --table --out --each-line --verbose".split()


def test_help_describes_the_options_that_people_use_and_names_the_others():
    described, _, named = helped("heads", width=80).partition("\nMore options ")
    assert set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", described, re.MULTILINE)) == {*PEOPLE_USE, "--help"}
    assert re.search(r"^  TEXT ", described, re.MULTILINE)
    assert not re.findall(r"^  -", named, re.MULTILINE)


def test_help_of_heads_fits_on_a_screen():
    assert len(helped("heads", width=80).splitlines()) <= 56


def test_an_option_may_have_another_help_in_a_command_and_keeps_what_it_takes():
    def of(command: str) -> Any:
        (option,) = [option for option in PARAMETERS[command] if option.name == "top"]
        return option

    assert len({of(command).help for command in ("heads", "circuits", "profile", "rollout")}) == 4
    assert {(of(command).opts[0], of(command).metavar) for command in ("heads", "circuits", "rollout")} == {
        ("--top", "N")
    }


def test_help_says_an_option_in_a_sentence_and_its_default_and_help_all_says_all():
    short, whole = (helped("heads", width=300, flag=flag) for flag in ("--help", "--help-all"))
    (option,) = [option for option in PARAMETERS["heads"] if option.name == "formats"]
    first, second, default = option.help.removesuffix(".").split(". ")
    assert f"{first}. {default}." in short
    assert f"{first}. {second}. {default}." in whole
    assert ("overview.png" in short, "overview.png" in whole) == (False, True)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option_and_help_all_describes_it(command: str):
    options = {each.opts[0] for each in PARAMETERS[command] if each.param_type_name == "option"}
    short, whole = (helped(command, width=100, flag=flag) for flag in ("--help", "--help-all"))
    assert [option for option in options if option not in "".join(short.split())] == []  # lines break at hyphens
    assert options <= set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", whole, re.MULTILINE))
    assert "More options" not in whole


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
