# SPDX-License-Identifier: Apache-2.0
"""The engine for NVIDIA's C++ backend: the golden file, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import ConfigurationError, ServerError
from tritonctl.host.progress import Silent
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import RepositoryPlan, plan_repository
from tritonctl.repository.publish import render
from tritonctl.runtimes.lifecycle import start

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

GOLDEN = Path(__file__).parent / "golden" / "tensorrtllm" / "speller_engine.pbtxt"
EVERYTHING = {
    "batch_scheduler_policy": "max_utilization",
    "kv_cache_free_gpu_mem_fraction": 0.5,
    "max_attention_window_size": [64, 32],
    "enable_chunked_context": True,
    "gpu_device_ids": "0,1",
    "cancellation_check_period_ms": 50,
    "decoding_mode": "top_k_top_p",
    "guided_decoding_backend": "xgrammar",
    "xgrammar_tokenizer_info_path": "/engines/xgrammar.json",
    "logits_datatype": "TYPE_FP16",
}


@pytest.fixture
def engine(sandbox: Sandbox) -> Sandbox:
    """A sandbox whose builder compiles engines, served by the C++ backend."""
    record(sandbox, {"world": "engine"})
    sandbox.serving["backend"] = "tensorrtllm"
    return sandbox


def record(sandbox: Sandbox, runtime: dict[str, Any]) -> None:
    """What the builder tells about its engine."""
    script = sandbox.root / "builders" / "scripted" / "build.py"
    lines = script.read_text(encoding="utf-8").splitlines(keepends=True)
    changed = [
        f'        "runtime": {runtime!r},\n' if line.lstrip().startswith('"runtime":') else line
        for line in lines
    ]
    script.write_text("".join(changed), encoding="utf-8")


def plan(sandbox: Sandbox) -> RepositoryPlan:
    """Built and planned."""
    project = sandbox.load()
    build_engine(project, "speller", Silent())
    return plan_repository(project)


def config(sandbox: Sandbox) -> dict[str, Any]:
    """The one model that there is."""
    [model] = plan(sandbox).models
    return parse_pbtxt(model.config)


def parameters(sandbox: Sandbox) -> dict[str, str]:
    """As strings."""
    found = config(sandbox)["parameters"].items()
    return {key: value.get("string_value", "") for key, value in found}


def test_golden_file(engine: Sandbox, update_golden: bool) -> None:
    """Every tensor and the usual parameters, as protobuf; --update-golden rewrites it."""
    engine.serving.update(runtime=EVERYTHING, kv_cache_tokens=2048)
    [model] = plan(engine).models
    repository = str(engine.load().repository)
    assert repository in model.config
    text = model.config.replace(repository, "/models")
    if update_golden:
        GOLDEN.parent.mkdir(exist_ok=True)
        body = "".join(line for line in text.splitlines(True) if not line.startswith("#"))
        GOLDEN.write_text(body, encoding="utf-8")
    assert parse_pbtxt(text) == parse_pbtxt(GOLDEN.read_text(encoding="utf-8"))


def test_only_the_engine(engine: Sandbox) -> None:
    """No code, no Python backend, no ensemble: it speaks token ids."""
    planned = plan(engine)
    assert planned.backends == ()
    [model] = planned.models
    assert model.name == "speller_engine"
    assert {target for _, target in model.files} == {
        "engine/openvino_model.bin",
        "engine/openvino_model.xml",
    }


def test_defaults(engine: Sandbox) -> None:
    """What nobody set is left to the backend; three must be there, be it without a value."""
    found = parameters(engine)
    assert found.pop("gpt_model_path").endswith("/speller_engine/1/engine")
    assert found == {
        "gpt_model_type": "inflight_fused_batching",
        "max_beam_width": "1",
        "enable_kv_cache_reuse": "true",
        "exclude_input_in_output": "true",
        "guided_decoding_backend": "",
        "tokenizer_dir": "",
        "xgrammar_tokenizer_info_path": "",
        "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    }


def test_what_the_builder_was_told(engine: Sandbox) -> None:
    """Options of the build that say how to serve arrive; the project's own come after them."""
    built = {"free_gpu_memory_fraction": 0.5, "host_cache_size": 7, "enable_block_reuse": True}
    record(
        engine,
        {"world": "engine", "enable_chunked_prefill": True, "kv_cache_config": built},
    )
    found = parameters(engine)
    assert found["enable_chunked_context"] == "true"
    assert found["kv_cache_free_gpu_mem_fraction"] == "0.5"
    assert found["kv_cache_host_memory_bytes"] == "7"
    engine.serving["runtime"] = {
        "enable_chunked_context": False,
        "kv_cache_free_gpu_mem_fraction": 0.25,
    }
    found = parameters(engine)
    assert found["enable_chunked_context"] == "false"
    assert found["kv_cache_free_gpu_mem_fraction"] == "0.25"


def test_what_the_builder_was_told_is_checked(engine: Sandbox) -> None:
    """The C++ executor takes all of the free memory no more than none."""
    record(engine, {"world": "engine", "kv_cache_config": {"free_gpu_memory_fraction": 1.0}})
    with pytest.raises(ConfigurationError, match=r"built with\.kv_cache_free") as caught:
        plan(engine)
    assert "above 0 and below 1" in caught.value.problem


def test_path_in_a_container(engine: Sandbox) -> None:
    """The backend knows absolute paths only; the project may say where the folder is mounted."""
    engine.serving["runtime"] = {"gpt_model_path": "/models/speller_engine/1/engine"}
    assert parameters(engine)["gpt_model_path"] == "/models/speller_engine/1/engine"


