"""Runs examples/tour.ipynb in Jupyter's kernel and stores what its cells show.

It takes what attnviz itself does not need: ``pip install nbclient ipykernel``, then ``python examples/make_tour.py``.
Pictures have 128 colours, which makes the notebook a third as large.
"""

import base64
import io
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from PIL import Image

TOUR = Path(__file__).parent / "tour.ipynb"


def with_fewer_colours(encoded: str) -> str:
    content = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(encoded))).quantize(96).save(content, "png", optimize=True)
    return base64.b64encode(content.getvalue()).decode("ascii")


def main() -> None:
    notebook = nbformat.read(TOUR, as_version=4)
    about = dict(notebook.metadata)
    os.environ["PYTHONWARNINGS"] = "ignore"  # tqdm's about a widget of Jupyter's that need not be there
    with TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, record_timing=False, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            if "image/png" in data:
                data["image/png"] = with_fewer_colours(data["image/png"])
            if "text/html" in data:
                data["text/html"] = re.sub(
                    r"(?<=data:image/png;base64,)[^\"]+", lambda found: with_fewer_colours(found[0]), data["text/html"]
                )
    notebook.metadata = about  # the kernel adds the version of its Python
    nbformat.write(notebook, TOUR)


if __name__ == "__main__":
    main()
