# SPDX-License-Identifier: Apache-2.0
"""Engines that are served with the tensors of their graph: by a Python backend or Triton's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.checks.examples.onnx import FLOAT, onnx_file
from tritonctl.engines.builds.contract import TensorSpec
from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import ConfigurationError, ServerError
from tritonctl.host.progress import Silent
from tritonctl.repository.backends import backend_named, engine_config_tensors
from tritonctl.repository.ensembles import ensemble_for
from tritonctl.repository.pbtxt import parse_pbtxt, to_pbtxt
from tritonctl.repository.plan import RepositoryPlan, plan_repository
from tritonctl.repository.publish import render
from tritonctl.runtimes.lifecycle import start

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

MODEL = "speller"
INPUT = {"name": "image", "data_type": "TYPE_FP32", "dims": ["3", "-1", "-1"]}
OUTPUT = {"name": "scores", "data_type": "TYPE_FP32", "dims": ["10"]}


# With the tensors of the scripted builder.
GRAPH = onnx_file({"image": (FLOAT, ["batch", 3, "h", "w"])}, {"scores": (FLOAT, ["batch", 10])})


def _plan(sandbox: Sandbox, *, graph: str = "model.onnx", served_by: str = "onnxruntime_engine",
          task: str = "tensors", **made: Any) -> RepositoryPlan:  # fmt: skip
    file = sandbox.root / "builders" / "scripted" / "builder.toml"
    text = file.read_text(encoding="utf-8").replace("openvino_engine", served_by)
    file.write_text(text.replace('"text_generation"', '"text_generation", "tensors"'))
    sandbox.data["models"][MODEL]["task"] = task
    sandbox.behave("makes_a_graph", graph=graph, content=GRAPH.hex(), **made)
    project = sandbox.load()
    build_engine(project, MODEL, Silent())
    return plan_repository(project)


def _config(plan: RepositoryPlan) -> dict[str, Any]:
    (model,) = plan.models
    assert model.name == MODEL
    return parse_pbtxt(model.config)


def _parameters(config: dict[str, Any]) -> dict[str, str]:
    return {key: value["string_value"] for key, value in config["parameters"].items()}


def test_one_model_under_the_public_name(sandbox: Sandbox) -> None:
    """No ensemble around it; tensors from the manifest, the batch as large as the engine's."""
    config = _config(_plan(sandbox))
    assert config["backend"] == "python"
    assert config["max_batch_size"] == 4
    assert config["input"] == [{**INPUT, "allow_ragged_batch": True}]
    assert config["output"] == [OUTPUT]
    assert config["dynamic_batching"] == {}
    assert _parameters(config)["max_queue_size"] == "16"
    assert "ensemble_scheduling" not in config
    assert "model_transaction_policy" not in config
    assert _parameters(config)["longest_sequence"] == "64"


@pytest.mark.parametrize("backend", ["python", "onnxruntime"])
def test_a_graph_without_a_batch_dimension(sandbox: Sandbox, backend: str) -> None:
    """Its own shapes, [1] for a scalar without a reshape, and no batching; the queue is bounded."""
    sandbox.data["models"][MODEL]["engine"]["max_batch_size"] = 0
    sandbox.serving["backend"] = backend
    inputs = [
        {"name": "image", "data_type": "TYPE_FP32", "dims": [1, 3, -1]},
        {"name": "threshold", "data_type": "TYPE_FP32", "dims": []},
    ]
    outputs = [{"name": "count", "data_type": "TYPE_INT64", "dims": []}]
    config = _config(_plan(sandbox, tensors={"inputs": inputs, "outputs": outputs}))
    assert config.get("max_batch_size", 0) == 0
    assert config["input"] == [
        {"name": "image", "data_type": "TYPE_FP32", "dims": ["1", "3", "-1"]},
        {"name": "threshold", "data_type": "TYPE_FP32", "dims": ["1"]},
    ]
    assert config["output"] == [{"name": "count", "data_type": "TYPE_INT64", "dims": ["1"]}]
    assert "dynamic_batching" not in config
    if backend == "python":
        assert _parameters(config)["max_queue_size"] == "128"


def test_only_tensors_have_no_batch_dimension(sandbox: Sandbox) -> None:
    """A task's engine runs batches: refused before anything is built."""
    sandbox.data["models"][MODEL]["engine"]["max_batch_size"] = 0
    with pytest.raises(ConfigurationError, match=r"speller\.engine\.max_batch_size is 0, and"):
        _plan(sandbox, task="text_generation")


def test_session_options_reach_the_backend(sandbox: Sandbox) -> None:
    """All of them, also those that the project does not name."""
    sandbox.serving["session"] = {"intra_op_num_threads": 2}
    session = _parameters(_config(_plan(sandbox)))["session"]
    assert '"intra_op_num_threads": 2' in session
    assert '"allow_spinning": false' in session
    assert '"graph_optimization_level": "all"' in session


