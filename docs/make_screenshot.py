"""The README's picture of a page: docs/report.png, out of a run directory.

Run it after the page has changed: python docs/make_screenshot.py [RUN]
"""

from __future__ import annotations

import base64
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import tyro
from selenium import webdriver

from curlicue.cli import main as curlicue
from curlicue.report.html import write_page
from curlicue.report.run_data import read

ROOT = Path(__file__).parent.parent
SHOWN = ("headline", "classes", "latent", "generated")  # sections
WIDTH = 1000  # pixels
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking")
PATIENCE = 60.0  # seconds


def main(run: Annotated[Path | None, tyro.conf.Positional] = None, /, out: Path = ROOT / "docs" / "report.png") -> None:
    """Write the picture.

    Args:
        run: a run directory (default: run the demo first)
        out: where the picture goes
    """
    with tempfile.TemporaryDirectory() as folder:
        if run is None:
            run = Path(folder) / "digits"
            curlicue(["demo", "--out", str(run)])
        page = Path(folder) / "page.html"
        write_page([read(run)], page)
        out.write_bytes(picture(page, Path(folder) / "profile"))


def picture(page: Path, profile: Path) -> bytes:
    """Some sections of a page, as a PNG."""
    browser, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if browser is None or driver is None:
        raise SystemExit(
            "A picture needs Chromium and its driver. Install them: apt-get install chromium chromium-driver"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        return _picture(chrome, page)
    finally:
        chrome.quit()


def _picture(chrome: webdriver.Chrome, page: Path) -> bytes:
    size = {"width": WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    light = {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", light)
    chrome.get(page.as_uri())
    drawn = "return [...document.querySelectorAll('.chart')].every(chart => chart.querySelector('.main-svg'))"
    deadline = time.monotonic() + PATIENCE
    while not chrome.execute_script(drawn):
        if time.monotonic() > deadline:
            raise SystemExit(f"The charts of {page} are not drawn after {PATIENCE:.0f} seconds. Open it in a browser.")
        time.sleep(0.1)
    hide = "for (const s of document.querySelectorAll('main > section')) s.hidden = !arguments[0].includes(s.id)"
    chrome.execute_script(hide, list(SHOWN))
    time.sleep(1)  # points have come to rest
    height = chrome.execute_script("return document.querySelector('main').getBoundingClientRect().bottom")
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": height + 20, "scale": 1}
    shot = chrome.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    return base64.b64decode(shot["data"])


if __name__ == "__main__":
    tyro.cli(main)
