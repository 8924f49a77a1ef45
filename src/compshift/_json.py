"""JSON out of files that anybody may have written."""

import json
from pathlib import Path
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds. All that can be wrong with one is a ValueError, too deep a nesting included."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; a ValueError if it holds anything else."""
    content = parse_json(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content
