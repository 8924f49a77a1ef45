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
from compshift.core.candidates import PRIORS
from compshift.serve.model import InputColumn, ServedModel

if TYPE_CHECKING:
    from compshift.serve.app import Limits

MAX_EXAMPLE = 1500
"""Length in characters up to which the example is printed on the page; a longer one is fetched from /example."""

MAX_COLUMNS = 40
"""Maximum number of columns that the page lists."""

JSON_TYPES = {"number": "number", "boolean": "boolean", "date": "string", "text": "string", "image": "string"}
"""JSON type of the values of each kind of column; a category may have several."""

MAX_CATEGORIES = 100
"""Maximum number of categories of a column that the schema lists."""

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


def page(model: ServedModel, limits: Limits, address: str, endpoints: dict[str, dict[str, str]]) -> str:
    """Return the page that describes the service of a model, with an example for this model.

    ``endpoints`` are the summaries of the endpoints, by method and path.
    """
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
        "title": html.escape(model.name),
        "version": html.escape(__version__),
        "facts": "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in facts),
        "endpoints": "".join(
            f"<tr><td>{method}</td><td><code>{path}</code></td><td>{html.escape(text)}</td></tr>"
            for method, paths in endpoints.items()
            for path, text in paths.items()
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


def request_schema(model: ServedModel, *, coverage: bool = False) -> dict[str, Any]:
    """Return the JSON schema of a request to a model."""
    forms: list[dict[str, Any]] = []
    if model.named:
        properties = {column.name: _value_schema(column) for column in model.columns}
        forms.append({**_object(**properties), "additionalProperties": False})
    if model.takes_lists:
        items = _value_schema(model.columns[0]) if model.all_numbers else {}
        width = len(model.columns)
        forms.append({"type": "array", "items": items, "minItems": width, "maxItems": width})
    row = forms[0] if len(forms) == 1 else {"oneOf": forms}
    keys: dict[str, Any] = {"rows": {"type": "array", "items": row, "minItems": 1}}
    if model.has_groups:
        group = {
            name: {"enum": list(values)}
            for name, values in zip(model.clf.space_.names, model.clf.space_.values, strict=True)
        }
        known = {
            name: {"enum": [*values["enum"], None]}
            for name, values in group.items()
            if name not in model.clf.targets_.names
        }
        if known:
            keys["attributes"] = {
                "description": "Attributes that are known in use: an object for each row, with some of them.",
                "type": "array",
                "items": {"type": "object", "properties": known, "additionalProperties": False},
            }
        item = {"type": "object", "properties": {**group, "prior": {"type": "number", "minimum": 0}}}
        keys["prior"] = {
            "description": "Prior over the groups for this request: a name, or the probability of each group.",
            "oneOf": [{"enum": list(PRIORS)}, {"type": "array", "items": item}],
        }
    if coverage:
        keys["coverage"] = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.9}
    return {"type": "object", "properties": keys, "required": ["rows"], "additionalProperties": False}


def _value_schema(column: InputColumn) -> dict[str, Any]:
    """Return the JSON schema of the values of a column."""
    kinds = sorted({_json_type(value) for value in column.categories}) or [JSON_TYPES.get(column.kind, "string")]
    schema: dict[str, Any] = {"type": [*kinds, "null"] if column.optional else kinds[0]}
    if column.kind == "category":
        schema["examples"] = list(column.categories[:MAX_CATEGORIES])
    if column.kind == "image":
        schema["contentEncoding"] = "base64"
    return schema


def _json_type(value: Any) -> str:
    """Return the JSON type of a category."""
    return "boolean" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"


def answer_schema(path: str) -> dict[str, Any]:
    """Return the JSON schema of the answer of an endpoint, or of an error."""
    value, number = {"type": ["string", "number", "boolean"]}, {"type": ["number", "null"]}
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
                    effective_sample_size=number,
                    rival={"type": ["object", "null"]},
                    log_odds=number,
                    energies={"type": "object", "additionalProperties": number},
                    bias=number,
                    prior=number,
                    main_features={"type": ["string", "null"]},
                ),
            }
        },
        "error": {"error": {"type": "string", "description": "What was wrong, in one sentence."}},
    }
    return _object(**by_path[path])


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}
