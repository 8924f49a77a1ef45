"""A report page: its blocks, and how they become one HTML file.

The page is safe to open whatever the data contain: Jinja escapes all text, data for scripts are JSON in elements that
the data cannot close, and the content policy lets the browser run only the page's own scripts, identified by their
hashes, and load nothing.
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
"""Scripts of the interactive grid, in the order they are run."""


@dataclass(frozen=True)
class Words:
    """Paragraphs, in small grey print if ``soft``."""

    template: ClassVar[str] = "words.html"
    sentences: Sequence[str]
    soft: bool = False


@dataclass(frozen=True)
class Heading:
    """A heading above the blocks that follow it in a section."""

    template: ClassVar[str] = "heading.html"
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart as a Vega-Lite specification, with a caption. A wide one takes the full width of the page."""

    spec: dict[str, Any]
    caption: str
    wide: bool = False


@dataclass(frozen=True)
class Charts:
    """Charts side by side, wrapped to the width of the page."""

    template: ClassVar[str] = "charts.html"
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Numbers:
    """A table; a folded one shows only its title until it is opened."""

    template: ClassVar[str] = "numbers.html"
    grid: Grid
    folded: bool = False


@dataclass(frozen=True)
class Facts:
    """A list of names and values."""

    template: ClassVar[str] = "facts.html"
    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Explorer:
    """The interactive grid of groups, in which unseen groups can be marked for collection."""

    template: ClassVar[str] = "explorer.html"
    data: dict[str, Any]
    notes: Sequence[str] = ()


Block = Words | Heading | Charts | Numbers | Facts | Explorer


@dataclass(frozen=True)
class Section:
    """A title and the blocks below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Card:
    """A key figure and its meaning."""

    figure: str
    meaning: str


@dataclass(frozen=True)
class Page:
    """Content of a page, from top to bottom."""

    title: str
    kind: str  # subject of the report: benchmark, model or table
    lead: Sequence[str]
    sections: Sequence[Section]
    cards: Sequence[Card] = ()
    warnings: Sequence[str] = field(default_factory=tuple)


def check_report_packages() -> None:
    """Raise if a package that pages need is not installed."""
    missing = [name for name in ("altair", "jinja2", "vl_convert") if find_spec(name) is None]
    if missing:
        raise InputError(f"a report needs {' and '.join(missing)}: pip install 'compshift[report]'")


def render_page(page: Page) -> str:
    """Return the page as HTML, with only the scripts that its blocks need."""
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
    """Return JSON for a ``<script>`` element, without any "<" that could end the element or start a comment."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def content_policy(scripts: Sequence[str]) -> str:
    """Return the content security policy: run these scripts, apply inline styles, show inline images, load nothing."""
    allowed = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {allowed or chr(39) + 'none' + chr(39)}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _vega() -> str:
    """Return the bundle of Vega, Vega-Lite and Vega-Embed that vl-convert ships."""
    import vl_convert

    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return text.replace("\r", "").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def made_section(*pairs: tuple[str, str], command: Sequence[str] | None = None) -> Section:
    """Return the last section of a page: the given facts, then time, command, versions and system."""
    arguments = sys.argv[1:] if command is None else list(command)
    versions = [f"{name.replace('python', 'Python')} {text}" for name, text in package_versions().items()]
    made = [
        *pairs,
        ("page made", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("command", shlex.join(["compshift", *arguments])),
        ("versions", ", ".join(versions)),
        ("system", f"{platform.system()} {platform.machine()}"),
    ]
    return Section("How it was made", [Facts(made)])
