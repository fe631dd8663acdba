"""Format, lint, types, import contracts: part of the tests, so that one command runs everything."""

import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "attnviz").rglob("*.py"))


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "format", "--check", "."],
        ["ruff", "check", "."],
        ["mypy"],
        ["lint-imports", "--no-logo"],
    ],
    ids=["format", "lint", "types", "import contracts"],
)
def test_tools_find_nothing(command: list[str]) -> None:
    program = Path(sys.executable).parent / command[0]
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_files_import_each_other_in_a_circle() -> None:
    """Nor inside functions, nor for type checkers alone."""
    graph = grimp.build_graph("attnviz", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) >= len(MODULES)
    TopologicalSorter(imports).prepare()  # raises CycleError, which names them


def test_no_module_uses_pyplot() -> None:
    imports = re.compile(r"^\s*(import|from) .*pyplot", re.M)
    assert [module.name for module in MODULES if imports.search(module.read_text(encoding="utf-8"))] == []
