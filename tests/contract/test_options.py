"""The options of the command line are the arguments of the Python functions; one declaration checks both."""

import inspect
from typing import Any

import pytest
from typer.testing import CliRunner

import attnviz
from attnviz.cli.options import GROUPS
from attnviz.cli.program import app
from attnviz.errors import UsageError
from attnviz.figures import Style
from attnviz.options import RANGES
from attnviz.present.report import figures_in_words
from tests.support.command_line import FUNCTIONS, PARAMETERS
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
OF_PYTHON = "progress warn tell visit labels unfinished first second texts".split()  # callbacks, and what is in memory
OF_PYTHON_ALONE = {"ablate": {"metric"}, "cards": {"select"}}
OF_MODELS_BY_NAME = {"device", "dtype"}  # None in Python, where a model in memory has its own

MEASURING = [
    (command, option)
    for command, options in PARAMETERS.items()
    for option in options
    if option.rich_help_panel in GROUPS[:2] and option.name != "plugin"
]
OUT_OF_RANGE: dict[str, tuple[int, ...]] = {
    "limit": (0,), "batch_size": (0, 1_000_001), "seed": (-1, 2**63), "max_new_tokens": (0,), "generate": (0,),
    "layer": (-1,), "residual": (-1, 2), "depth": (0, 13), "examples": (-1, 101),
}  # fmt: skip
WRONG = [
    (function, name, value)
    for function in sorted({function for functions in FUNCTIONS.values() for function in functions})
    for name, values in OUT_OF_RANGE.items()
    if name in parameters_of(getattr(attnviz, function))
    for value in values
]


@pytest.mark.parametrize(("command", "option"), MEASURING, ids=lambda each: getattr(each, "name", each))
def test_options_of_measuring_are_arguments_with_the_same_default(command: str, option: Any):
    signatures = [parameters_of(getattr(attnviz, name)) for name in FUNCTIONS[command]]
    found = [each[option.name] for each in signatures if option.name in each]
    assert bool(found) != (option.name in OF_THE_COMMAND_LINE.get(command, ()))
    for parameter in found if option.name not in NAMED_THERE else ():
        default = None if option.required else option.default
        alike = [default, *[()] * (option.nargs == -1 or getattr(option, "multiple", False))]
        if option.required:
            alike.append(inspect.Parameter.empty)
        assert parameter.default in [*alike, *[None] * (option.name in OF_MODELS_BY_NAME)]


@pytest.mark.parametrize("command", PARAMETERS)
def test_arguments_of_python_are_options_of_the_command(command: str):
    options = {option.name for option in PARAMETERS[command]}
    for function in FUNCTIONS[command][command == "compare" :]:  # it takes a part of what analyze does
        known = {*options, *OF_PYTHON, *OF_PYTHON_ALONE.get(function, ())}
        assert set(parameters_of(getattr(attnviz, function))) - known == set()


@pytest.mark.parametrize("command", PARAMETERS)
def test_the_help_has_the_text_of_every_option_its_default_and_exit_codes(command: str):
    text = "".join(CliRunner().invoke(app, [command, "--help-all"], terminal_width=200).stdout.split())
    for option in PARAMETERS[command]:
        default = option.name if option.default is True else option.default
        note = f"[default: {default}]" if default not in (None, False, "") else ""
        assert "".join(f"{figures_in_words(option.help, command)} {note}".split()) in text
    assert all(code in text for code in ("0done", "1an", "2wrong", "3the", "130int"))


def test_figures_look_from_python_as_by_default_on_the_command_line():
    of_look = inspect.signature(Style).parameters
    defaults = {option.name: option.default for option in PARAMETERS["heads"] if option.name in of_look}
    assert {name: of_look[name].default for name in defaults} == defaults
    assert set(of_look) == set(defaults)


def test_every_range_is_tried():
    assert {*OUT_OF_RANGE, "top"} == {*RANGES}  # ``top`` is of results


@pytest.mark.parametrize(("function", "name", "value"), WRONG)
def test_numbers_out_of_range_are_refused_before_anything_is_read(function: str, name: str, value: int):
    call = getattr(attnviz, function)
    required = {each: "x" for each, of in parameters_of(call).items() if of.default is inspect.Parameter.empty}
    with pytest.raises(UsageError, match=rf"{name}.*{value}"):
        call(**required, **{name: value})


CHOICES = [
    (attnviz.ablate, "method"), (attnviz.ablate, "order_by"), (attnviz.patch, "direction"), (attnviz.patch, "site"),
    (attnviz.patch, "metric"), (attnviz.patch, "networks"), (attnviz.patch, "by"), (attnviz.profile_heads, "export"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "name"), CHOICES, ids=[name for _, name in CHOICES])
def test_a_value_that_is_no_choice_is_refused_before_anything_is_read(function: Any, name: str):
    required = {each: "x" for each, of in parameters_of(function).items() if of.default is inspect.Parameter.empty}
    optional = parameters_of(function)[name].default is None
    for value in ("kv-head", *([] if optional else [None])):
        with pytest.raises(UsageError, match=name):
            function(**required, **{name: value})


def test_a_number_out_of_range_is_refused_before_a_model_is_looked_for():
    for option, value in {"--residual": "1.5", "--layer": "-1", "--top": "-1", "--memory": "12"}.items():
        ended = CliRunner().invoke(app, ["rollout", "x", "-m", "no/such-model", option, value])
        assert (ended.exit_code, option in ended.stderr) == (2, True)
