# SPDX-License-Identifier: Apache-2.0
"""Compares the OpenVINO engine through gRPC with the same engine called in-process, in pairs.

Usage: python benchmarks/streaming/real_engine.py [--seconds 10] [--repetitions 3]
       [--concurrency 1 8 32] [--checkpoint FOLDER]
The checkpoint is a Llama of 100 M random weights unless one is given; int8 either way. The client
computes on the server's cores: its part of them is what the ratio would gain on another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from bench import SILENT, heading, say, write_project  # noqa: E402
from measure import Load  # noqa: E402
from prompts import prompts_of, train_tokenizer, write_input  # noqa: E402
from server import started  # noqa: E402
from tritonctl import build_engine  # noqa: E402
from tritonctl.engines.builds.catalog import builder_named  # noqa: E402
from tritonctl.engines.builds.engine import Artefact  # noqa: E402
from tritonctl.engines.builds.runners import venv_python  # noqa: E402
from tritonctl.host.environments import ensure_environment, environment_python  # noqa: E402
from tritonctl.repository.plan import plan_repository  # noqa: E402
from tritonctl.repository.server_environment import server_recipe  # noqa: E402

TOKENS = 128
MAX_SEQ_LEN = 512
EXTRA: dict[str, list[Any]] = {"max_tokens": [TOKENS], "stream": [True]}
PROMPT_TOKENS = 64
PROMPTS = 512  # so many that the prefix cache has forgotten one before it comes again
ENGINE = {
    "builder": "openvino", "precision": "int8", "max_batch_size": 32, "max_seq_len": MAX_SEQ_LEN,
}  # fmt: skip


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one measurement")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--checkpoint", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), arguments)


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    """Measure both in turn."""
    tokenizer = train_tokenizer(folder / "tokenizer")
    checkpoint = arguments.checkpoint or random_checkpoint(folder)
    model = {"checkpoint": str(checkpoint.resolve()), "engine": ENGINE}
    project = write_project(folder, {"real": model})
    artefact = build_engine(project, "real", SILENT)
    prompts = deque(prompts_of(tokenizer, PROMPT_TOKENS, PROMPTS))
    python = environment_python(
        ensure_environment(server_recipe(plan_repository(project).programs), SILENT)
    )
    settings = engine_settings(artefact)
    columns = "streams", "in-process tokens/s", "gRPC tokens/s", "gRPC to in-process", "the client"
    heading("One engine in-process and through gRPC", columns)
    with started(project, folder) as analyzer:
        for concurrency in arguments.concurrency:
            pairs, parts = [], []
            for repetition in range(arguments.repetitions):
                asked = {"concurrency": concurrency, "seconds": arguments.seconds}
                asked |= {"prompts": list(prompts)}
                alone, requests = in_process(python, settings | asked, folder)
                data = write_input(folder / "input.json", "text_input", list(prompts), EXTRA)
                load = Load("real", data, concurrency, TOKENS, requests=requests)
                before = _children_seconds()
                pairs.append((alone, analyzer.run(load, folder).tokens))
                seconds = requests * TOKENS / pairs[-1][1]
                parts.append((_children_seconds() - before) / seconds / (os.cpu_count() or 1))
                prompts.rotate(-requests)
                sys.stderr.write(f"{concurrency} streams, run {repetition + 1}: {pairs[-1]}\n")
            report(concurrency, pairs, statistics.median(parts))


def _children_seconds() -> float:
    """CPU time of the programs that this one has run to their end."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(concurrency: int, pairs: list[tuple[float, float]], client: float) -> None:
    """A row: medians, the paired ratios as median [lowest to highest], the client's part of the
    machine's cores."""
    ratios = [served / alone for alone, served in pairs]
    medians = [f"{statistics.median(column):.0f}" for column in zip(*pairs, strict=True)]
    spread = f"[{min(ratios):.2f} to {max(ratios):.2f}]"
    ratio = f"{statistics.median(ratios):.2f} {spread}"
    say(concurrency, *medians, ratio, f"{client:.0%} of all cores")


def random_checkpoint(folder: Path) -> Path:
    """The folder of a Llama with random weights."""
    python = venv_python(builder_named("openvino"), SILENT)
    checkpoint = folder / "checkpoint"
    command = [str(python), str(HERE / "random_llama.py"), str(folder / "tokenizer")]
    subprocess.run([*command, str(checkpoint)], check=True)
    return checkpoint


def engine_settings(artefact: Artefact) -> dict[str, Any]:
    """The rendered engine's settings, for in_process.py."""
    result = artefact.manifest.result
    blocks = -(-MAX_SEQ_LEN // int(str(result.runtime["block_size"])))
    return {
        "engine": str(artefact.folder / "engine"),
        "tokenizer": str(artefact.folder / "tokenizer" / "tokenizer.json"),
        "properties": result.runtime["properties"],
        "scheduler": {
            "num_kv_blocks": result.limits.max_batch_size * blocks,
            "max_num_seqs": result.limits.max_batch_size,
            "max_num_batched_tokens": result.limits.max_num_tokens,
            "enable_prefix_caching": True,
            "dynamic_split_fuse": True,
        },
        "tokens": TOKENS,
    }


def in_process(python: Path, settings: dict[str, Any], folder: Path) -> tuple[float, int]:
    """Tokens per second without a server, and the number of requests."""
    file = folder / "in_process.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    command = [str(python), str(HERE / "in_process.py"), str(file)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return answer["tokens_per_second"], answer["requests"]


if __name__ == "__main__":
    main()
