"""The page in a real browser: opened from disk without network, clicked, read, saved; its numbers are heads.json's."""

import base64
import itertools
import json
import re
import shlex
import subprocess

import numpy as np
import pytest
from PIL import Image

import attnviz
from attnviz.analysis.result import Analysis
from attnviz.commands.heads.first_look import MOST_LISTED, look_rows, sentences
from attnviz.present.view import ViewOptions
from attnviz.wording import visible
from tests.conftest import SENTENCE
from tests.page.conftest import IN_COMMANDS, LONG, windowed
from tests.support.browser import WIDTHS, Page, needs_browser
from tests.support.encoder_decoders import SOURCE, TARGET

pytestmark = [needs_browser, pytest.mark.thorough]

ENTER, ESCAPE, UP, RIGHT, DOWN = "\ue007", "\ue00c", "\ue013", "\ue014", "\ue015"


def check_what_is_read_from_the_page_is_in_heads_json(page: Page, analysis: Analysis) -> None:
    page.open("heads.html", "#head=L1H2&left=table&view=table&tokens=2")
    content = json.loads((page.folder / "heads.json").read_text())
    rows = {row[0]: row for row in page.table("#heads .all")}
    assert len(rows) == 12
    for head in content["heads"]:
        numbers = [head[name] for name in ("entropy", "entropy_non_sink", "distance", "distance_non_sink")]
        assert [float(text) for text in rows[head["id"]][2:6]] == pytest.approx(numbers, abs=0.005)
        assert rows[head["id"]][1].startswith(head["label"])
    np.testing.assert_allclose(page.weights(), analysis.pattern("L1H2")[2], atol=0.005)
    assert page.text("#verified").startswith("Verified 12 heads of ")
    assert [token.text for token in page.all(".token")] == list(analysis.units.labels)


def check_hovering_reads_and_a_click_locks(page: Page, analysis: Analysis) -> None:
    page.open("heads.html", "#head=L0H1")
    pattern = analysis.pattern("L0H1").numpy()
    labels = analysis.units.labels
    page.hover(page.token(3))
    best = int(pattern[3].argmax())
    page.until(lambda: page.text(".reading") == f"{labels[3]} attends to {labels[best]}, {pattern[3, best]:.2f}")
    page.token(4).click()
    assert "tokens=4" in page.address
    page.hover(page.one("h1"))
    best = int(pattern[4].argmax())
    assert page.text(".reading") == f"{labels[4]} attends to {labels[best]}, {pattern[4, best]:.2f}"
    assert page.token(4).get_attribute("aria-pressed") == "true"


def check_a_cell_of_the_heatmap_says_its_weight(page: Page, analysis: Analysis) -> None:
    page.open("heads.html", "#head=L2H3")
    canvas, n, labels = page.one("canvas.picture"), len(analysis.units), analysis.units.labels
    heard = set()
    for x in range(120, 500, 25):
        page.hover(canvas, x - canvas.size["width"] / 2, 40)
        heard.add(page.text(".reading"))
    read = [re.fullmatch(r"(.+) attends to (.+), (\d\.\d\d)", each) for each in heard]
    found = [each.groups() for each in read if each is not None]
    assert len(found) > n / 2
    pattern = analysis.pattern("L2H3")
    for query, key, weight in found:
        assert float(weight) == pytest.approx(float(pattern[labels.index(query), labels.index(key)]), abs=0.01)


def check_shift_click_means_rows_and_sums_columns(page: Page, analysis: Analysis) -> None:
    page.open("heads.html", "#head=L1H0&view=table")
    pattern = analysis.pattern("L1H0").numpy()
    page.token(2).click()
    page.shift_click(page.token(5))
    assert "(mean of 2 tokens)" in page.text(".reading")
    np.testing.assert_allclose(page.weights(), pattern[[2, 5]].mean(0), atol=0.005)
    page.choose("direction", "to")
    assert "(sum of 2 tokens)" in page.text(".reading")
    np.testing.assert_allclose(page.weights(), pattern[:, [2, 5]].sum(1), atol=0.008)
    page.shift_click(page.token(5))
    np.testing.assert_allclose(page.weights(), pattern[:, 2], atol=0.005)
    page.press(ESCAPE)
    assert "tokens" not in page.address


