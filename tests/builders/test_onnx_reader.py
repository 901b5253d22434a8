# SPDX-License-Identifier: Apache-2.0
"""`tritonctl check`'s reader of ONNX files against the onnx package and ONNX Runtime themselves."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tritonctl.formats.graph_file import GraphTensor, ModelGraph, UndecidedFileError
from tritonctl.formats.onnx_graph import read_onnx

pytestmark = pytest.mark.engine

TESTS = Path(__file__).resolve().parents[1]
MUTANTS = 300


def described(python: Path, folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    script, result = TESTS / "onnx_description.py", folder / "result.json"
    subprocess.run([python, script, folder, result], check=True)
    described = json.loads(result.read_text(encoding="utf-8"))
    return [(folder / name, found) for name, found in described.items()]


def as_onnx(graph: ModelGraph) -> dict[str, Any] | None:
    """A graph of ours as the other describes it."""
    if graph.read_error:
        return None
    return {
        "inputs": [_value(one) for one in graph.inputs],
        "outputs": [_value(one) for one in graph.outputs],
        "weights": sorted(one.location for one in graph.weights),
    }


def _value(one: GraphTensor) -> dict[str, Any]:
    return {"name": one.name, "shape": None if one.shape is None else list(one.shape)}


def _without_types(described: dict[str, Any] | None) -> dict[str, Any] | None:
    if described is None:
        return None
    sides = {
        side: [
            {
                "name": one["name"],
                # A size below 1 varies, as it does without a name.
                "shape": one["shape"] and [_size(size) for size in one["shape"]],
            }
            for one in described[side]
        ]
        for side in ("inputs", "outputs")
    }
    return {**sides, "weights": described["weights"]}


def _size(size: int | str) -> int | str:
    return "?" if size == "" or (isinstance(size, int) and size < 1) else size


@pytest.fixture(scope="module")
def graphs(onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of graph that the builders' tests have."""
    folder = tmp_path_factory.mktemp("graphs")
    subprocess.run([onnxruntime_environment, TESTS / "onnx_graphs.py", folder], check=True)
    return folder


def test_reads_what_onnx_reads(onnxruntime_environment: Path, graphs: Path) -> None:
    """Names, shapes and other files of weights; types and shapes as a session has them."""
    for path, other in described(onnxruntime_environment, graphs):
        graph = read_onnx(path)
        assert as_onnx(graph) == _without_types(other["onnx"]), path
        for one, real in zip(
            graph.inputs, (other["runtime"] or {}).get("inputs", ()), strict=False
        ):
            assert f"tensor({one.kind})" == real["type"]
            assert [s for s in one.shape or () if isinstance(s, int)] == [
                s for s in real["shape"] or () if isinstance(s, int)
            ]


def test_refuses_what_onnx_refuses(
    onnxruntime_environment: Path, graphs: Path, tmp_path: Path
) -> None:
    """Files with bytes changed or cut off: whatever we call broken makes no session either."""
    rng = random.Random(8)  # noqa: S311
    whole = [path.read_bytes() for path in sorted(graphs.rglob("*.onnx"))]
    for number in range(MUTANTS):
        content = bytearray(rng.choice(whole))
        for _ in range(rng.randrange(4)):
            content[rng.randrange(min(len(content), 400))] = rng.randrange(256)
        if rng.random() < 0.3:
            del content[rng.randrange(len(content)) :]
        (tmp_path / f"{number}.onnx").write_bytes(content)
    agreed = 0
    for path, other in described(onnxruntime_environment, tmp_path):
        try:
            graph = read_onnx(path)
        except UndecidedFileError:
            continue
        if graph.read_error:
            assert other["runtime"] is None, (path, graph.read_error)
        elif other["onnx"] is not None:
            assert as_onnx(graph) == _without_types(other["onnx"]), path
            agreed += 1
    assert agreed > MUTANTS // 10
