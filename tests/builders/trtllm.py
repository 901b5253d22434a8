# SPDX-License-Identifier: Apache-2.0
"""What tests of the TensorRT-LLM builder share: checkpoints, requests, programs that pretend."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.builders.conftest import BUILDERS, CONFIG, safetensors, write_json

BUILDER = BUILDERS / "tensorrt_llm"
FAKE_TOOL = Path(__file__).with_name("fake_trtllm_build.py")
ARGUMENTS = BUILDER / "arguments.toml"
TARGET = {
    "release": "26.07",
    "triton": "2.71.0",
    "tensorrt_llm": "1.2.1",
    "tensorrt": "10.14.1.48",
    "cuda": "13.1.0.036",
    "world": "engine",
    "image": "tritonserver:26.07-trtllm-python-py3",
    "gpu": "H100",
    "compute_capability": "9.0",
}
QUANTISED = {
    "architecture": "LlamaForCausalLM",
    "dtype": "float16",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 8,
    "max_position_embeddings": CONFIG["max_position_embeddings"],
    "logits_dtype": "float16",
    "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None},
}


def quantised_checkpoint(source: Path, **changes: Any) -> Path:
    """What the stage quantise leaves for the engine world: `source/checkpoint`."""
    folder = source / "checkpoint"
    folder.mkdir(parents=True)
    config = {**QUANTISED, **changes}
    write_json(folder / "config.json", config)
    for rank in range(config["mapping"]["world_size"]):
        safetensors(folder / f"rank{rank}.safetensors")
    return folder


def request(checkpoint: Path, source: Path | None, **changes: Any) -> dict[str, Any]:
    """A request of the host's for the stage compile."""
    limits = dict.fromkeys(("max_input_len", "max_seq_len", "max_num_tokens"))
    sizes = {"max_batch_size": 4, "max_beam_width": 1, "tp_size": 1, "pp_size": 1}
    return {
        "schema": "tritonctl.build/1",
        "model": "m",
        "checkpoint": str(checkpoint),
        "precision": "fp8",
        "limits": {**sizes, **limits, **changes.pop("limits", {})},
        "kv_cache_dtype": None,
        "trust_remote_code": False,
        "options": {},
        "evaluation": None,
        "stage": "compile",
        "source": str(source) if source else None,
        "target": {**TARGET, **changes.pop("target", {})},
        "calibration": None,
        **changes,
    }


def install_programs(folder: Path, gpus: str | None) -> None:
    """A `trtllm-build`, and an `nvidia-smi` that lists `gpus` (None: no such program)."""
    folder.mkdir()
    tool = folder / "trtllm-build"
    tool.write_text(f"#!{sys.executable}\n{FAKE_TOOL.read_text(encoding='utf-8')}", "utf-8")
    tool.chmod(0o755)
    shutil.copyfile(ARGUMENTS, folder / ARGUMENTS.name)
    if gpus is not None:
        list_gpus(folder, gpus)


def list_gpus(folder: Path, gpus: str) -> None:
    """An `nvidia-smi` that lists `gpus`; built-in commands of the shell alone."""
    smi = folder / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(gpus)}\n", encoding="utf-8")
    smi.chmod(0o755)


def run_stage(
    script: str, staging: Path, asked: dict[str, Any], programs: Path, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a stage's program as the host does, with `programs` and nothing else on the path."""
    staging.mkdir(exist_ok=True)
    write_json(staging.parent / "R.json", asked)
    last = arguments or ("--result", str(staging.parent / "S.json"))
    command = [sys.executable, str(BUILDER / script), "--request", str(staging.parent / "R.json")]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
    return subprocess.run(
        [*command, *last],
        cwd=staging,
        env={**kept, "PATH": str(programs), "PYTHONUTF8": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def result_of(staging: Path) -> dict[str, Any]:
    """The result that the program wrote."""
    result: dict[str, Any] = json.loads((staging.parent / "S.json").read_text(encoding="utf-8"))
    return result
