"""Draw ``report.png``, a report on a made-up table with one group marked to be collected, in headless Chromium.

    python docs/report_picture.py [FILE.png]

needs ``make browser``.
"""

import base64
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

SIGHTINGS = """\
bird,place,sightings
duck,lake,412
duck,marsh,230
gull,lake,88
gull,sea,365
gull,town,1
heron,lake,19
heron,marsh,47
owl,farm,133
owl,wood,240
wren,wood,310
"""
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WIDTH, HEIGHT, SCALE = 1035, 1096, 1.1305  # CSS pixels, and pixels of the picture for each of them


def draw(picture: Path) -> None:
    """Write the report of the table in a temporary folder, mark (owl, town), and save a picture of the page's top."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sightings.csv").write_text(SIGHTINGS)
        command = [sys.executable, "-m", "compshift", "report", "sightings.csv", "--attributes", "bird,place"]
        subprocess.run([*command, "--count", "sightings", "-o", "page.html"], cwd=folder, check=True)
        options = webdriver.ChromeOptions()
        options.binary_location = which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options=options, service=Service(which("chromedriver") or ""))
        try:
            size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": SCALE, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get((folder / "page.html").as_uri())
            browser.execute_script("document.querySelector(\"button[aria-label^='(owl, town)']\").click()")
            found = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
            picture.write_bytes(base64.b64decode(found["data"]))
        finally:
            browser.quit()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("report.png")
    draw(target)
    print(f"picture written to {target}")
