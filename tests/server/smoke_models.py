# SPDX-License-Identifier: Apache-2.0
"""Small models for smoke tests, right ones and ones that are wrong in one thing each."""

from __future__ import annotations

from tritonctl.checks.examples.files import Example

_HEAD = """\
import random
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def tensor(name, values):
    return pb_utils.Tensor(name, values)


def answer(*tensors):
    return pb_utils.InferenceResponse(list(tensors))


def given(request, name):
    found = pb_utils.get_input_tensor_by_name(request, name)
    return None if found is None else found.as_numpy()


class TritonPythonModel:
"""
_TENSORS = """\
backend: "python"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
_STREAM = """\
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
TEXT = """\
backend: "python"
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "num_output_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
]
"""


def _each(expression: str, before: str = "") -> str:
    """An execute() that answers every request of a batch with this."""
    return f"""\
    def execute(self, requests):
        {before or "pass"}
        return [{expression} for request in requests]
"""


def _stream(body: str) -> str:
    """An execute() that streams: `sender` and `FINAL` are at hand, `n` counts the requests."""
    lines = "\n".join(f"            {line}" for line in body.splitlines())
    return f"""\
    n = 0

    def execute(self, requests):
        FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for request in requests:
            sender = request.get_response_sender()
            self.n += 1
{lines}
        return None
"""


_ECHO = _each('answer(tensor("OUTPUT", given(request, "INPUT")))')
_FIVE = """\
for number in {numbers}:
    sender.send(answer(tensor("OUTPUT", np.array([number], dtype=np.int32))))
{end}"""
_SLOWLY = "time.sleep(0.02)"
_BATCHER = "dynamic_batching { }\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n"
# Counts go with the pieces; what is not streamed is told at once.
_SPELLS = """\
pieces = {pieces}
if not given(request, "stream")[0]:
    pieces = [("one two three ", 3)]
for text, count in pieces:
    sender.send(
        answer(
            tensor("text_output", np.array([text], dtype=object)),
            tensor("num_output_tokens", np.array([count], dtype=np.int32)),
        )
    )
sender.send(flags=FINAL)"""


def _spells(*pieces: tuple[str, int]) -> str:
    return _stream(_SPELLS.format(pieces=list(pieces)))


