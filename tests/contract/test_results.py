"""What every command's result can do: figures, tables, documents and files, from one place for all of them."""

import base64
import html
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from attnviz.commands.models import models_report, paper_configurations
from attnviz.errors import OutputError, UsageError
from attnviz.figures.page import PanelPlan
from attnviz.figures.style import Style, figure_bytes
from attnviz.language.syntax import Arc
from attnviz.present.documents import json_text
from attnviz.present.report import views_of
from attnviz.present.tables import plain_text
from attnviz.present.view import ViewOptions
from tests.support.captions import read_captions
from tests.support.drawn import ODD_SETTINGS, drawing_of
from tests.support.families import first_of
from tests.support.hand_made import PARSE, by_design, hand_made
from tests.support.results import MEASURES, result_of
from tests.support.stored import profile_of, role

COLUMN = Style("dark", width=3.3)

PICTURES = [(command, view.name) for command in MEASURES for view in views_of(command) if not view.is_page]

_PLANS = {
    (command, view.name): re.findall(r"\w+", str(view.drawing.plans.__annotations__["return"]))[-1]
    for command in MEASURES
    for view in views_of(command)
    if not view.is_page
}
DIFFERENT = list({_PLANS[picture]: picture for picture in reversed(PICTURES)}.values())
"""The first picture of each kind; the others are drawn by the same code."""


@pytest.fixture(scope="module", params=MEASURES)
def command(request: pytest.FixtureRequest) -> str:
    """Of a module: all tests of a command come in a row, and its result is measured once."""
    name: str = request.param
    return name


@pytest.fixture
def result(command: str) -> Any:
    return result_of(command)


def missing(command: str, name: str) -> bool:
    (view,) = [view for view in views_of(command) if view.name == name]
    return bool(view.drawing.missing(result_of(command)))


def test_a_command_is_registered_whole(command: str, result: Any):
    names = [view.name for view in views_of(command) if view.shows]
    assert len({*names, "all", "none"}) == len(views_of(command)) + 2
    assert result.command == command
    assert len(repr(result)) < 300


@pytest.mark.parametrize(("name", "view"), first_of(DIFFERENT, DIFFERENT[-1]))
def test_files_do_not_depend_on_the_users_settings_nor_on_the_run(name: str, view: str):
    if missing(name, view):
        pytest.skip("there is no such picture of this result")
    found = list[bytes]()
    for settings in ({}, ODD_SETTINGS):
        with matplotlib.rc_context(settings):
            before = dict(matplotlib.rcParams)
            found.append(figure_bytes(result_of(name).figure(view, COLUMN), "png", COLUMN))
            assert dict(matplotlib.rcParams) == before
    assert found[0] == found[1]
    with Image.open(io.BytesIO(found[0])) as picture:
        assert picture.width == 990
        assert max(picture.convert("RGB").getpixel((0, 0))) < 60  # dark paper


@pytest.mark.parametrize(
    ("name", "view"), first_of(PICTURES, *(each for each in PICTURES if each[0] in ("heads", "why")))
)
def test_one_panel_can_be_drawn_on_axes_of_ones_own(name: str, view: str):
    if missing(name, view):
        pytest.skip("there is no such picture of this result")
    result, figure = result_of(name), Figure(layout="constrained")
    left, right = figure.subplots(1, 2)
    if not isinstance(next(drawing_of(name, view).plans(result, ViewOptions()), None), PanelPlan):
        with pytest.raises(UsageError, match=view):
            result.draw(view, left)
        return
    before = dict(matplotlib.rcParams)
    result.draw(view, left)
    assert dict(matplotlib.rcParams) == before
    assert not [*right.patches, *right.collections, *right.images]
    assert left.has_data()
    assert figure.axes == [left, right]


def test_a_result_is_saved_with_captions_table_and_document(command: str, result: Any, tmp_path: Path, request: Any):
    folder, name, drawn = tmp_path / "new", command.replace(".", "-"), command == "why"
    if not drawn:
        request.getfixturevalue("undrawn")
    for view in views_of(command):
        if missing(command, view.name):
            with pytest.raises(UsageError, match=view.name):
                result.figure(view.name)
    content = result.save(folder, formats=["svg"], top=2)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    captions = {"captions.md", "captions.tex"} if any(each.endswith(".svg") for each in content["figures"]) else set()
    assert bool(content["figures"]) == bool(views_of(command))
    own = {f"{name}.json", f"{name}.csv", *(["heads.jsonl"] if command == "heads.texts" else [])}
    assert set(content["files"]) == {*own, *captions, *content["figures"]}
    assert files == {*content["files"], ".attnviz.json"}
    assert content == json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert result.document(content["figures"], top=2) == {key: content[key] for key in content if key != "files"}
    rows = (folder / f"{name}.csv").read_text(encoding="utf-8")
    assert rows == result.table(ViewOptions()).csv()
    assert len(rows.splitlines()) > 1
    if captions:
        assert not drawn or all("</text>" in (folder / figure).read_text() for figure in content["figures"])
        read = dict(read_captions((folder / "captions.md").read_text(encoding="utf-8")))
        assert set(read) == set(content["figures"])
        assert all(len(caption) > 40 for caption in read.values())
        for model in content.get("models") or [content["model"]]:
            named = (model["full_name"], model["revision"] or model["weights_sha256"][:12])
            assert all(part in caption.splitlines()[-1] for caption in read.values() for part in named)
        in_latex = (folder / "captions.tex").read_text(encoding="utf-8")
        assert in_latex.count("\n\\caption{") == len(content["figures"])
    assert set(result.save(folder, figures=[])["files"]) == own


