# SPDX-License-Identifier: Apache-2.0
"""Small repositories that stream, for the examples of rules."""

from __future__ import annotations

from tests.check_models.models import CONFIG, python_model
from tritonctl.checks.examples.files import ExampleFile

DECOUPLED = "model_transaction_policy { decoupled: true }\n"
STREAM_CONFIG = CONFIG + DECOUPLED
# Sixteen numbered responses to each request, while `execute` takes the next ones.
STREAM = """\
import threading

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            sender = request.get_response_sender()
            threading.Thread(target=stream, args=(sender, array)).start()


def stream(sender, array):
    for step in range(16):
        if sender.is_cancelled():
            break
        output = pb_utils.Tensor("OUTPUT", array + step)
        sender.send(pb_utils.InferenceResponse(output_tensors=[output]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# One response to each request, with the final flag.
SINGLE = """\
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            output = pb_utils.Tensor("OUTPUT", tensor)
            sender.send(pb_utils.InferenceResponse(output_tensors=[output]), flags=FINAL)
"""
_SEND = (
    "            sender.send(pb_utils.InferenceResponse(output_tensors=[output]), flags=FINAL)\n"
)
# Sixteen responses to each request, during which `execute` takes no other.
IN_EXECUTE = SINGLE.replace(
    '            output = pb_utils.Tensor("OUTPUT", tensor)\n' + _SEND,
    """\
            for step in range(16):
                if sender.is_cancelled():
                    break
                output = pb_utils.Tensor("OUTPUT", tensor + step)
                sender.send(pb_utils.InferenceResponse(output_tensors=[output]))
            sender.send(flags=FINAL)
""",
)
WITHOUT_FINAL = SINGLE.replace(", flags=FINAL", "").replace(
    "FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL\n\n\n", "\n"
)
RETURNING = """\
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
DEMANDING = SINGLE.replace("import triton", "import json\n\nimport triton", 1).replace(
    "class TritonPythonModel:\n",
    """\
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        if not pb_utils.using_decoupled_model_transaction_policy(config):
            raise pb_utils.TritonModelException("it must be decoupled")

""",
)
NEVER_READY = SINGLE.replace("import triton", "import threading\n\nimport triton", 1).replace(
    "class TritonPythonModel:\n",
    """\
class TritonPythonModel:
    def initialize(self, args):
        self.wake = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()
        self.thread.join()

    def work(self):
        while True:
            self.wake.wait()

""",
)
# Calls the decoupled `d` and sums up what it sends.
SUMMER = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT")
            call = pb_utils.InferenceRequest(
                model_name="d", requested_output_names=["OUTPUT"], inputs=[tensor]
            )
            total = tensor.as_numpy() * 0
            for answer in call.exec(decoupled=True):
                if not answer.output_tensors():
                    continue
                total += pb_utils.get_output_tensor_by_name(answer, "OUTPUT").as_numpy()
            output = pb_utils.Tensor("OUTPUT", total)
            answers.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return answers
"""
# Calls `d` and hands on its answer.
CALLER = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT")
            call = pb_utils.InferenceRequest(
                model_name="d", requested_output_names=["OUTPUT"], inputs=[tensor]
            )
            answer = call.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            answers.append(answer)
        return answers
"""
ENSEMBLE = """\
name: "e"
platform: "ensemble"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "d"
      model_version: -1
      input_map { key: "INPUT" value: "INPUT" }
      output_map { key: "OUTPUT" value: "part" }
    },
    {
      model_name: "m"
      model_version: -1
      input_map { key: "INPUT" value: "part" }
      output_map { key: "OUTPUT" value: "OUTPUT" }
    }
  ]
}
"""


def stream_model(code: str, config: str = STREAM_CONFIG) -> dict[str, str | ExampleFile]:
    """A model `m` of the Python backend, decoupled unless its configuration says otherwise."""
    return python_model(config, **{"1__model.py": code})


def beside(name: str, config: str, code: str) -> dict[str, str | ExampleFile]:
    """Another model of the Python backend."""
    files = {"config.pbtxt": config.replace('"m"', f'"{name}"'), "1/model.py": code}
    return {f"{name}/{path}": text for path, text in files.items()}


def behind_stream(added: str) -> dict[str, str | ExampleFile]:
    """An ensemble `e`: a decoupled model `d`, then `m` once per response; added: to m's config."""
    return python_model(CONFIG + added) | DECODER | {"e/config.pbtxt": ENSEMBLE, "e/1/.keep": ""}


def edited(code: str, old: str, new: str) -> str:
    """One piece of a model.py replaced."""
    assert old in code, old
    return code.replace(old, new)


DECODER = beside("d", STREAM_CONFIG, STREAM)
