"""The tour of attnviz in a notebook: its cells run, and show what is stored beside them."""

import html
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FUNCTIONS = ("analyze", "compare", "explain", "head_outputs", "ablate", "rollout", "profile_heads")


def shown(output: dict[str, Any]) -> tuple[list[str], set[str]]:
    """The kinds of an output, and its words: numbers differ in the last digits from machine to machine."""
    data = output.get("data", {"stream": output.get("text")})
    pages = r'srcdoc="[^"]*"'  # they have tests of their own, and hashes that differ with the last digits
    text = html.unescape(re.sub(pages, "", "".join("".join(lines) for lines in data.values())))
    return sorted(data), set(re.findall(r"[A-Za-z]{3,}", re.sub(r'base64,[^"]+|\(bit for bit\)', "", text)))


def test_the_cells_of_the_tour_run_and_show_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    stored = (EXAMPLES / "tour.ipynb").read_text(encoding="utf-8")
    assert len(stored.encode()) < 650_000
    cells = [cell for cell in json.loads(stored)["cells"] if cell["cell_type"] == "code"]
    outputs = runpy.run_path(str(EXAMPLES / "make_tour.py"))["run_cells"](json.loads(stored))
    for cell, new in zip(cells, outputs, strict=True):
        for before, after in zip(cell["outputs"], new, strict=True):
            (kinds, words), (kinds_now, words_now) = shown(before), shown(after)
            assert kinds == kinds_now
            assert words ^ words_now == set(), "".join(cell["source"])
    pictures = ["".join(cell["source"]) for cell in cells if "data:image/png" in str(cell["outputs"])]
    assert all(any(f"attnviz.{function}(" in source for source in pictures) for function in FUNCTIONS)
    assert (tmp_path / "results" / "captions.tex").is_file()
