"""The tour of attnviz in a notebook: its cells run, and show what is stored beside them."""

import ast
import html
import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FUNCTIONS = ("analyze", "compare", "explain", "head_outputs", "ablate", "rollout", "profile_heads")


def run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell as a notebook stores them: what it prints, and how its last expression shows itself."""
    statements, printed, data = ast.parse(source), io.StringIO(), dict[str, Any]()
    last = statements.body.pop() if isinstance(statements.body[-1], ast.Expr) else None
    with redirect_stdout(printed):
        exec(compile(statements, "cell", "exec"), names)
        if last is not None and (value := eval(compile(ast.Expression(last.value), "cell", "eval"), names)) is not None:
            data = {"text/plain": [repr(value)]}
            for kind, method in (("text/html", "_repr_html_"), ("image/png", "_repr_png_")):
                made = getattr(value, method, lambda: None)()
                if made is not None:
                    data[kind] = "" if isinstance(made, bytes) else made
    stream = [{"output_type": "stream", "text": printed.getvalue()}] if printed.getvalue() else []
    return [*stream, {"data": data}] if data else stream


def shown(output: dict[str, Any]) -> tuple[list[str], set[str]]:
    """The kinds of an output, and its words: numbers differ in the last digits from machine to machine."""
    data = output.get("data", {"stream": output.get("text")})
    pages = r'srcdoc="[^"]*"'  # they have tests of their own, and hashes that differ with the last digits
    text = html.unescape(re.sub(pages, "", "".join("".join(data[kind]) for kind in data if kind != "image/png")))
    return sorted(data), set(re.findall(r"[A-Za-z]{3,}", re.sub(r'base64,[^"]+|\(bit for bit\)', "", text)))


@pytest.mark.thorough
def test_the_cells_of_the_tour_run_and_show_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    stored = (EXAMPLES / "tour.ipynb").read_text(encoding="utf-8")
    assert len(stored.encode()) < 200_000
    cells = [cell for cell in json.loads(stored)["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        new = run_cell("".join(cell["source"]), names)
        for before, after in zip(cell["outputs"], new, strict=True):
            (kinds, words), (kinds_now, words_now) = shown(before), shown(after)
            assert kinds == kinds_now
            assert words ^ words_now == set(), "".join(cell["source"])
    pictures = ["".join(cell["source"]) for cell in cells if "image/png" in str(cell["outputs"])]
    assert all(any(f"attnviz.{function}(" in source for source in pictures) for function in FUNCTIONS)
    assert (tmp_path / "results" / "captions.tex").is_file()
