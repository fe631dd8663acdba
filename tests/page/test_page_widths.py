"""The page in a browser at the width of a desk, of a tablet and of a phone, light, dark and printed."""

import base64
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import attnviz
from attnviz.models.checkpoint import from_loaded
from tests.support.browser import Page, chromium, needs_browser
from tests.support.corpora import treebank
from tests.support.encoder_decoders import SOURCE, TARGET, sharp, unigram_tokenizer
from tests.support.hand_made import first_pattern, hand_made, uniform_pattern
from tests.support.profiles import role as judged
from tests.support.results import result_of
from tests.support.stored import profile_of, role

pytestmark = needs_browser

WIDTHS = {1400: 1000, 800: 1000, 400: 800}
"""Of the screen, and its height, in CSS pixels."""

LABELS = ["[CLS]", *"the cat that the dog chased".split(), "[SEP]"]
ROLES = profile_of(
    {
        "L0H0": [role("previous-token", 0.95, 0.1)],
        "L0H1": [role("syntactic:obj", 0.7, 0.4, direction="dependent_to_head")],
        "L1H0": [role("syntactic:nsubj", 0.7, 0.4, direction="dependent_to_head")],
    }
)
PATTERNS = torch.stack([first_pattern(8), torch.eye(8).roll(1, 0), uniform_pattern(8)]).repeat(8, 1, 1)
MANY = torch.softmax(8 * torch.rand(270, 8, 8, generator=torch.Generator().manual_seed(1)), -1)


