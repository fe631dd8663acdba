"""The table of options is the one place that they are stated: command line, Python and checks agree with it."""

import inspect
from typing import Any

import pytest
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.errors import UsageError
from attnviz.figures import Style
from attnviz.options import COMMANDS, REQUIRED, Option
from attnviz.present.report import views_in_words
from tests.support.signatures import parameters_of

LANGUAGES = {"source_language", "target_language"}  # in Python settings of the tokenizer
OF_THE_COMMAND_LINE = {
    "heads": {"each_line", *LANGUAGES},
    "compare": {"texts", *LANGUAGES},
    "outputs": LANGUAGES,
    "ablate": LANGUAGES,
    "card": {"all_heads", *LANGUAGES},
    "profile": {"corpora", "show"},
    "models": {"families", "verify"},
}  # what no Python function has under this name
NAMED_THERE = {"model", "revision", "corpus", "head"}  # of which a command has two, or none, and a function takes one
OF_MODELS_BY_NAME = {"device", "dtype"}  # None in Python, where a model in memory has its own

MEASURING = [
    (command, option) for command, of in COMMANDS.items() for option in of.options if option.name in of.measuring
]
RANGES = [
    (f"{function}-{option.name}", getattr(attnviz, function), option)
    for command in COMMANDS.values()
    for option in command.options
    for function in command.functions
    if option.least is not None and option.name in parameters_of(getattr(attnviz, function))
]


@pytest.mark.parametrize(("command", "option"), MEASURING, ids=lambda each: getattr(each, "name", each))
def test_options_of_measuring_are_arguments_with_the_same_default(command: str, option: Option):
    signatures = [parameters_of(getattr(attnviz, name)) for name in COMMANDS[command].functions]
    found = [each[option.name] for each in signatures if option.name in each]
    assert bool(found) != (option.name in OF_THE_COMMAND_LINE.get(command, ()))
    for parameter in found if option.name not in NAMED_THERE else ():
        assert parameter.default in [option.default, *[None] * (option.name in OF_MODELS_BY_NAME)]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_is_made_of_the_table_and_tells_exit_codes_and_defaults(command: str):
    text = "".join(CliRunner().invoke(app, [command, "--help"], terminal_width=200).stdout.split())
    for option in COMMANDS[command].options:
        default = option.default
        if default is True:
            default = option.name
        note = f"[default: {default}]" if default not in (None, False, (), "", REQUIRED) else ""
        assert "".join(f"{views_in_words(option.help, command)} {note}".split()) in text
    assert all(code in text for code in ("0done", "1an", "2wrong", "3the", "130int"))


def test_figures_look_from_python_as_by_default_on_the_command_line():
    of_look = inspect.signature(Style).parameters
    defaults = {option.name: option.default for option in COMMANDS["heads"].options if option.name in of_look}
    assert {name: of_look[name].default for name in defaults} == defaults
    assert set(of_look) == set(defaults)


@pytest.mark.parametrize(("function", "option"), [each[1:] for each in RANGES], ids=[each[0] for each in RANGES])
def test_numbers_out_of_range_are_refused_before_anything_is_read(function: Any, option: Option):
    required = {name: "x" for name, each in parameters_of(function).items() if each.default is REQUIRED}
    for value in (option.least - 1, *([] if option.most is None else [option.most + 1])):
        with pytest.raises(UsageError, match=rf"{option.name} .*{value}"):
            function(**required, **{option.name: value})
