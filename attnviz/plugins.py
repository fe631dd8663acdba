"""Plug-ins: patterns, statistics, model families and figures that ``attnviz.register`` adds to those of attnviz."""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from attnviz.errors import AttnvizError, UsageError
from attnviz.memory import is_out_of_memory
from attnviz.signals import Interrupted

T = TypeVar("T")
ORIGIN = "attnviz.register"  # where a plug-in comes from, as documents say it


def _line(error: BaseException) -> str:
    """The class of an error and its message, in one line."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 # somebody else's class of errors
        said = ""
    why = " ".join("".join(letter if letter.isprintable() else " " for letter in said).split()).rstrip(".")
    return why if type(error) is ValueError else f"{type(error).__name__}: {why}".rstrip(": ")


@dataclass(eq=False)
class Registry(Mapping[str, T]):
    """Natives, then what the running program has registered, by name."""

    every: ClassVar[list["Registry[Any]"]] = []
    changes: ClassVar[int] = 0  # how often something was registered, or taken back

    kind: str
    expected: str  # class of the values, with its module
    natives: Mapping[str, T]
    check_name: Callable[[str], object] = str  # raises ValueError, as ``check`` does
    check: Callable[[T], object] = str
    plugins: dict[str, T] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.every.append(self)

    def takes(self, value: Any) -> bool:
        """Whether it is of the class of the values, or a class below it."""
        kinds = (value if isinstance(value, type) else type(value)).__mro__
        return self.expected in [f"{kind.__module__}.{kind.__name__}" for kind in kinds]

    def _refused(self, name: str, error: BaseException) -> UsageError:
        return UsageError(f"{ORIGIN}: the {self.kind} {name!r} cannot be used: {_line(error)}.")

    def register(self, name: str, value: Any) -> None:
        """Add a value, or a class of which one is made; it may replace what was registered before."""
        try:
            if name in self.natives:
                raise ValueError("attnviz has one of this name")
            if not re.fullmatch(r"[\w.-]*", name):
                raise ValueError("expected a name of letters, digits, hyphens, underscores and dots")
            self.check_name(name)
            if not self.takes(value) or getattr(value, "name", name) != name:
                raise ValueError(f"expected {self.expected} of this name, found {value!r}")
            made: T = value() if isinstance(value, type) else value
            self.check(made)
        except (ImportError, TypeError, ValueError) as error:
            raise self._refused(name, error) from error
        self.plugins[name] = made
        Registry.changes += 1

    def unregister(self, name: str) -> bool:
        """Take back what was registered under this name, if anything; return whether there was."""
        Registry.changes += 1
        return self.plugins.pop(name, None) is not None

    @contextmanager
    def errors_named(self, name: str) -> Iterator[None]:
        """Turn whatever the plug-in of this name raises in the block, ``SystemExit`` too, into one UsageError.

        Interruptions, errors of attnviz and a lack of memory stay what they are.
        """
        try:
            yield
        except (AttnvizError, KeyboardInterrupt, Interrupted, GeneratorExit):
            raise
        except BaseException as error:
            if name not in self.plugins or is_out_of_memory(error):
                raise
            raise self._refused(name, error) from error

    def __getitem__(self, name: str) -> T:
        return self.natives[name] if name in self.natives else self.plugins[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self.natives, *self.plugins))

    def __len__(self) -> int:
        return len(self.natives) + len(self.plugins)


def run_file(path: Path) -> None:
    """Run a Python file that registers what it declares; UsageError where it cannot, or registers nothing."""
    before = Registry.changes
    spec = spec_from_file_location(f"attnviz_plugin_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        found = path if path.exists() else f"nothing at {path}"
        raise UsageError(f"expected a Python file (.py) as --plugin, found {found}.")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (KeyboardInterrupt, Interrupted):
        raise
    except BaseException as error:  # whatever somebody else's file raises
        raise UsageError(f"the plug-in {path} cannot be used: {_line(error)}.") from error
    if Registry.changes == before:
        raise UsageError(
            f'the plug-in {path} registers nothing: expected a line such as attnviz.register("two-back", lambda text: '
            "text.distances == -2)."
        )


def plugins_used(**names: Collection[str]) -> list[dict[str, str]]:
    """Entries of the plug-ins that are among these names, by kind: ``pattern=["my-pattern"]``."""
    plugins = {registry.kind: registry.plugins for registry in Registry.every}
    return [
        {"kind": kind, "name": name, "origin": ORIGIN}
        for kind in ("architecture", "pattern", "statistic", "figure")
        for name in plugins.get(kind, ())
        if name in names[kind]
    ]