def check_keys_walk_through_heads_and_tokens(page: Page, _: Analysis) -> None:
    page.open("heads.html", "#head=L0H0")
    for key, head in (("j", "L0H1"), (DOWN, "L1H1"), (RIGHT, "L1H2"), ("k", "L1H1"), (UP, "L0H1")):
        page.press(key)
        page.shows(head)
        assert f"head={head}" in page.address
    page.driver.execute_script("document.querySelector('.token').focus()")
    page.press(RIGHT, RIGHT, ENTER)
    assert "tokens=2" in page.address


def check_heads_are_sorted_and_filtered(page: Page, analysis: Analysis) -> None:
    page.open("heads.html", "#left=grid&sort=entropy")
    order = sorted(analysis.heads, key=lambda head: -(head.statistics["entropy"] or 0))
    ids = [button.get_attribute("data-head") for button in page.all("button.head")]
    assert ids == [str(head.id) for head in order]
    bound = sorted(head.statistics["entropy"] or 0 for head in order)[-5]
    page.one("input[name=least]").send_keys(f"{bound:.4f}", ENTER)
    assert 4 <= len(page.all("button.head")) <= 5
    assert page.text("#heads p.quiet").endswith("of 12 heads")
    page.open("heads.html", "#left=grid")
    label = analysis.heads[0].label
    page.choose("only", label)
    assert len(page.all("button.head")) == sum(head.label == label for head in analysis.heads)


def check_the_scale_changes_the_colours_of_thumbnails(page: Page, analysis: Analysis) -> None:
    page.open("heads.html", "#head=L0H0")
    colours = []
    for scale in ("shared", "log", "per-head"):
        page.choose("scale", scale)
        page.painted()
        colours.append(page.asked("document.querySelector('.thumbnail').toDataURL()"))
    assert len(set(colours)) == 3
    darkest = np.unravel_index(analysis.pattern("L0H0").numpy().argmax(), (len(analysis.units),) * 2)
    assert page.canvas(".thumbnail")[darkest].tolist() == [8, 48, 107]  # the strongest blue


def check_special_tokens_are_left_out_and_words_merged(page: Page, analysis: Analysis) -> None:
    page.open("heads.html", "#head=L2H1&view=table&tokens=3")
    page.click("input[name=drop]")
    page.until(lambda: "rows renormalised" in page.text("#head > .quiet"))
    kept = [at for at, sink in enumerate(analysis.units.sink) if not sink]
    pattern = analysis.pattern("L2H1").numpy()[3, kept]
    assert len(page.all(".token")) == len(kept)
    np.testing.assert_allclose(page.weights(), pattern / pattern.sum(), atol=0.01)
    assert "--drop-special" in page.text("code")


def check_the_address_brings_everything_back(page: Page, _: Analysis) -> None:
    chosen = "&left=scatter&x=sink&y=entropy&view=lines&scale=log&drop=1&tokens=3,5&direction=to"
    page.open("heads.html", f"#head=L1H3{chosen}")
    before = page.address, page.text(".reading")
    assert page.one(".switches [data-value=scatter]").get_attribute("aria-pressed") == "true"
    page.driver.refresh()
    page.shows("L1H3")
    assert (page.address, page.text(".reading")) == before
    page.open("heads.html", "#head=L9H9&scale=<b>&tokens=999,-1,x&x=nothing")
    assert page.all(".token")
    assert "999" not in page.address


