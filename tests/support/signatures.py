"""The arguments of functions whose keywords are partly those of a TypedDict."""

import inspect
from collections.abc import Callable
from typing import Any, get_args


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """By name, with the keywords that are unpacked, whose default is None."""
    found = dict(inspect.signature(function).parameters)
    for name in [name for name, each in found.items() if each.kind is each.VAR_KEYWORD]:
        (unpacked,) = get_args(found.pop(name).annotation)
        found |= {each: inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=None)
                  for each in unpacked.__annotations__}  # fmt: skip
    return found
