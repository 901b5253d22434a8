# SPDX-License-Identifier: Apache-2.0
"""A model whose engine is TensorRT-LLM's: parameters, files, tensors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import ConfigurationError
from tritonctl.host.progress import Silent
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import RepositoryPlan, plan_repository

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

OWN = ["lora_name", "guided_decoding_guide_type", "guided_decoding_guide"]
RUNTIME = {
    "world": "engine",
    "kv_cache_config": {"host_cache_size": 1, "tokens_per_block": 32},
    "lora_adapters": {"french": "lora/french"},
}


@pytest.fixture
def trtllm(sandbox: Sandbox) -> Sandbox:
    """A sandbox whose builder makes artefacts for trtllm_engine."""
    builder = sandbox.root / "builders" / "scripted"
    _replace(builder / "builder.toml", "openvino_engine", "trtllm_engine")
    runtime = '{"properties": {"INFERENCE_PRECISION_HINT": "f32"}, "block_size": 32}'
    _replace(builder / "build.py", runtime, repr(RUNTIME))
    _replace(builder / "build.py", '"versions": {', '"versions": {"tensorrt_llm": "1.2.1", ')
    _replace(builder / "build.py", "engine/openvino_model.xml", "engine/config.json")
    _replace(builder / "build.py", "engine/openvino_model.bin", "engine/rank0.engine")
    return sandbox


def _replace(file: Any, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")


def _plan(sandbox: Sandbox) -> RepositoryPlan:
    project = sandbox.load()
    build_engine(project, "speller", Silent())
    return plan_repository(project)


def _configs(sandbox: Sandbox) -> dict[str, dict[str, Any]]:
    return {model.name: parse_pbtxt(model.config) for model in _plan(sandbox).models}


def _parameters(sandbox: Sandbox) -> dict[str, Any]:
    parameters = _configs(sandbox)["speller_engine"]["parameters"]
    return {key: value.get("string_value", "") for key, value in parameters.items()}


def test_parameters(trtllm: Sandbox) -> None:
    """What the builder recorded and what the project says, as strings."""
    trtllm.serving["kv_cache_tokens"] = 4096
    trtllm.serving["runtime"] = {
        "guided_decoding_backend": "xgrammar",
        "kv_cache_config": {"free_gpu_memory_fraction": 0.5},
    }
    parameters = _parameters(trtllm)
    assert parameters["world"] == "engine"
    assert parameters["tensorrt_llm"] == "1.2.1"
    assert (parameters["tp_size"], parameters["pp_size"]) == ("1", "1")
    assert parameters["guided_decoding_backend"] == "xgrammar"
    assert parameters["gather_generation_logits"] == "false"
    assert json.loads(parameters["lora_adapters"]) == {"french": "lora/french"}
    assert json.loads(parameters["kv_cache_config"]) == {
        "host_cache_size": 1,
        "tokens_per_block": 32,
        "enable_block_reuse": True,
        "max_tokens": 4096,
        "free_gpu_memory_fraction": 0.5,
    }


@pytest.mark.parametrize(
    ("version", "field", "said"),
    [
        ("1.2.1", "onboard_block", "did you mean `onboard_blocks`?"),
        ("1.2.1", "use_kv_cache_manager_v2", "in TensorRT-LLM 1.2.1"),
        ("1.3.0rc22", "onboard_blocks", "in TensorRT-LLM 1.3.0rc22"),
        ("1.3.0rc22", "use_kv_cache_manager_v2", None),
        ("1.2.1", "onboard_blocks", None),
        ("mine", "onboard_blocks", None),
        ("1.3.0rc29", "block_reuse_policy", "in TensorRT-LLM 1.3.0rc29"),
        ("1.4.0rc4", "disk_write_through", None),
        ("1.4.0rc4", "a_field_of_tomorrow", None),
        ("1.0.3.2510", "a_field_of_tomorrow", None),
    ],
)
def test_fields_of_the_kv_cache(
    trtllm: Sandbox, version: str, field: str, said: str | None
) -> None:
    """Those that the release refuses at load are refused here."""
    _replace(trtllm.root / "builders" / "scripted" / "build.py", '"1.2.1"', f'"{version}"')
    trtllm.serving["runtime"] = {"kv_cache_config": {field: True}}
    if said is None:
        assert json.loads(_parameters(trtllm)["kv_cache_config"])[field] is True
        return
    with pytest.raises(ConfigurationError, match=field) as caught:
        _plan(trtllm)
    assert said in f"{caught.value.problem}\n{caught.value.remedy}"


def test_without_runtime_settings(trtllm: Sandbox) -> None:
    """The builder's, and nothing that costs."""
    trtllm.serving["enable_prefix_caching"] = False
    parameters = _parameters(trtllm)
    assert parameters["guided_decoding_backend"] == ""
    assert json.loads(parameters["kv_cache_config"])["enable_block_reuse"] is False
    assert "max_tokens" not in json.loads(parameters["kv_cache_config"])