def check_pictures_are_saved_as_they_are_seen(page: Page, _: Analysis) -> None:
    page.open("heads.html", "#head=L1H2&tokens=2")
    svg, png = page.folder / "L1H2-heatmap.svg", page.folder / "L1H2-heatmap.png"
    for button in page.all("#head button"):
        if button.text in ("Save SVG", "Save PNG"):
            button.click()
    for file, end in ((svg, b"</svg>\n"), (png, b"IEND\xaeB`\x82")):
        page.until(lambda file=file, end=end: file.exists() and file.read_bytes().endswith(end))  # type: ignore[misc]
    assert [part for part in ("L1H2", "data:image/png") if part not in svg.read_text(encoding="utf-8")] == []
    canvas = page.one("canvas.picture").size
    with Image.open(png) as picture:
        assert picture.width == 2 * canvas["width"]
        assert picture.height > 2 * canvas["height"]  # a title above it


def check_the_nearest_heads_are_those_of_the_smallest_hellinger_distance(page: Page, analysis: Analysis) -> None:
    page.open("heads.html", "#head=L1H2")
    page.until(lambda: "(Hellinger" in page.text(".nearest"))
    roots = {str(head.id): pattern.double().sqrt() for head, pattern in analysis.patterns()}
    mine = roots.pop("L1H2")
    distances = {id: float((1 - (mine * other).sum(1).mean()).clamp(0).sqrt()) for id, other in roots.items()}
    listed = re.findall(r"(L\dH\d) (\d\.\d\d)", page.text(".nearest"))
    assert [id for id, _ in listed][:2] == sorted(distances, key=distances.__getitem__)[:2]
    for id, distance in listed:
        assert float(distance) == pytest.approx(distances[id], abs=0.01)


def check_hostile_texts_are_text(page: Page, _: Analysis) -> None:
    for view in ("heatmap", "lines", "table"):
        page.open("hostile.html", f"#view={view}&left=table&tokens=1,2")
        assert page.driver.title.startswith("attnviz: <b>&</script>")
        assert page.all("img") == page.all("b") == []
    shown = "".join(token.text for token in page.all(".token"))
    assert "<img src=x onerror=" in shown
    assert "\u202e" not in shown
    assert not page.one(".command").is_displayed()  # no command has the character 0


def check_a_command_has_hostile_texts_as_escapes_which_a_shell_reads(page: Page, _: Analysis) -> None:
    page.open("escaped.html")
    command = str(page.one("code").get_property("textContent"))
    assert [character for character in command if visible(character) != character and character != " "] == []
    assert r"\u202egnp.exe\u202c" in command
    shell = ["bash", "-c", f"printf '%s\\0' {command}"]
    read = subprocess.run(shell, env={"LC_ALL": "C.UTF-8"}, capture_output=True, check=True, timeout=60)
    words = read.stdout.decode().split("\0")
    assert words[:7] == ["attnviz", "heads", IN_COMMANDS, "--model", "<b>&</script>", "--pair", "\\x00 it's"]


def test_two_texts_are_chosen_from(page: Page, translated: Analysis) -> None:
    source, target = translated.tokens.labels, translated.target.tokens.labels  # type: ignore[union-attr]
    pattern = translated.pattern("X1H2").numpy()
    page.as_it_is()
    page.open("translated.html", "#head=X1H2&tokens=3&text=1&view=table")
    sides = [[token.text for token in page.all(f".strip[data-side='{side}'] .token")] for side in (0, 1)]
    assert sides == [list(target), list(source)]
    np.testing.assert_allclose(page.weights(), pattern[3], atol=0.005)
    best = int(pattern[3].argmax())
    assert page.text(".reading") == f"{target[3]} attends to {source[best]}, {pattern[3, best]:.2f}"
    page.click(".strip[data-side='1'] .token[data-at='5']")  # the source: what attends to it
    np.testing.assert_allclose(page.weights(), pattern[:, 5], atol=0.005)
    page.shift_click(page.one(".strip[data-side='1'] .token[data-at='7']"))
    page.driver.refresh()
    page.until(lambda: page.text("#head h2") != "")
    np.testing.assert_allclose(page.weights(), pattern[:, 5] + pattern[:, 7], atol=0.01)