def test_logits_are_those_of_the_engine(engine: Sandbox) -> None:
    """As the builder recorded them; anything else would end the server."""
    record(engine, {"world": "engine", "logits_dtype": "float16"})
    outputs = {tensor["name"]: tensor["data_type"] for tensor in config(engine)["output"]}
    assert outputs["context_logits"] == outputs["generation_logits"] == "TYPE_FP16"
    engine.serving["runtime"] = {"logits_datatype": "TYPE_FP32"}
    with pytest.raises(ConfigurationError, match="is TYPE_FP32, the engine's logits are TYPE_FP16"):
        plan(engine)


def test_queue(engine: Sandbox) -> None:
    """Ours becomes Triton's, which the executor takes over."""
    engine.serving["queue"] = {"max_queue_size": 7}
    batching = config(engine)["dynamic_batching"]
    assert batching == {
        "preferred_batch_size": [4],
        "default_queue_policy": {"max_queue_size": 7},
    }
    engine.serving["queue"] = {"priority_levels": 2, "default_timeout_microseconds": 1000}
    batching = config(engine)["dynamic_batching"]
    assert batching["priority_levels"] == "2"
    assert batching["default_queue_policy"]["default_timeout_microseconds"] == "1000"


def test_raw_fields_come_last(engine: Sandbox) -> None:
    """As in every other model."""
    engine.serving["config"] = {"engine": {"max_batch_size": 2}}
    assert config(engine)["max_batch_size"] == 2
    engine.serving["config"] = {"ensemble": {"max_batch_size": 2}}
    with pytest.raises(ConfigurationError, match="unknown step `ensemble`") as caught:
        plan(engine)
    assert caught.value.remedy == "steps: engine"


REFUSED = [
    ({"runtime": {"gpt_model_typ": "V1"}}, "no parameter `gpt_model_typ`", "mean `gpt_model_type`"),
    ({"runtime": {"zzz": 1}}, "no parameter `zzz`", "parameters: gpt_model_type, "),
    ({"runtime": {"gpt_model_type": "static"}}, "'static', expected one of inflight_fu", "correct"),
    ({"runtime": {"enable_chunked_context": "yes"}}, "'yes', expected true or false", "correct"),
    ({"runtime": {"max_beam_width": True}}, "is True, expected a whole number", "correct"),
    ({"runtime": {"num_nodes": -1}}, "is -1, expected a whole number", "correct"),
    ({"runtime": {"gpu_weights_percent": 1.5}}, "is 1.5, expected a number from 0 to 1", "correct"),
    ({"runtime": {"kv_cache_free_gpu_mem_fraction": 1.0}}, "above 0 and below 1", "correct"),
    ({"runtime": {"max_beam_width": 0}}, "expected a whole number 1 or more", "correct"),
    ({"runtime": {"gpu_device_ids": "0;"}}, "expected GPUs per instance", "correct"),
    ({"runtime": {"max_attention_window_size": 64}}, "expected a list of whole numbers", "correct"),
    ({"runtime": {"decoding_mode": "lookahead"}}, "lookahead needs lookahead_window_size", "add"),
    (
        {"runtime": {"guided_decoding_backend": "xgrammar"}},
        "cannot read a tokenizer",
        "add xgrammar_tokenizer_info_path",
    ),
    ({"runtime": {"gpu_device_ids": "0;1"}}, "has 2 sets of GPUs for 1 instances", "give one set"),
    ({"instance_group": [{"count": 2}]}, "has 1 sets of GPUs for 2 instances", "give one set"),
    (
        {"inline_detokenizer": True},
        "returns token ids, not text",
        "remove `inline_detokenizer: true`",
    ),
]


@pytest.mark.parametrize(("serving", "problem", "remedy"), REFUSED)
def test_refusals(engine: Sandbox, serving: dict[str, Any], problem: str, remedy: str) -> None:
    """What the backend would refuse, or silently replace by a default."""
    engine.serving.update(serving)
    with pytest.raises(ConfigurationError) as caught:
        plan(engine)
    assert caught.value.problem.startswith("models.speller.serving.")
    assert problem in caught.value.problem
    assert remedy in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("runtime", "made"), [({}, "something else"), ({"world": "pytorch"}, "a checkpoint")]
)
def test_compiled_engines_only(engine: Sandbox, runtime: dict[str, Any], made: str) -> None:
    """It cannot run anything else."""
    record(engine, runtime)
    with pytest.raises(ConfigurationError, match=f"compiled TensorRT-LLM engines.*{made}"):
        plan(engine)


def test_paged_context(engine: Sandbox) -> None:
    """An engine without it can neither reuse blocks nor read prompts in chunks."""
    record(engine, {"world": "engine", "use_paged_context_fmha": False})
    with pytest.raises(ConfigurationError, match=r"serving\.enable_prefix_caching needs paged"):
        plan(engine)
    engine.serving["enable_prefix_caching"] = False
    assert parameters(engine)["enable_kv_cache_reuse"] == "false"
    engine.serving["runtime"] = {"enable_chunked_context": True}
    with pytest.raises(ConfigurationError, match=r"runtime\.enable_chunked_context needs paged"):
        plan(engine)


def test_the_embedded_server_has_no_such_backend(engine: Sandbox) -> None:
    """Rendered all the same; said before anything is started."""
    plan(engine)
    project = engine.load()
    rendered = render(project, Silent())
    assert (project.repository / "speller_engine" / "config.pbtxt").is_file()
    with pytest.raises(
        ServerError, match="the embedded server lacks the backend tensorrtllm"
    ) as caught:
        start(project, rendered, Silent())
    assert str(project.repository) in str(caught.value.remedy)