@pytest.fixture
def pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps the rows and columns that a DataFrame is made of."""

    class DataFrame:
        def __init__(self, rows: list[dict[str, Any]], columns: list[str]) -> None:
            self.columns, self.rows = columns, [{name: row[name] for name in columns} for row in rows]

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=DataFrame))


@pytest.mark.usefixtures("pandas")
def test_a_frame_has_the_rows_and_columns_of_the_csv_file(result: Any):
    header, *lines = result.table(ViewOptions()).csv().splitlines()
    frame = result.frame()
    assert frame.columns == header.split(",")
    assert len(frame.rows) == len(lines) > 0


@pytest.mark.usefixtures("pandas")
def test_a_frame_has_the_values_of_the_document_one_row_a_head():
    result = result_of("heads")
    rows = result.frame(select="L1").rows
    assert [row["id"] for row in rows] == ["L1H0", "L1H1", "L1H2", "L1H3"]
    for row, head in zip(rows, result.select("L1"), strict=True):
        assert (row["entropy"], row["head"]) == (head.statistics["entropy"], head.id.head)
        assert row["label_certain"] in (True, False)


def objects_in(value: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Of every object in a document its path, and of every key what stands there; all entries of a list are one."""
    if isinstance(value, list):
        for each in value:
            yield from objects_in(each, f"{path}[]")
    elif isinstance(value, dict):
        for key, each in value.items():
            yield path, key, type(each).__name__
            yield from objects_in(each, f"{path}.{key}")


def test_a_document_has_the_keys_and_types_of_the_schema(command: str, result: Any):
    """A key that is new, gone or of another type is a change of the contract: then change schema.json as well."""
    schema = json.loads((Path(__file__).parent / "schema.json").read_text(encoding="utf-8"))[command]
    found: dict[str, dict[str, set[str]]] = {}
    for path, key, kind in objects_in(json.loads(json_text(result.document(["a.png"])))):
        found.setdefault(path, {}).setdefault(key, set()).add(kind)
    assert sorted(found) == sorted(schema)
    for path, entries in found.items():
        assert sorted(entries) == sorted(schema[path]), path
        assert all(kinds <= set(schema[path][key].split(" or ")) for key, kinds in entries.items()), path


SHOWN = r'<img alt="(&lt;[^"]+)"[^>]+base64,([^"]+)"><pre>(.+)</pre>(</details>)?$'


def test_a_notebook_shows_the_main_picture_above_the_tables(monkeypatch: pytest.MonkeyPatch):
    result = result_of("heads")
    report = result.report()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert result.report() == report
    found = re.search(SHOWN, result._repr_html_(), re.DOTALL)
    assert found is not None
    assert base64.b64decode(found[2]).startswith(b"\x89PNG")
    assert [html.unescape(part) for part in found.group(1, 3)] == [repr(result), report]


CUT = re.compile(r"\d\.?…|(^|  )…(  |$)")
"""A number with an ellipsis, or a cell that is nothing else."""


def long_names() -> Any:
    """Many heads with long labels, roles and relations."""
    roles = [role("coreference", 0.75, 0.5, direction="pronoun_to_name"), role("syntactic:nsubj:pass", 0.6, 0.4)]
    parse = replace(PARSE, arcs=(Arc(0, 1, "nsubj:pass"), Arc(1, 2, "compound:prt")))
    profile = profile_of({"L11H10": roles, "L1H1": roles[1:]})
    return hand_made(patterns=by_design(6).repeat(6, 6, 1, 1), parse=parse, profile=profile)


def assert_whole(report: Callable[[int], str]) -> None:
    for width in (60, 80, 100, 170):
        lines = report(width).splitlines()
        assert len(lines) > 5
        assert max(map(len, lines)) <= width
        assert not [line for line in lines if CUT.search(line) and "[" not in line]


def test_reports_fit_their_width_and_no_number_is_cut(result: Any):
    assert_whole(result.report)


def test_reports_of_models_and_of_long_names_fit_their_width():
    assert_whole(lambda width: plain_text(models_report(paper_configurations()), width))
    assert_whole(long_names().report)


def test_odd_arguments_are_refused_with_what_was_expected(result: Any, tmp_path: Path):
    other = tmp_path / "other"
    refused: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
        (result.figure, ("maps",), {}, "maps"),
        (result.save, (other,), {"formats": ["gif"]}, "gif"),
        (result.save, (other,), {"formats": "png"}, "formats"),
        (result.save, (other,), {"figures": True}, "figures"),
        (result.figure, (), {"colour": "red"}, "colour"),
        (result.figure, (), {"style": "dark"}, "Style"),
        (result.report, (), {"top": "3"}, "top"),
        (result.report, (1,), {}, "columns"),
        (result.save, (3,), {}, "3"),
    ]
    for call, given, named, word in refused:
        with pytest.raises(UsageError, match=word):
            call(*given, **named)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="file"):
        result.save(tmp_path / "file")
    assert not other.exists()


@pytest.mark.parametrize("wrong", [-1, 99, 1.5, object(), np.ones((2, 2)), [None], "\0"])
def test_the_methods_of_results_refuse_what_they_cannot_take(wrong: Any):
    heads = result_of("heads")
    for method in (
        heads.layer_patterns,
        heads.parts[0].drawn,
        result_of("compare").part_of,
        result_of("explain").tensor,
    ):
        with pytest.raises(UsageError):
            method(wrong)
