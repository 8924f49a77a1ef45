"""List the fields of dataclasses and named tuples, with their comments, below the class docstring."""

import ast
import dataclasses
import inspect
import re
import textwrap
from typing import Any

from sphinx.application import Sphinx

COMMENT = re.compile(r"#:? ?(.+)$")


def commented_fields(kind: type) -> list[tuple[str, str, str]]:
    """Return name, default and comment of each field that the class itself declares."""
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
    """Append an Attributes section, which napoleon then formats."""
    plain = what == "class" and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))
    if not plain or "Attributes" in lines or "Parameters" in lines:
        return
    fields = commented_fields(kind)
    if fields:
        lines += ["", "Attributes", "----------"]
        for name, default, comment in fields:
            escaped = re.sub(r"([*|])", r"\\\1", comment)  # these belong to formulas, not to markup
            lines += [f"{name} : default={default}" if default else name, f"    {escaped}"]
        lines.append("")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect with a priority before napoleon."""
    app.connect("autodoc-process-docstring", add_fields, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
