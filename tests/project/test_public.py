"""The Python surface: names, docstrings, cheap imports, figures and notebooks."""

import ast
import html
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attnviz
from attnviz.present.result import Result, TextResult
from tests.conftest import SENTENCE
from tests.support.hand_made import hand_made

PACKAGE = Path(attnviz.__file__).parent


@pytest.fixture(scope="module")
def analysis(bert_folder):
    return attnviz.analyze(SENTENCE, bert_folder, syntax=False)


def test_all_holds_every_error_and_every_command_with_its_result():
    public = {name: getattr(attnviz, name) for name in attnviz.__all__}
    errors = {name for name, value in vars(attnviz.errors).items() if isinstance(value, type)}
    results = {result.__name__ for result in Result.__subclasses__() + TextResult.__subclasses__()} - {
        "TextResult",
        "StoredPictures",
    }
    functions = {
        *("ablate", "analyze", "analyze_each", "compare", "compare_corpus", "explain", "head_outputs"),
        *("card", "cards", "check", "circuits", "patch", "profile_heads", "rollout", "why"),
    }
    assert {*errors, *results, *functions} <= set(attnviz.__all__)
    assert len(public) == len(attnviz.__all__)
    assert all(value is not None for value in public.values())
    assert all(issubclass(public[name], attnviz.AttnvizError) for name in errors)
    assert len(results) == len(functions)
    assert re.fullmatch(r"\d+\.\d+\.\d+", attnviz.__version__)


def test_names_that_are_imported_late_are_those_that_type_checkers_see():
    (branch,) = [
        node
        for node in ast.parse(Path(attnviz.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for node in branch.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert dir(attnviz) == sorted(seen) == sorted(attnviz.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        attnviz.nonsense  # noqa: B018
    for name, source in seen.items():
        module = importlib.import_module(source)
        assert getattr(attnviz, name) is getattr(module, name)


def test_no_module_imports_a_private_name_of_another():
    """That names come from where they are defined is a matter of mypy, that they have docstrings one of ruff."""
    private = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnviz"):
                private += [f"{path.name}: {alias.name}" for alias in node.names if re.match("_[^_]", alias.name)]
    assert private == []


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