def check_kinds_of_heads_are_chosen(page: Page, _: Analysis) -> None:
    page.open("translated.html", "#head=E0H0&text=0&tokens=4")
    page.choose("kind", "decoder")
    shown = [button.text.split()[0] for button in page.all("#heads .head .id")]
    assert shown == [f"D{layer}H{head}" for layer in range(3) for head in range(4)]
    page.click("h1")
    page.press("j")  # the head that is shown is no decoder's: to the first that is
    page.shows("D0H0")
    assert not page.all(".token.chosen")  # the token is of the other text
    command = shlex.split(str(page.one("code").get_property("textContent")))
    assert command[-6:] == ["--target", TARGET, "--select", "D0H0", "--figures", "heads"]
    page.open("translated.html", "#head=X0H0&view=lines&kind=cross-attention&drop=1&words=1")
    for side, text in ((0, TARGET), (1, SOURCE)):
        assert [token.text for token in page.all(f".strip[data-side='{side}'] .token")] == text.split()


def check_a_comparison_has_both_sides_and_their_difference(page: Page, analysis: Analysis) -> None:
    other = attnviz.analyze(SENTENCE.replace("cat", "dog"), analysis.checkpoint, syntax=False)
    a, b = (side.pattern("L2H1").numpy()[2] for side in (analysis, other))
    for side, expected, error in (("0", a, 0.005), ("1", b, 0.005), ("2", b - a, 0.008)):
        page.open("compare.html", f"#head=L2H1&view=table&tokens=2&side={side}")
        np.testing.assert_allclose(page.weights(), expected, atol=error)
    assert "cat → dog" in [token.text for token in page.all(".token")]
    distances = {str(head.id): head.distance for head in attnviz.compare(analysis, other).heads}
    page.open("compare.html", "#left=table")
    for row in page.table("#heads .all"):
        assert float(row[2]) == pytest.approx(distances[row[0]], abs=0.001)


def check_a_profile_has_tables_that_sort_and_a_scatter(page: Page, _: Analysis) -> None:
    content = json.loads((page.folder / "profile" / "profile.json").read_text())
    page.open("profile/profile.html", "#left=scatter&x=sink&y=entropy")
    assert page.one("canvas.scatter").size["height"] > 200
    rows = page.table("#tables [aria-label^=Roles]")
    held = [(role["id"], role["role"]) for role in content["roles"] if role["holds"]]
    assert sorted((row[0], row[1]) for row in rows) == sorted(held)
    page.click("#tables [aria-label^=Relations] th:nth-child(3) button")
    relations = page.table("#tables [aria-label^=Relations]")
    best = {each["relation"]: each["best"] for each in content["syntax"]["relations"]}
    found = [best[row[0].split()[0]] for row in relations]
    assert [row[1] for row in relations] == [each["id"] for each in found]
    scores = [float(row[2]) for row in relations]
    assert scores == pytest.approx([each["accuracy"] for each in found], abs=0.001)
    assert scores == sorted(scores, reverse=True)


def check_examples_of_a_head_or_a_role_are_read(page: Page, _: Analysis) -> None:
    content = json.loads((page.folder / "profile" / "profile.json").read_text())["examples"]
    role = next(each for each in content["roles"] if each["best"] and each["failures"])
    page.open("profile/profile.html", f"#head={role['id']}")
    page.choose("examples-role", role["role"].removeprefix("syntactic:"))
    page.choose("examples-head", role["id"])
    rows = page.table("#examples")
    weights = [example["weight"] for example in role["best"] + role["failures"]]
    assert [float(row[2]) for row in rows] == pytest.approx(weights, abs=0.006)
    assert (rows[0][1], rows[-1][1]) == ("✓ hit", "✗ miss")
    assert rows[0][4].split() == content["texts"][role["best"][0]["text"]]["text"].split()


