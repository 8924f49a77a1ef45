"""Run an ONNX file or model with onnxruntime."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

CLOSE = 1e-5


def run(model, X, dtype=np.float32, **further):
    """Return the outputs, by name, of an ONNX file or of a model in memory."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feeds = {"X": np.asarray(X, dtype=dtype), **{name: np.asarray(value, dtype) for name, value in further.items()}}
    return dict(zip(names, session.run(None, feeds), strict=True))
