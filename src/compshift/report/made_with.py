"""How a page was made: versions, command, time."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from compshift import __version__
from compshift.report.page import Facts, Section

PACKAGES = ("numpy", "scipy", "scikit-learn", "torch")


def made_section(*pairs: tuple[str, str], command: Sequence[str] | None = None) -> Section:
    """Facts on what is shown, then on the page itself."""
    arguments = sys.argv[1:] if command is None else list(command)
    made = [
        *pairs,
        ("page made", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("command", shlex.join(["compshift", *arguments])),
        ("versions", versions_text()),
        ("system", f"{platform.system()} {platform.machine()}"),
    ]
    return Section("How it was made", [Facts(made)])


def versions_text() -> str:
    """compshift, Python and the packages that compute."""
    found = [f"compshift {__version__}", f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
