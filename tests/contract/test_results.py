"""What every command's result can do: figures, tables, documents and files, from one place for all of them."""

import base64
import html
import inspect
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from attnviz.commands.models.measure import paper_configurations
from attnviz.commands.models.report import models_report
from attnviz.errors import OutputError, UsageError
from attnviz.figures.style import Style, figure_bytes
from attnviz.language.syntax import Arc
from attnviz.present.documents import json_text
from attnviz.present.report import views_of
from attnviz.present.result import Result
from attnviz.present.tables import plain_text
from attnviz.present.view import ViewOptions
from tests.support.captions import read_captions
from tests.support.drawn import ODD_SETTINGS
from tests.support.hand_made import PARSE, by_design, hand_made
from tests.support.results import MEASURES, result_of
from tests.support.stored import profile_of, role

COLUMN = Style("dark", width=3.3)

PICTURES = [(command, view.name) for command in MEASURES for view in views_of(command) if not view.suffix]

_FUNCTIONS = {(command, view.name): view.drawing.figure for command in MEASURES for view in views_of(command)}
DIFFERENT = list({_FUNCTIONS[picture]: picture for picture in reversed(PICTURES)}.values())
"""The first picture of each function that draws some; the others are drawn by the same code."""


def drawable(command: str) -> list[str]:
    return [view.name for view in views_of(command) if not view.drawing.missing(result_of(command))]


@pytest.mark.parametrize("command", MEASURES)
def test_a_command_is_registered_whole(command: str):
    views = views_of(command)
    names = [view.name for view in views]
    assert len(set(names)) == len(names)
    assert not {"all", "none"} & set(names)
    assert all(view.shows for view in views)
    assert result_of(command).command == command
    assert len(inspect.getdoc(type(result_of(command))) or "") > 40
    assert len(repr(result_of(command))) < 300


@cache
def column(command: str, name: str) -> bytes:
    """The picture as a PNG, dark and as wide as a column; tests of its command draw it in other themes and widths."""
    return figure_bytes(result_of(command).figure(name, COLUMN), "png", COLUMN)


@pytest.mark.parametrize(("command", "name"), DIFFERENT)
def test_files_do_not_depend_on_the_users_settings_nor_on_the_run(command: str, name: str):
    if name not in drawable(command):
        pytest.skip("there is no such picture of this result")
    with matplotlib.rc_context(ODD_SETTINGS):
        before = dict(matplotlib.rcParams)
        odd = figure_bytes(result_of(command).figure(name, COLUMN), "png", COLUMN)
        assert dict(matplotlib.rcParams) == before
    assert odd == column(command, name)
    with Image.open(io.BytesIO(odd)) as picture:
        assert picture.width == 990
        assert max(picture.convert("RGB").getpixel((0, 0))) < 60  # dark paper


@pytest.mark.parametrize(("command", "name"), PICTURES)
def test_one_panel_can_be_drawn_on_axes_of_ones_own(command: str, name: str):
    if name not in drawable(command):
        pytest.skip("there is no such picture of this result")
    result, figure = result_of(command), Figure(layout="constrained")
    left, right = figure.subplots(1, 2)
    (view,) = [view for view in views_of(command) if view.name == name]
    if view.drawing.draw is None:
        with pytest.raises(UsageError, match=f"the figure '{name}' has several panels: expected one of"):
            result.draw(name, left)
        return
    before = dict(matplotlib.rcParams)
    result.draw(name, left)
    assert dict(matplotlib.rcParams) == before
    assert not right.patches and not right.collections and not right.images  # noqa: PT018
    assert left.has_data()
    assert figure.axes == [left, right]


@pytest.mark.parametrize("command", MEASURES)
def test_a_result_is_saved_with_captions_table_and_document(command: str, tmp_path: Path):
    result, folder, name = result_of(command), tmp_path / "new", command.replace(".", "-")
    for view in views_of(command):
        if view.name not in drawable(command):
            with pytest.raises(UsageError, match=view.name):
                result.figure(view.name)
    content = result.save(folder, formats=["svg"], top=2)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    captions = {"captions.md", "captions.tex"} if any(each.endswith(".svg") for each in content["figures"]) else set()
    assert bool(content["figures"]) == bool(views_of(command))
    lines = {"heads.jsonl"} if command == "heads.texts" else set()
    assert set(content["files"]) == {f"{name}.json", f"{name}.csv", *captions, *lines, *content["figures"]}
    assert files == {*content["files"], ".attnviz.json"}
    assert content == json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert result.document(content["figures"], top=2) == {key: content[key] for key in content if key != "files"}
    rows = (folder / f"{name}.csv").read_text(encoding="utf-8")
    assert rows == result.table(ViewOptions()).csv()
    assert len(rows.splitlines()) > 1
    if captions:
        assert all("</text>" in (folder / figure).read_text(encoding="utf-8") for figure in content["figures"])
        read = read_captions((folder / "captions.md").read_text(encoding="utf-8"))
        assert {figure for figure, _ in read} == set(content["figures"])
        for _, caption in read:
            assert re.fullmatch(r".{40,}\.(\nDetails: .*\.)?", caption)
        in_latex = (folder / "captions.tex").read_text(encoding="utf-8")
        assert in_latex.count("\n\\caption{") == len(content["figures"])
    assert set(result.save(folder, figures=[])["files"]) == {f"{name}.json", f"{name}.csv", *lines}


