"""Fixtures and the table of counts of the hardening tests, which are collected only with ``-m hardening``.

HARDENING_SHARE=n (try every n-th case) and HARDENING_SEED=n (other random numbers) are read in verdicts.py.
"""

import contextlib
import os
import resource
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # many small fits; forks must not inherit a pool of threads
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.hardening.verdicts import KINDS, Tally

HERE = Path(__file__).parent
UNITS = {"inputs": "inputs tried", "files": "files fuzzed", "faults": "faults injected"}
MAX_SHOWN = 20  # failures per test
MAX_ADDRESSES = 12 << 30  # bytes of address space of a command
TALLIES: list[Tally] = []  # of all finished tests, in the process that prints the table

collect_ignore = ["fuzz.py"]  # needs atheris


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Collect these tests only if ``-m`` mentions them: they take a quarter of an hour."""
    return None if "hardening" in config.getoption("markexpr") else True


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; the tests look at warnings themselves."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("hardening")
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture
def tally(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tally]:
    """Counts of the test's attempts, made in an empty working directory; the test fails if one of them failed."""
    module = request.module.__name__.rpartition(".test_")[2]
    name = request.node.originalname.removeprefix("test_").replace("_", " ")
    with contextlib.chdir(tmp_path):
        yield Tally(f"{module}: {name}", getattr(request.module, "UNIT", "inputs"))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Attach the counts to the test's report and fail the test if any attempt failed."""
    tally = pyfuncitem.funcargs.get("tally")
    try:
        result = yield
    finally:
        if tally is not None:
            pyfuncitem.user_properties.append(("hardening", asdict(tally)))
    if tally is not None and tally.failures:
        shown = [f"{kind}: {description}" for kind, description in tally.failures[:MAX_SHOWN]]
        pytest.fail("\n".join([f"{len(tally.failures)} of {tally.tried} attempts failed", *shown]), pytrace=False)
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the counts, which xdist sends along with the reports of its workers."""
    if report.when == "call":
        TALLIES.extend(Tally(**content) for name, content in report.user_properties if name == "hardening")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of counts and their sums."""
    if not TALLIES:
        return
    parts: dict[str, Tally] = {}
    for tally in TALLIES:
        parts.setdefault(tally.part, Tally(tally.part, tally.unit)).add(tally)
    table = Table("part", box=SIMPLE)
    for column in ("tried", "right result", "one clear sentence", "failures"):
        table.add_column(column, justify="right")
    for part in parts.values():
        counts = (part.accepted, part.rejected, len(part.failures))
        table.add_row(escape(part.part), f"{part.tried} {part.unit}", *map(str, counts))
    tried = [f"{label} {sum(p.tried for p in parts.values() if p.unit == unit)}" for unit, label in UNITS.items()]
    kinds = [kind for part in parts.values() for kind, _ in part.failures]
    console = Console(width=120, highlight=False, file=terminalreporter._tw._file)
    console.print(table)
    console.print(", ".join(tried))
    console.print("failures by kind:", ", ".join(f"{kind} {kinds.count(kind)}" for kind in KINDS))


@pytest.fixture(scope="session")
def _good_files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests.hardening.commands import Ground

    return Ground(tmp_path_factory.mktemp("ground").resolve())


@pytest.fixture
def ground(_good_files: Any) -> Iterator[Any]:
    """Good input files; the address space is limited, so that a huge number cannot exhaust the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESSES, before[1]))
    yield _good_files
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """Folder of the commands that faults are injected into."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # memory waits for no disk
    with tempfile.TemporaryDirectory(prefix="faults-", dir=place) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def scenes(home: Path) -> dict[str, Any]:
    """All of these commands by name."""
    from tests.hardening.scenes import make_scenes

    return make_scenes(home)


@pytest.fixture
def scene(name: str, scenes: dict[str, Any], home: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ARG001
    """One of these commands; the working directory is a folder in memory."""
    monkeypatch.chdir(home)
    return scenes[name]
