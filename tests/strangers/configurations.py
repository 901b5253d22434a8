# SPDX-License-Identifier: Apache-2.0
"""Model repositories as strangers write them, one class of mistake each, and the rules that tell.

The classes are those of Triton's own tests of model configurations (the folders L0_model_config,
L0_onnx_optimization and L0_tftrt_optimization of its `qa`), made again in our own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tritonctl.checks.examples.files import Example, ExampleFile
from tritonctl.checks.repository import CheckTarget

Files = dict[str, str | ExampleFile]
SERVER = CheckTarget()
# One that was started with --disable-auto-complete-config.
STRICT_SERVER = CheckTarget(completes=False)

TENSORS = """\
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
# These models are only loaded.
CODE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
{}
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


class Case(NamedTuple):
    """A repository with one mistake in its model `m`. rules: each of them is the right reason."""

    name: str
    files: Example
    rules: tuple[str, ...]
    target: CheckTarget = SERVER


def model(config: str, backend: str = "python", *, name: str = "m") -> Files:
    """A model of a backend that needs no file of its own, or of the Python backend."""
    files: Files = {
        f"{name}/config.pbtxt": f'name: "{name}"\nbackend: "{backend}"\n{config}',
        f"{name}/1/README": "",
    }
    if backend == "python":
        files[f"{name}/1/model.py"] = CODE.format("")
    return files


def cases(
    described: Mapping[str, tuple[Example, str]], target: CheckTarget = SERVER
) -> tuple[Case, ...]:
    """Cases by name: their files, and the ids of rules with spaces between."""
    return tuple(
        Case(name, files, tuple(rules.split()), target)
        for name, (files, rules) in described.items()
    )


def replaced(old: str, new: str) -> str:
    """The usual tensors with one piece replaced."""
    assert old in TENSORS, old
    return TENSORS.replace(old, new)
