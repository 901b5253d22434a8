# SPDX-License-Identifier: Apache-2.0
"""Models of the ONNX Runtime backend."""

from __future__ import annotations

from tritonctl.checks.examples.files import Example, ExampleFile
from tritonctl.checks.examples.onnx import onnx_file

ONNX_CONFIG = """\
name: "m"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


def onnx_model(content: bytes | None = None, config: str = ONNX_CONFIG, **files: bytes) -> Example:
    """A model `m` of the ONNX Runtime backend; `files` lie beside the graph."""
    more = {f"m/1/{name.replace('__', '.')}": ExampleFile(data) for name, data in files.items()}
    graph = onnx_file() if content is None else content
    return {"m/config.pbtxt": config, "m/1/model.onnx": ExampleFile(graph), **more}


def onnx_changed(old: str, new: str, content: bytes | None = None) -> Example:
    """The same with one piece of the configuration replaced."""
    assert old in ONNX_CONFIG, old
    return onnx_model(content, ONNX_CONFIG.replace(old, new, 1))
