"""JSON out of files that anybody may have written."""

import json
import re
from pathlib import Path
from typing import Any

HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""A half of a character, as text has it; two make a whole one."""


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds. All that can be wrong with one is a ValueError, too deep a nesting included.

    So are halves of characters, which JSON can write and no file or terminal takes.
    """
    try:
        content = json.loads(text)
        if HALF.search(text if isinstance(text, bytes) else text.encode("utf-8")):
            json.dumps(content, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; a ValueError if it holds anything else."""
    content = parse_json(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content
