"""Names of a package that cost nothing until they are asked for."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` (PEP 562) of a package whose public names are imported when first asked for.

    Args:
        package: its ``__name__``.
        modules: of each name the module that it comes from; a module of the package is its own.

    Raises:
        AttributeError: from the function that is returned, on any other name.
    """

    def find(name: str) -> Any:
        if name not in modules:
            module = sys.modules[package]
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        module = import_module(modules[name])
        found = getattr(module, name, module)
        setattr(sys.modules[package], name, found)
        return found

    return find
