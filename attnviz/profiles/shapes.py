"""JSON files, and the shapes of their values: types of Python, of objects a TypedDict."""

import json
import math
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from attnviz.models.wording import shortened, visible

_EXPECTED = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}


def check_shape(value: Any, shape: Any, path: str = "") -> None:
    """Check a value of a JSON document.

    Args:
        value: what was read; a missing key of an object counts as None.
        shape: ``str``, ``bool``, ``int``, ``float``, ``Any``, a TypedDict, ``list[X]``, ``tuple[X, Y]`` (a list of
            two), ``dict[str, X]``, or ``X | None``.
        path: of the value, such as ``roles[3].score``.

    Raises:
        ValueError: it has another shape, with the path.
    """
    kind, args = get_origin(shape), get_args(shape)
    if NoneType in args:
        if value is not None:
            check_shape(value, args[0], path)
    elif is_typeddict(shape) or kind is dict:
        if type(value) is not dict:
            raise refused(value, "an object", path)
        shapes = dict.fromkeys(value, args[1]) if kind is dict else _hints(shape)
        for key, of_key in shapes.items():
            check_shape(value.get(key), of_key, f"{path}.{visible(key)}".removeprefix("."))
    elif kind in (list, tuple):
        n = len(args) if kind is tuple else None
        if type(value) is not list or n not in (None, len(value)):
            raise refused(value, "a list" if n is None else f"a list of {n}", path)
        for at, each in enumerate(value):
            check_shape(each, args[at if n else 0], f"{path}[{at}]")
    elif shape is not Any and type(value) is not shape and not (shape is float and type(value) is int):
        raise refused(value, _EXPECTED[shape], path)


@cache
def _hints(shape: Any) -> dict[str, Any]:
    return get_type_hints(shape)


def refused(value: object, expected: str, path: str) -> ValueError:
    """The ValueError that something else was expected."""
    found = {NoneType: "nothing", list: "a list", dict: "an object"}.get(type(value))
    return ValueError(
        f"expected {expected} for {path or 'the document'}, found {found or shortened(json.dumps(value), 40)}"
    )


def read_json(path: Path) -> Any:
    """The document of a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: not JSON, or with NaN or infinite numbers.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
        raise OSError("something that is no file")
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_finite, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise ValueError("found no UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"found broken JSON ({error})") from error
    except RecursionError as error:
        raise ValueError("found lists in lists without an end") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"found {text}, which is no number of JSON")
    return value
