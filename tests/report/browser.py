"""Headless Chromium for tests; tests are skipped if it is not installed."""

import json
import shutil
import time

import pytest

FLAGS = (
    *(
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
    ),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
)


class Browser:
    """Chromium with a driver that records console messages and network requests."""

    def __init__(self, profile):
        webdriver = pytest.importorskip("selenium.webdriver")
        from selenium.webdriver.chrome.service import Service

        program, driver = shutil.which("chromium"), shutil.which("chromedriver")
        if program is None or driver is None:
            pytest.skip("chromium or chromedriver is not installed: run `make browser`")
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))

    def open(self, path, width=1280, scheme="light"):
        """Load a page and wait until its charts are drawn."""
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get("about:blank")
        self.logs(), self.requests()
        self.driver.get(path.resolve().as_uri())
        deadline = time.monotonic() + 60
        while self.run("return document.querySelectorAll('figure.chart:not(.drawn)').length"):
            assert time.monotonic() < deadline, "the charts are not drawn"
            time.sleep(0.05)

    def run(self, script, *arguments):
        """Run a script and return its value."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector):
        """Return the text of the first element that matches."""
        return self.run("return document.querySelector(arguments[0]).textContent.trim()", selector)

    def texts(self, selector):
        """Return the texts of all elements that match."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map((found) => found.textContent.trim())", selector
        )

    def click(self, selector):
        """Scroll to the first element that matches and click it."""
        found = self.driver.find_element("css selector", selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", found)
        found.click()

    def press(self, *keys):
        """Send keys to the focused element."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def logs(self):
        """Return the console messages since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        """Return the addresses requested since the last call, without the browser's own pages."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
        urls = [parameters["request"]["url"] for parameters in sent]
        return [url for url in urls if not url.startswith(("chrome:", "about:"))]
