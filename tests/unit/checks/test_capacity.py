# SPDX-License-Identifier: Apache-2.0
"""Memory for all models together, and requests that fit into messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check_models.models import CONFIG, python_model
from tests.check_models.tensorrt_llm import llmapi_model
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import Example, ExampleFile
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES

OURS = [rule for rule in RULES.values() if rule.family == "capacity"]

MIB, GIB = 1 << 20, 1 << 30


def reported(folder: Path, files: Example, target: CheckTarget) -> list[CheckFinding]:
    """What the family's rules say."""
    return list(check_repository(put(folder, files), target, rules=OURS).findings)


def images(name: str, count: int, size: int = 1024) -> dict[str, str]:
    """A Python model with a picture in and a few numbers out."""
    config = CONFIG.replace('"m"', f'"{name}"').replace(
        "dims: [ 4 ]", f"dims: [ 3, {size}, {size} ]", 1
    )
    more = f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]\n"
    return {f"{name}/config.pbtxt": config + more, f"{name}/1/model.py": ""}


def test_shared_memory(tmp_path: Path) -> None:
    """The sum, each model's share, told at the largest."""
    files = images("a", 1) | images("b", 2) | {"c/config.pbtxt": 'name: "c" backend: "identity"'}
    target = CheckTarget("2.51.0", shared_memory_bytes=64 * MIB)
    [finding] = reported(tmp_path, files, target)
    # 8 × (12 MiB + 16 B + 4 KiB), in steps of 1 MiB.
    assert finding.message == (
        "the stubs of Python models need 291.0 MiB of shared memory with full batches, /dev/shm "
        "has 64.0 MiB: b 2 × 97.0 MiB, a 1 × 97.0 MiB"
    )
    assert "--shm-size=640m" in finding.fix
    assert finding.path.endswith("b/config.pbtxt")
    assert (finding.line, finding.text[finding.column - 1 : finding.end - 1]) == (6, "2")
    assert reported(tmp_path, {}, CheckTarget("2.51.0", shared_memory_bytes=291 * MIB)) == []
    assert reported(tmp_path, {}, CheckTarget("2.51.0")) == []


def test_stubs_without_room(tmp_path: Path) -> None:
    """Their regions as they begin; then nothing is said of batches."""
    files = images("a", 3) | images("b", 4)
    [finding] = reported(tmp_path, files, CheckTarget("2.51.0", shared_memory_bytes=6 * MIB))
    assert finding.rule == "TC802"
    assert finding.message == (
        "7 instances of Python models take 1.0 MiB of shared memory each, /dev/shm has 6.0 MiB: "
        "b 4, a 3"
    )
    [finding] = reported(tmp_path, {}, CheckTarget("2.51.0", shared_memory_bytes=7 * MIB))
    assert finding.rule == "TC800"


def test_dimensions_that_vary_count_little(tmp_path: Path) -> None:
    """What is reported is certain: -1 may be 1, a text may be short."""
    config = CONFIG.replace("dims: [ 4 ]", "dims: [ -1, -1 ]").replace("TYPE_FP32", "TYPE_STRING")
    target = CheckTarget("2.51.0", shared_memory_bytes=MIB)
    assert reported(tmp_path, python_model(config), target) == []


def onnx(name: str, count: int, size: int, more: str = "") -> dict[str, str | ExampleFile]:
    """A model of onnxruntime on every GPU, with weights of that size."""
    config = CONFIG.replace('"m"', f'"{name}"').replace('"python"', '"onnxruntime"')
    groups = f"instance_group [ {{ kind: KIND_GPU count: {count} }} ]\n"
    return {
        f"{name}/config.pbtxt": config + groups + more,
        f"{name}/1/model.onnx": ExampleFile(bytes(100)),
        f"{name}/1/model.onnx_data": ExampleFile(bytes(size - 100)),
        f"{name}/1/notes.txt": ExampleFile(bytes(10_000)),
    }


