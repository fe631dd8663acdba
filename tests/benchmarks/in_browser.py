"""How fast a page of attnviz is in headless Chromium: seconds to its first paint, and from a click to another head.

Needs the extra "browser", and Debian's chromium and chromium-driver.
"""

import importlib.util
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import RUNS

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = None in (CHROMIUM, DRIVER) or importlib.util.find_spec("selenium") is None

_PLAIN = "<!doctype html><title>-</title><p>a line of text"
_FIRST_PAINT = "return (performance.getEntriesByName('first-contentful-paint')[0] ?? {startTime: 0}).startTime"
_DRAWN = "return document.querySelector('#heads .grid').dataset.painted === 'true'"
_CLICK = """
const [id, done] = [arguments[0], arguments[arguments.length - 1]];
const [title, began] = [document.querySelector("#head h2"), performance.now()];
const watch = new MutationObserver(() => {
  if (!title.textContent.startsWith(`${id} `)) return;
  watch.disconnect();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));  // after it is painted
});
watch.observe(title, {childList: true});
document.querySelector(`[data-head="${id}"]`).click();
"""
_FRAME = """
const [done, began] = [arguments[arguments.length - 1], performance.now()];
requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
"""


def paint_and_switch(page: Path, heads: list[str]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Median seconds to the first paint of the page and of a line of text; of a click to each head, and of one frame.

    Args:
        page: of attnviz.
        heads: their ids, in the order of the clicks.
    """
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    plain = page.with_name("plain.html")
    plain.write_text(_PLAIN, encoding="utf-8")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1600"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.set_script_timeout(60)
        paints = [_first_paint(driver, path) for _ in range(RUNS) for path in (plain, page)]
        while not driver.execute_script(_DRAWN):
            time.sleep(0.05)
        switches, frames = [], []
        for head in heads:
            switches.append(driver.execute_async_script(_CLICK, head) / 1000)
            time.sleep(0.3)  # as a reader would look
            frames.append(driver.execute_async_script(_FRAME) / 1000)
    finally:
        driver.quit()
    ours, theirs = (statistics.median(paints[which::2]) for which in (1, 0))
    return (ours, theirs), (statistics.median(switches), statistics.median(frames))


def _first_paint(driver: Any, path: Path) -> float:
    driver.get("about:blank")
    driver.get(path.as_uri())
    while not (found := driver.execute_script(_FIRST_PAINT)):
        time.sleep(0.02)
    return float(found) / 1000
