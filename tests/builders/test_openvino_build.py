# SPDX-License-Identifier: Apache-2.0
"""Real builds of the shipped checkpoint, in the builder's own environment."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.runs import Built, command, run, run_kept

pytestmark = pytest.mark.engine
exhaustive = pytest.mark.exhaustive

CHECKOUT = Path(__file__).resolve().parents[2]
BUILD = CHECKOUT / "builders" / "openvino" / "build.py"
EXAMPLE = CHECKOUT / "examples" / "number-speller"
PROMPTS = 200
# The least share of prompts answered exactly as transformers does in fp32. All four were exact
# where they were measured; rounding on another CPU may tip a close call in all but fp32.
EXACT_MATCH = {"fp32": 1.0, "fp16": 0.99, "int8": 0.99, "int4": 0.98}
KV_CACHE = {"fp32": "f32", "fp16": "f16", "int8": "u8", "int4": "u8"}
STAGES = ["load", "convert", "compress", "evaluate"]


Build = Callable[..., Built]


def request(**changes: Any) -> dict[str, Any]:
    """The default request with changes."""
    evaluation = {
        "prompts": str(EXAMPLE / "prompts.jsonl"),
        "max_prompts": PROMPTS,
        "max_tokens": 64,
        "min_exact_match": None,
    }
    return {
        "schema": "tritonctl.build/1",
        "model": "speller",
        "checkpoint": str(EXAMPLE / "checkpoint"),
        "precision": "int8",
        "limits": {"max_batch_size": 32},
        "trust_remote_code": False,
        "options": {},
        "evaluation": evaluation,
        **changes,
    }


@pytest.fixture(scope="session")
def build(openvino_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Run build.py with changes to the default request, as the host does.

    `fresh`: also where an equal run was kept.
    """

    def build(*, fresh: bool = False, **changes: Any) -> Built:
        folder = tmp_path_factory.mktemp("build")
        return (run if fresh else run_kept)(openvino_environment, BUILD, request(**changes), folder)

    return build


@pytest.fixture(scope="session")
def evaluated(build: Build) -> Callable[[str], Built]:
    """The shipped checkpoint in one precision, evaluated; built once."""

    @cache
    def once(precision: str) -> Built:
        done = build(precision=precision)
        assert done.code == 0, done.result
        return done

    return once


@pytest.fixture(
    params=[
        "fp32",
        pytest.param("fp16", marks=exhaustive),
        "int8",
        pytest.param("int4", marks=exhaustive),
    ]
)
def built(request: pytest.FixtureRequest, evaluated: Callable[[str], Built]) -> tuple[str, Built]:
    """Every precision with its build."""
    return request.param, evaluated(request.param)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_result_lists_the_artefact(built: tuple[str, Built]) -> None:
    _, done = built
    files = done.result["files"]
    on_disk = sorted(path for path in done.staging.rglob("*") if path.is_file())
    assert [entry["path"] for entry in files] == [
        path.relative_to(done.staging).as_posix() for path in on_disk
    ]
    for entry, path in zip(files, on_disk, strict=True):
        assert entry["size"] == path.stat().st_size
        assert entry["sha256"] == sha256(path)
    assert {
        "engine/openvino_model.xml",
        "engine/openvino_model.bin",
        "engine/config.json",
        "engine/generation_config.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    } <= {entry["path"] for entry in files}


def test_the_result_keeps_the_contract(built: tuple[str, Built]) -> None:
    precision, done = built
    result = done.result
    assert (result["schema"], result["status"]) == ("tritonctl.build-result/1", "ok")
    config = json.loads((EXAMPLE / "checkpoint" / "config.json").read_text(encoding="utf-8"))
    longest = config["max_position_embeddings"]
    assert result["limits"] == {
        "max_batch_size": 32,
        "max_input_len": longest - 1,
        "max_seq_len": longest,
        "max_num_tokens": 256,
        "max_beam_width": 1,
        "tp_size": 1,
        "pp_size": 1,
    }
    assert result["model"]["vocab_size"] == config["vocab_size"]
    assert result["model"]["num_hidden_layers"] == config["num_hidden_layers"]
    properties = result["runtime"]["properties"]
    assert properties["INFERENCE_PRECISION_HINT"] == "f32"
    assert properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == 0
    assert properties["KV_CACHE_PRECISION"] == KV_CACHE[precision]
    # One thread where the weights fit one core's cache; 1.1 M of them take 4.5 MB in fp32.
    assert properties.get("INFERENCE_NUM_THREADS") == (None if precision == "fp32" else 1)
    assert result["runtime"]["block_size"] == 32
    assert result["versions"]["openvino"].startswith("2026.4.1")
    assert result["hardware"]["cpu"]
    assert result["hardware"]["gpu"] is None


def test_tensors_of_the_raw_graph(built: tuple[str, Built]) -> None:
    _, done = built
    tensors, vocabulary = done.result["tensors"], done.result["model"]["vocab_size"]
    assert tensors["inputs"][0] == {
        "name": "input_ids",
        "data_type": "TYPE_INT64",
        "dims": [-1, -1],
    }
    assert tensors["outputs"] == [
        {"name": "logits", "data_type": "TYPE_FP32", "dims": [-1, -1, vocabulary]}
    ]


def test_stages_are_announced_and_timed(built: tuple[str, Built]) -> None:
    _, done = built
    lines = done.output.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("@stage ")] == STAGES
    durations = done.result["durations_seconds"]
    assert list(durations) == STAGES
    assert all(seconds > 0 for seconds in durations.values())


