# SPDX-License-Identifier: Apache-2.0
"""Small model repositories for the rules' examples: whole ones, that a real server can load."""

from __future__ import annotations

from tritonctl.checks.examples.files import ExampleFile

CONFIG = """\
name: "m"
backend: "python"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
MODEL = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            output = pb_utils.Tensor("OUTPUT", tensor)
            answers.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return answers
"""


def python_model(config: str = CONFIG, **files: str | ExampleFile) -> dict[str, str | ExampleFile]:
    """A model `m` of the Python backend; `files` by path below its folder, with / as __."""
    more = {f"m/{name.replace('__', '/')}": text for name, text in files.items()}
    return {"m/config.pbtxt": config, "m/1/model.py": MODEL} | more


def changed(old: str, new: str) -> dict[str, str | ExampleFile]:
    """The same with one piece of the configuration replaced."""
    assert old in CONFIG, old
    return python_model(CONFIG.replace(old, new))
