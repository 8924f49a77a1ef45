"""A real browser, where there is one."""

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
    """Chromium by its driver, with what it logs and loads."""

    def __init__(self, profile):
        webdriver = pytest.importorskip("selenium.webdriver")
        from selenium.webdriver.chrome.service import Service

        program, driver = shutil.which("chromium"), shutil.which("chromedriver")
        if program is None or driver is None:
            pytest.skip("there is no Chromium with its driver: `make browser` installs it")
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
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector):
        """Text of the first element."""
        return self.run("return document.querySelector(arguments[0]).textContent.trim()", selector)

    def texts(self, selector):
        """Texts of all elements."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map((found) => found.textContent.trim())", selector
        )

    def click(self, selector):
        """Click the first element, as a person would."""
        found = self.driver.find_element("css selector", selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", found)
        found.click()

    def press(self, *keys):
        """Press keys where the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def logs(self):
        """What was logged since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        """What was loaded since the last time, but for the browser's own pages."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
        urls = [parameters["request"]["url"] for parameters in sent]
        return [url for url in urls if not url.startswith(("chrome:", "about:"))]