_BYTES = """\
backend: "python"
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "LENGTH" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
_IMAGE = """\
backend: "python"
input [ { name: "PIXELS" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] } ]
output [ { name: "LARGEST" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
_OPTIONAL = """\
backend: "python"
input [
  { name: "A" data_type: TYPE_INT32 dims: [ 2 ] },
  { name: "B" data_type: TYPE_INT32 dims: [ 2 ] optional: true }
]
output [ { name: "SUM" data_type: TYPE_INT32 dims: [ 2 ] } ]
"""
_SEQUENCE = """\
backend: "python"
max_batch_size: 4
sequence_batching {
  control_input [
    {
      name: "START"
      control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ]
    }
  ]
}
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "BEGAN" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
_TWO = _TENSORS + 'output [ { name: "MORE" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
_BOTH = 'tensor("OUTPUT", given(request, "INPUT")), tensor("MORE", given(request, "INPUT"))'
# The second step reads a tensor that is an output of the ensemble, too.
_FEEDS_A_STEP = """\
platform: "ensemble"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [
  { name: "MIDDLE" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "LAST" data_type: TYPE_FP32 dims: [ 4 ] }
]
ensemble_scheduling {
  step [
    {
      model_name: "adds" model_version: -1
      input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUTPUT" value: "MIDDLE" }
    },
    {
      model_name: "adds" model_version: -1
      input_map { key: "INPUT" value: "MIDDLE" } output_map { key: "OUTPUT" value: "LAST" }
    }
  ]
}
"""
# Fails for what is smaller than 200 pixels: nothing is the largest of nothing.
_PIXELS = 'given(request, "PIXELS")[:, 200:, 200:].reshape(3, -1).max(axis=1)'
_SUM = 'given(request, "INPUT").sum(axis=1, keepdims=True)'
_B = 'given(request, "B")'

# Counts as tritonctl's engines do; the one does not look whether anybody still listens.
_SLOW_TEXT = """\
    def initialize(self, args):
        family = pb_utils.MetricFamily(
            name="tritonctl_requests_total",
            description="streams that ended",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self.ended = {{
            outcome: family.Metric(labels={{"model": args["model_name"], "outcome": outcome}})
            for outcome in ("length", "cancelled")
        }}
        self.family = family

    def execute(self, requests):
        FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for request in requests:
            sender, outcome = request.get_response_sender(), "length"
            for count in range(1, min(int(given(request, "max_tokens")[0]), 80) + 1):
                if {hears} and sender.is_cancelled():
                    outcome = "cancelled"
                    break
                text = tensor("text_output", np.array(["a "], dtype=object))
                number = tensor("num_output_tokens", np.array([count], dtype=np.int32))
                sender.send(answer(text, number))
                time.sleep(0.1)
            self.ended[outcome].increment(1)
            sender.send(flags=FINAL)
        return None
"""
HEARS = (TEXT, _SLOW_TEXT.format(hears=True))
DEAF = (TEXT, _SLOW_TEXT.format(hears=False))

RIGHT: dict[str, tuple[str, str]] = {
    "adds": (
        _TENSORS + _BATCHER,
        _each('answer(tensor("OUTPUT", given(request, "INPUT") + 1))', _SLOWLY),
    ),
    "queues": (  # one that refuses most of what comes at once, and means to
        _TENSORS + _BATCHER.replace("{ }", "{ default_queue_policy { max_queue_size: 1 } }", 1),
        _each('answer(tensor("OUTPUT", given(request, "INPUT")))', "time.sleep(0.2)"),
    ),
    "ragged": (
        _TENSORS.replace("dims: [ 4 ] }", "dims: [ -1 ] allow_ragged_batch: true }", 1) + _BATCHER,
        _each(
            f'answer(tensor("OUTPUT", {_SUM} * np.ones((1, 4), np.float32)))',
            _SLOWLY,
        ),
    ),
    "two_outputs": (_TWO, _each(f"answer({_BOTH})")),
    "slow": (
        _TENSORS + _BATCHER.replace("dynamic_batching { }", ""),
        _each('answer(tensor("OUTPUT", given(request, "INPUT")))', "time.sleep(0.1)"),
    ),
    "bytes": (
        _BYTES,
        _each('answer(tensor("LENGTH", np.array([len(t) for t in given(request, "TEXT")])))'),
    ),
    "image": (_IMAGE, _each(f'answer(tensor("LARGEST", {_PIXELS}))')),
    "optional": (
        _OPTIONAL,
        _each(f'answer(tensor("SUM", given(request, "A") + (0 if {_B} is None else {_B})))'),
    ),
    "sequence": (
        _SEQUENCE,
        _each('answer(tensor("BEGAN", given(request, "START").reshape(1, 1)))'),
    ),
    "stream": (_STREAM, _stream(_FIVE.format(numbers="range(5)", end="sender.send(flags=FINAL)"))),
    "text": (TEXT, _spells(("one ", 1), ("two ", 2), ("three ", 3))),
}
WRONG: dict[str, tuple[str, str]] = {
    "wrong_type": (
        _TENSORS,
        _each('answer(tensor("OUTPUT", given(request, "INPUT").astype(np.float64)))'),
    ),
    "missing_output": (
        _TENSORS + 'output [ { name: "MORE" data_type: TYPE_FP32 dims: [ 1 ] } ]\n',
        _ECHO,
    ),
    "wrong_shape": (_TENSORS, _each('answer(tensor("OUTPUT", given(request, "INPUT")[:, :3]))')),
    "first_of_batch": (_TENSORS, _each('answer(tensor("OUTPUT", given(request, "INPUT")[:1]))')),
    "not_a_number": (
        _TENSORS,
        _each('answer(tensor("OUTPUT", given(request, "INPUT") * np.float32(np.nan)))'),
    ),
    "refuses": (
        _TENSORS,
        "    def execute(self, requests):\n        raise ValueError('no weights')\n",
    ),
    "one_by_one": (
        _TENSORS + "dynamic_batching { preferred_batch_size: [ 1 ] }\n",
        _each('answer(tensor("OUTPUT", given(request, "INPUT")))', _SLOWLY),
    ),
    "first_output_alone": (
        _TWO,
        _each(f"answer(*[{_BOTH}][: len(request.requested_output_names())])"),
    ),
    "feeds_a_step": (_FEEDS_A_STEP, ""),
    "exchanges": (
        _TENSORS + _BATCHER,
        _each(
            'answer(tensor("OUTPUT", given(request, "INPUT")))',
            "time.sleep(0.02); requests = requests[::-1]",
        ),
    ),
    "one_at_a_time": (
        _TENSORS + _BATCHER,
        _each(
            'answer(tensor("OUTPUT", given(request, "INPUT")))',
            "time.sleep(0.05); requests = requests[:1]",
        ),
    ),
    "no_final": (_STREAM, _stream(_FIVE.format(numbers="range(2)", end="self.kept = sender"))),
    "disordered": (
        _STREAM,
        _stream(
            _FIVE.format(
                numbers="[range(5), [3, 1, 4, 0, 2]][self.n % 2]", end="sender.send(flags=FINAL)"
            )
        ),
    ),
    "undeclared": (
        _STREAM.replace('name: "OUTPUT"', 'name: "OTHER"'),
        _stream(_FIVE.format(numbers="range(2)", end="sender.send(flags=FINAL)")),
    ),
    "counts_back": (TEXT, _spells(("one ", 1), ("three ", 3), ("two ", 2))),
    "loses": (TEXT, _spells(("one ", 1), ("three ", 3))),
}


def repository(models: dict[str, tuple[str, str]]) -> Example:
    """The files of these models."""
    files: dict[str, str] = {}
    for name, (config, body) in models.items():
        files[f"{name}/config.pbtxt"] = config
        files[f"{name}/1/model.py"] = _HEAD + body
    return files
