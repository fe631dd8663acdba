"""Plug-ins: model families, head patterns and figures from outside, by entry points or ``attnviz.register``."""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.util import module_from_spec, spec_from_file_location
from itertools import chain
from pathlib import Path
from traceback import walk_tb
from typing import Any, ClassVar, TypeVar, cast

from attnviz.errors import AttnvizError, UsageError
from attnviz.memory import is_out_of_memory
from attnviz.printable import one_line

T = TypeVar("T")

PLUGIN_KINDS = ("architecture", "pattern", "figure")

quiet = False
"""Whether :func:`say` is silent."""

_REGISTERED = "attnviz.register"


@dataclass(frozen=True)
class Plugin:
    """A declaration: its kind, its name, the package with its version, how to load it, the module that has it."""

    kind: str
    name: str
    origin: str
    load: Callable[[], Any]
    module: str = ""

    def refused(self, error: BaseException) -> str:
        """Why it cannot be used, in one line."""
        return f"{self.origin}: the {self.kind} {self.name!r} cannot be used: {_line(error)}."


def declared(kind: str) -> list[Plugin]:
    """What installed packages declare of a kind, by package; nothing of theirs is imported."""
    from importlib.metadata import distributions  # half the time of --help

    found: dict[str, list[Plugin]] = {}
    for package in distributions():
        try:
            if "[attnviz." not in (package.read_text("entry_points.txt") or ""):
                continue
            origin, points = f"{package.name} {package.version}", package.entry_points.select(group=f"attnviz.{kind}s")
            made = [Plugin(kind, point.name, origin, point.load, point.module) for point in points]
        except Exception as error:  # noqa: BLE001 # whatever a damaged package leads to
            where = getattr(package, "_path", package)
            say(f"a package has entry points for attnviz that cannot be read, {where}: {_line(error)}.")
            continue
        found.setdefault(package.name, made)  # the first on the path, as everywhere
    return sorted(chain(*found.values()), key=lambda plugin: plugin.origin)