def test_weights_on_gpus(tmp_path: Path) -> None:
    """A session for each instance, with the tensors beside the graph; every GPU by itself."""
    files = onnx("a", 2, 3000) | onnx("b", 1, 1500)
    two = CheckTarget("2.51.0", gpus=(8000, 7000))
    [finding] = reported(tmp_path / "all", files, two)
    assert finding.message == (
        "GPU 1 has 6.8 KiB, models take 7.3 KiB there before any request: a 5.9 KiB, b 1.5 KiB"
    )
    assert reported(tmp_path / "all", {}, CheckTarget("2.51.0")) == []
    shared = 'parameters { key: "share_session_between_instances" value { string_value: "true" } }'
    files |= onnx("a", 2, 3000, shared)
    assert reported(tmp_path / "shared", files, two) == []


def test_weights_on_the_host(tmp_path: Path) -> None:
    """OpenVINO's instances share one network; what is on GPUs does not count."""
    target = CheckTarget("2.51.0", gpus=(GIB,), memory_bytes=5000)
    config = CONFIG.replace('"python"', '"openvino"')
    files: dict[str, str | ExampleFile] = {
        "m/config.pbtxt": config + "instance_group [ { kind: KIND_CPU count: 4 } ]\n",
        "m/1/model.xml": ExampleFile(bytes(500)),
        "m/1/model.bin": ExampleFile(bytes(4000)),
    }
    assert reported(tmp_path / "fits", files | onnx("a", 9, 3000), target) == []
    files |= {"m/1/model.bin": ExampleFile(bytes(5000))}
    [finding] = reported(tmp_path / "full", files, target)
    assert (finding.rule, finding.message) == (
        "TC813",
        "the machine has 4.9 KiB, models take 5.4 KiB there before any request: m 5.4 KiB",
    )


def test_what_vllm_claims_beside_weights(tmp_path: Path) -> None:
    """Its share counts as taken."""
    files = onnx("a", 1, 3000) | vllm("b", "{}")
    [finding] = reported(tmp_path, files, CheckTarget("2.51.0", gpus=(10_000,)))
    assert finding.message.endswith("there before any request: b 8.8 KiB, a 2.9 KiB")


def test_odd_values(tmp_path: Path) -> None:
    """Paths that no system has, counts beyond all bounds: nothing is reported, nothing breaks."""
    odd = engine("a", {"gpt_model_path": "/x\\000y"}) | engine("b", {}, 2**31 - 1)
    odd |= vllm("c", "{}", f"kind: KIND_GPU count: {2**31 - 1} gpus: [ {2**31 - 1} ]")
    odd |= images("d", 2**31 - 1, 2**62)
    target = CheckTarget("2.72.0", gpus=(GIB,), shared_memory_bytes=MIB)
    rules = sorted(finding.rule for finding in reported(tmp_path, odd, target))
    assert rules == ["TC802", "TC811", "TC812", "TC821"]


def engine(name: str, parameters: dict[str, str], count: int = 1) -> dict[str, str]:
    """A TensorRT-LLM model of NVIDIA's template, as far as memory goes."""
    config = CONFIG.replace('"m"', f'"{name}"').replace('"python"', '"tensorrtllm"')
    config += f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]\n"
    for key, value in parameters.items():
        config += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return {f"{name}/config.pbtxt": config}


def test_engines_by_rank(tmp_path: Path) -> None:
    """Each rank's file on its GPU, wherever a container sees the repository."""
    paths = {"gpt_model_path": "/models/m/1/engine", "gpu_device_ids": "1,0"}
    files: dict[str, str | ExampleFile] = {
        **engine("m", paths),
        "m/1/engine/rank0.engine": ExampleFile(bytes(5000)),
        "m/1/engine/rank1.engine": ExampleFile(bytes(1000)),
    }
    [finding] = reported(tmp_path, files, CheckTarget("2.51.0", gpus=(4000, 4000)))
    assert finding.message.startswith("GPU 1 has 3.9 KiB, models take 4.9 KiB there")