def test_answers_are_those_of_transformers(built: tuple[str, Built]) -> None:
    precision, done = built
    evaluation = done.result["evaluation"]
    assert evaluation["prompts"] == PROMPTS
    assert evaluation["exact_match"] >= EXACT_MATCH[precision], evaluation["first_divergence"]
    assert evaluation["answer_match"] >= EXACT_MATCH[precision]
    assert evaluation["diverged"] == round(PROMPTS * (1 - evaluation["exact_match"]))
    assert (evaluation["first_divergence"] is None) == (evaluation["diverged"] == 0)


def engine_bytes(done: Built) -> int:
    return (done.staging / "engine" / "openvino_model.bin").stat().st_size


@exhaustive
def test_smaller_precisions_are_smaller(evaluated: Callable[[str], Built]) -> None:
    fp32, fp16, int8, int4 = (engine_bytes(evaluated(name)) for name in EXACT_MATCH)
    assert fp32 > 1.9 * fp16
    assert fp16 > 1.8 * int8
    assert int8 > 1.5 * int4


@pytest.mark.parametrize(
    "precision",
    [
        pytest.param("fp32", marks=pytest.mark.path),  # a build that comes from no cache
        pytest.param("int4", marks=exhaustive),
    ],
)
def test_two_builds_are_equal_byte_for_byte(
    build: Build, evaluated: Callable[[str], Built], precision: str
) -> None:
    again = build(precision=precision, evaluation=None, fresh=True)
    assert again.result["files"] == evaluated(precision).result["files"]
    assert again.result["evaluation"] is None
    assert again.result["durations_seconds"]["evaluate"] == 0


@pytest.mark.exhaustive
def test_options_of_int4(build: Build, evaluated: Callable[[str], Built]) -> None:
    # Most rows of this model have 128 weights: those layers get a smaller group, none fails.
    coarse = build(precision="int4", options={"group_size": 256}, evaluation=None)
    mixed = build(precision="int4", options={"ratio": 0.5}, evaluation=None)
    assert coarse.code == mixed.code == 0
    assert engine_bytes(coarse) < engine_bytes(evaluated("int4")) < engine_bytes(mixed)


def copied_checkpoint(folder: Path) -> Path:
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    for path in (EXAMPLE / "checkpoint").iterdir():
        (checkpoint / path.name).write_bytes(path.read_bytes())
    return checkpoint


def randomise(path: Path) -> None:
    """Replace every weight of an fp32 safetensors file: what is left has no clear answers."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    count = (len(content) - start) // 4
    weights = np.random.default_rng(0).normal(0, 0.2, count).astype(np.float32)
    path.write_bytes(content[:start] + weights.tobytes())


def test_a_missed_accuracy_fails_the_build(build: Build, tmp_path: Path) -> None:
    checkpoint = copied_checkpoint(tmp_path)
    randomise(checkpoint / "model.safetensors")
    evaluation = {
        "prompts": str(EXAMPLE / "prompts.jsonl"),
        "max_prompts": 32,
        "max_tokens": 64,
        "min_exact_match": 1.0,
    }
    done = build(checkpoint=str(checkpoint), precision="int4", evaluation=evaluation)
    assert done.code == 1
    assert "of 32 prompts exactly as the checkpoint does" in done.result["problem"]
    assert "min_exact_match asks for 100.0%; first divergence: " in done.result["problem"]
    assert "Set engine.precision to int8" in done.result["remedy"]


def test_weights_that_lack_a_tensor(build: Build, tmp_path: Path) -> None:
    checkpoint = copied_checkpoint(tmp_path)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] += 1
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    done = build(checkpoint=str(checkpoint), evaluation=None)
    assert done.code == 1
    assert "the weights lack" in done.result["problem"]
    assert f"model.layers.{config['num_hidden_layers'] - 1}." in done.result["problem"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=exhaustive)])
def test_an_interrupted_build_leaves_no_result(
    openvino_environment: Path, tmp_path: Path, number: signal.Signals
) -> None:
    started = command(openvino_environment, BUILD, request(), tmp_path)
    with subprocess.Popen(started, cwd=tmp_path / "staging", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"@stage load\n"
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(timeout=60) == 130
    assert not (tmp_path / "S.json").exists()


_PICKLE = """
import pathlib, sys, torch
from safetensors.torch import load_file
weights = pathlib.Path(sys.argv[1])
torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
weights.unlink()
"""


def test_weights_that_are_a_pickle(
    build: Build,
    evaluated: Callable[[str], Built],
    openvino_environment: Path,
    tmp_path: Path,
) -> None:
    """Refused, and the same engine where the user allows them."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(EXAMPLE / "checkpoint", checkpoint)
    weights = checkpoint / "model.safetensors"
    subprocess.run([openvino_environment, "-c", _PICKLE, weights], check=True)
    refused = build(checkpoint=str(checkpoint), evaluation=None)
    assert refused.code != 0
    assert "engine.allow_pickle" in json.dumps(refused.result)
    allowed = build(checkpoint=str(checkpoint), evaluation=None, allow_pickle=True)
    assert allowed.code == 0, allowed.result
    name = "engine/openvino_model.bin"
    assert sha256(allowed.staging / name) == sha256(evaluated("int8").staging / name)
