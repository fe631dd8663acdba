"""How fast a page of attnviz is in headless Chromium: seconds to its first paint, and from a click to another head.

Needs the extra "browser", and Debian's chromium and chromium-driver.
"""

import importlib.util
import shutil
import statistics
import time
from pathlib import Path

from tests.benchmarks.measure import RUNS
from tests.support.browser import chromium

MISSING = None in (shutil.which("chromium"), shutil.which("chromedriver")) or not importlib.util.find_spec("selenium")

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
    """Median seconds to the first paint of a page and of a line of text; of a click to each head, and of one frame."""
    plain = page.with_name("plain.html")
    plain.write_text(_PLAIN, encoding="utf-8")
    driver = chromium(page.parent, 1600)
    paints: dict[Path, list[float]] = {plain: [], page: []}
    switches, frames = list[float](), list[float]()
    try:
        driver.set_script_timeout(60)
        for _ in range(RUNS):
            for path, seconds in paints.items():
                driver.get("about:blank")
                driver.get(path.as_uri())
                while not (found := driver.execute_script(_FIRST_PAINT)):
                    time.sleep(0.02)
                seconds.append(found / 1000)
        while not driver.execute_script(_DRAWN):
            time.sleep(0.05)
        for head in heads:
            switches.append(driver.execute_async_script(_CLICK, head) / 1000)
            time.sleep(0.3)  # as a reader would look
            frames.append(driver.execute_async_script(_FRAME) / 1000)
    finally:
        driver.quit()
    paint, floor, switch, frame = map(statistics.median, (paints[page], paints[plain], switches, frames))
    return (paint, floor), (switch, frame)
