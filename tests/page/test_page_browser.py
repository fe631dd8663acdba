"""The page in a real browser: opened from disk without network, clicked, read, saved; its numbers are heads.json's.

Needs the extra "browser", and Debian's chromium and chromium-driver: ``apt-get install -y chromium chromium-driver``.
"""

import json
import re
import shlex
import subprocess

import numpy as np
import pytest
from PIL import Image

import attnviz
from attnviz.commands.heads.analysis import Analysis
from attnviz.wording import visible
from tests.conftest import SENTENCE
from tests.page.conftest import IN_COMMANDS
from tests.support.browser import Page, needs_browser
from tests.support.encoder_decoders import SOURCE, TARGET

pytestmark = needs_browser

ENTER, ESCAPE, UP, RIGHT, DOWN = "\ue007", "\ue00c", "\ue013", "\ue014", "\ue015"


def check_what_is_read_from_the_page_is_in_heads_json(page: Page, analysis: Analysis) -> None:
    page.open("heads.html", "#head=L1H2&left=table&view=table&tokens=2")
    content = json.loads((page.folder / "heads.json").read_text())
    rows = {row[0]: row for row in page.table("#heads")}
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
    assert page.one(".reading").get_attribute("aria-live") == "polite"


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


def check_the_scale_changes_the_colours_of_thumbnails_and_says_so(page: Page, analysis: Analysis) -> None:
    page.open("heads.html", "#head=L0H0")
    colours = []
    for scale, words in (("shared", "0 to 1"), ("log", "logarithmic"), ("per-head", "largest weight")):
        page.choose("scale", scale)
        page.until(lambda words=words: words in page.text("#head .quiet"))  # type: ignore[misc]
        page.until(lambda: page.one(".grid").get_attribute("data-painted") == "true")
        colours.append(page.driver.execute_script("return document.querySelector('.thumbnail').toDataURL()"))
    assert len(set(colours)) == 3
    darkest = analysis.pattern("L0H0").numpy().argmax()
    n = len(analysis.units)
    pixel = f"getContext('2d').getImageData({darkest % n}, {darkest // n}, 1, 1).data"
    found = page.driver.execute_script(f"return [...document.querySelector('.thumbnail').{pixel}]")
    assert found == [8, 48, 107, 255]  # the strongest blue


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
    page.open(
        "heads.html", "#head=L1H3&left=scatter&x=sink&y=entropy&view=lines&scale=log&drop=1&tokens=3,5&direction=to"
    )
    before, said = page.address, page.text(".reading")
    assert page.text("#head h2").startswith("L1H3")
    assert page.one(".switches [data-value=scatter]").get_attribute("aria-pressed") == "true"
    page.driver.refresh()
    page.until(lambda: page.text("#head h2") != "")
    assert (page.address, page.text(".reading")) == (before, said)
    page.open("heads.html", "#head=L9H9&scale=<b>&tokens=999,-1,x&x=nothing")
    assert page.all(".token")
    assert "999" not in page.address


def check_the_scatter_is_previewed_and_clicked(page: Page, _: Analysis) -> None:
    page.open("heads.html", "#head=L0H0&left=scatter")
    canvas = page.one("canvas.scatter")
    width, height = canvas.size["width"], canvas.size["height"]
    places = [(x - width / 2, y - height / 2) for x in range(60, width - 20, 14) for y in range(20, height - 50, 60)]

    def head_at(place: tuple[float, float]) -> str:
        page.hover(canvas, *place)
        return str(canvas.get_attribute("title") or "L0H0").partition(":")[0]

    place = next(place for place in places if head_at(place) != "L0H0")
    chosen = head_at(place)
    page.shows(chosen)
    assert "head=L0H0" in page.address  # previewed only
    page.hand.click().perform()
    assert f"head={chosen}" in page.address


