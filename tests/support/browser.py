"""A real browser for the tests of the page: Chromium without network, and a page in it.

Needs the extra "browser", and Debian's chromium and chromium-driver: ``apt-get install -y chromium chromium-driver``.
"""

import base64
import importlib.util
import io
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

_CHROMIUM, _DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_MISSING = [name for name, found in (("chromium", _CHROMIUM), ("chromedriver", _DRIVER)) if found is None]
if importlib.util.find_spec("selenium") is None:
    _MISSING.append("the extra browser (selenium)")

needs_browser = pytest.mark.skipif(bool(_MISSING), reason=f"needs a browser: {', '.join(_MISSING)} not found")

SHIFT = "\ue008"
WIDTHS = {1400: 1000, 1280: 720, 800: 1000, 400: 800}  # of the screen, and its height, in CSS pixels


def chromium(folder: Path, height: int) -> Any:
    """A driver of Chromium without network, 1400 CSS pixels wide, that saves its downloads in ``folder``."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(_CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size=1400,{height}"):
        options.add_argument(argument)
    several = {"profile.default_content_setting_values.automatic_downloads": 1}
    options.add_experimental_option("prefs", {"download.default_directory": str(folder), **several})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_DRIVER))
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    return driver


class Page:
    """A page in the browser, by what is on it."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def open(self, name: str, address: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(f"file://{self.folder / name}{address}")
        self.until(lambda: self.text("#head h2") != "")

    def as_it_is(self) -> None:
        """End what :meth:`emulate` began."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def emulate(self, width: int, scheme: str = "light", media: str = "") -> None:
        size = {"width": width, "height": WIDTHS[width], "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme_of = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme_of]})

    def asked(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return {script}", *arguments)

    def boxes(self, selector: str) -> list[dict[str, Any]]:
        """What can be seen of it: its text, and its sides in the window."""
        seen = "[...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility())"
        box = "({...e.getBoundingClientRect().toJSON(), text: e.innerText})"
        return list(self.asked(f"{seen}.map(e => {box})", selector))

    def painted(self) -> None:
        self.until(lambda: self.one(".grid").get_attribute("data-painted") == "true")

    def canvas(self, selector: str) -> np.ndarray:
        """Its pixels, [rows, columns, 3]."""
        address = self.asked("document.querySelector(arguments[0]).toDataURL()", selector)
        return np.array(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB"), float)

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(3000):
            if holds():
                return
            time.sleep(0.01)
        raise AssertionError(f"waited 30 s; the page says {self.text('.reading')!r}, {self.text('#head h2')!r}")

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        found = self.driver.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return str(found)

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def token(self, at: int) -> Any:
        return self.one(f".token[data-at='{at}']")

    def choose(self, name: str, value: str) -> None:
        self.one(f"select[name={name}] option[value='{value}']").click()

    @property
    def hand(self) -> Any:
        """Keys and mouse."""
        from selenium.webdriver import ActionChains

        return ActionChains(self.driver, duration=0)

    def press(self, *keys: str) -> None:
        self.hand.send_keys(*keys).perform()

    def hover(self, element: Any, x: float = 0, y: float = 0) -> None:
        self.hand.move_to_element_with_offset(element, x, y).perform()

    def shift_click(self, element: Any) -> None:
        self.hand.key_down(SHIFT).click(element).key_up(SHIFT).perform()

    def shows(self, head: str) -> None:
        """Wait until it does."""
        self.until(lambda: self.text("#head h2").startswith(head))

    def table(self, selector: str) -> list[list[str]]:
        rows = "[...document.querySelectorAll(arguments[0] + ' tbody tr')]"
        return list(self.driver.execute_script(f"return {rows}.map(r => [...r.cells].map(c => c.innerText))", selector))

    def weights(self) -> np.ndarray:
        """The weights of the table of what is chosen, by position."""
        rows = self.table("#head .scroll:not([hidden])")
        return np.array([float(row[2].replace("−", "-")) for row in sorted(rows, key=lambda row: int(row[0]))])

    @property
    def address(self) -> str:
        return str(self.driver.execute_script("return location.hash"))
