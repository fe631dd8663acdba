"""Lazy package attributes (PEP 562)."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports names, or submodules, on first access."""

    def find(name: str) -> Any:
        if name not in modules:
            module = sys.modules[package]
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        module = import_module(modules[name])
        value = getattr(module, name, module)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted(modules), sorted(modules)
