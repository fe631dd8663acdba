"""Runs the cells of examples/tour.ipynb and stores what they show: ``python examples/make_tour.py``.

Pictures are small, with 48 colours; pages are left out, since GitHub shows none. So a clone stays small.
"""

import ast
import base64
import contextlib
import functools
import io
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

TOUR = Path(__file__).parent / "tour.ipynb"
DPI = 80
PAGE = "&lt;p&gt;Run this cell, and the interactive page stands here.&lt;/p&gt;"


def with_few_colours(content: bytes) -> str:
    small = io.BytesIO()
    image = Image.open(io.BytesIO(content)).convert("RGB")
    image.quantize(48, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return base64.b64encode(small.getvalue()).decode("ascii")


def html_with_small_pictures(html: str) -> str:
    html = re.sub(r' height="900"(.*?) srcdoc="[^"]*"', rf' height="60"\1 srcdoc="{PAGE}"', html, flags=re.S)
    pictures = r"(?<=data:image/png;base64,)[^\"]+"
    return re.sub(pictures, lambda picture: with_few_colours(base64.b64decode(picture[0])), html)


def outputs_of(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """What Jupyter stores of a cell: what it prints, and how its last expression shows itself."""
    statements, printed, data = ast.parse(source), io.StringIO(), dict[str, Any]()
    last = statements.body.pop() if isinstance(statements.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(statements, "cell", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    if value is not None:
        if (html := getattr(value, "_repr_html_", lambda: None)()) is not None:
            data["text/html"] = html_with_small_pictures(html).splitlines(keepends=True)
        if (content := getattr(value, "_repr_png_", lambda: None)()) is not None:
            data["image/png"] = with_few_colours(content)
        data["text/plain"] = repr(value).splitlines(keepends=True)
    lines = printed.getvalue().splitlines(keepends=True)
    stored: list[dict[str, Any]] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    if data:
        result = {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data}
        stored.append(result)
    return stored


def main() -> None:
    notebook = json.loads(TOUR.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    Figure.savefig = functools.partialmethod(Figure.savefig, dpi=DPI)  # type: ignore[assignment] # of image/png
    set_dpi = Figure.set_dpi
    Figure.set_dpi = lambda figure, _: set_dpi(figure, DPI)  # type: ignore[method-assign] # of pictures in HTML
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        for count, cell in enumerate(cells, 1):
            cell["execution_count"], cell["outputs"] = count, outputs_of("".join(cell["source"]), names, count)
    TOUR.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
