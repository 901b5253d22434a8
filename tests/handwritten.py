# SPDX-License-Identifier: Apache-2.0
"""Models as a user writes them into a repository: Python over one open tensor, x to y."""

from __future__ import annotations

from pathlib import Path

TWICE = "2 * x"
CONFIG = """name: "{name}"
backend: "python"
input [{{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }}]
max_batch_size: 0
"""
ENSEMBLE = """name: "{name}"
platform: "ensemble"
input [{{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }}]
ensemble_scheduling {{
  step [{{
    model_name: "{step}" model_version: -1
    input_map {{ key: "x" value: "x" }}
    output_map {{ key: "y" value: "y" }}
  }}]
}}
max_batch_size: 0
"""
CODE = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", {formula})])
"""


def write_model(
    repository: Path, name: str, formula: str, *, imports: str = "", requirements: str = ""
) -> Path:
    """Write y = formula(x), or write it anew; returns its model.py."""
    folder = repository / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(CONFIG.format(name=name), encoding="utf-8")
    if requirements:
        (folder / "1" / "requirements.txt").write_text(requirements, encoding="utf-8")
    file = folder / "1" / "model.py"
    file.write_text(f"{imports}{CODE.format(formula=formula)}", encoding="utf-8")
    return file


def write_ensemble(repository: Path, name: str, step: str) -> None:
    """Write an ensemble of one step."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    text = ENSEMBLE.format(name=name, step=step)
    (folder / "config.pbtxt").write_text(text, encoding="utf-8")