def check_pictures_are_saved_as_they_are_seen(page: Page, _: Analysis) -> None:
    page.open("heads.html", "#head=L1H2&tokens=2")
    svg, png = page.folder / "L1H2-heatmap.svg", page.folder / "L1H2-heatmap.png"
    for name, file, end in (("Save SVG", svg, b"</svg>\n"), ("Save PNG", png, b"IEND\xaeB`\x82")):
        (button,) = [each for each in page.all("#head button") if each.text == name]
        button.click()
        page.until(lambda file=file, end=end: file.exists() and file.read_bytes().endswith(end))  # type: ignore[misc]
    text = svg.read_text(encoding="utf-8")
    assert "L1H2" in text
    assert "data:image/png" in text
    canvas = page.one("canvas.picture").size
    with Image.open(png) as picture:
        assert picture.size == (2 * canvas["width"], 2 * canvas["height"])


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
    found = translated
    assert found.target is not None
    source, target = found.tokens.labels, found.target.tokens.labels
    pattern = found.pattern("X1H2").numpy()
    page.as_it_is()
    page.open("translated.html", "#head=X1H2&tokens=3&text=1&view=table")
    sides = [[token.text for token in page.all(f".strip[data-side='{side}'] .token")] for side in (0, 1)]
    assert sides == [list(target), list(source)]
    np.testing.assert_allclose(page.weights(), pattern[3], atol=0.005)
    best = int(pattern[3].argmax())
    assert page.text(".reading") == f"{target[3]} attends to {source[best]}, {pattern[3, best]:.2f}"
    page.click(".strip[data-side='1'] .token[data-at='5']")  # the source: what attends to it
    np.testing.assert_allclose(page.weights(), pattern[:, 5], atol=0.005)
    assert "text=0" in page.address
    assert "direction=to" in page.address
    page.shift_click(page.one(".strip[data-side='1'] .token[data-at='7']"))
    page.driver.refresh()
    page.until(lambda: page.text("#head h2") != "")
    np.testing.assert_allclose(page.weights(), pattern[:, 5] + pattern[:, 7], atol=0.01)
    page.open("translated.html", "#head=X1H2&text=0&tokens=5")
    page.hover(page.one(".strip[data-side='0'] .token[data-at='2']"))
    assert f"attends to {source[5]}" in page.text(".reading")  # what is locked stays


def check_kinds_of_heads_are_chosen(page: Page, _: Analysis) -> None:
    page.open("translated.html", "#head=E0H0&text=0&tokens=4")
    page.choose("kind", "decoder")
    assert [button.text.split()[0] for button in page.all("#heads .head .id")] == [
        f"D{layer}H{head}" for layer in range(3) for head in range(4)
    ]
    assert [row.text for row in page.all("#heads .row")] == ["D0", "D1", "D2"]
    page.click("h1")
    page.press("j")  # the head that is shown is no decoder's: to the first that is
    page.shows("D0H0")
    assert not page.all(".token.chosen")  # the token is of the other text
    command = shlex.split(str(page.one("code").get_property("textContent")))
    assert command[-6:] == ["--target", TARGET, "--select", "D0H0", "--figures", "heads"]
    page.choose("kind", "")
    page.click("h1")
    page.press("k")
    page.shows("E1H2")
    assert [token.get_attribute("data-at") for token in page.all(".token.chosen")] == ["4"]
    page.open("translated.html", "#head=X0H0&view=lines&kind=cross-attention&drop=1&words=1")
    assert [token.text for token in page.all(".strip[data-side='0'] .token")] == TARGET.split()
    assert [token.text for token in page.all(".strip[data-side='1'] .token")] == SOURCE.split()


def check_a_card_is_read_beside_all_heads(page: Page, _: Analysis) -> None:
    page.open("card/card.html")
    (content,) = json.loads((page.folder / "card" / "card.json").read_text())["cards"]
    paragraphs = [paragraph.text for paragraph in page.all(".words p")]
    assert "L2H1" in paragraphs[0]
    assert all(each in paragraphs[-1] for each in content["not_measured"])
    assert page.one("#head").rect["x"] < page.one("#heads").rect["x"]  # first the card
    assert [row[1].split()[0] for row in page.table("#tables")][:3] == [
        role["role"].removeprefix("syntactic:") for role in content["roles"]
    ]
    assert [row.text.split()[2:4] for row in page.all(".sentences tr")] == [["✓", "hit"], ["✗", "miss"]]
    command = shlex.split(str(page.one("code").get_property("textContent")))
    assert command[:3] == ["attnviz", "card", "L2H1"]
    assert command[-2:] == ["--figures", "page"]
    page.click("[data-head=L0H0]")
    page.shows("L0H0")
    assert page.all(".words p") == []  # of which nothing was gathered


def check_a_comparison_has_both_sides_and_their_difference(page: Page, analysis: Analysis) -> None:
    other = attnviz.analyze(SENTENCE.replace("cat", "dog"), analysis.checkpoint, syntax=False)
    a, b = (side.pattern("L2H1").numpy()[2] for side in (analysis, other))
    for side, expected, error in (("0", a, 0.005), ("1", b, 0.005), ("2", b - a, 0.008)):
        page.open("compare.html", f"#head=L2H1&view=table&tokens=2&side={side}")
        np.testing.assert_allclose(page.weights(), expected, atol=error)
    assert "cat → dog" in [token.text for token in page.all(".token")]
    distances = {str(head.id): head.distance for head in attnviz.compare(analysis, other).heads}
    page.open("compare.html", "#left=table")
    for row in page.table("#heads"):
        assert float(row[2]) == pytest.approx(distances[row[0]], abs=0.001)


