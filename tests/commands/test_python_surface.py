"""What Python users meet first: keywords, styles, arrays, tables of pandas."""

import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import attnviz
from attnviz.commands.ablate.inputs import role_names
from attnviz.commands.check.claims import read_claims
from attnviz.errors import UsageError
from attnviz.figures import Style
from attnviz.figures.style import figure_bytes
from attnviz.models.head_ids import ids_and_names
from attnviz.present.view import ViewOptions
from tests.support.results import MEASURES, result_of

FUNCTIONS = {name: getattr(attnviz, name) for name in attnviz.__all__ if inspect.isfunction(getattr(attnviz, name))}


class Unwritable:
    """A value whose own function cannot write it."""

    def __repr__(self) -> str:
        raise RuntimeError("not written")


BAD = Unwritable()


def test_a_wrong_keyword_is_an_error_that_names_the_function_and_the_nearest_one():
    with pytest.raises(UsageError, match=r"analyze.*truncat_.*truncate"):
        attnviz.analyze("the cat", truncat_=True)
    with pytest.raises(UsageError, match=r"report.*widht.*width"):
        result_of("heads").report(widht=60)


def test_arguments_that_are_missing_or_too_many_are_errors_of_attnviz(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UsageError, match="a text"):
        attnviz.analyze()
    with pytest.raises(UsageError, match="too many"):
        attnviz.explain("the cat", "minilm", 3)
    with pytest.raises(UsageError, match="found both"):
        result_of("heads").figure("map", Style(width=3.3), theme="dark")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        result_of("heads").frame()


@pytest.mark.parametrize(
    ("function", "given"),
    [("check", {"files": 1.5}), ("cards", {"select": np.array("x")}), ("cards", {"select": [10**5000]}),
     ("check", {"files": "a", "seed": 10**5000}), ("ablate", {"texts": 1.5}), ("analyze", {"text": "a", "words": BAD}),
     ("ablate", {"texts": "a", "label": 10**5000}), ("analyze", {"text": "a", "generate": 10**5000})],
)  # fmt: skip
def test_any_wrong_value_is_a_usage_error_of_one_line(function: str, given: dict[str, Any]):
    with pytest.raises(UsageError, match=r"^expected .* found ") as error:
        FUNCTIONS[function](**given)
    assert "\n" not in str(error.value)


def test_subject_and_object_are_names_of_relations_too(tmp_path: Path):
    assert ids_and_names("Subject, L0H1") == (["L0H1"], ["nsubj"])
    assert role_names(["object", "det"]) == ["obj", "det"]
    path = tmp_path / "claims.toml"
    path.write_text('[[claim]]\nhead = "L0H0"\nrole = "subject"\n', encoding="utf-8")
    assert read_claims(path)[0][0].what == "syntactic:nsubj"


@pytest.mark.draws
def test_theme_and_width_of_a_figure_are_keywords_too():
    result = result_of("heads")
    given = figure_bytes(result.figure("map", theme="dark", width="3.3in"), "svg")
    assert given == figure_bytes(result.figure("map", Style("dark", width=3.3)), "svg")
    assert given != figure_bytes(result.figure("map"), "svg")
    assert result.figure(width=3.3).get_figwidth() == pytest.approx(3.3)


def test_a_pattern_is_an_array():
    result = result_of("heads")
    pattern = np.asarray(result.pattern("L1H1"))
    assert pattern.dtype == np.float32
    assert pattern.shape == (len(result.tokens), len(result.tokens))
    assert np.allclose(pattern.sum(1), 1)
    assert np.array_equal(pattern[2], result.layer_patterns(1)[1][2].numpy())


@pytest.fixture
def pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps the rows and columns that a DataFrame is made of."""

    class DataFrame:
        def __init__(self, rows: list[dict[str, Any]], columns: list[str]) -> None:
            self.columns, self.rows = columns, rows

        def to_dict(self, _: str) -> list[dict[str, Any]]:
            return [{name: row[name] for name in self.columns} for row in self.rows]

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=DataFrame))


@pytest.mark.draws
@pytest.mark.usefixtures("pandas")
@pytest.mark.parametrize("command", MEASURES)
def test_a_frame_has_the_rows_and_columns_of_the_csv_file(command: str):
    result = result_of(command)
    header, *lines = result.table(ViewOptions()).csv().splitlines()
    frame = result.frame()
    assert list(frame.columns) == header.split(",")
    assert len(frame.to_dict("records")) == len(lines) > 0


@pytest.mark.usefixtures("pandas")
def test_a_frame_has_the_values_of_the_document_one_row_a_head():
    result = result_of("heads")
    rows = result.frame(select="L1").to_dict("records")
    assert [row["id"] for row in rows] == ["L1H0", "L1H1", "L1H2", "L1H3"]
    for row, head in zip(rows, result.select("L1"), strict=True):
        assert row["entropy"] == head.statistics["entropy"]
        assert row["head"] == head.id.head
        assert row["label_certain"] in (True, False)
