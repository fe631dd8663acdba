"""Packages with plug-ins, built and installed into a folder; registries as they were afterwards."""

import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path

from hatchling.build import build_wheel

import attnviz.measures.patterns
import attnviz.present.report  # noqa: F401 # every registry is there
from attnviz import plugins

PAGE = Path(__file__).resolve().parents[2] / "examples" / "guide" / "extending.md"
BLOCK = re.compile(r"^```(?:py|toml)\n# (\S+)\n(.*?)^```", re.M | re.S)


def files_of_the_guide() -> dict[str, str]:
    """The package of the page on plug-ins, by file."""
    return {**dict(BLOCK.findall(PAGE.read_text(encoding="utf-8"))), "attnviz_mine/__init__.py": ""}


def package(name: str, entries: Mapping[str, Mapping[str, str]], module: str = "") -> dict[str, str]:
    """The files of a package with these entry points by group, and a module."""
    groups = [
        f'[project.entry-points."attnviz.{group}"]\n' + "".join(f'"{key}" = "{value}"\n' for key, value in each.items())
        for group, each in entries.items()
    ]
    build = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    text = f'{build}[project]\nname = "{name}"\nversion = "1.0"\n' + "".join(groups)
    return {"pyproject.toml": text, f"{name.replace('-', '_')}/__init__.py": module}


def installed(files: Mapping[str, str], folder: Path) -> Path:
    """Build a package's wheel and unpack it into ``site``, as an installer does; returns that folder."""
    source = folder / f"source{len([*folder.glob('source*')])}"
    for name, content in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(content, encoding="utf-8")
    with chdir(source):
        wheel = build_wheel(str(folder))
    with zipfile.ZipFile(folder / wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@contextmanager
def fresh_registries() -> Iterator[None]:
    """Registries that look for plug-ins anew, and afterwards forget what they found and what was registered."""

    def forget() -> None:
        plugins.say.cache_clear()
        for registry in plugins.Registry.every:
            vars(registry).pop("plugins", None)
            registry._loaded.clear()
            registry.version += 1

    forget()
    yield
    forget()
    for name in [name for name in sys.modules if name.startswith("attnviz_")]:
        del sys.modules[name]
