"""Format, lint, types, import contracts: part of the tests, so that one command runs everything."""

import ast
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


# What commands leave to run/ and measures/intervals.py: hooks on modules, loops over batches, intervals.
NOT_OF_COMMANDS = {
    *("taps", "at_site", "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"),
    *("batches", "input_batches", "split_batch", "collate"),
    *("text_weights", "of_ratios", "simultaneous", "standard_error"),
}


def used_names(source: str) -> set[str]:
    """The names that a module imports, calls or refers to."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.alias):
            names.add(node.name.rpartition(".")[2])
        elif isinstance(node, ast.Name | ast.Attribute):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from attnviz.run.sites import taps as listen", "taps"),
        ("block.register_forward_hook(print)", "register_forward_hook"),
        ("for batch in corpus.batches(texts): pass", "batches"),
        ("from attnviz.measures import intervals\nintervals.of_ratios(above, below, weights)", "of_ratios"),
    ],
)
def test_what_commands_leave_to_others_is_found(source: str, name: str) -> None:
    assert used_names(source) & NOT_OF_COMMANDS == {name}


def test_commands_hook_no_module_loop_over_no_batches_and_compute_no_interval() -> None:
    commands = ROOT / "attnviz" / "commands"
    found = {
        module.relative_to(commands).as_posix(): used_names(module.read_text(encoding="utf-8")) & NOT_OF_COMMANDS
        for module in sorted(commands.rglob("*.py"))
    }
    assert len(found) > 25
    assert {module: names for module, names in found.items() if names} == {}
