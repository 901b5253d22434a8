# SPDX-License-Identifier: Apache-2.0
"""Code that the Python backend refuses when it loads it, or of which no request is answered.

Read for it: `pb_stub`, `infer_request`, `response_sender`, `metric` and `metric_family` of the
Python backend and its `triton_python_backend_utils.py`, and the models that fail on purpose in the
folder python_models of Triton's `qa`, made again in our own words. Each was tried on tritonserver
2.51; FAILING are loaded, and their requests fail or wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.strangers.configurations import TENSORS, Case, Files, cases, model

_HEAD = """\
import json
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
"""
_EXECUTE = """\
def execute(self, requests):
    return [pb_utils.InferenceResponse([]) for _ in requests]
"""
_DECOUPLED = "model_transaction_policy { decoupled: true }\n"
_READ = 'x = pb_utils.get_input_tensor_by_name(request, "IN")'
_APPEND = "responses.append({})"
_SENDER = "sender = request.get_response_sender()"
_FINAL = "flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"


def _code(body: str, config: str = "", head: str = _HEAD) -> Files:
    files = model(f"max_batch_size: 8\n{TENSORS}{config}")
    lines = "".join(f"    {line}\n" if line else "\n" for line in body.splitlines())
    return files | {"m/1/model.py": head + lines}


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _execute(body: str, config: str = "") -> Files:
    return _code(f"def execute(self, requests):\n{_indented(body)}", config)


def _loop(body: str, config: str = "", end: str = "return responses") -> Files:
    answers = end != "return responses" or "append" in body
    append = "" if answers else "responses.append(pb_utils.InferenceResponse([]))"
    steps = _indented(f"{_READ}\n{body}\n{append}".rstrip())
    return _execute(f"responses = []\nfor request in requests:\n{steps}\n{end}", config)


def _streams(body: str) -> Files:
    return _loop(f"{_SENDER}\n{body}", _DECOUPLED, "return None")


def _initialize(body: str) -> Files:
    return _code(f"def initialize(self, args):\n{_indented(body)}\n{_EXECUTE}")


def _completes(body: str) -> Files:
    method = f"@staticmethod\ndef auto_complete_config(config):\n{_indented(body)}\n"
    return _code(f"{method}{_EXECUTE}")


def _metric(kind: str, body: str = "", labels: str = "{}", more: str = "") -> Files:
    family = f'family = pb_utils.MetricFamily("m", "d", pb_utils.MetricFamily.{kind})'
    return _initialize(f"{family}\nmetric = family.Metric(labels={labels}{more})\n{body}")


def _called(arguments: str) -> Files:
    other = model(TENSORS, name="other")
    return other | _loop(f"pb_utils.InferenceRequest({arguments}).exec()\n{_APPEND.format('x')}")


def _group(files: Mapping[str, Files], rules: str) -> tuple[Case, ...]:
    return cases({name: (each, rules) for name, each in files.items()})


REFUSED_CODE: tuple[Case, ...] = (
    *_group(
        {
            "no class": _code("", head="import numpy\n"),
            "a class of another name": _code(_EXECUTE, head=_HEAD.replace("Triton", "My")),
        },
        "TC221",
    ),
    *_group(
        {
            "a name that initialize does not know": _initialize("lorem_ipsum"),
            "a name that the module does not know": _code(_EXECUTE, head=f"lorem\n{_HEAD}"),
            "a name that auto_complete_config does not know": _completes("lorem\nreturn config"),
        },
        "TC244",
    ),
    *_group(
        {
            "an initialize that raises": _initialize('raise ValueError("no")'),
            "an initialize that exits": _initialize("sys.exit(1)"),
        },
        "TC251",
    ),
    *_group(
        {
            "an initialize with two arguments": _code(
                f"def initialize(self, args, more):\n    pass\n{_EXECUTE}"
            ),
            "an initialize without an argument": _code(
                f"def initialize(self):\n    pass\n{_EXECUTE}"
            ),
            "a constructor with an argument": _code(
                f"def __init__(self, args):\n    pass\n{_EXECUTE}"
            ),
            "an auto_complete_config that is not static": _code(
                f"def auto_complete_config(self, config):\n    return config\n{_EXECUTE}"
            ),
        },
        "TC226",
    ),
    *_group({"an absent argument": _initialize('self.kind = args["instance_kind"]')}, "TC258"),
    *_group({"a text as dictionary": _initialize('x = args["model_config"]["output"]')}, "TC239"),
    *_group({"an unknown type": _initialize('pb_utils.triton_string_to_numpy("FP32")')}, "TC229"),
    *_group({"an unknown setting": _completes("config.set_batching(8)\nreturn config")}, "TC259"),
    *_group(
        {"an input without a name": _completes('config.add_input({"nameas": "A"})')}, "TC240 TC241"
    ),
    *_group(
        {
            "no configuration returned": _completes("config.set_max_batch_size(8)"),
            "an auto_complete_config that raises": _completes('raise ValueError("no")'),
        },
        "TC241",
    ),
    *_group(
        {
            "a request in initialize": _initialize(
                'pb_utils.InferenceRequest(model_name="other", requested_output_names=["OUT"], '
                "inputs=[]).exec()"
            )
            | model(TENSORS, name="other")
        },
        "TC654",
    ),
    *_group(
        {
            "a counter that goes back": _metric("COUNTER", "metric.increment(-1)"),
            "a counter that is set": _metric("COUNTER", "metric.set(5)"),
            "a gauge that observes": _metric("GAUGE", "metric.observe(5)"),
            "a histogram that is incremented": _metric(
                "HISTOGRAM", "metric.increment(1)", more=", buckets=[1]"
            ),
            "a histogram without buckets": _metric("HISTOGRAM"),
            "a histogram with falling buckets": _metric("HISTOGRAM", more=", buckets=[2, 1]"),
            "a counter with buckets": _metric("COUNTER", more=", buckets=[1]"),
            "a list of labels": _metric("COUNTER", labels='["a"]'),
            "a kind as text": _initialize('pb_utils.MetricFamily("m", "d", "counter")'),
            "no kind": _initialize('pb_utils.MetricFamily(name="m", description="d")'),
            "a metric of two kinds": _metric(
                "COUNTER", 'pb_utils.MetricFamily("m", "d", pb_utils.MetricFamily.GAUGE)'
            ),
        },
        "TC254",
    ),
    *_group({"an unknown kind": _metric("SUMMARY")}, "TC250"),
    *_group({"no Python": _code("def execute(self, requests)\n    return []")}, "TC220"),
)
_RESPONSE = "pb_utils.InferenceResponse({})"
_TENSOR = "pb_utils.InferenceResponse([pb_utils.Tensor({})])"
FAILING_CODE: tuple[Case, ...] = (
    *_group(
        {
            "no execute": _code("def initialize(self, args):\n    pass\n"),
            "a misspelt execute": _code(_EXECUTE.replace("execute", "excute")),
        },
        "TC222",
    ),
    *_group({"an execute without self": _code(_EXECUTE.replace("self, ", ""))}, "TC227"),
    *_group(
        {
            "None returned": _execute("return None"),
            "nothing returned": _execute("for request in requests:\n    pass"),
        },
        "TC228",
    ),
    *_group(
        {
            "a list of None": _execute("return [None] * len(requests)"),
            "an empty list": _execute("return []"),
            "a tuple": _execute(f"return tuple({_RESPONSE.format('[]')} for _ in requests)"),
            "a generator": _execute(f"return ({_RESPONSE.format('[]')} for _ in requests)"),
            "responses that are yielded": _execute(
                f"for request in requests:\n    yield {_RESPONSE.format('[]')}"
            ),
            "a dictionary": _execute('return {"OUT": 1}'),
            "the requests": _execute("return requests"),
            **{
                f"{name} where a response belongs": _loop(_APPEND.format(element))
                for name, element in {
                    "a tensor": 'pb_utils.Tensor("OUT", x.as_numpy())',
                    "an array": "x.as_numpy()",
                    "an input": "x",
                    "a list": '[pb_utils.Tensor("OUT", x.as_numpy())]',
                }.items()
            },
        },
        "TC252",
    ),
    *_group({"one answer to all": _execute(f"return {_RESPONSE.format('[]')}")}, "TC229"),
    *_group(
        {
            f"a response of {name}": _loop(_APPEND.format(_RESPONSE.format(arguments)))
            for name, arguments in {
                "a tensor": 'pb_utils.Tensor("OUT", x.as_numpy())',
                "a dictionary": '{"OUT": x.as_numpy()}',
                "arrays": "[x.as_numpy()]",
                "an error as text": '[], error="no"',
                "an exception": '[], error=pb_utils.TritonModelException("no")',
                "unknown arguments": "outputs=[]",
            }.items()
        },
        "TC229",
    ),
    *_group(
        {
            f"a tensor of {name}": _loop(_APPEND.format(_TENSOR.format(arguments)))
            for name, arguments in {
                "a tensor": '"OUT", x',
                "a list": '"OUT", [1.0, 2.0]',
                "a number": '"OUT", 1.0',
                "a list of the array": '"OUT", x.as_numpy().tolist()',
                "an array alone": "x.as_numpy()",
                "an array and a name": 'x.as_numpy(), "OUT"',
                "arguments by name": 'name="OUT", data=x.as_numpy()',
            }.items()
        },
        "TC229",
    ),
    *_group(
        {
            f"an array of {name}": _loop(_APPEND.format(_TENSOR.format(f'"OUT", {array}')))
            for name, array in {
                "texts": 'np.array(["a", "b"])',
                "type str": "np.array([1], dtype=str)",
                "complex numbers": "np.zeros(16, dtype=np.complex64)",
            }.items()
        },
        "TC234",
    ),
    *_group(
        {
            "a name that execute does not know": _loop("lorem_ipsum"),
            "a module that is not imported": _loop("utils.InferenceResponse([])"),
            "a name in a comprehension": _execute("return [lorem for _ in requests]"),
        },
        "TC253",
    ),
    *_group({"an unknown method": _loop("x.numpy_array()")}, "TC249"),
    *_group(
        {
            "a misspelt lookup": _loop('pb_utils.get_input_tensor(request, "IN")'),
            "a misspelt class": _loop("pb_utils.InferResponse([])"),
            "a misspelt logger": _loop('pb_utils.Logger.log_information("a")'),
            "a misspelt flag": _streams("sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_FINAL)"),
        },
        "TC250 TC414",
    ),
    *_group(
        {"a name before its request": _loop('pb_utils.get_input_tensor_by_name("IN", request)')},
        "TC229",
    ),
    *_group(
        {"an absent input": _loop('pb_utils.get_input_tensor_by_name(request, "A").as_numpy()')},
        "TC230",
    ),
    *_group(
        {"a stream that returns": _loop(_APPEND.format(_RESPONSE.format("[]")), _DECOUPLED)},
        "TC411",
    ),
    *_group(
        {
            "a stream without an end": _streams(f"sender.send({_RESPONSE.format('[]')})"),
            "a stream that sends nothing": _streams("sender.send()"),
        },
        "TC414",
    ),
    *_group(
        {
            f"a stream that sends {name}": _streams(f"sender.send({arguments})")
            for name, arguments in {
                "a list": f"[{_RESPONSE.format('[]')}], {_FINAL}",
                "a tensor": f"x, {_FINAL}",
                "an unknown flag": f"{_RESPONSE.format('[]')}, flags=5",
                "an unknown argument": f"{_RESPONSE.format('[]')}, final=True",
            }.items()
        },
        "TC229 TC414",
    ),
    *_group(
        {
            "a request that comes again": _loop(
                "request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\n"
                + _APPEND.format("None")
            )
        },
        "TC260",
    ),
    *_group(
        {
            f"a call {name}": _called(arguments)
            for name, arguments in {
                "without a model": 'requested_output_names=["OUT"], inputs=[x]',
                "without outputs": 'model_name="other", inputs=[x]',
                "with one input": 'model_name="other", requested_output_names=["OUT"], inputs=x',
                "with an output as text": (
                    'model_name="other", requested_output_names="OUT", inputs=[x]'
                ),
                "with arrays": (
                    'model_name="other", requested_output_names=["OUT"], inputs=[x.as_numpy()]'
                ),
            }.items()
        },
        "TC229 TC252",
    ),
)
# Loaded and answered, and yet wrong; or known only where the server is.
NAMED_CODE: tuple[Case, ...] = cases(
    {
        "a name that finalize does not know": (
            _code(f"{_EXECUTE}def finalize(self):\n    lorem\n"),
            "TC255",
        ),
        "a finalize with an argument": (
            _code(f"{_EXECUTE}def finalize(self, args):\n    pass\n"),
            "TC255",
        ),
        "a package that nothing installs": (
            _code(_EXECUTE, head=f"import roman\n{_HEAD}"),
            "TC037",
        ),
        "a module that is not there": (
            _code(_EXECUTE, head=f"from helpers import nothing\n{_HEAD}"),
            "TC037",
        ),
        "a response after the last": (
            _streams(f"sender.send({_FINAL})\nsender.send({_RESPONSE.format('[]')})"),
            "TC415",
        ),
        "a call of an absent model": (
            _loop(
                'pb_utils.InferenceRequest(model_name="no", requested_output_names=["O"], '
                f"inputs=[x]).exec()\n{_APPEND.format(_RESPONSE.format('[]'))}"
            ),
            "TC652",
        ),
    }
)
