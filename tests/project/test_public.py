"""The Python surface: names, docstrings, cheap imports, figures and notebooks."""

import ast
import html
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import attnviz
from attnviz.present.result import Result, TextResult
from tests.conftest import SENTENCE
from tests.support.hand_made import hand_made

PACKAGE = Path(attnviz.__file__).parent
MODULES = sorted(
    name for _, name, _ in pkgutil.walk_packages([str(PACKAGE)], "attnviz.") if not name.endswith("__main__")
)


@cache
def defined_names(module):
    """Public names that a module's own source binds at its top level, imports left out."""
    names = set()
    for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_") or name == "__version__"}


def public_objects():
    for name in MODULES:
        module = importlib.import_module(name)
        for public in sorted(defined_names(module)):
            value = getattr(module, public)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{name}.{public}", value


@pytest.fixture(scope="module")
def analysis(bert_folder):
    return attnviz.analyze(SENTENCE, bert_folder, syntax=False)


def test_all_holds_every_error_and_every_command_with_its_result():
    errors = {
        name for name, value in vars(importlib.import_module("attnviz.errors")).items() if isinstance(value, type)
    }
    results = {result.__name__ for result in Result.__subclasses__() + TextResult.__subclasses__()} - {"TextResult"}
    functions = {
        *("ablate", "analyze", "analyze_each", "compare", "compare_corpus", "explain", "head_outputs"),
        *("card", "cards", "check", "circuits", "patch", "profile_heads", "profile_training", "rollout", "why"),
    }
    assert {*errors, *results, *functions} <= set(attnviz.__all__)
    assert sorted(set(attnviz.__all__)) == attnviz.__all__
    assert all(getattr(attnviz, name) is not None for name in attnviz.__all__)
    assert all(issubclass(getattr(attnviz, name), attnviz.AttnvizError) for name in errors)
    assert len(results) == len(functions)
    assert re.fullmatch(r"\d+\.\d+\.\d+", attnviz.__version__)


LAZY = ["attnviz", "attnviz.figures"]


@pytest.mark.parametrize("name", LAZY)
def test_names_that_are_imported_late_are_those_that_type_checkers_see(name):
    package = importlib.import_module(name)
    (branch,) = [
        node
        for node in ast.parse(Path(package.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {
        alias.name: f"{node.module}.{alias.name}" if node.module == name else node.module
        for node in branch.body
        for alias in node.names
    }
    assert seen == package._MODULES
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        package.nonsense  # noqa: B018
    for public, source in seen.items():
        module = importlib.import_module(source)
        assert getattr(package, public) is (module if source == f"{name}.{public}" else getattr(module, public))


def test_every_module_and_public_function_and_class_and_method_has_a_docstring():
    missing = [name for name in MODULES if len(inspect.getdoc(importlib.import_module(name)) or "") <= 10]
    for name, value in public_objects():
        if not inspect.getdoc(value):
            missing.append(name)
        if inspect.isclass(value) and value.__module__.startswith("attnviz"):
            for method, function in vars(value).items():
                is_own = inspect.isfunction(function) or isinstance(function, classmethod | staticmethod)
                if is_own and not method.startswith("_") and not inspect.getdoc(getattr(value, method)):
                    missing.append(f"{name}.{method}")
    assert missing == []


@pytest.mark.draws
def test_what_other_modules_import_is_public_and_comes_from_where_it_is_defined():
    strangers = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnviz."):
                source = importlib.import_module(node.module)
                public = defined_names(source) | set(getattr(source, "__all__", ()))
                strangers += [
                    f"{path.name}: {node.module}.{alias.name}"
                    for alias in node.names
                    if alias.name not in public and f"{node.module}.{alias.name}" not in MODULES
                ]
    assert strangers == []


def test_importing_attnviz_is_cheap_and_names_come_when_asked_for():
    code = (
        "import sys, attnviz\n"
        "heavy = ('torch', 'transformers', 'matplotlib', 'numpy', 'spacy', 'rich', 'typer')\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "from attnviz import HeadId, TextError\n"
        "print(attnviz.figures.Style().theme, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nlight False\n"


def test_a_notebook_shows_the_page_in_a_frame_of_its_own_and_escapes_what_the_text_holds(analysis):
    shown = analysis._repr_html_()
    frame = re.match(r'<iframe sandbox="([^"]+)" [^>]* height="\d+" [^>]*srcdoc="([^"]+)"></iframe><details>', shown)
    assert "allow-same-origin" not in frame[1]
    assert html.unescape(frame[2]) == analysis.page()
    hostile = hand_made(text='<script>alert("x")</script>', name="<b>&")._repr_html_()
    assert not re.search("<script>|<b>", hostile)