def check_a_text_of_every_decile_is_neither_hit_nor_miss(page: Page, _: Analysis) -> None:
    page.open("profile/profile.html", "#head=L0H1")
    page.choose("examples-role", "all texts, by decile")
    page.choose("examples-head", "L0H1")
    rows = page.table("#examples")
    assert [row[:2] for row in rows] == [[f"decile {decile}", ""] for decile in range(10, 0, -1)]


def check_the_page_opens_with_the_first_look_whose_rows_open_heads(page: Page, analysis: Analysis) -> None:
    page.open("heads.html", "#head=L0H0")
    said = [page.text("h1"), *filter(None, page.text("#sentences").splitlines())]
    assert said == sentences(analysis, ViewOptions())
    rows = page.table("#heads > .scroll")
    assert [row[0] for row in rows] == [str(row.head.id) for row in look_rows(analysis, ViewOptions(), MOST_LISTED)]
    for at, row in enumerate(rows, start=1):
        page.click(f"#heads > .scroll tbody tr:nth-child({at}) td:nth-child(2)")
        page.shows(row[0])
        assert page.one("tr.current").text.startswith(row[0])


def check_heads_that_rest_on_sinks_or_show_nothing_are_dim(page: Page, analysis: Analysis) -> None:
    page.open("heads.html")
    dim = {button.get_attribute("data-head") for button in page.all(".head.dim")}
    assert dim == {str(head.id) for head in analysis.heads if set(head.kinds) <= {"sink", "unnamed"}}
    assert 0 < len(dim) < len(analysis.heads)
    page.open("compare.html")
    assert not page.all(".head.dim")


def cells_say_what_their_colours_are(page: Page) -> None:
    """On a page of weights 0 and 1: white is 0, grey is masked, in two greys at least."""
    canvas, pixels = page.one("canvas.picture"), page.canvas("canvas.picture")
    greys, zeros = set(), 0
    for x, y in itertools.product(range(120, 420, 31), range(140, 380, 41)):
        page.hover(canvas, x - canvas.size["width"] / 2, y - canvas.size["height"] / 2)
        said, (red, green, blue) = page.text(".reading"), pixels[y, x]
        if said.endswith("(masked)"):
            assert red == green == blue < 240
            greys.add(red)
        elif said.endswith(", 0.00"):
            assert min(red, green, blue) > 240
            zeros += 1
    assert len(greys) > 1
    assert zeros > 5


def check_what_is_masked_is_told_from_zero(page: Page, _: Analysis) -> None:
    alphas = (
        "(canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
        ".filter((_, at) => at % 4 === 3))(document.querySelector('.thumbnail'))"
    )
    contexts = [windowed(words).context_of(0) for words in (False, True)]
    of_tokens, of_words = (context.allowed_rows(0, len(context.units)).numpy() for context in contexts)
    for address, allowed in {
        "windowed-token.html": of_tokens,
        "windowed-token.html#words=1": of_words,
        "windowed-word.html": of_words,
        "windowed-compare.html": of_tokens,
        "explain-causal/explain.html": np.tri(6, dtype=bool),
        "zeros.html": np.tri(8, dtype=bool),
    }.items():
        name, _, chosen = address.partition("#")
        page.open(name, f"#{chosen}")
        if not name.startswith("explain"):
            page.painted()
        drawn = np.array(page.asked(alphas)).reshape(allowed.shape)
        np.testing.assert_array_equal(drawn, 255 * allowed, err_msg=address)
    cells_say_what_their_colours_are(page)


