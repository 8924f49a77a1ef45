"""The page of a benchmark of 60 × 6 groups and eight methods: its size, and how long a browser takes to draw it.

    python benchmarks/report_page.py [FILE.html]

writes the page, of made-up results, to look at.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import numpy as np
from measure import Row

from compshift import GroupSpace
from compshift.bench.paper import PAPER_METHODS
from compshift.bench.store import Store
from compshift.report.bench_page import bench_page
from compshift.report.page import render_page

SPACE = GroupSpace(
    ("species of animal", "context"),
    (tuple(f"animal {i:02d}" for i in range(60)), ("autumn", "dim", "grass", "outdoor", "rock", "water")),
)
SCENARIOS, DROPPED, TEST_ROWS = 4, 36, 30
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


def rows() -> Iterator[Row]:
    """Megabytes of the page, and seconds until every chart is drawn."""
    with tempfile.TemporaryDirectory() as name:
        page = write_page(Path(name) / "page.html", Path(name) / "results")
        size = page.stat().st_size / 1e6
        what = f"page of {' × '.join(map(str, SPACE.cardinalities))} groups and {len(PAPER_METHODS)} methods"
        yield Row(f"{what}: its size", "", f"{size:.2f} MB", "2 MB", size < 2)
        seconds = _seconds_to_draw(page, Path(name) / "profile")
    if seconds is None:
        yield Row(f"{what}: opens in", "the clock", "no browser: make browser", "3 s", False)
    else:
        yield Row(f"{what}: opens in", "the clock", f"{seconds:.1f} s", "3 s", seconds < 3)


def _seconds_to_draw(page: Path, profile: Path) -> float | None:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program, driver = which("chromium"), which("chromedriver")
    if program is None or driver is None:
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        start = time.perf_counter()
        browser.get(page.as_uri())
        while browser.execute_script("return document.querySelectorAll('figure.chart:not(.drawn)').length"):
            time.sleep(0.02)
        return time.perf_counter() - start
    finally:
        browser.quit()


def write_page(page: Path, folder: Path) -> Path:
    """The page of made-up results."""
    rng = np.random.default_rng(0)
    groups = SPACE.codes(np.arange(SPACE.n_groups))
    easy = rng.uniform(0.5, 1, size=len(groups))
    train = rng.integers(1, 200, size=len(groups))
    protocol = {"mode": "features", "select": "balanced"}
    scenarios = [np.sort(rng.choice(len(groups), DROPPED, replace=False)) for _ in range(SCENARIOS)]
    plan = [[groups[dropped].tolist(), method, 1, 1] for dropped in scenarios for method in PAPER_METHODS]
    data = {"animals": {"digest": "made up", "protocol": protocol}}
    store = Store.create(folder, data, dict.fromkeys(PAPER_METHODS, "1"), {"animals": plan})
    for number, dropped in enumerate(scenarios):
        seen = np.where(np.isin(np.arange(len(groups)), dropped), 0, train)
        for method in PAPER_METHODS:
            lost = np.where(seen > 0, 0.1, 0.2 if method == "crm" else 0.5) * rng.uniform(size=len(groups))
            right = rng.binomial(TEST_ROWS, np.clip(easy - lost, 0, 1)).tolist()
            config = {"data": "animals", "digest": "made up", "protocol": protocol, "scenario": f"random {number}"}
            config |= {"dropped": groups[dropped].tolist(), "method": method, "code": "1", "draw": 0, "seed": 0}
            extrapolated = [
                [groups[group].tolist(), rng.uniform(2, 300), rng.uniform(0.1, 1.2)] for group in dropped.tolist()
            ]
            record = {
                "key": f"{number}-{method}",
                "config": config,
                "status": "done",
                "detail": {"bias_gap": 1e-5, "extrapolated": extrapolated} if method == "crm" else {},
                "names": list(SPACE.names),
                "values": [list(values) for values in SPACE.values],
                "groups": groups.tolist(),
                "train_rows": train.tolist(),
                "seen_rows": seen.tolist(),
                "rows": {split: [TEST_ROWS] * len(groups) for split in ("val", "test")},
                "right": {split: {"default": right} for split in ("val", "test")},
                "seconds": 3.0,
                "finished": "2000-01-01T00:00:00+00:00",
                "versions": {"compshift": "0"},
            }
            store.write(record)
    page.write_text(render_page(bench_page(folder)), encoding="utf-8")
    return page


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        path = write_page(Path(sys.argv[1] if len(sys.argv) > 1 else "out/report.html"), Path(temporary) / "results")
    print(f"page written to {path}")
