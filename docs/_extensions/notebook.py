"""Write pages as notebooks next to their HTML, and run them: ``notebook_pages`` in conf.py names the pages.

Code becomes cells, commands become cells that call a shell, and output on the page is replaced by what the cells print.
An error in a cell fails the build.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$\n?", re.M | re.S)
PAGE_LINK = re.compile(r"\]\(([\w/-]+)\.md(#[\w-]+)?\)")
COMMENT = re.compile(r"<!--.*?-->\n*", re.S)
TIMEOUT = 300
"""Seconds that the start of a kernel, or a cell, may take."""


def as_notebook(page: str) -> Any:
    """Return the notebook of a page of Markdown."""
    from nbformat import v4

    cells, end = [], 0
    for block in [*FENCE.finditer(page), None]:
        text = COMMENT.sub("", page[end : None if block is None else block.start()]).strip()
        if text:
            cells.append(v4.new_markdown_cell(PAGE_LINK.sub(r"](\1.html\2)", text)))
        if block is None:
            break
        end = block.end()
        code = block["code"].strip()
        if block["language"] == "console":
            code = re.sub(r"^\$ ", "!", code, flags=re.M)
        if block["language"] in ("python", "console"):
            cells.append(v4.new_code_cell(code))
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # the same in every build
    return v4.new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Run the notebooks in an empty folder, and write them with their output."""
    if error is not None or app.builder.name != "html":
        return
    import nbformat
    from nbclient import NotebookClient

    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for name in app.config.notebook_pages:
        notebook = as_notebook(Path(app.srcdir, f"{name}.md").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            resources = {"metadata": {"path": folder}}
            client = NotebookClient(notebook, timeout=TIMEOUT, startup_timeout=TIMEOUT, resources=resources)
            client.execute(env={**os.environ, "COLUMNS": "100"})
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                if output.output_type == "stream":  # a warning names the file of its cell, which is different each time
                    output.text = re.sub(r"\S*ipykernel_\S+\.py:\d+", f"{name}.ipynb", output.text)
        nbformat.write(notebook, Path(app.outdir, f"{name}.ipynb"))
        logging.getLogger(__name__).info("%s.ipynb: %d cells ran", name, len(notebook.cells))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the setting, and write the notebooks after the pages."""
    app.add_config_value("notebook_pages", [], "html", list)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True}
