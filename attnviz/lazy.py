"""Names of a package that cost nothing until they are asked for."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The ``__getattr__`` (PEP 562), ``__dir__`` and ``__all__`` of a package that imports its names when asked for.

    Args:
        package: its ``__name__``.
        modules: of each name the module that it comes from; a module of the package is its own.

    Raises:
        AttributeError: from ``__getattr__``, on any other name.
    """

    def find(name: str) -> Any:
        if name not in modules:
            module = sys.modules[package]
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        module = import_module(modules[name])
        found = getattr(module, name, module)
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted(modules), sorted(modules)
