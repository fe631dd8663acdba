"""The options of each command as typer declares them, and the functions of Python that the commands call."""

from typing import Any

from typer.main import get_command

from attnviz.cli.program import app

PARAMETERS: dict[str, list[Any]] = {
    name: command.params
    for name, command in get_command(app).commands.items()  # type: ignore[attr-defined]
}
FUNCTIONS = {
    "heads": ("analyze", "analyze_each"),
    "compare": ("analyze", "compare_corpus"),
    "profile": ("profile_heads",),
    "outputs": ("head_outputs",),
    "card": ("card", "cards"),
    "models": ("model_configurations",),
    **{name: (name,) for name in ("explain", "ablate", "patch", "rollout", "why", "circuits", "check")},
}


def flag_for(parameter: Any, value: object) -> str:
    """What is typed for a value: ``--syntax``, ``--no-syntax``."""
    flag: str = (parameter.secondary_opts if value is False else parameter.opts)[0]
    return flag
