"""Runs the cells of examples/tour.ipynb and stores what they show: ``python examples/make_tour.py``.

A cell shows what it prints, and its last expression as HTML and as text, as in Jupyter, which is not needed. A figure
is stored as HTML, too. Pictures have 128 colours, which makes the notebook a third as large.
"""

import ast
import base64
import io
import json
import re
from contextlib import chdir, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

TOUR = Path(__file__).parent / "tour.ipynb"


def run_cells(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell, as notebooks store them; all cells run in one namespace."""
    names: dict[str, Any] = {"__name__": "__main__"}
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_run_cell(source, names, count) for count, source in enumerate(sources, 1)]


def _run_cell(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    statements, value, printed = ast.parse(source), None, io.StringIO()
    last = statements.body.pop() if isinstance(statements.body[-1], ast.Expr) else None
    with redirect_stdout(printed):
        exec(compile(statements, f"cell {count}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
    stream = {"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())}
    if value is None:
        return [stream] if printed.getvalue() else []
    data = {"text/plain": _lines(repr(value))}
    if isinstance(value, Figure):
        data["text/html"] = [_as_html(value)]
    elif hasattr(value, "_repr_html_"):
        data["text/html"] = _lines(value._repr_html_())
    shown = {"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}}
    return [stream, shown] if printed.getvalue() else [shown]


def _as_html(figure: Figure) -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return f'<img src="data:image/png;base64,{base64.b64encode(content.getvalue()).decode("ascii")}"/>'


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _with_fewer_colours(html: str) -> str:
    def smaller(found: re.Match[str]) -> str:
        content = io.BytesIO()
        Image.open(io.BytesIO(base64.b64decode(found[1]))).quantize(128).save(content, "png", optimize=True)
        return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode('ascii')}"

    return re.sub(r"data:image/png;base64,([^\"]+)", smaller, html)


def main() -> None:
    notebook = json.loads(TOUR.read_text(encoding="utf-8"))
    with TemporaryDirectory() as folder, chdir(folder):
        outputs = run_cells(notebook)
    cells = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    for count, (cell, shown) in enumerate(zip(cells, outputs, strict=True), 1):
        for output in shown:
            if html := output.get("data", {}).get("text/html"):
                output["data"]["text/html"] = _lines(_with_fewer_colours("".join(html)))
        cell.update(outputs=shown, execution_count=count)
    TOUR.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
