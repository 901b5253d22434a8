# SPDX-License-Identifier: Apache-2.0
"""What a rule's function can take, by the name of its parameter.

A rule stays silent about a model that does not have what it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tritonctl.checks.analysis.completion import completing
from tritonctl.checks.analysis.declared import judged_graph
from tritonctl.checks.analysis.graph import graph_of
from tritonctl.checks.analysis.senders import senders_of
from tritonctl.checks.analysis.streams import streaming_code
from tritonctl.checks.analysis.trtllm_model import (
    arguments_of,
    deployment_of,
    engine_of,
    template_of,
)
from tritonctl.checks.repository import Model, Repository

Subject = Callable[[Model, Repository], object | None]


def _scheduler(model: Model, name: str) -> object | None:
    message = model.config.message
    return getattr(message, name) if message.HasField(name) else None


SUBJECTS: Mapping[str, Subject] = {
    "model": lambda model, _: model,
    "repository": lambda _, repository: repository,
    "file": lambda model, _: model.file,
    "config": lambda model, _: model.config if model.has_config else None,
    # Parts of the configuration.
    "batching": lambda model, _: _scheduler(model, "dynamic_batching"),
    "sequences": lambda model, _: _scheduler(model, "sequence_batching"),
    # Of the served version: the Python backend's model.py, and a graph such as model.onnx.
    "code": lambda model, _: model.code,
    # Its auto_complete_config, where the server calls that.
    "completing": completing,
    # Of Python models that stream: the code of a decoupled one, and how any sends responses.
    "streaming": lambda model, _: streaming_code(model),
    "senders": lambda model, _: senders_of(model),
    "graph": lambda model, _: model.graph,
    "judged": lambda model, _: judged_graph(model),
    "onnx": lambda model, _: judged_graph(model, "ONNX"),
    "ensemble": graph_of,
    # Of models over TensorRT-LLM: any, one of NVIDIA's template, its engine, its model.yaml.
    "deployment": deployment_of,
    "template": template_of,
    "engine": engine_of,
    "arguments": arguments_of,
}
