"""The documentation: its examples run, it names everything that is public, and its links lead somewhere."""

import importlib
import re
from pathlib import Path

import pytest
import typer

from compshift.cli.main import app
from tests.markdown_blocks import blocks, run_page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "gallery" not in path.parts)
RUN = ["tutorial", "practitioners", "researchers", "engineers", "install"]
PUBLIC = ["compshift", *(f"compshift.{part}" for part in ("data", "metrics", "nn", "features", "methods", "training"))]


@pytest.mark.parametrize("name", RUN)
@pytest.mark.filterwarnings("default")
def test_examples_print_what_is_shown(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(DOCS / f"{name}.md")


def test_another_output_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```\n2\n```\n")
    with pytest.raises(AssertionError, match="shows another output"):
        run_page(page)
    (block, _) = blocks(page.read_text().replace("```python", "<!-- needs torch -->\n```python\nimport absent_package"))
    assert block.needs == ("torch", "absent_package")
    assert not block.runs_here


@pytest.mark.parametrize("package", PUBLIC)
def test_reference_has_every_public_name(package):
    """In a directive by its public name; subpackages by a page of their own."""
    reference = "\n".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    for name in importlib.import_module(package).__all__:
        if f"{package}.{name}" in PUBLIC:
            assert (DOCS / "api" / f"{name}.md").exists(), name
        elif name == "__version__":
            assert "`cs.__version__`" in reference
        else:
            assert re.search(rf"^\.\. \S+:: {re.escape(package)}\.{name}$", reference, flags=re.MULTILINE), name


def test_every_public_name_answers_a_question():
    page = (DOCS / "which_tool.md").read_text()
    for package in PUBLIC:
        for name in importlib.import_module(package).__all__:
            if f"{package}.{name}" not in PUBLIC and name not in ("__version__", "registry", "Extraction"):
                assert re.search(rf"\b{name}\b", page), f"{package}.{name}"


def command_names(command, path="compshift"):
    for name, part in command.commands.items():
        yield from command_names(part, f"{path} {name}") if hasattr(part, "commands") else [f"{path} {name}"]


def test_every_command_answers_a_question():
    page = (DOCS / "which_tool.md").read_text()
    for name in command_names(typer.main.get_command(app)):
        assert re.search(rf"{name}\b", page), name


def anchors(text):
    """Anchors of a page's headings, as GitHub and MyST make them."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def included(path):
    """The text of a page, with what it includes."""
    text = path.read_text()
    return text + "".join((path.parent / name).read_text() for name in re.findall(r"^```{include} (\S+)$", text, re.M))


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{target} in {page.name}"
        if anchor:
            assert anchor in anchors(included(other)), f"{target} in {page.name}"


def test_every_page_is_listed():
    """In a toctree of the first page, or of the reference's."""
    listed = set()
    for start in (DOCS / "index.md", DOCS / "api" / "index.md"):
        for tree in re.findall(r"^```{toctree}\n(.*?)^```$", start.read_text(), flags=re.MULTILINE | re.DOTALL):
            entries = [line for line in tree.splitlines() if line and not line.startswith(":")]
            listed |= {(start.parent / re.sub(r".*<(.+)>", r"\1", entry)).resolve() for entry in entries}
    assert {path.with_suffix("").resolve() for path in PAGES} - listed == {(DOCS / "index").resolve()}