def _line(error: BaseException) -> str:
    """The class of an error and its message, in one line."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 # somebody else's class of errors
        said = ""
    why = " ".join("".join(each if each.isprintable() else " " for each in said).split()).rstrip(".")
    return why if type(error) is ValueError else f"{type(error).__name__}: {why}".rstrip(": ")


@contextmanager
def named(plugin: Plugin | None = None) -> Iterator[None]:
    """Turn whatever a plug-in raises in the block, ``SystemExit`` too, into one line that names it.

    Without a plug-in it is the one whose module the error comes through, if any.

    Raises:
        UsageError: in its place. Interruptions, errors of attnviz and a lack of memory stay what they are.
    """
    try:
        yield
    except (AttnvizError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if plugin is None:
            modules = {str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)}
            plugin = _declaring(modules)
        if plugin is None or is_out_of_memory(error):
            raise
        raise UsageError(plugin.refused(error)) from error


def _declaring(modules: set[str]) -> Plugin | None:
    """The plug-in of these modules, or one of their packages."""
    packages = {module.partition(".")[0] for module in modules} - {"attnviz"}
    plugins = [plugin for registry in Registry.every for plugin in registry.plugins.values()]
    own = [plugin for plugin in plugins if plugin.module.partition(".")[0] in packages]
    return max(own, key=lambda plugin: plugin.module in modules, default=None)


@dataclass(eq=False)
class Registry(Mapping[str, T]):
    """Natives, then what plug-ins declare, by name; a plug-in is loaded when its name is looked up.

    ``expected`` is the class of the values, with its module. ``check_name``, which is called before anything is loaded,
    and ``check`` raise ValueError; ``error`` is raised where a name is looked up whose plug-in fails to load.
    ``version`` counts what was registered.
    """

    kind: str
    expected: str
    natives: Mapping[str, T]
    check_name: Callable[[str], object] = str
    check: Callable[[T], object] = str
    error: type[AttnvizError] = UsageError
    version: int = 0
    _loaded: dict[str, T | AttnvizError] = field(default_factory=dict)
    every: ClassVar[list["Registry[Any]"]] = []

    def __post_init__(self) -> None:
        """Remember the registry."""
        self.every.append(self)

    @cached_property
    def plugins(self) -> dict[str, Plugin]:
        """Declarations by name; of several with one name the first."""
        found: dict[str, Plugin] = {}
        for plugin in declared(self.kind):
            try:
                self._add(plugin, found)
            except (ImportError, ValueError) as error:
                say(plugin.refused(error))
        return found

    def _add(self, plugin: Plugin, to: dict[str, Plugin]) -> None:
        other = "attnviz" if plugin.name in self.natives else plugin.name in to and to[plugin.name].origin
        if other and other != _REGISTERED:
            raise ValueError(f"{other} has one of this name")
        if not re.fullmatch(r"[\w.-]*", plugin.name):
            raise ValueError("expected a name of letters, digits, hyphens, underscores and dots")
        self.check_name(plugin.name)
        to[plugin.name] = plugin

    def takes(self, value: Any) -> bool:
        """Whether it is of the class of the values, or a class below it."""
        kinds = (value if isinstance(value, type) else type(value)).__mro__
        return self.expected in [f"{kind.__module__}.{kind.__name__}" for kind in kinds]

    def _checked(self, name: str, value: Any) -> T:
        if not self.takes(value) or getattr(value, "name", name) != name:
            raise ValueError(f"expected {self.expected} of this name, found {value!r}")
        made: T = value() if isinstance(value, type) else value
        self.check(made)
        return made

    def register(self, name: str, value: Any) -> None:
        """Add what the running program declares; it may replace what it declared before."""
        plugin = Plugin(self.kind, name, _REGISTERED, lambda: value)
        after = dict(self.plugins)
        try:
            self._add(plugin, after)
            self._loaded[name] = self._checked(name, value)
        except (ImportError, TypeError, ValueError) as error:
            raise UsageError(plugin.refused(error)) from error
        self.plugins, self.version = after, self.version + 1

    def unregister(self, name: str) -> bool:
        """Take back what the running program declared under this name, if anything; return whether there was."""
        known = name in self.plugins and self.plugins[name].origin == _REGISTERED
        if known:
            del self.plugins[name], self._loaded[name]
            self.version += 1
        return known

    def usable(self, names: Iterable[str] | None = None) -> dict[str, T]:
        """Those of these names, default all, that load; each that fails is named once, on standard error."""
        found = {}
        for name in self if names is None else {*self}.intersection(names):
            try:
                found[name] = self[name]
            except self.error as error:
                say(str(error))
        return found

    def __getitem__(self, name: str) -> T:
        if name in self.natives:
            return self.natives[name]
        plugin = self.plugins[name]
        if name not in self._loaded:
            try:
                self._loaded[name] = self._checked(name, plugin.load())
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 # whatever somebody else's module raises
                self._loaded[name] = self.error(plugin.refused(error))
        value = self._loaded[name]
        if isinstance(value, AttnvizError):
            raise value
        return value

    def __iter__(self) -> Iterator[str]:
        return iter((*self.natives, *self.plugins))

    def __len__(self) -> int:
        return len(self.natives) + len(self.plugins)


def run_file(path: Path) -> None:
    """Run a Python file that registers what it declares.

    Raises:
        UsageError: it cannot be read, raises an error, or registers nothing; one line.
    """
    before = sum(registry.version for registry in Registry.every)
    spec = spec_from_file_location(f"attnviz_plugin_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        found = path if path.exists() else f"nothing at {path}"
        raise UsageError(f"expected a Python file (.py) as --plugin, found {found}.")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever somebody else's file raises
        raise UsageError(f"the plug-in {path} cannot be used: {_line(error)}.") from error
    if before == sum(registry.version for registry in Registry.every):
        raise UsageError(
            f'the plug-in {path} registers nothing: expected a line such as attnviz.register("two-back", lambda text: '
            "text.distances == -2)."
        )


def plugins_used(**names: Collection[str]) -> list[dict[str, str]]:
    """Entries of the plug-ins that are among these names, by kind: ``pattern=["my-pattern"]``."""
    plugins = {registry.kind: registry.plugins.values() for registry in Registry.every}
    return [
        {"kind": kind, "name": plugin.name, "origin": plugin.origin}
        for kind in PLUGIN_KINDS
        for plugin in plugins.get(kind, ())
        if plugin.name in names[kind]
    ]


class _Live:
    """Reads a tuple or a dict that is made anew after something was registered."""

    def __init__(self, registry: Registry[Any], make: Callable[[], Any]) -> None:
        self._registry, self._make, self._version = registry, make, -1

    def _now(self) -> Any:
        if self._version != self._registry.version:
            self._made, self._version = self._make(), self._registry.version
        return self._made

    def __getitem__(self, key: Any) -> Any:
        return self._now()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __getattr__(self, name: str) -> Any:  # get, items, index, …
        return getattr(self._now(), name)


def live(registry: Registry[Any], make: Callable[[], T]) -> T:
    """What ``make`` returns, a tuple or a dict, made when it is first read: plug-ins are not loaded before."""
    return cast(T, _Live(registry, make))


@cache
def say(message: str) -> None:
    """Print a line on standard error, once."""
    if sys.stderr is not None and not quiet:
        sys.stderr.write(f"attnviz: {one_line(message)}\n")