def objects_in(value: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Of every object in a document its path, and of every key what stands there; all entries of a list are one."""
    if isinstance(value, list):
        for each in value:
            yield from objects_in(each, f"{path}[]")
    elif isinstance(value, dict):
        for key, each in value.items():
            yield path, key, type(each).__name__
            yield from objects_in(each, f"{path}.{key}")


@pytest.mark.parametrize("command", MEASURES)
def test_a_document_has_the_keys_and_types_of_the_schema(command: str):
    """A key that is new, gone or of another type is a change of the contract: then change schema.json as well."""
    schema = json.loads((Path(__file__).parent / "schema.json").read_text(encoding="utf-8"))[command]
    found: dict[str, dict[str, set[str]]] = {}
    for path, key, kind in objects_in(json.loads(json_text(result_of(command).document(["a.png"])))):
        found.setdefault(path, {}).setdefault(key, set()).add(kind)
    assert sorted(found) == sorted(schema)
    for path, entries in found.items():
        assert sorted(entries) == sorted(schema[path]), path
        assert all(kinds <= set(schema[path][key].split(" or ")) for key, kinds in entries.items()), path


SHOWN = r'<img alt="(&lt;[^"]+)"[^>]+base64,([^"]+)"><pre>(.+)</pre>(</details>)?$'


@pytest.mark.parametrize("command", ["heads", "profile"])
def test_a_notebook_shows_the_main_picture_above_the_tables(command: str, monkeypatch: pytest.MonkeyPatch):
    result = result_of(command)
    report = result.report()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert result.report() == report
    found = re.search(SHOWN, result._repr_html_(), re.DOTALL)
    assert found is not None
    assert base64.b64decode(found[2]).startswith(b"\x89PNG")
    assert [html.unescape(part) for part in found.group(1, 3)] == [repr(result), report]


CUT = re.compile(r"\d\.?…|(^|  )…(  |$)")
"""A number with an ellipsis, or a cell that is nothing else."""


def long_names() -> Result:
    """Many heads with long labels, roles and relations."""
    roles = [role("coreference", 0.75, 0.5, direction="pronoun_to_name"), role("syntactic:nsubj:pass", 0.6, 0.4)]
    parse = replace(PARSE, arcs=(Arc(0, 1, "nsubj:pass"), Arc(1, 2, "compound:prt")))
    profile = profile_of({"L11H10": roles, "L1H1": roles[1:]})
    return hand_made(patterns=by_design(6).repeat(6, 6, 1, 1), parse=parse, profile=profile)


@pytest.mark.parametrize("command", [*MEASURES, "models", "long names"])
def test_reports_fit_their_width_and_no_number_is_cut(command: str):
    for width in (60, 80, 100, 170):
        if command == "models":
            text = plain_text(models_report(paper_configurations()), width)
        else:
            text = (long_names() if command == "long names" else result_of(command)).report(width)
        lines = text.splitlines()
        assert len(lines) > 5
        assert max(map(len, lines)) <= width
        assert not [line for line in lines if CUT.search(line) and "[" not in line]


@pytest.mark.parametrize("command", MEASURES)
def test_odd_arguments_are_refused_with_what_was_expected(command: str, tmp_path: Path):
    result, other = result_of(command), tmp_path / "other"
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: result.figure("maps"), "maps"),
        (lambda: result.save(other, formats=["gif"]), "gif"),
        (lambda: result.save(other, formats="png"), "formats"),
        (lambda: result.save(other, figures=True), "figures"),
        (lambda: result.figure(colour="red"), "colour"),
        (lambda: result.figure(style="dark"), "Style"),
        (lambda: result.report(top="3"), "top"),
        (lambda: result.report(1), "20 columns"),
        (lambda: result.save(3), "path"),
    ]
    for call, word in refused:
        with pytest.raises(UsageError, match=word):
            call()
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="file"):
        result.save(tmp_path / "file")
    assert not other.exists()


METHODS = [("heads", "layer_patterns"), ("heads", "drawn"), ("compare", "part_of"), ("explain", "tensor")]


@pytest.mark.parametrize(("command", "method"), METHODS)
def test_the_methods_of_results_refuse_what_they_cannot_take(command: str, method: str):
    for wrong in (-1, 99, 1.5, object(), np.ones((2, 2)), [None], "\0"):
        with pytest.raises(UsageError):
            getattr(result_of(command), method)(wrong)
