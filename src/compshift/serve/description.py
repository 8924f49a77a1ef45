"""Description of a service: JSON schemas of its answers, and a page that needs no other server."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from compshift import __version__
from compshift.serve.model import InputColumn, ServedModel

if TYPE_CHECKING:
    from compshift.serve.app import Limits

MAX_EXAMPLE = 1500
"""Length in characters up to which the example is printed on the page; a longer one is fetched from /example."""

MAX_COLUMNS = 40
"""Maximum number of columns that the page lists."""

TEMPLATE = files("compshift.serve").joinpath("page.html").read_text(encoding="utf-8")


def _sources() -> str:
    """Return the Content-Security-Policy: only the page's own style and script, and requests to the service itself."""
    hashes = {}
    for tag in ("style", "script"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", TEMPLATE, re.DOTALL)
        assert content is not None
        digest = hashlib.sha256(content[1].encode()).digest()
        hashes[tag] = f"'sha256-{base64.b64encode(digest).decode()}'"
    return (
        f"default-src 'none'; style-src {hashes['style']}; script-src {hashes['script']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


POLICY = _sources()
"""Content-Security-Policy of the page."""


def page(model: ServedModel, limits: Limits, address: str, endpoints: dict[str, str]) -> str:
    """Return the page that describes the service of a model, with an example for this model."""
    example = json.dumps(model.example(), ensure_ascii=False, indent=1)
    short = json.dumps(model.example(), ensure_ascii=False)
    quoted = short.replace("'", "'\\''")
    if len(short) <= MAX_EXAMPLE:
        command = f"curl {address}/predict -H 'Content-Type: application/json' -d '{quoted}'"
    else:
        command = f"curl {address}/example | curl {address}/predict -H 'Content-Type: application/json' -d @-"
    targets = model.clf.targets_
    attributes = [name for name in model.clf.space_.names if name not in targets.names]
    facts = [
        ("predicts", "; ".join(f"{n}: {_listed(v)}" for n, v in zip(targets.names, targets.values, strict=True))),
        *(
            (f"attribute {name}", _listed(values))
            for name, values in zip(model.clf.space_.names, model.clf.space_.values, strict=True)
            if name in attributes
        ),
        (
            "limits",
            f"{limits.max_rows} rows and {limits.max_bytes:,} bytes per request, {limits.timeout:g} s, "
            f"{limits.max_concurrency} requests in progress",
        ),
    ]
    forms = ["an object with the columns below"] if model.named else []
    if model.takes_lists:
        forms.append(f"a list of {len(model.columns)} values in the order of the columns")
    values = {
        "title": html.escape(model.path.name),
        "version": html.escape(__version__),
        "facts": "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in facts),
        "endpoints": "".join(
            f"<tr><td>{'GET' if path.startswith(('/health', '/metrics', '/example', '/docs', '/open')) else 'POST'}</td>"
            f"<td><code>{path}</code></td><td>{html.escape(text)}</td></tr>"
            for path, text in endpoints.items()
        ),
        "row": html.escape(" or ".join(forms)),
        "columns": "".join(map(_column, model.columns[:MAX_COLUMNS])) + _more(len(model.columns)),
        "command": html.escape(command),
        "example": html.escape(example if len(short) <= MAX_EXAMPLE else short),
        "optional": html.escape(_optional(model, attributes)),
    }
    return Template(TEMPLATE).substitute(values)


def _optional(model: ServedModel, attributes: list[str]) -> str:
    """Return an example of the optional keys of a request."""
    if not model.has_groups:
        return "none: the model has no groups"
    lines: dict[str, Any] = {}
    values = dict(zip(model.clf.space_.names, model.clf.space_.values, strict=True))
    if attributes:
        lines["attributes"] = [{attributes[0]: values[attributes[0]][0]}]
    lines["prior"] = "hull"
    return json.dumps(lines, ensure_ascii=False)


def _column(column: InputColumn) -> str:
    """Return a row of the table of columns."""
    categories = _listed(column.categories) if column.categories else ""
    cells = (column.name, column.kind, "may be null" if column.optional else "required", categories)
    return "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>"


def _more(count: int) -> str:
    """Return a row that says how many columns are not listed."""
    left = count - MAX_COLUMNS
    return f'<tr><td colspan="4">and {left} more: see /openapi.json</td></tr>' if left > 0 else ""


def _listed(values: Any, limit: int = 12) -> str:
    """Return the first values of an attribute as text."""
    shown = ", ".join(str(value) for value in list(values)[:limit])
    return shown if len(values) <= limit else f"{shown} and {len(values) - limit} more"


def answer_schema(path: str) -> dict[str, Any]:
    """Return the JSON schema of the answer of an endpoint, or of an error."""
    value = {"type": ["string", "number", "boolean"]}
    matrix = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
    classes = {"type": "array", "items": value}
    by_path: dict[str, dict[str, Any]] = {
        "/predict": {
            "predictions": {
                "description": "For each target: its classes, and the predicted one and all probabilities by row.",
                "type": "object",
                "additionalProperties": _object(classes=classes, predicted=classes, probabilities=matrix),
            }
        },
        "/predict_set": {
            "coverage": {"type": "number"},
            "sets": {
                "description": "For each target: its classes, and those that cannot be excluded by row.",
                "type": "object",
                "additionalProperties": _object(
                    classes=classes, sets={"type": "array", "items": classes}, p_values=matrix
                ),
            },
        },
        "/explain": {
            "explanations": {
                "type": "array",
                "items": _object(
                    group={"type": "object"},
                    probability={"type": "number"},
                    seen={"type": "boolean"},
                    inside_hull={"type": "boolean"},
                    effective_sample_size={"type": ["number", "null"]},
                ),
            }
        },
        "error": {"error": {"type": "string", "description": "What was wrong, in one sentence."}},
    }
    return _object(**by_path[path])


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}