def test_an_engine_that_cannot_reuse_blocks(trtllm: Sandbox) -> None:
    """Built without paged context attention: the default here does not switch reuse on."""
    without = RUNTIME | {"kv_cache_config": {"enable_block_reuse": False}}
    file = trtllm.root / "builders" / "scripted" / "build.py"
    _replace(file, repr(RUNTIME), repr(without))
    parameters = _parameters(trtllm)
    assert json.loads(parameters["kv_cache_config"])["enable_block_reuse"] is False


def test_public_tensors(trtllm: Sandbox) -> None:
    """LoRA and guides are public, and wired to the engine."""
    public = _configs(trtllm)["speller"]
    names = [tensor["name"] for tensor in public["input"]]
    assert {*OWN} <= {*names}
    [engine] = [
        step
        for step in public["ensemble_scheduling"]["step"]
        if step["model_name"] == "speller_engine"
    ]
    assert {name: engine["input_map"][name] for name in OWN} == {name: name for name in OWN}


def test_other_engines_are_as_they_were(built: Sandbox) -> None:
    """A public tensor that nobody reads would be ignored silently."""
    public = _configs(built)["speller"]
    assert "lora_name" not in {tensor["name"] for tensor in public["input"]}


def test_files(trtllm: Sandbox) -> None:
    """The engine, the tokenizer and the code."""
    [engine] = [model for model in _plan(trtllm).models if model.name == "speller_engine"]
    targets = {target for _, target in engine.files}
    assert {"engine/config.json", "engine/rank0.engine", "tokenizer/tokenizer.json"} <= targets
    assert {"model.py", "trtllmlib/llm_streams.py", "textlib/scheduling/decoder_loop.py"} <= targets


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("guided_backend", "did you mean `guided_decoding_backend`? "), ("world", "")],
)
def test_unknown_runtime_settings(trtllm: Sandbox, key: str, nearest: str) -> None:
    """Refused, not ignored."""
    trtllm.serving["runtime"] = {key: "x"}
    with pytest.raises(ConfigurationError, match=f"has no setting `{key}`") as caught:
        _plan(trtllm)
    known = "gather_generation_logits, guided_decoding_backend, kv_cache_config"
    assert caught.value.remedy == f"{nearest}settings: {known}"


def test_runtime_settings_of_other_engines(built: Sandbox) -> None:
    """The CPU engine has none."""
    built.serving["runtime"] = {"kv_cache_config": {}}
    with pytest.raises(ConfigurationError, match="has no setting `kv_cache_config`") as caught:
        _plan(built)
    assert caught.value.remedy == "settings: none"


def test_a_cache_for_not_even_one_sequence(trtllm: Sandbox) -> None:
    """Said when it is rendered, not by requests that never run."""
    trtllm.serving["kv_cache_tokens"] = 63
    with pytest.raises(ConfigurationError, match="kv_cache_tokens 63 is less than one sequence"):
        _plan(trtllm)
