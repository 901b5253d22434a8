# SPDX-License-Identifier: Apache-2.0
"""TC201 and TC203: whether a model's file can be read at all, with the weights that it refers to.

Sources: https://github.com/onnx/onnx/blob/main/docs/ExternalData.md and
https://docs.openvino.ai/2025/documentation/openvino-ir-format.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error
from tritonctl.formats.graph_file import Graph, Weights, is_pointer


@error(
    "TC201 broken-model-file",
    summary="a model file that is not of its format, or cut off",
    why="The backend cannot parse it, and the model is refused.",
)
def broken_file(graph: Graph, model: Model) -> Iterator[Hit]:
    if graph.broken and not graph.is_pointer:
        yield Hit(
            f"{graph.path.name} is not a readable {graph.format} file: {graph.broken}",
            "export or copy it again; compare its size with the original's",
            place=_place(model, graph.path),
        )


@error(
    "TC203 weights-missing",
    summary="weights that the model's file keeps in another file, which is missing or cut off",
    why="The graph is in one file and its weights in another; neither loads without the other.",
)
def weights_missing(graph: Graph, model: Model) -> Iterator[Hit]:
    for weights in graph.weights:
        if problem := _weights_problem(model, graph, weights):
            yield Hit(
                f"the weights of {graph.path.name} are in {weights.location[:80]!r}, {problem}",
                f"put that file next to {graph.path.name}, complete and under that name",
                place=_place(model, graph.path),
            )


def _weights_problem(model: Model, graph: Graph, weights: Weights) -> str | None:
    parts = Path(weights.location).parts
    # Another machine's path, or outside the folder: what lies there when served is unknown.
    if "\0" in weights.location or weights.location.startswith(("/", "*")) or ".." in parts:
        return None
    path = graph.path.parent / weights.location
    try:
        size = os.stat(path).st_size  # noqa: PTH116 - one call, and it says what stops it
    except FileNotFoundError:
        return "which does not exist"
    except OSError:
        return None
    if is_pointer(path):
        # In the version folder itself, TC016 reports it.
        inside = path.parent == model.path / str(model.served_version)
        return None if inside else "which is a Git LFS pointer"
    if size < weights.size:
        return f"which has {size} bytes instead of at least {weights.size}"
    return None


def _place(model: Model, path: Path) -> str:
    return path.relative_to(model.path).as_posix()
