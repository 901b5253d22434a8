# SPDX-License-Identifier: Apache-2.0
"""What is read of a model.py, and that nothing in one stops the reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonctl.checks.model_py.source import PythonSource, read_python

CODE = """\
import triton_python_backend_utils as pb_utils
from x import y


class TritonPythonModel:
    def execute(self, requests):
        "ü"; pb_utils.Tensor("Ä", requests[0].call().array)
        y.z(*requests, "no", name="B")
"""


def read(folder: Path, content: bytes, largest: int = 1 << 20) -> PythonSource:
    (folder / "model.py").write_bytes(content)
    return read_python(folder / "model.py", "m/1/model.py", largest)


def test_calls(tmp_path: Path) -> None:
    """Names, strings that stand there, and where."""
    code = read(tmp_path, CODE.encode())
    assert [call.dotted for call in code.calls] == ["pb_utils.Tensor", "call", "y.z"]
    [tensor] = code.calls_named("Tensor")
    assert tensor.text(0) == "Ä"
    assert (tensor.text(1), tensor.argument(2)) == (None, None)
    span = code.node_span(tensor.node)
    assert code.source.text[span.start : span.end].startswith('pb_utils.Tensor("Ä"')
    assert code.source.position(span.start) == (7, 14)
    [other] = code.calls_named("z")
    assert (other.text(1), other.text(0, "name")) == (None, "B")


def test_the_class(tmp_path: Path) -> None:
    """Its methods by name."""
    code = read(tmp_path, CODE.encode())
    assert code.model_class is not None
    assert code.method("execute") is not None
    assert code.method("initialize") is None
    assert read(tmp_path, b"x = 1\n").model_class is None


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"x = (\r\ny = 2\r\n", (1, 5)),
        (b"def f(:\n", (1, 7)),
        (b"\n\nx = \xff\n", None),
        (b"x\0y", None),
        (b"x = " + b"(" * 5000, None),
        (b"#" * 200, None),
    ],
)
def test_what_cannot_be_read(content: bytes, place: tuple[int, int] | None, tmp_path: Path) -> None:
    """Told with its place where there is one, never raised."""
    code = read(tmp_path, content, largest=150 if content.startswith(b"#") else 1 << 20)
    assert code.read_error
    assert (code.calls, code.model_class) == ((), None)
    if place:
        assert code.error_span is not None
        assert code.source.position(code.error_span.start) == place


def test_what_is_no_file(tmp_path: Path) -> None:
    """A folder, or nothing."""
    assert read_python(tmp_path, "m", 10).read_error == "it is not a file"
    assert "No such file" in str(read_python(tmp_path / "x", "m", 10).read_error)
