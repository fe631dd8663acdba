"""Records of a profile, from the objects of its JSON document and back."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def record_of(kind: Callable[..., T], entry: Mapping[str, Any], **given: Any) -> T:
    """A dataclass from the keys of an object that are its fields; ``given`` ones are as they are.

    TypeError or ValueError where a value is of another type, or a field without a default is missing.
    """
    wanted = {name: of for name, of in _fields(kind).items() if name in entry and name not in given}
    return kind(**{name: _value_of(of, entry[name]) for name, of in wanted.items()}, **given)


def entry_of(record: Any) -> dict[str, Any]:
    """A dataclass as an object of JSON, tuples as lists."""
    return {name: _plain(value) for name, value in asdict(record).items()}


@cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _value_of(kind: Any, value: Any) -> Any:
    options = get_args(kind)
    if type(None) in options:
        return None if value is None else _value_of(options[0], value)
    if hasattr(kind, "_fields"):  # a named tuple
        return kind(*(_value_of(of, each) for of, each in zip(_fields(kind).values(), value, strict=True)))
    if get_origin(kind) is tuple:
        return tuple(_value_of(of, each) for of, each in zip(options, value, strict=True))
    return (get_origin(kind) or kind)(value)


def _plain(value: Any) -> Any:
    return list(map(_plain, value)) if isinstance(value, tuple) else value
