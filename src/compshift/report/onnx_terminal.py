"""An exported model on the terminal, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compshift.training.onnx_export import OnnxFile


def print_onnx_file(written: OnnxFile, *, as_json: bool) -> None:
    """What the file takes and gives."""
    if as_json:
        content = {
            "model": str(written.path),
            "bytes": written.size,
            "inputs": {name: list(shape) for name, shape in written.inputs.items()},
            "outputs": {name: list(shape) for name, shape in written.outputs.items()},
        }
        print(json.dumps(content))
        return
    print(f"inputs: {_listed(written.inputs)}{' (may be left out)' * ('prior' in written.inputs)}")
    print(f"outputs: {_listed(written.outputs)}")
    print(f"model written to {written.path}")


def _listed(shapes: Mapping[str, tuple[int | None, ...]]) -> str:
    """``X (N, 5), prior (6)``."""
    return ", ".join(
        f"{name} ({', '.join('N' if axis is None else str(axis) for axis in shape)})" for name, shape in shapes.items()
    )
