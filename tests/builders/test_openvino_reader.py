# SPDX-License-Identifier: Apache-2.0
"""`tritonctl check`'s reader of OpenVINO IRs against OpenVINO itself."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tritonctl.formats.graph_file import GraphTensor
from tritonctl.formats.openvino_ir import read_ir

pytestmark = pytest.mark.engine

SCRIPT = Path(__file__).resolve().parents[1] / "openvino_graphs.py"


def sizes(tensor: GraphTensor) -> list[int | None]:
    return [size if isinstance(size, int) else None for size in tensor.shape or ()]


def test_reads_what_openvino_reads(openvino_environment: Path, tmp_path: Path) -> None:
    """Every name, every fixed size, and the weights' file with the length that it has."""
    subprocess.run([openvino_environment, SCRIPT, tmp_path], check=True)
    described = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert len(described) > 1
    for name, other in described.items():
        path = tmp_path / name / "model.xml"
        graph = read_ir(path)
        for side, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs)):
            assert [sizes(one) for one in tensors] == [one["shape"] for one in other[side]], name
            for one, real in zip(tensors, other[side], strict=True):
                assert set(real["names"]) <= set(one.names)
        for weights in graph.weights:
            assert (path.parent / weights.location).stat().st_size == weights.size
    assert [one.location for one in read_ir(tmp_path / "mixed" / "model.xml").weights] == [
        "model.bin"
    ]