def check_two_spans_are_chosen_and_heads_ranked_between_them(page: Page, _: Analysis) -> None:
    content = json.loads((page.folder / "chat" / "heads.json").read_text())
    (pair,) = [pair for pair in content["span_pairs"] if (pair["from"], pair["to"]) == ("assistant", "system")]
    shares = {head["id"]: share for head, share in zip(content["heads"], pair["content"], strict=True)}
    page.open("chat/heads.html", "#left=table&head=L1H1")
    page.choose("from", "2")
    page.choose("to", "0")
    shown = {row[0]: float(row[-1]) for row in page.table("#heads .all")}
    assert shown == pytest.approx(shares, abs=0.001)
    assert list(shown) == sorted(shares, key=lambda head: -shares[head])
    uniform = sum(pair["content_uniform"]) / len(shares)
    assert f"uniform attention {uniform:.2f}" in page.text(".between")
    assert page.text("#head h2").startswith(next(iter(shown)))  # the head that reads most is opened
    answer = content["spans"][2]
    pressed = [int(token.get_attribute("data-at")) for token in page.all('.token[aria-pressed="true"]')]
    assert pressed == list(range(answer["first"], answer["last"] + 1))
    page.open("chat/heads.html", page.address)
    assert [float(row[-1]) for row in page.table("#heads .all")] == list(shown.values())
    page.choose("from", "0")
    page.choose("to", "2")
    assert "nothing" in page.text(".between")  # of what comes later
    page.open("heads.html")
    assert not page.one("select[name=from]").is_displayed()


def test_the_page_does_what_it_says(page: Page, analysis: Analysis) -> None:
    from selenium.common.exceptions import WebDriverException

    page.as_it_is()
    failures: list[Exception] = []
    for name, check in sorted(globals().items()):
        if not name.startswith("check_"):
            continue
        try:
            check(page, analysis)
        except (AssertionError, WebDriverException) as error:
            error.add_note(name)
            failures.append(error)
        failures += [AssertionError(f"{name}: {entry['message']}") for entry in page.driver.get_log("browser")]
    if failures:
        raise ExceptionGroup("checks of the page", failures)


# --- at the width of a desk, of a tablet and of a phone, light, dark and printed


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


@pytest.mark.parametrize("name", ["heads", "many", "translated", "windowed-token", "compare", "chat/heads", "outlined"])
def test_on_a_laptop_the_heatmap_is_whole(page: Page, name: str) -> None:
    page.emulate(1280)
    page.open(f"{name}.html")
    (picture,) = page.boxes("canvas.picture")
    assert 0 <= picture["left"] < picture["right"] <= 1280
    assert picture["bottom"] <= WIDTHS[1280]
    assert page.asked("scrollY + document.querySelector('#head').scrollTop") == 0
    page.open("heads.html")
    assert [row["height"] < 40 for row in page.boxes(".controls:has(.switches)")] == [True, True]


def test_every_token_of_a_sentence_is_named_and_pairs_are_outlined_solid_if_found(page: Page) -> None:
    page.emulate(1280)
    page.open("outlined.html", "#head=L0H0&size=1")
    page.driver.execute_script(
        "[...document.querySelectorAll('#head button')].find(e => /SVG/.test(e.innerText)).click()"
    )
    file = page.folder / "L0H0-heatmap.svg"
    page.until(lambda: file.exists() and file.read_text(encoding="utf-8").endswith("</svg>\n"))
    drawn = file.read_text(encoding="utf-8")
    labels = re.findall(r'font-size="11"[^>]*>\u2068(.*?)\u2069<', drawn)
    assert sorted(labels) == sorted(2 * LONG.units.labels)
    assert (drawn.count('stroke="#00805c"'), drawn.count('stroke="#d55e00"'), drawn.count("dasharray")) == (1, 1, 1)
    assert "1 of 2 found" in page.text("#head > .quiet")
    numbers = page.asked("[...document.querySelectorAll('td')].map(e => [e.innerText, getComputedStyle(e).textAlign])")
    assert {side for text, side in numbers if re.fullmatch(r"[\d,.]+", text)} == {"right"}