@pytest.mark.parametrize(
    ("parameters", "count", "told"),
    [
        ({}, 2, "1.8 times the whole (m 2 × 0.9)"),
        ({"kv_cache_free_gpu_mem_fraction": "0.6"}, 2, "1.2 times the whole (m 2 × 0.6)"),
        ({"kv_cache_free_gpu_mem_fraction": "0.5"}, 2, None),
        ({"max_tokens_in_paged_kv_cache": "4096"}, 2, None),
        ({"gpu_device_ids": "0;1"}, 2, None),
        ({"kv_cache_free_gpu_mem_fraction": "${kv_fraction}"}, 2, None),
        ({}, 1, None),
    ],
)
def test_kv_caches(
    parameters: dict[str, str], count: int, told: str | None, tmp_path: Path
) -> None:
    """Of instances on one GPU, where no number of tokens bounds them."""
    findings = reported(tmp_path, engine("m", parameters, count), CheckTarget("2.51.0"))
    assert [told in one.message for one in findings if told] == [True] * bool(told)
    assert len(findings) == bool(told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("kv_cache_config: {free_gpu_memory_fraction: 0.7}", True),
        ("kv_cache_config: {free_gpu_memory_fraction: 0.1}", False),
        ("kv_cache_config: {max_tokens: 4096}", False),
        ("kv_cache_config: [", False),
        ("model: x", True),
    ],
)
def test_kv_caches_of_the_llm_api(arguments: str, told: bool, tmp_path: Path) -> None:
    """model.yaml says it there; 0.9 where it says nothing."""
    files = {
        path: text.replace("model: ", f"{arguments}\nmodel: ") if "yaml" in path else text
        for path, text in llmapi_model().items()
        if isinstance(text, str)
    } | engine("n", {})
    if arguments == "kv_cache_config: [":
        files["m/1/model.yaml"] = arguments
    findings = reported(tmp_path, files, CheckTarget("2.51.0"))
    assert [finding.rule for finding in findings] == ["TC812"] * told


def vllm(name: str, arguments: str, group: str = "kind: KIND_MODEL") -> dict[str, str]:
    """A vLLM model."""
    config = f'name: "{name}"\nbackend: "vllm"\ninstance_group [ {{ {group} }} ]\n'
    return {f"{name}/config.pbtxt": config, f"{name}/1/model.json": arguments}


def test_shares_of_vllm(tmp_path: Path) -> None:
    """Defaults count; GPUs of their own do not add up; what cannot be read counts nothing."""
    two = CheckTarget("2.51.0", gpus=(GIB, GIB))
    both = vllm("a", '{"gpu_memory_utilization": 0.3}') | vllm("b", "{}")
    [finding] = reported(tmp_path / "a", both, two)
    assert finding.message == (
        "instances of vLLM claim 1.2 times the whole (a 0.3, b 0.9) of GPU 0's memory"
    )
    apart = vllm("a", "{}", "kind: KIND_GPU gpus: [ 0 ]") | vllm(
        "b", "{}", "kind: KIND_GPU gpus: [ 1 ]"
    )
    assert reported(tmp_path / "b", apart, two) == []
    for junk in ("[" * 100_000, '"text"', "\ud800".encode("utf-8", "replace").decode(), "{"):
        assert reported(tmp_path / "c", vllm("a", "{}") | vllm("b", junk), two) == []


def test_messages(tmp_path: Path) -> None:
    """Optional inputs may stay away; the version must have the limit."""
    large = CONFIG.replace("dims: [ 4 ] }", "dims: [ 5000, 5000 ] }", 1)
    new = CheckTarget("2.72.0")
    [finding] = reported(tmp_path / "a", python_model(large), new)
    assert (finding.rule, finding.line) == ("TC820", 4)
    assert finding.message.startswith("one request takes 95.4 MiB: HTTP requests over 64.0 MiB")
    assert "--http-max-input-size=134217728" in finding.fix
    for target in (CheckTarget("2.51.0"), CheckTarget()):
        assert reported(tmp_path / "a", {}, target) == []
    optional = large.replace("5000 ] }", "5000 ] optional: true }")
    assert reported(tmp_path / "b", python_model(optional), new) == []
    answer = "dims: [ 5000, 5000 ] }".join(CONFIG.rsplit("dims: [ 4 ] }", 1))
    assert reported(tmp_path / "c", python_model(answer), new) == []


def test_a_batch_too_large(tmp_path: Path) -> None:
    """With how many would fit."""
    config = CONFIG.replace("dims: [ 4 ]", "dims: [ 4000, 4000 ]", 1).replace("8", "64", 1)
    [finding] = reported(tmp_path, python_model(config), CheckTarget("2.51.0"))
    assert finding.message == (
        "a request of 64 takes 64 × 61.0 MiB = 3.8 GiB: gRPC messages are limited to 2 GiB, 33 of "
        "them"
    )