@pytest.mark.parametrize(
    ("serving", "runs"),
    [
        ({}, "8"),
        ({"parallel_runs": 3}, "3"),
        ({"session": {"intra_op_num_threads": 2}}, "1"),
        ({"session": {"intra_op_num_threads": 2}, "parallel_runs": 3}, "3"),
    ],
)
def test_runs_at_a_time(sandbox: Sandbox, serving: dict[str, Any], runs: str) -> None:
    """Who sets the threads of a run, and nothing else, gets one run of so many."""
    sandbox.serving.update(serving)
    assert _parameters(_config(_plan(sandbox)))["parallel_runs"] == runs


def test_files_of_the_python_backend(sandbox: Sandbox) -> None:
    """The engine's folder, the model and the code it shares."""
    (model,) = _plan(sandbox).models
    names = {name for _, name in model.files}
    assert {"engine/model.onnx", "model.py", "tensorlib/batches.py", "textlib/errors.py"} <= names
    assert not [name for name in names if name.startswith("tokenizer/")]


def test_the_queue_is_the_engine_s_the_delay_triton_s(sandbox: Sandbox) -> None:
    """A bound in Triton's queue would cost up to half a second (decision 12)."""
    sandbox.serving["dynamic_batching"] = {"max_queue_delay_microseconds": 500}
    sandbox.serving["queue"] = {"max_queue_size": 7}
    config = _config(_plan(sandbox))
    assert config["dynamic_batching"] == {"max_queue_delay_microseconds": "500"}
    assert _parameters(config)["max_queue_size"] == "7"


def test_timeouts_are_kept_by_triton_s_queue(sandbox: Sandbox) -> None:
    """As priorities: an engine cannot see them."""
    sandbox.serving["queue"] = {"max_queue_size": 7, "default_timeout_microseconds": 9}
    config = _config(_plan(sandbox))
    policy = {"max_queue_size": 7, "default_timeout_microseconds": "9"}
    assert config["dynamic_batching"]["default_queue_policy"] == policy
    assert _parameters(config)["max_queue_size"] == "-1"


def test_raw_fields_are_those_of_the_step(sandbox: Sandbox) -> None:
    """`engine` is the only step, and there is no ensemble to configure."""
    sandbox.serving["config"] = {"engine": {"response_cache": {"enable": True}}}
    assert _config(_plan(sandbox))["response_cache"] == {"enable": True}
    sandbox.serving["config"] = {"ensemble": {}}
    with pytest.raises(ConfigurationError, match="unknown step `ensemble`"):
        plan_repository(sandbox.load())


def test_triton_s_own_onnxruntime_backend(sandbox: Sandbox) -> None:
    """The whole configuration, as Triton parses it; the graph lies where the backend looks."""
    sandbox.serving["backend"] = "onnxruntime"
    sandbox.serving["session"] = {
        "intra_op_num_threads": 2,
        "execution_mode": "parallel",
        "graph_optimization_level": "extended",
    }
    plan = _plan(sandbox)
    assert _config(plan) == {
        "name": MODEL,
        "backend": "onnxruntime",
        "max_batch_size": 4,
        "input": [INPUT],
        "output": [OUTPUT],
        "default_model_filename": "model.onnx",
        "dynamic_batching": {},
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
        "optimization": {"graph": {"level": 1}},
        "parameters": {
            "intra_op_thread_count": {"string_value": "2"},
            "inter_op_thread_count": {"string_value": "1"},
            "execution_mode": {"string_value": "1"},
        },
    }
    names = [name for _, name in plan.models[0].files]
    assert "model.onnx" in names
    assert "model.py" not in names
    assert plan.backends == ()
    assert plan.native == ("onnxruntime",)


def test_a_bound_of_triton_s_own_backend(sandbox: Sandbox) -> None:
    """Only where it is asked for: only Triton's queue can keep it, and that costs."""
    sandbox.serving["backend"] = "onnxruntime"
    sandbox.serving["queue"] = {"max_queue_size": 7}
    batching = _config(_plan(sandbox))["dynamic_batching"]
    assert batching == {"default_queue_policy": {"max_queue_size": 7}}


def test_raw_fields_reach_triton_s_own_backend(sandbox: Sandbox) -> None:
    """Accelerators, for example; merged with what is rendered."""
    sandbox.serving["backend"] = "onnxruntime"
    cuda = [{"name": "cuda", "parameters": {"gpu_mem_limit": "1000000"}}]
    accelerators = {"execution_accelerators": {"gpu_execution_accelerator": cuda}}
    sandbox.serving["config"] = {"engine": {"optimization": accelerators}}
    config = _config(_plan(sandbox))
    assert config["optimization"] == accelerators
    assert _parameters(config)["execution_mode"] == "0"


