# SPDX-License-Identifier: Apache-2.0
"""The model repository that mistakes are planted in, put together from its sources."""

from __future__ import annotations

from pathlib import Path

from tritonctl.checks.examples.files import ExampleFile

SOURCES = Path(__file__).parent / "repository"
_FLOAT = 1


def repository() -> dict[str, str | ExampleFile]:
    """Every file by its path; model.py and graphs lie in version 1."""
    files: dict[str, str | ExampleFile] = {}
    for folder in sorted(SOURCES.iterdir()):
        files[f"{folder.name}/config.pbtxt"] = (folder / "config.pbtxt").read_text("utf-8")
        code = folder / "model.py"
        if code.is_file():
            files[f"{folder.name}/1/model.py"] = code.read_text("utf-8")
        else:  # what people put there, for git keeps no empty folder
            files[f"{folder.name}/1/.gitkeep"] = ""
    for name, graph in GRAPHS.items():
        del files[f"{name}/1/.gitkeep"]
        files[f"{name}/1/model.onnx"] = ExampleFile(graph)
    files["resnet/labels.txt"] = "".join(f"label {number}\n" for number in range(1000))
    return files


def _graph(read: bytes, written: bytes) -> bytes:
    """One node between two tensors, in ONNX' protobuf."""
    node = _part(4, b"Identity")
    graph = _part(1, node) + _part(2, b"graph") + _part(11, read) + _part(12, written)
    opset = _part(1, b"") + _number(2, 17)
    return _number(1, 8) + _part(7, graph) + _part(8, opset)


def _tensor(name: bytes, *dims: int | bytes) -> bytes:
    each = (_part(2, d) if isinstance(d, bytes) else _number(1, d) for d in dims)
    shape = b"".join(_part(1, dim) for dim in each)
    return _part(1, name) + _part(2, _part(1, _number(1, _FLOAT) + _part(2, shape)))


def _part(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


GRAPHS = {
    "resnet": _graph(_tensor(b"pixels", b"N", 3, 224, 224), _tensor(b"scores", b"N", 1000)),
    "landmarks": _graph(_tensor(b"face", b"N", 3, 112, 112), _tensor(b"points", b"N", 5, 2)),
}
