# SPDX-License-Identifier: Apache-2.0
"""The OpenVINO engine through gRPC against the same engine called in-process, paired in one run.

Usage: python benchmarks/streaming/real_engine.py [--seconds 10] [--repetitions 3]
       [--concurrency 1 8 32] [--checkpoint FOLDER]
The checkpoint is a Llama of 100 M random weights unless one is given; int8 either way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from tritonctl.console.voice import Console
from tritonctl.engines.build.catalog import builder_named
from tritonctl.engines.build.engine import Artefact, build_engine
from tritonctl.engines.build.runners import venv_python
from tritonctl.host.environments import ensure, environment_python
from tritonctl.project.file import load_project
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.server_environment import server_recipe

from measure import Load
from prompts import prompts_of, train_tokenizer, write_input
from server import say, started

HERE = Path(__file__).resolve().parent
TOKENS = 128
MAX_SEQ_LEN = 512
EXTRA: dict[str, list[Any]] = {"max_tokens": [TOKENS], "stream": [True]}
PROMPT_TOKENS = 64
PROMPTS = 512  # none is sent twice while the prefix cache remembers it
PROJECT = """
schema: tritonctl/v1
models:
  real:
    checkpoint: {checkpoint}
    engine: {{builder: openvino, precision: int8, max_batch_size: 32, max_seq_len: {longest}}}
server: {{grpc_port: 0, http_port: 0, metrics_port: 0}}
"""


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
    """Both ways in turn."""
    console = Console()
    tokenizer = train_tokenizer(folder / "tokenizer")
    checkpoint = arguments.checkpoint or random_checkpoint(folder, console)
    text = PROJECT.format(checkpoint=checkpoint.resolve(), longest=MAX_SEQ_LEN)
    (folder / "tritonctl.yaml").write_text(text, encoding="utf-8")
    project = load_project(folder)
    artefact = build_engine(project, "real", console)
    prompts = deque(prompts_of(tokenizer, PROMPT_TOKENS, PROMPTS))
    python = environment_python(ensure(server_recipe(plan_repository(project).backends), console))
    settings = engine_settings(artefact)
    say("streams", "in-process tokens/s", "gRPC tokens/s", "gRPC to in-process")
    say(*["---"] * 4)
    with started(project, folder, console) as analyzer:
        for concurrency in arguments.concurrency:
            pairs = []
            for repetition in range(arguments.repetitions):
                asked = {"concurrency": concurrency, "seconds": arguments.seconds}
                asked |= {"prompts": list(prompts)}
                alone, requests = in_process(python, settings | asked, folder)
                data = write_input(folder / "input.json", "text_input", list(prompts), EXTRA)
                load = Load("real", data, concurrency, TOKENS, requests=requests)
                pairs.append((alone, analyzer.run(load, folder).tokens))
                prompts.rotate(-requests)
                sys.stderr.write(f"{concurrency} streams, run {repetition + 1}: {pairs[-1]}\n")
            report(concurrency, pairs)


def report(concurrency: int, pairs: list[tuple[float, float]]) -> None:
    """A row: medians, and the paired ratios as median [lowest to highest]."""
    ratios = [served / alone for alone, served in pairs]
    medians = [f"{statistics.median(column):.0f}" for column in zip(*pairs, strict=True)]
    spread = f"[{min(ratios):.2f} to {max(ratios):.2f}]"
    say(concurrency, *medians, f"{statistics.median(ratios):.2f} {spread}")


def random_checkpoint(folder: Path, console: Console) -> Path:
    """What random_llama.py writes."""
    python = venv_python(builder_named("openvino"), console)
    checkpoint = folder / "checkpoint"
    command = [str(python), str(HERE / "random_llama.py"), str(folder / "tokenizer")]
    subprocess.run([*command, str(checkpoint)], check=True)
    return checkpoint


def engine_settings(artefact: Artefact) -> dict[str, Any]:
    """What the rendered engine gets, for in_process.py."""
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
    """Tokens per second without a server, and of how many requests."""
    file = folder / "in_process.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    command = [str(python), str(HERE / "in_process.py"), str(file)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return answer["tokens_per_second"], answer["requests"]


if __name__ == "__main__":
    main()
