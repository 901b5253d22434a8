# SPDX-License-Identifier: Apache-2.0
"""A builder for tests, standard library only; `options` of the request steer it.

behaviour  one of the functions in BEHAVIOURS (default: ok)
runs       a file of the project that gets one line per run: process ids of builder and child
gate       a file to wait for before answering
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Record = dict[str, Any]

SCHEMA = "tritonctl.build-result/1"
GATE_SECONDS = 60.0
PROJECT = Path(__file__).parents[2]


def main() -> int:
    """Answer one build request; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    request = json.loads(arguments.request.read_text(encoding="utf-8"))
    options = request["options"]
    _say(f"scripted builder for {request['model']}")
    _enter(options)
    _make_artefact(request)
    return BEHAVIOURS[options.get("behaviour", "ok")](request, arguments.result)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _enter(options: Record) -> None:
    """Count this run, then wait for the gate with a child that would outlive us."""
    _say("@stage load")
    gate = options.get("gate")
    child = subprocess.Popen(["/bin/sleep", str(GATE_SECONDS)]) if gate else None
    if "runs" in options:
        with (PROJECT / options["runs"]).open("a", encoding="utf-8") as runs:
            runs.write(f"{os.getpid()} {child.pid if child else ''}\n")
    if child and gate:
        _wait_for(Path(gate))
        child.kill()
        child.wait()


def _wait_for(gate: Path) -> None:
    deadline = time.monotonic() + GATE_SECONDS
    while not gate.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def _make_artefact(request: Record) -> None:
    _say("@stage convert")
    config = Path(request["checkpoint"], "config.json").read_text(encoding="utf-8")
    files = {
        "engine/openvino_model.xml": f"<net precision='{request['precision']}'/>\n",
        "engine/openvino_model.bin": config * 3,
        "tokenizer/tokenizer.json": "{}\n",
        "tokenizer/tokenizer_config.json": config,
    }
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")


def _result(request: Record) -> Record:
    wanted = request["limits"]
    longest = wanted["max_seq_len"] or 64
    limits = {"max_seq_len": longest, "max_input_len": max(longest - 1, 1), "max_num_tokens": 256}
    return {
        "schema": SCHEMA,
        "status": "ok",
        "files": [_described(path) for path in sorted(Path().glob("*/*"))],
        "tensors": {
            "inputs": [{"name": "input_ids", "data_type": "TYPE_INT64", "dims": [-1, -1]}],
            "outputs": [{"name": "logits", "data_type": "TYPE_FP32", "dims": [-1, -1, 99]}],
        },
        "limits": wanted | limits,
        "model": {
            "architecture": "LlamaForCausalLM",
            "vocab_size": 99,
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "max_position_embeddings": 64,
            "bos_token_id": None,
            "eos_token_ids": [1],
            "pad_token_id": 0,
        },
        "runtime": {"properties": {"INFERENCE_PRECISION_HINT": "f32"}, "block_size": 32},
        "versions": {"python": sys.version.split()[0]},
        "hardware": {"cpu": None, "gpu": None, "compute_capability": None},
        "durations_seconds": {"load": 0.5, "convert": 1.0},
    }


def _described(path: Path) -> Record:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return {"path": path.as_posix(), "size": len(content), "sha256": digest}


def _write(result: Path, record: Record) -> None:
    result.write_text(json.dumps(record), encoding="utf-8")


def ok(request: Record, result: Path) -> int:
    """Keep the contract."""
    _write(result, _result(request))
    return 0


def makes_a_graph(request: Record, result: Path) -> int:
    """Make a tensor engine: one file of the name in `options.graph`, tensors of its own.

    `options.content`: what is in it, in hexadecimal digits. `options.tensors`: others.
    `options.profiles`: of its runtime.
    """
    content = bytes.fromhex(request["options"].get("content", b"a graph\n".hex()))
    Path("engine", request["options"]["graph"]).write_bytes(content)
    tensors = {
        "inputs": [{"name": "image", "data_type": "TYPE_FP32", "dims": [3, -1, -1]}],
        "outputs": [{"name": "scores", "data_type": "TYPE_FP32", "dims": [10]}],
    }
    tensors = request["options"].get("tensors", tensors)
    parity = {"samples": 3, "max_abs_error": 0.5, "prediction_match": None}
    made = _result(request) | {"model": None, "tensors": tensors, "parity": parity}
    made["runtime"] |= {"profiles": request["options"].get("profiles")}
    _write(result, made)
    return 0


def proves(request: Record, result: Path) -> int:
    """Make an engine of a task, and report how it was proven."""
    figures = [{"name": "cosine", "value": 0.9999999, "bound": 0.99999, "better": "higher"}]
    controls = [{"name": "mean pooling", "figure": "cosine", "value": 0.7}]
    own = {"metric": "recall@10", "samples": 50, "reference": 0.96, "engine": 0.94, "least": 0.9}
    proof = {
        "task": "embedding",
        "reference": "library 1.0",
        "cases": 24,
        "figures": figures,
        "controls": controls,
        "evaluation": own,
    }
    _write(result, _result(request) | {"model": None, "proof": proof})
    return 0


def refuses(request: Record, result: Path) -> int:
    """Say no, properly."""
    _write(
        result,
        {
            "schema": SCHEMA,
            "status": "failed",
            "problem": f"precision {request['precision']} is out of fashion",
            "remedy": "choose another one",
        },
    )
    return 1


def refuses_badly(request: Record, result: Path) -> int:
    """Say no without a remedy."""
    _write(result, {"schema": SCHEMA, "status": "failed", "problem": "no"})
    return 1


def no_result(request: Record, result: Path) -> int:
    """Claim success, write nothing."""
    return 0


def malformed_result(request: Record, result: Path) -> int:
    """Write a result with a wrong type in it."""
    _write(result, _result(request) | {"limits": {"max_batch_size": "many"}})
    return 0


def not_json(request: Record, result: Path) -> int:
    """Write half a result, as a builder without atomic writes would."""
    result.write_text('{"schema": ', encoding="utf-8")
    return 0


def names_file_outside(request: Record, result: Path) -> int:
    """Claim a file that is not part of the artefact."""
    record = _result(request)
    record["files"][0]["path"] = "../escaped"
    _write(result, record)
    return 0


def lies_about_hash(request: Record, result: Path) -> int:
    """Report a file that is not the one on disk."""
    record = _result(request)
    record["files"][0]["sha256"] = "0" * 64
    _write(result, record)
    return 0


def ok_but_exit_1(request: Record, result: Path) -> int:
    """Report success and fail."""
    _write(result, _result(request))
    return 1


def crash(request: Record, result: Path) -> int:
    """Die of a bug."""
    raise ZeroDivisionError("a bug of the builder")


def killed(request: Record, result: Path) -> int:
    """Die as the system kills who takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def fills_disk(request: Record, result: Path) -> int:
    """Keep the contract, but leave no byte free on the disk."""
    _write(result, _result(request))
    with contextlib.suppress(OSError), Path("filler").open("wb", buffering=0) as filler:
        while filler.write(b"x" * 512):
            pass
    return 0


BEHAVIOURS: dict[str, Callable[[Record, Path], int]] = {
    function.__name__: function
    for function in (
        ok,
        makes_a_graph,
        proves,
        refuses,
        refuses_badly,
        no_result,
        malformed_result,
        not_json,
        lies_about_hash,
        names_file_outside,
        ok_but_exit_1,
        crash,
        killed,
        fills_disk,
    )
}


if __name__ == "__main__":
    sys.exit(main())