def test_a_plan_is_served_by_triton_s_tensorrt_backend(sandbox: Sandbox) -> None:
    """Its builder says so; nothing else could serve it."""
    plan = _plan(sandbox, graph="model.plan", served_by="tensorrt")
    config = _config(plan)
    assert (config["backend"], config["default_model_filename"]) == ("tensorrt", "model.plan")
    assert config["instance_group"] == [{"kind": "KIND_GPU", "count": 1}]
    assert "parameters" not in config
    assert plan.native == ("tensorrt",)
    sandbox.serving["instance_group"] = [{"kind": "KIND_CPU"}]
    with pytest.raises(ConfigurationError, match="tensorrt runs on GPUs, not as KIND_CPU"):
        plan_repository(sandbox.load())


def test_every_profile_of_a_plan_is_served(sandbox: Sandbox) -> None:
    """Triton takes the nearest of those that are listed, and the first alone where none is."""
    shape = {"image": {"min": [1], "opt": [1], "max": [1]}}
    plan = _plan(sandbox, graph="model.plan", served_by="tensorrt", profiles=[shape] * 3)
    group = {"kind": "KIND_GPU", "count": 1, "profile": ["0", "1", "2"]}
    assert _config(plan)["instance_group"] == [group]
    plan = _plan(sandbox, graph="model.plan", served_by="tensorrt", profiles=[shape])
    assert _config(plan)["instance_group"] == [{"kind": "KIND_GPU", "count": 1}]


def test_a_backend_that_cannot_serve_this_engine(sandbox: Sandbox) -> None:
    """There is no plan in it."""
    sandbox.serving["backend"] = "tensorrt"
    with pytest.raises(ConfigurationError, match=r"serves \.plan files, and the builder scripted"):
        _plan(sandbox)


def test_a_model_that_answers_once_anyway(sandbox: Sandbox) -> None:
    """Nothing to put in front of it."""
    sandbox.serving["unary"] = True
    with pytest.raises(ConfigurationError, match=r"serving\.unary: .* is not a streaming ensemble"):
        _plan(sandbox)


def test_a_native_backend_inside_an_ensemble(sandbox: Sandbox) -> None:
    """Text generation is wired for the tensors of our own engines."""
    sandbox.serving["backend"] = "onnxruntime"
    with pytest.raises(ConfigurationError, match="the task text_generation has steps around"):
        _plan(sandbox, task="text_generation")


def test_the_embedded_server_has_no_native_backend(sandbox: Sandbox) -> None:
    """Said at once, not after Triton has failed to load the model."""
    sandbox.serving["backend"] = "onnxruntime"
    _plan(sandbox)
    project = sandbox.load()
    with pytest.raises(ServerError, match="the embedded server lacks the backend onnxruntime"):
        start(project, render(project, Silent()), Silent())


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("kind: model\nsteps:\n  a: {backend: engine}\n  b: {backend: engine}", "exactly one step"),
        ("kind: model\nsteps:\n  a: {backend: engine, inputs: {x: y}}", "exactly one step"),
        ("steps:\n  a: {backend: engine}", "an ensemble needs inputs and outputs"),
    ],
)
def test_kinds_of_tasks(tmp_path: Path, lines: str, problem: str) -> None:
    """A bare model has one step without a map; an ensemble has tensors."""
    folder = tmp_path / "ensembles"
    folder.mkdir()
    text = f"schema: tritonctl/ensemble/v1\ntask: t\nsummary: s\n{lines}\n"
    (folder / "t.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=problem):
        ensemble_for("t", tmp_path)


@pytest.mark.parametrize("tensors", ["", 'tensors = "artefact"\n[[inputs]]\nname = "x"\n'])
def test_a_backend_declares_its_tensors_or_takes_the_engine_s(tmp_path: Path, tensors: str) -> None:
    """Neither and both are mistakes."""
    folder = tmp_path / "python_backends" / "own"
    folder.mkdir(parents=True)
    lines = 'schema = "tritonctl.python_backend/1"\nname = "own"\nsummary = "s"\n'
    rest = 'data_type = "TYPE_FP32"\ndims = [1]\n' if "inputs" in tensors else ""
    text = f"{lines}max_batch_size = 1\n{tensors}{rest}"
    (folder / "backend.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match="list inputs and outputs, or set tensors"):
        backend_named("own", tmp_path)


def test_a_tensor_of_the_batch_dimension_alone() -> None:
    """Clients see [batch, 1], the engine [batch]; others are as the graph has them."""
    specs = [
        TensorSpec(name="label", data_type="TYPE_INT64", dims=[]),
        TensorSpec(name="scores", data_type="TYPE_FP32", dims=[-1, 3]),
    ]
    label, scores = (tensor.as_dict() for tensor in engine_config_tensors(specs, batched=True))
    assert label == {
        "name": "label",
        "data_type": "TYPE_INT64",
        "dims": [1],
        "reshape": {"shape": []},
    }
    assert scores == {"name": "scores", "data_type": "TYPE_FP32", "dims": [-1, 3]}
    text = to_pbtxt({"name": "m", "max_batch_size": 4, "output": [label]}, header="h")
    assert "reshape {" in text
    assert parse_pbtxt(text)["output"][0]["reshape"] == {}
