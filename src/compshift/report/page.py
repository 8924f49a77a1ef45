"""The blocks of a report page, and their rendering as one HTML file.

The page is safe to open whatever the data contain: Jinja escapes all text, data for scripts are JSON in elements that
the data cannot close, and the content security policy lets the browser run only the page's scripts, identified by their
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
    """A Vega-Lite specification and a caption."""

    spec: dict[str, Any]
    caption: str
    wide: bool = False  # whether the chart fills the width of the page


@dataclass(frozen=True)
class Charts:
    """Charts side by side; those that do not fit the page width continue below."""

    template: ClassVar[str] = "charts.html"
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Numbers:
    """A table; if ``folded``, only its title is visible until the reader opens it."""

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
    """The interactive grid of groups, in which the reader can mark unseen groups to be collected."""

    template: ClassVar[str] = "explorer.html"
    data: dict[str, Any]
    notes: Sequence[str] = ()


Block = Words | Heading | Charts | Numbers | Facts | Explorer
"""One piece of content of a section; its ``template`` renders it."""


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
    """Content of a page."""

    title: str
    kind: str  # subject of the report: benchmark, model or table
    lead: Sequence[str]
    sections: Sequence[Section]
    cards: Sequence[Card] = ()  # shown above the sections
    warnings: Sequence[str] = field(default_factory=tuple)  # shown below the lead


def check_report_packages() -> None:
    """Check that the packages that pages need are installed; the InputError names those that are not."""
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
        scripts.append("\n".join(_read(name) for name in ("hull.js", "explorer.js")))
    if any(isinstance(block, Charts) for block in blocks):
        scripts += [_vega(), _read("charts.js")]
    if any(isinstance(block, Explorer | Charts | Numbers) for block in blocks):
        scripts.append(_read("scroll.js"))
    return environment.get_template("page.html").render(
        page=page,
        version=__version__,
        style=Markup(_read("page.css")),
        scripts=[Markup(script) for script in scripts],
        policy=content_policy(scripts),
    )


def json_island(content: Any) -> str:
    """Return JSON for a ``<script>`` element, with every "<" escaped: it could end the element or start a comment."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def content_policy(scripts: Sequence[str]) -> str:
    """Return the content security policy: run these scripts, apply inline styles, show inline images, load nothing."""
    allowed = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {allowed or chr(39) + 'none' + chr(39)}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _read(name: str) -> str:
    """Return the content of a template, script or style sheet."""
    return (files("compshift.report") / "templates" / name).read_text(encoding="utf-8")


@cache
def _vega() -> str:
    """Return the JavaScript bundle of Vega, Vega-Lite and Vega-Embed from the package vl-convert."""
    import vl_convert

    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return text.replace("\r", "").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def made_section(*pairs: tuple[str, str], command: Sequence[str] | None = None) -> Section:
    """Return the last section of a page: the given facts, then time, command, package versions and system.

    The command is by default that of this process.
    """
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
