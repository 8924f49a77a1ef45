"""A page that is one file: its parts, and how they become HTML.

Whatever comes from data is text: Jinja escapes it, data for scripts lies in blocks of JSON that cannot be left, and the
page's policy lets the browser run the page's own scripts alone, known by their hashes, and load nothing.

How a page was made: versions, command, time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, ClassVar

from compshift import __version__
from compshift._errors import InputError
from compshift.bench.records import package_versions
from compshift.report.grid import Grid

TEMPLATES = files("compshift.report") / "templates"
EXPLORER_SCRIPTS = ("hull.js", "explorer.js")


@dataclass(frozen=True)
class Words:
    """Sentences."""

    template: ClassVar[str] = "words.html"
    sentences: Sequence[str]
    soft: bool = False  # of less weight


@dataclass(frozen=True)
class Heading:
    """What the next blocks are about."""

    template: ClassVar[str] = "heading.html"
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart as Vega-Lite, and what it shows in words. A wide one takes the width of the page."""

    spec: dict[str, Any]
    caption: str
    wide: bool = False


@dataclass(frozen=True)
class Charts:
    """Charts side by side, as many as there is room for."""

    template: ClassVar[str] = "charts.html"
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Numbers:
    """A table; a folded one shows its title alone until it is opened."""

    template: ClassVar[str] = "numbers.html"
    grid: Grid
    folded: bool = False


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    template: ClassVar[str] = "facts.html"
    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Explorer:
    """The grid of groups in which more can be marked."""

    template: ClassVar[str] = "explorer.html"
    data: dict[str, Any]
    notes: Sequence[str] = ()


Block = Words | Heading | Charts | Numbers | Facts | Explorer


@dataclass(frozen=True)
class Section:
    """A title, and what is under it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Card:
    """A figure, and what it means."""

    figure: str
    meaning: str


@dataclass(frozen=True)
class Page:
    """Everything that a page says, from top to bottom."""

    title: str
    kind: str  # what it is a report on
    lead: Sequence[str]
    sections: Sequence[Section]
    cards: Sequence[Card] = ()
    warnings: Sequence[str] = field(default_factory=tuple)


def check_report_packages() -> None:
    """Refuse a Python that lacks what pages are made with."""
    missing = [name for name in ("altair", "jinja2", "vl_convert") if find_spec(name) is None]
    if missing:
        raise InputError(f"a report needs {' and '.join(missing)}: pip install 'compshift[report]'")


def render_page(page: Page) -> str:
    """The page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("compshift.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["island"] = lambda content: Markup(json_island(content))
    blocks = [block for section in page.sections for block in section.blocks]
    scripts = []
    if any(isinstance(block, Explorer) for block in blocks):
        scripts.append("\n".join(_read(name) for name in EXPLORER_SCRIPTS))
    if any(isinstance(block, Charts) for block in blocks):
        scripts += [_vega(), _read("charts.js")]
    return environment.get_template("page.html").render(
        page=page,
        version=__version__,
        style=Markup(_read("page.css")),
        scripts=[Markup(script) for script in scripts],
        policy=content_policy(scripts),
    )


def json_island(content: Any) -> str:
    """JSON that can stand in a ``<script>`` element: nothing in it can end the element, or be taken for a comment."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def content_policy(scripts: Sequence[str]) -> str:
    """What the browser may do: run these scripts, style, and show what lies in the page; nothing else."""
    allowed = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {allowed or chr(39) + 'none' + chr(39)}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed, as vl-convert carries them."""
    import vl_convert

    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return text.replace("\r", "").replace("</script", "<\\/script").replace("<!--", "<\\!--")


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
    return ", ".join(f"{name.replace('python', 'Python')} {text}" for name, text in package_versions().items())
