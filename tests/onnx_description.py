# SPDX-License-Identifier: Apache-2.0
"""What onnx and ONNX Runtime see in a folder; run in the ONNX Runtime builder's environment.

    python onnx_description.py FOLDER RESULT.json

Writes, for each file below the folder: `onnx`, its tensors as written, null where it cannot be
parsed; `runtime`, names, types and shapes of a session, null where there is none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from google.protobuf.message import DecodeError


def described(value: Any) -> dict[str, Any]:
    """Name, kind, element type and shape of a ValueInfoProto."""
    kind = value.type.WhichOneof("value")
    tensor = value.type.tensor_type
    dims = [one.dim_value or one.dim_param for one in tensor.shape.dim]
    return {
        "name": value.name,
        "kind": kind,
        "type": tensor.elem_type,
        "shape": dims if tensor.HasField("shape") else None,
    }


def by_onnx(path: Path) -> dict[str, Any] | None:
    """As written in the file."""
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except DecodeError:
        return None
    values = {one.name for one in graph.initializer}
    outside = [
        {entry.key: entry.value for entry in one.external_data}.get("location")
        for one in graph.initializer
        if one.data_location == onnx.TensorProto.EXTERNAL
    ]
    return {
        "inputs": [described(one) for one in graph.input if one.name not in values],
        "outputs": [described(one) for one in graph.output],
        "weights": sorted({one for one in outside if one}),
    }


def by_runtime(path: Path) -> dict[str, Any] | None:
    """As a session has them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception:
        return None
    return {
        side: [{name: read(one, name) for name in ("name", "type", "shape")} for one in tensors]
        for side, tensors in (("inputs", session.get_inputs()), ("outputs", session.get_outputs()))
    }


def read(tensor: Any, attribute: str) -> Any:
    """Null for a name that is no text: the session has it, Python cannot say it."""
    try:
        return getattr(tensor, attribute)
    except UnicodeDecodeError:
        return None


def main() -> None:
    """Describe what lies in the folder."""
    folder = Path(sys.argv[1])
    found = {
        str(path.relative_to(folder)): {"onnx": by_onnx(path), "runtime": by_runtime(path)}
        for path in folder.rglob("*.onnx")
    }
    text = json.dumps(found, default=lambda name: name.decode("utf-8", "replace"))
    Path(sys.argv[2]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