def check_a_profile_has_tables_that_sort_and_a_scatter(page: Page, _: Analysis) -> None:
    content = json.loads((page.folder / "profile" / "profile.json").read_text())
    page.open("profile/profile.html", "#left=scatter&x=sink&y=entropy")
    assert page.one("canvas.scatter").size["height"] > 200
    held = [role for role in content["roles"] if role["holds"]]
    rows = page.table("#tables [aria-label^=Roles]")
    assert sorted((row[0], row[1]) for row in rows) == sorted((role["id"], role["role"]) for role in held)
    header = page.one("#tables [aria-label^=Relations] th:nth-child(3) button")
    header.click()
    scores = [float(row[2]) for row in page.table("#tables [aria-label^=Relations]")]
    assert scores == sorted(scores, reverse=True)
    best = {each["relation"]: each["best"] for each in content["syntax"]["relations"]}
    for row in page.table("#tables [aria-label^=Relations]"):
        relation = best[row[0].split()[0]]
        assert (row[1], float(row[2])) == (relation["id"], pytest.approx(relation["accuracy"], abs=0.001))
    page.one("#tables td button").click()
    assert f"head={page.one('#tables td button').text}" in page.address


def check_examples_of_a_head_or_a_role_are_read(page: Page, _: Analysis) -> None:
    content = json.loads((page.folder / "profile" / "profile.json").read_text())["examples"]
    role = next(each for each in content["roles"] if each["best"] and each["failures"])
    groups = [role[name] for name in ("best", "failures")]
    page.open("profile/profile.html", f"#head={role['id']}")
    page.choose("examples-role", role["role"].removeprefix("syntactic:"))
    page.choose("examples-head", role["id"])
    rows = page.table("#examples")
    assert [float(row[2]) for row in rows] == pytest.approx([e["weight"] for some in groups for e in some], abs=0.006)
    assert rows[0][1] == "✓ hit"
    assert rows[-1][1] == "✗ miss"
    assert rows[0][4].split() == content["texts"][role["best"][0]["text"]]["text"].split()
    assert page.text("#examples .query") in (role["best"][0]["query"][0], role["best"][0]["key"][0])
    assert page.text("#examples h3").startswith(role["id"])
    page.choose("examples-role", "")
    page.choose("examples-head", "*")
    assert page.text("#examples .sentences") == "Choose a role or relation, or a head."


def check_two_spans_are_chosen_and_heads_ranked_between_them(page: Page, _: Analysis) -> None:
    content = json.loads((page.folder / "chat" / "heads.json").read_text())
    (pair,) = [pair for pair in content["span_pairs"] if (pair["from"], pair["to"]) == ("assistant", "system")]
    shares = {head["id"]: share for head, share in zip(content["heads"], pair["content"], strict=True)}
    page.open("chat/heads.html", "#left=table&head=L1H1")
    page.choose("from", "2")
    page.choose("to", "0")
    shown = {row[0]: float(row[-1]) for row in page.table("#heads")}
    assert shown == pytest.approx(shares, abs=0.001)
    assert list(shown) == sorted(shares, key=lambda head: -shares[head])
    assert f"the largest: {next(iter(shown))} " in page.text(".between")
    uniform = sum(pair["content_uniform"]) / len(shares)
    assert f"uniform attention {uniform:.2f}" in page.text(".between")
    assert page.text("#head h2").startswith(next(iter(shown)))  # the head that reads most is opened
    assert f"assistant to system: {max(shares.values()):.2f}" in page.text(".evidence")
    answer = content["spans"][2]
    pressed = page.all('.token[aria-pressed="true"]')
    assert [int(token.get_attribute("data-at")) for token in pressed] == list(
        range(answer["first"], answer["last"] + 1)
    )
    assert page.text(".reading").startswith("assistant attends to ")
    assert "--chat chat.json" in page.text(".command")
    address = page.address.partition("#")[2]
    page.open("chat/heads.html", f"#{address}")
    page.emulate(1400, "light", "print")
    assert page.one(".between").is_displayed()
    assert not page.one("#heads .controls").is_displayed()
    page.emulate(1400, "light", "screen")
    assert [float(row[-1]) for row in page.table("#heads")] == list(shown.values())
    page.choose("from", "0")
    page.choose("to", "2")
    assert page.text(".between") == "system sees nothing of assistant."
    page.open("heads.html")
    assert not page.one("select[name=from]").is_displayed()


def check_a_notebook_shows_the_page_in_a_frame(page: Page, analysis: Analysis) -> None:
    page.driver.get(f"file://{page.folder / 'notebook.html'}")
    page.driver.switch_to.frame(page.one("iframe"))
    page.until(lambda: page.text("#head h2") != "")
    page.token(3).click()
    best = int(analysis.pattern(page.text("#head h2").split()[0])[3].argmax())
    assert f"attends to {analysis.units.labels[best]}" in page.text(".reading")
    page.driver.switch_to.default_content()


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