def test_a_key_makes_text_larger_and_pictures_too(page: Page) -> None:
    page.emulate(1280)
    page.open("zeros.html")
    sizes = (
        "['body', '.head .id', 'h2', 'td'].map(e => parseFloat(getComputedStyle(document.querySelector(e)).fontSize))"
    )
    before = page.asked(sizes)
    page.press("+")
    assert page.asked(sizes) == pytest.approx([1.2 * size for size in before])
    assert "size=1" in page.address
    cells_say_what_their_colours_are(page)
    page.driver.refresh()
    page.until(lambda: page.text("#head h2") != "")
    assert page.asked(sizes) == pytest.approx([1.2 * size for size in before])
    page.press("-", "-")
    assert page.asked(sizes) == pytest.approx(before)
    assert "size" not in page.address


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
    page.driver.execute_script("document.querySelector('.grid').focus()")
    page.press(*[RIGHT] * 11)
    page.shows("L0H11")
    (last,) = [box for box in page.boxes("button.head") if box["text"].startswith("L0H11")]
    assert 0 <= last["left"] < last["right"] <= 400
    assert page.boxes(".row")[0]["left"] >= 0  # a row's name stays
    for head in ("L0H0", "L1H4"):
        button = page.one(f"button[data-head={head}]")
        page.driver.execute_script("arguments[0].scrollIntoView({ inline: 'center' })", button)
        button.click()
        page.shows(head)
        (panel,) = page.boxes("#head")
        assert -1 <= panel["top"] < 100
        page.click("#head .back")
        (thumbnail,) = [box for box in page.boxes("button.head") if box["text"].split()[0] == head]
        assert -1 <= thumbnail["top"] < thumbnail["bottom"] <= WIDTHS[400]


def test_on_a_phone_what_is_not_in_view_has_a_cue_and_titles_are_whole(page: Page) -> None:
    page.emulate(400)
    page.open("roles.html", "#size=3")
    for selector in (".grid", "#heads > .scroll", "#head .scroll"):
        box = page.one(selector)
        page.until(lambda box=box: "more" in box.get_attribute("class").split())  # type: ignore[misc]
        page.driver.execute_script("arguments[0].scrollLeft = 9999", box)
        page.until(lambda box=box: "more" not in box.get_attribute("class").split())  # type: ignore[misc]
    page.open("zeros.html")
    assert "more" not in page.one(".grid").get_attribute("class").split()
    page.open("compare.html", "#head=L2H0")
    titles = page.boxes("h1, h2, caption > *")
    assert [title["text"] for title in titles if title["right"] > 400] == []
    page.driver.execute_script(
        "[...document.querySelectorAll('#head button')].find(e => /SVG/.test(e.innerText)).click()"
    )
    file = page.folder / "L2H0-heatmap.svg"
    page.until(lambda: file.exists() and file.read_text(encoding="utf-8").endswith("</svg>\n"))
    written = re.findall(r'<text x="4"[^>]*>([^<]*)</text>', file.read_text(encoding="utf-8"))
    assert page.text("h1") in " ".join(written)


def test_roles_over_the_corpus_are_marks_and_a_filter(page: Page) -> None:
    page.emulate(1400)
    page.open("roles.html", "#head=L0H1")
    assert page.text(".head[data-head=L0H1]").split("\n")[-1] == "obj"
    assert page.text(".head[data-head=L1H1]").split("\n")[-1] == "–"
    paths = "[...document.querySelectorAll(`.head[data-head=${arguments[0]}] path`)]"
    fills = f"{paths}.slice(1).map(e => e.getAttribute('fill'))"
    assert page.asked(fills, "L0H1") == ["none", "#BBCC33"]  # a syntactic role, for which the text was not parsed: half
    assert page.asked(fills, "L0H0") == ["none"]  # the text does not show it
    for only, heads in (("obj", ["L0H1"]), ("syntactic", ["L0H1", "L1H0"]), ("previous-token", ["L0H0"])):
        page.choose("only", f"{only} over the corpus")
        assert [button.get_attribute("data-head") for button in page.all("button.head")] == heads
    page.driver.refresh()
    page.shows("L0H1")
    assert [button.get_attribute("data-head") for button in page.all("button.head")] == ["L0H0"]


@pytest.mark.parametrize(("name", "view", "scheme"), [("many", "heatmap", "light"), ("translated", "lines", "dark")])
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
