# SPDX-License-Identifier: Apache-2.0
"""What is read of an OpenVINO IR, and that nothing in one stops the reading."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from tritonctl.formats.graph_file import ExternalWeights, ModelGraph, UndecidedFileError
from tritonctl.formats.openvino_ir import MAX_IR_BYTES, read_ir

IR = """<?xml version="1.0"?>
<net name="Model" version="11">
  <layers>
    <layer id="0" name="Parameter_1" type="Parameter" version="opset1">
      <data shape="?,3,1..8" element_type="f32" />
      <output><port id="0" precision="FP32" names="x,a\\,b">
        <dim>-1</dim><dim>3</dim><dim>-1</dim>
      </port></output>
    </layer>
    <layer id="1" name="weights" type="Const" version="opset1">
      <data element_type="f32" shape="3" offset="8" size="12" />
      <output><port id="0" precision="FP32"><dim>3</dim></port></output>
    </layer>
    <layer id="2" name="Add_2" type="Add" version="opset1">
      <input><port id="0"><dim>-1</dim></port></input>
      <output><port id="2" precision="FP32" names="logits"><dim>-1</dim><dim>3</dim></port></output>
    </layer>
    <layer id="3" name="Result_3" type="Result" version="opset1">
      <input><port id="0"><dim>-1</dim><dim>3</dim></port></input>
    </layer>
    <layer id="4" name="loop" type="Loop" version="opset5">
      <body><layers><layer id="0" name="inner" type="Parameter" /></layers></body>
    </layer>
  </layers>
  <edges>
    <edge from-layer="0" from-port="0" to-layer="2" to-port="0" />
    <edge from-layer="2" from-port="2" to-layer="3" to-port="0" />
  </edges>
</net>
"""


def read(folder: Path, content: bytes) -> ModelGraph:
    (folder / "model.xml").write_bytes(content)
    return read_ir(folder / "model.xml")


def test_what_is_read(tmp_path: Path) -> None:
    """Every name of a tensor, shapes, and how long the weights must be."""
    graph = read(tmp_path, IR.encode())
    assert [(one.names, one.shape) for one in graph.inputs] == [
        (("x", "a,b", "Parameter_1"), ("?", 3, "?"))
    ]
    assert [(one.names, one.shape) for one in graph.outputs] == [
        (("logits", "Add_2", "Result_3"), ("?", 3))
    ]
    assert graph.weights == (ExternalWeights("model.bin", 20),)


LAYOUT = '<rt_info><attribute name="layout" version="0" layout="[N,C,...]" /></rt_info>'


def test_layouts_tell_of_a_batch(tmp_path: Path) -> None:
    """Of every input; of IRs before version 11, which have none, nothing is known."""
    assert read(tmp_path, IR.encode()).batched is False
    laid_out = IR.replace("<dim>-1</dim>", f"<dim>-1</dim>{LAYOUT}", 1)
    assert read(tmp_path, laid_out.encode()).batched is True
    another = laid_out.replace("Const", "Parameter", 1)
    assert read(tmp_path, another.encode()).batched is False
    assert read(tmp_path, laid_out.replace("[N,C", "[C").encode()).batched is False
    assert read(tmp_path, IR.replace('version="11"', 'version="10"').encode()).batched is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no element found"),
        (b"PK\3\4", "not well-formed"),
        (IR.encode()[:500], "unclosed token: line 12"),
        (b"<net/>", "it has no layers"),
        (
            b'<!DOCTYPE net [ <!ENTITY a "aaaaaaaaaa"> <!ENTITY b "&a;&a;&a;"> ]><net>&b;</net>',
            "a document type",
        ),
    ],
)
def test_what_is_no_ir(content: bytes, problem: str, tmp_path: Path) -> None:
    """Said; entities are never unfolded."""
    assert problem in str(read(tmp_path, content).read_error)


def test_what_is_too_large(tmp_path: Path) -> None:
    """Not read, and not judged."""
    with (tmp_path / "model.xml").open("wb") as file:
        file.truncate(MAX_IR_BYTES + 1)
    with pytest.raises(UndecidedFileError):
        read_ir(tmp_path / "model.xml")


@given(data=st.data())
@examples(200, HealthCheck.function_scoped_fixture)
def test_anything_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    """Words taken out and put elsewhere, bytes changed."""
    words = IR.split(" ")
    for _ in range(data.draw(st.integers(0, 5))):
        one, other = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
        words[one] = words[other]
    content = bytearray(" ".join(words).encode())
    for _ in range(data.draw(st.integers(0, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    graph = read(tmp_path, bytes(content))
    assert graph.read_error is None or not graph.inputs