class Screen(Page):
    """The page on a screen of some width, or on paper."""

    def emulate(self, width: int, scheme: str = "light", media: str = "") -> None:
        size = {"width": width, "height": WIDTHS[width], "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme_of = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme_of]})

    def asked(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return {script}", *arguments)

    def boxes(self, selector: str) -> list[dict[str, Any]]:
        """What can be seen of it: its text, and its sides in the window."""
        return list(
            self.asked(
                "[...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).map(e => "
                "({...e.getBoundingClientRect().toJSON(), text: e.innerText, class: e.className, tag: e.tagName}))",
                selector,
            )
        )

    def shows(self, head: str) -> None:
        self.until(lambda: self.text("#head h2").startswith(head))

    def painted(self) -> None:
        self.until(lambda: self.one(".grid").get_attribute("data-painted") == "true")

    def canvas(self, selector: str) -> np.ndarray:
        """Its pixels, [rows, columns, 3]."""
        address = self.asked("document.querySelector(arguments[0]).toDataURL()", selector)
        return np.array(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB"), float)


def luminance(colours: np.ndarray) -> np.ndarray:
    """Relative luminance as WCAG defines it, of [..., 3] from 0 to 255."""
    parts = colours / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    first, second = luminance(one), luminance(other)
    return np.asarray((np.maximum(first, second) + 0.05) / (np.minimum(first, second) + 0.05))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``heads``: 2 × 12, with roles; ``many``: 270 heads; ``translated``, ``compare``, ``profile``; ``weak`` lines."""
    folder = tmp_path_factory.mktemp("pages")
    heads = hand_made(labels=LABELS, special=(0, 7), patterns=PATTERNS.reshape(2, 12, 8, 8), profile=ROLES)
    (folder / "heads.html").write_text(heads.page(), encoding="utf-8")
    causal = MANY.tril() / MANY.tril().sum(-1, keepdim=True)
    many = hand_made(labels=LABELS, special=(), patterns=causal.reshape(30, 9, 8, 8), causal=True)
    (folder / "many.html").write_text(many.page(), encoding="utf-8")
    weak = torch.full((8, 8), 0.025)
    weak[:, 0] = 1 - 7 * 0.025
    weak = hand_made(labels=LABELS, special=(0, 7), patterns=weak.expand(1, 1, 8, 8))
    (folder / "weak.html").write_text(weak.page(), encoding="utf-8")
    tokenizer = unigram_tokenizer()
    translated = attnviz.analyze(
        SOURCE, from_loaded(sharp("bart", len(tokenizer)), tokenizer), target=TARGET, syntax=False
    )
    (folder / "translated.html").write_text(translated.page(), encoding="utf-8")
    other = attnviz.analyze("a dog ran away", "tiny-gpt2", syntax=False)
    one = attnviz.analyze("a cat ran away", other.checkpoint, syntax=False)
    (folder / "compare.html").write_text(attnviz.compare(one, other).page(), encoding="utf-8")
    profile = attnviz.profile_heads("tiny-gpt2", [treebank(folder / "trees.conllu", 30)], device="cpu", control=False)
    assert profile is not None
    (folder / "profile.html").write_text(profile.page(), encoding="utf-8")
    (folder / "card.html").write_text(result_of("card").page(), encoding="utf-8")
    roles = [judged(0, "sink", 0.95), judged(1, "previous-token", 0.4), judged(0, "previous-token", 0.9, layer=1)]
    (folder / "roles.html").write_text(replace(profile, roles=roles, examples=()).page(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def screen(pages: Path) -> Iterator[Screen]:
    driver = chromium(pages, 1000)
    yield Screen(driver, pages)
    driver.quit()


def test_270_thumbnails_are_painted_within_2_seconds_those_in_view_first(screen: Screen) -> None:
    screen.emulate(1400)
    watch = """
        window.painted = [];
        new MutationObserver((changes) => {
          for (const { target } of changes) {
            if (target.className === "thumbnail") painted.push(target.parentElement.dataset.head);
            if (target.dataset?.painted === "true") window.took ??= performance.now();
          }
        }).observe(document, { subtree: true, attributes: true, attributeFilter: ["height", "data-painted"] });
    """
    added = screen.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": watch})
    took = []
    for _ in range(3):
        screen.open("many.html", "#sort=entropy&head=L0H0")
        screen.painted()
        took.append(screen.asked("took"))
    screen.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    assert min(took) < 2000, took
    in_view = {
        box["text"].split()[0] for box in screen.boxes("button.head") if box["bottom"] > 0 and box["top"] < WIDTHS[1400]
    }
    painted = list(dict.fromkeys(screen.asked("painted")))
    assert len(painted) == 270
    assert 20 < len(in_view) < 270
    assert set(painted[: len(in_view)]) == in_view


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["heads", "many", "translated", "compare", "profile", "card"])
def test_nothing_is_wider_than_the_screen_and_targets_are_large_enough(screen: Screen, name: str, width: int) -> None:
    screen.emulate(width)
    screen.open(f"{name}.html")
    for left in ("grid", "scatter", "table"):
        screen.click(f"[data-value={left}]")
        assert screen.boxes({"grid": ".head", "scatter": ".scatter", "table": "#heads table"}[left])
        assert screen.asked("document.documentElement.scrollWidth") <= width
        targets = screen.boxes("button, select, summary, label:has(input)")
        assert [box for box in targets if min(box["width"], box["height"]) < 24] == []
    screen.click("[data-value=scatter]")
    for scheme, paper in (("light", [255, 255, 255]), ("dark", [20, 20, 20])):
        screen.emulate(width, scheme)
        assert screen.asked("getComputedStyle(document.body).backgroundColor") == f"rgb({', '.join(map(str, paper))})"
        screen.until(lambda paper=paper: screen.canvas("canvas.scatter")[0, 0].tolist() == paper)  # type: ignore[misc]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["heads", "many", "translated"])
def test_ids_can_be_read(screen: Screen, name: str, width: int) -> None:
    screen.emulate(width)
    screen.open(f"{name}.html")
    found = screen.asked(
        "[...document.querySelectorAll('.head .id')].map(e => [e.innerText, e.parentElement.dataset.head, "
        "e.scrollWidth <= e.clientWidth, parseFloat(getComputedStyle(e).fontSize)])"
    )
    assert len(found) == {"heads": 24, "many": 270, "translated": 30}[name]
    assert [text for text, head, fits, size in found if text != head or not fits or size < 11] == []
    labels = "[...document.querySelectorAll('.head .label')]"
    assert screen.asked(f"{labels}.length") >= len(found)
    assert screen.asked(f"{labels}.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)") == []


def test_on_a_phone_every_head_can_be_reached_and_tapping_one_scrolls_to_it(screen: Screen) -> None:
    screen.emulate(400)
    screen.open("heads.html", "#head=L0H0")
    grid = screen.one(".grid")
    assert grid.get_attribute("tabindex") == "0"
    assert grid.get_attribute("aria-label")
    assert screen.asked("arguments[0].scrollWidth > arguments[0].clientWidth", grid)
    screen.driver.execute_script("arguments[0].focus()", grid)
    for _ in range(11):
        screen.press("\ue014")  # right
    screen.shows("L0H11")
    (last,) = [box for box in screen.boxes("button.head") if box["text"].startswith("L0H11")]
    assert 0 <= last["left"] < last["right"] <= 400
    row = screen.boxes(".row")[0]
    assert row["left"] >= 0  # a row's name stays
    for head in ("L0H0", "L1H11", "L1H4"):
        button = screen.one(f"button[data-head={head}]")
        screen.driver.execute_script("arguments[0].scrollIntoView({ inline: 'center' })", button)
        button.click()
        screen.shows(head)
        (panel,) = screen.boxes("#head")
        assert -1 <= panel["top"] < 100
        screen.click("#head .back")
        (thumbnail,) = [box for box in screen.boxes("button.head") if box["text"].split()[0] == head]
        assert -1 <= thumbnail["top"] < thumbnail["bottom"] <= WIDTHS[400]


def test_roles_over_the_corpus_are_marks_and_a_filter(screen: Screen) -> None:
    screen.emulate(1400)
    screen.open("heads.html", "#head=L0H1")
    assert "obj over the corpus (not parsed)" in screen.text("#head h2")
    assert screen.text("[data-head=L0H1]").split("\n")[-1] == "obj"
    assert screen.text("[data-head=L1H1]").split("\n")[-1] == "–"
    colours = screen.asked("[...document.querySelectorAll('[data-head=L0H1] path')].map(e => e.getAttribute('fill'))")
    assert colours[-1] == "#BBCC33"  # of syntactic roles
    for only, heads in (
        ("obj over the corpus", ["L0H1"]),
        ("syntactic over the corpus", ["L0H1", "L1H0"]),
        ("previous-token over the corpus", ["L0H0"]),
    ):
        screen.choose("only", only)
        assert [button.get_attribute("data-head") for button in screen.all("button.head")] == heads
    assert "only=previous-token+over+the+corpus" in screen.address
    screen.driver.refresh()
    screen.shows("L0H1")
    assert [button.get_attribute("data-head") for button in screen.all("button.head")] == ["L0H0"]
    screen.open("heads.html", "#left=table")
    roles = {row[0]: row[2] for row in screen.table("#heads")}
    assert roles["L1H0"] == "nsubj (not parsed)"
    screen.open("many.html")  # of a model without profile
    assert not screen.asked(
        "[...document.querySelectorAll('select[name=only] option')].filter(e => /corpus/.test(e.text))"
    )


@pytest.mark.parametrize("name", ["heads", "many", "translated", "compare"])
@pytest.mark.parametrize(("view", "scheme"), [("heatmap", "light"), ("lines", "dark")])
def test_a_head_is_printed_on_one_page_without_controls(screen: Screen, name: str, view: str, scheme: str) -> None:
    screen.emulate(1400, scheme, "print")
    screen.open(f"{name}.html", f"#view={view}")
    assert not screen.boxes("select, input, summary, .head, .command button, .controls button, .nearest, .back")
    (picture,) = screen.boxes("canvas.picture")
    assert picture["width"] > 300
    assert screen.asked("document.querySelector('canvas.picture').width") > 2 * picture["width"]  # sharp on paper
    assert (screen.canvas("canvas.picture")[2, 2] == 255).all()  # on white paper
    assert screen.asked("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    screen.emulate(1400, scheme)
    screen.open(f"{name}.html", f"#view={view}")
    pdf = base64.b64decode(screen.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 1
    assert b"/Image" in pdf
