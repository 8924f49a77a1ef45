"""Fields of dataclasses and named tuples: the comment beside each, as a list below the class's own text."""

import ast
import dataclasses
import inspect
import re
import textwrap
from typing import Any

from sphinx.application import Sphinx

COMMENT = re.compile(r"#:? ?(.+)$")


def commented_fields(kind: type) -> list[tuple[str, str, str]]:
    """Name, default and comment of each field that the class itself declares."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    found = []
    for node in ast.parse(source).body[0].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            default = ast.unparse(node.value) if node.value else ""
            comment = COMMENT.search(lines[node.end_lineno - 1][node.end_col_offset :])
            found.append((node.target.id, "" if "field(" in default else default, comment[1] if comment else ""))
    return found


def add_fields(_app: Any, what: str, _name: str, kind: Any, _options: Any, lines: list[str]) -> None:
    """Append a section of attributes, which napoleon then formats like any other."""
    plain = what == "class" and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))
    if not plain or "Attributes" in lines or "Parameters" in lines:
        return
    fields = commented_fields(kind)
    if fields:
        lines += ["", "Attributes", "----------"]
        for name, default, comment in fields:
            escaped = re.sub(r"([*|])", r"\\\1", comment)  # signs of formulas, not of markup
            lines += [f"{name} : default={default}" if default else name, f"    {escaped}"]
        lines.append("")


def setup(app: Sphinx) -> dict[str, Any]:
    """Listen before napoleon does."""
    app.connect("autodoc-process-docstring", add_fields, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
