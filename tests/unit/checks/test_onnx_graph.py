# SPDX-License-Identifier: Apache-2.0
"""What is read of an ONNX file, and that nothing in one stops the reading."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from tritonctl.checks.examples.onnx import FLOAT, INT64, STRING, onnx_file
from tritonctl.formats.graph_file import ExternalWeights, ModelGraph, UndecidedFileError
from tritonctl.formats.onnx_graph import MAX_ONNX_BYTES, read_onnx

WHOLE = onnx_file(
    {"x": (FLOAT, ["batch", 3]), "ids": (INT64, [1]), "text": (STRING, []), "ß": (99, ["", -1])},
    {"y": (FLOAT, [0, 1 << 40])},
    defaults=["ids"],
    sequences=["scores"],
    external={"weights.bin": 12},
)


def read(folder: Path, content: bytes) -> ModelGraph:
    (folder / "model.onnx").write_bytes(content)
    return read_onnx(folder / "model.onnx")


def test_what_is_read(tmp_path: Path) -> None:
    """Names, types, shapes, what has a value, what lies in other files."""
    graph = read(tmp_path, WHOLE)
    assert graph.read_error is None
    assert [(i.name, i.dtype, i.shape) for i in graph.inputs] == [
        ("x", "TYPE_FP32", ("batch", 3)),
        ("text", "TYPE_STRING", ()),
        ("ß", None, ("?", "?")),
    ]
    assert [one.name for one in graph.defaults] == ["ids"]
    assert [(o.name, o.kind, o.is_tensor, o.shape) for o in graph.outputs] == [
        ("y", "float", True, ("?", 1 << 40)),
        ("scores", "sequence", False, None),
    ]
    assert graph.weights == (ExternalWeights("weights.bin", 12),)


def test_fields_may_come_again(tmp_path: Path) -> None:
    """As in protobuf: two pieces of a message are one."""
    both = read(tmp_path, onnx_file() + onnx_file({"z": (INT64, [2])}, {}))
    assert [one.name for one in both.inputs] == ["x", "z"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is empty"),
        (b"\x08\x08", "it has no graph"),
        (WHOLE[:-1], "it is cut off"),
        (b"ir_version: 8\n", "it is"),
        (b"\x00" * 50, "it is not protobuf at byte 0"),
        (b"\x0b", "it is not protobuf at byte 0"),
        (b"\xff" * 20, "it is not protobuf"),
    ],
)
def test_what_is_no_graph(content: bytes, problem: str, tmp_path: Path) -> None:
    """Said with the place where it stops."""
    assert problem in str(read(tmp_path, content).read_error)


def test_ort_format_is_not_judged(tmp_path: Path) -> None:
    """ONNX Runtime reads another format, too."""
    with pytest.raises(UndecidedFileError):
        read(tmp_path, b"\x20\0\0\0ORTM" + bytes(40))


def test_large_files_take_no_time_and_no_memory(tmp_path: Path) -> None:
    """The weights of 2 GB are passed over; a file that is larger cannot be read by anybody."""
    size = MAX_ONNX_BYTES - 200
    head = b"\x3a" + _varint(size)  # the graph, as long as almost the whole file
    weight = b"\x2a" + _varint(size - 400) + b"\x4a" + _varint(size - 500)
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.write(head + weight)
        file.truncate(MAX_ONNX_BYTES + 1)
    assert "over 2 GiB" in str(read_onnx(path).read_error)
    with path.open("r+b") as file:
        file.truncate(len(head) + size)
    tracemalloc.start()
    assert "not protobuf" in str(read_onnx(path).read_error)  # the zeros behind the weight
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def _varint(value: int) -> bytes:
    made = b""
    while value > 0x7F:
        made, value = made + bytes([value & 0x7F | 0x80]), value >> 7
    return made + bytes([value])


def test_a_file_made_to_take_for_ever(tmp_path: Path) -> None:
    """Nothing but empty fields: given up, without a verdict."""
    with pytest.raises(UndecidedFileError):
        read(tmp_path, b"\x12\0" * 400_000)


@given(data=st.data())
@examples(300, HealthCheck.function_scoped_fixture)
def test_anything_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    """Cut off anywhere, with any bytes changed, or nothing but noise."""
    content = bytearray(data.draw(st.sampled_from([WHOLE, onnx_file(), b""])))
    del content[data.draw(st.integers(0, len(content))) :]
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            place = data.draw(st.integers(0, len(content) - 1))
            content[place] = data.draw(st.integers(0, 255))
    content += data.draw(st.binary(max_size=30))
    graph = read(tmp_path, bytes(content))
    assert graph.read_error is None or not graph.inputs
    for one in (*graph.inputs, *graph.outputs):
        assert one.shape is None or all(isinstance(size, int | str) for size in one.shape)
