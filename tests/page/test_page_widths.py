"""The page in a browser at the width of a desk, of a tablet and of a phone, light, dark and printed."""

import base64
import re

import pytest

from tests.support.browser import WIDTHS, Page, needs_browser

pytestmark = [needs_browser, pytest.mark.thorough]


def test_270_thumbnails_are_painted_within_2_seconds(page: Page) -> None:
    page.emulate(1400)
    page.open("many.html", "#sort=entropy&head=L0H0")
    page.painted()
    assert page.asked("performance.now()") < 2000
    assert len(page.all(".thumbnail")) == 270


@pytest.mark.parametrize(
    ("name", "width"),
    [
        *(("roles", width) for width in WIDTHS),
        *((name, 400) for name in ("many", "translated", "compare", "profile/profile", "card/card", "chat/heads")),
    ],
)
def test_nothing_is_wider_than_the_screen_and_targets_are_large_enough(page: Page, name: str, width: int) -> None:
    page.emulate(width)
    page.open(f"{name}.html")
    for left in ("grid", "scatter", "table"):
        page.click(f"[data-value={left}]")
        assert page.boxes({"grid": ".head", "scatter": ".scatter", "table": "#heads table"}[left])
        assert page.asked("document.documentElement.scrollWidth") <= width
        targets = page.boxes("button, select, summary, label:has(input)")
        assert [box for box in targets if min(box["width"], box["height"]) < 24] == []
    page.click("[data-value=scatter]")
    for scheme, paper in (("light", [255, 255, 255]), ("dark", [20, 20, 20])):
        page.emulate(width, scheme)
        assert page.asked("getComputedStyle(document.body).backgroundColor") == f"rgb({', '.join(map(str, paper))})"
        page.until(lambda paper=paper: page.canvas("canvas.scatter")[0, 0].tolist() == paper)  # type: ignore[misc]


@pytest.mark.parametrize("name", ["roles", "many", "translated"])
def test_ids_can_be_read(page: Page, name: str) -> None:
    page.emulate(400)
    page.open(f"{name}.html")
    found = page.asked(
        "[...document.querySelectorAll('.head .id')].map(e => [e.innerText, e.parentElement.dataset.head, "
        "e.scrollWidth <= e.clientWidth, parseFloat(getComputedStyle(e).fontSize)])"
    )
    assert len(found) == {"roles": 24, "many": 270, "translated": 30}[name]
    assert [text for text, head, fits, size in found if text != head or not fits or size < 11] == []
    labels = "[...document.querySelectorAll('.head .label')]"
    assert page.asked(f"{labels}.length") >= len(found)
    assert page.asked(f"{labels}.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)") == []


def test_on_a_phone_every_head_can_be_reached_and_tapping_one_scrolls_to_it(page: Page) -> None:
    page.emulate(400)
    page.open("roles.html", "#head=L0H0")
    grid = page.one(".grid")
    assert page.asked("arguments[0].scrollWidth > arguments[0].clientWidth", grid)
    page.driver.execute_script("arguments[0].focus()", grid)
    for _ in range(11):
        page.press("\ue014")  # right
    page.shows("L0H11")
    (last,) = [box for box in page.boxes("button.head") if box["text"].startswith("L0H11")]
    assert 0 <= last["left"] < last["right"] <= 400
    assert page.boxes(".row")[0]["left"] >= 0  # a row's name stays
    for head in ("L0H0", "L1H11", "L1H4"):
        button = page.one(f"button[data-head={head}]")
        page.driver.execute_script("arguments[0].scrollIntoView({ inline: 'center' })", button)
        button.click()
        page.shows(head)
        (panel,) = page.boxes("#head")
        assert -1 <= panel["top"] < 100
        page.click("#head .back")
        (thumbnail,) = [box for box in page.boxes("button.head") if box["text"].split()[0] == head]
        assert -1 <= thumbnail["top"] < thumbnail["bottom"] <= WIDTHS[400]


def test_roles_over_the_corpus_are_marks_and_a_filter(page: Page) -> None:
    page.emulate(1400)
    page.open("roles.html", "#head=L0H1")
    assert page.text("[data-head=L0H1]").split("\n")[-1] == "obj"
    assert page.text("[data-head=L1H1]").split("\n")[-1] == "–"
    fills = (
        "[...document.querySelectorAll(`[data-head=${arguments[0]}] path`)].slice(1).map(e => e.getAttribute('fill'))"
    )
    assert page.asked(fills, "L0H1") == ["none", "#BBCC33"]  # a syntactic role, for which the text was not parsed: half
    assert page.asked(fills, "L0H0") == ["#77AADD"]
    for only, heads in (("obj", ["L0H1"]), ("syntactic", ["L0H1", "L1H0"]), ("previous-token", ["L0H0"])):
        page.choose("only", f"{only} over the corpus")
        assert [button.get_attribute("data-head") for button in page.all("button.head")] == heads
    page.driver.refresh()
    page.shows("L0H1")
    assert [button.get_attribute("data-head") for button in page.all("button.head")] == ["L0H0"]


@pytest.mark.parametrize(
    ("name", "view", "scheme"),
    [("many", "heatmap", "light"), ("translated", "lines", "dark")],
)
def test_a_head_is_printed_on_one_page_without_controls(page: Page, name: str, view: str, scheme: str) -> None:
    page.emulate(1400, scheme, "print")
    page.open(f"{name}.html", f"#view={view}")
    assert not page.boxes("select, input, summary, .head, .command button, .controls button, .nearest, .back")
    (picture,) = page.boxes("canvas.picture")
    assert picture["width"] > 300
    assert page.asked("document.querySelector('canvas.picture').width") > 2 * picture["width"]  # sharp on paper
    assert (page.canvas("canvas.picture")[2, 2] == 255).all()  # on white paper
    assert page.asked("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.emulate(1400, scheme)
    page.open(f"{name}.html", f"#view={view}")
    pdf = base64.b64decode(page.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 1
    assert b"/Image" in pdf
