# SPDX-License-Identifier: Apache-2.0
"""The inputs that a rule's function may take, by the name of its parameter.

A rule stays silent about a model that lacks one of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tritonctl.checks.analysis.completion import auto_complete_method
from tritonctl.checks.analysis.declared import comparable_graph
from tritonctl.checks.analysis.graph import graph_of
from tritonctl.checks.analysis.response_senders import senders_of
from tritonctl.checks.analysis.streams import streaming_code
from tritonctl.checks.analysis.trtllm_model import (
    arguments_of,
    deployment_of,
    engine_of,
    template_of,
)
from tritonctl.checks.repository import Model, Repository

RuleInput = Callable[[Model, Repository], object | None]


def _scheduler(model: Model, name: str) -> object | None:
    message = model.config.message
    return getattr(message, name) if message.HasField(name) else None


RULE_INPUTS: Mapping[str, RuleInput] = {
    "model": lambda model, _: model,
    "repository": lambda _, repository: repository,
    "file": lambda model, _: model.file,
    "config": lambda model, _: model.config if model.has_config else None,
    # Parts of the configuration.
    "batching": lambda model, _: _scheduler(model, "dynamic_batching"),
    "sequences": lambda model, _: _scheduler(model, "sequence_batching"),
    # Of the served version: a Python model's model.py, or a graph such as model.onnx.
    "code": lambda model, _: model.code,
    # The auto_complete_config of model.py, if the server calls it.
    "auto_complete": auto_complete_method,
    # The code of a decoupled Python model, and the response senders of any Python model.
    "streaming": lambda model, _: streaming_code(model),
    "senders": lambda model, _: senders_of(model),
    "graph": lambda model, _: model.graph,
    "compared_graph": lambda model, _: comparable_graph(model),
    "onnx": lambda model, _: comparable_graph(model, "ONNX"),
    "ensemble": graph_of,
    # Of TensorRT-LLM models: any kind, NVIDIA's template only, the engine, the model.yaml.
    "deployment": deployment_of,
    "template": template_of,
    "engine": engine_of,
    "arguments": arguments_of,
}
