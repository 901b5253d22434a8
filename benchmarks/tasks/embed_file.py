# SPDX-License-Identifier: Apache-2.0
"""Measures `tritonctl embed FILE --output OUT` beside plain concurrent clients of the same server.

Usage: python benchmarks/tasks/embed_file.py [CHECKPOINT] [--lines 4000] [--rounds 5]
           [--precision fp32] [--engines FOLDER] [--ways embed,...] [--serving JSON]

CHECKPOINT: a folder of sentence-transformers; --engines: where to keep what is built of it. Without
one a model answers that computes nothing, with 384 numbers: what is left is a client's own cost.
Texts have 8 to 256 words, most of them few. In each round all ways have their turn, in a random
order, so that other work of the machine is the same for all of them:

    in file order   a client of tritonclient's: full requests of texts as they come, the same number
                    in flight; vectors are read and dropped
    sorted          the same with all texts sorted by length first, as a library would that has the
                    whole file in memory
    in process      no server: tokenizer and ONNX Runtime in one process that has all texts, sorted,
                    at its best batch; vectors are dropped (with a CHECKPOINT)
    embed           the command: it reads the file, sorts within its window, writes JSON lines, and
                    makes sure of them

--ways: some of them, "in process", embed, ... Prints a table of lines per second and CPU seconds
for 1,000 lines, without the start of a process, and the ratios to the first way in each round. The
last column is the ratio of rates on cores with nothing else to do, out of the CPU seconds of client
and server together: other work of the machine moves it little. Exit code 1 if `embed` with a
CHECKPOINT has less than 0.95 there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tritonclient.grpc as triton

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "peers"), str(BENCHMARKS.parent)]

from bench import SILENT, heading, running, say, wait_for, write_project  # noqa: E402
from meter import MARKER, cpu_seconds  # noqa: E402
from servers import SETTINGS, python_of  # noqa: E402
from tests.server.plain_triton import PlainTriton  # noqa: E402
from tests.unit.checks.repositories import put  # noqa: E402
from tritonctl import build_engine  # noqa: E402

MODEL, ROWS, IN_FLIGHT = "encoder", 32, 4
LEAST_RATIO = 0.95
IN_ORDER, SORTED, EMBED, PACKED = "in file order", "sorted", "embed", "embed base64"
IN_PROCESS = "in process"
WAYS = (IN_ORDER, SORTED, IN_PROCESS, EMBED, PACKED)
CONFIG = """\
backend: "python"
max_batch_size: 32
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "embedding" data_type: TYPE_FP32 dims: [ 384 ] },
  { name: "num_input_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "truncated" data_type: TYPE_BOOL dims: [ 1 ] }
]
"""
CODE = """\
import numpy as np
import triton_python_backend_utils as pb_utils

VECTOR = np.random.default_rng(1).normal(size=384).astype(np.float32)


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        rows = len(pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy())
        return pb_utils.InferenceResponse([
            pb_utils.Tensor("embedding", np.tile(VECTOR, (rows, 1))),
            pb_utils.Tensor("num_input_tokens", np.ones((rows, 1), np.int32)),
            pb_utils.Tensor("truncated", np.zeros((rows, 1), bool)),
        ])
"""
WORDS = re.findall(r"\w+", __doc__ or "")


@dataclass(frozen=True)
class Took:
    """One way's turn: seconds, and CPU seconds of the client and of the server."""

    seconds: float
    client: float
    server: float


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--lines", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--engines", type=Path)
    parser.add_argument("--ways", default=",".join(WAYS), help="the first is what others are to")
    parser.add_argument("--serving", type=json.loads, default={}, help="JSON, of the model")
    parser.add_argument("--go", type=Path, help="wait for this file before measuring")
    asked = parser.parse_args()
    texts = sample(asked.lines)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "texts.txt"
        file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        os.environ[MARKER] = name
        with served(folder, asked) as url:
            del os.environ[MARKER]
            took = measured(url, texts, file, asked, name)
    return told(took, asked)


@contextmanager
def served(folder: Path, asked: argparse.Namespace) -> Iterator[str]:
    """The address of a server with the model."""
    if asked.checkpoint is None:
        put(folder / "models", {f"{MODEL}/config.pbtxt": CONFIG, f"{MODEL}/1/model.py": CODE})
        server = PlainTriton(folder / "models", folder / "log")
        try:
            yield server.ready(SimpleNamespace()).url  # type: ignore[arg-type]
        finally:
            server.stop()
        return
    engine = {"builder": "onnxruntime", "precision": asked.precision, "max_batch_size": ROWS}
    checkpoint = str(asked.checkpoint.resolve())
    models = {
        MODEL: {
            "task": "embedding", "checkpoint": checkpoint, "engine": engine,
            "serving": asked.serving,
        }
    }  # fmt: skip
    kept = {"engines": str(asked.engines.resolve())} if asked.engines else {}
    project = write_project(folder, models, **kept)
    built = build_engine(project, MODEL, SILENT)
    settings = {
        "graph": str(built.folder / "engine" / "model.onnx"),
        "tokenizer": str(built.folder / "tokenizer" / "tokenizer.json"),
        "longest": built.manifest.result.limits.max_seq_len,
        "threads": 0,
    }
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    with running(project) as state:
        yield state.grpc_url


def sample(count: int) -> list[str]:
    """Texts whose lengths are spread as those of documents are: by their logarithm."""
    source = random.Random(1)
    lengths = (int(2 ** source.uniform(3, 8)) for _ in range(count))
    return [" ".join(source.choices(WORDS, k=length)) for length in lengths]


def measured(
    url: str, texts: Sequence[str], file: Path, asked: argparse.Namespace, marker: str
) -> dict[str, list[Took]]:
    """What each way took, by round; the server has been asked before."""
    by_length = sorted(texts, key=len, reverse=True)
    empty = file.with_name("empty.txt")
    empty.touch()
    start = statistics.median(command(url, empty)[1] for _ in range(5))
    ways = {
        IN_ORDER: lambda: plain(url, texts),
        SORTED: lambda: plain(url, by_length),
        IN_PROCESS: lambda: in_process(file),
        EMBED: lambda: command(url, file),
        PACKED: lambda: command(url, file, "--encoding", "base64"),
    }
    chosen = [way for way in asked.ways.split(",") if asked.checkpoint or way != IN_PROCESS]
    plain(url, texts[: ROWS * 8])
    wait_for(asked.go)
    took: dict[str, list[Took]] = {way: [] for way in chosen}
    for _ in range(asked.rounds):
        for way in random.sample(chosen, len(chosen)):
            before = cpu_seconds(marker)
            seconds, client = ways[way]()
            client -= start if way in {EMBED, PACKED} else 0.0
            took[way].append(Took(seconds, client, cpu_seconds(marker) - before))
            print(f"  {way}: {took[way][-1]}", file=sys.stderr, flush=True)
    return took


def in_process(file: Path) -> tuple[float, float]:
    """Seconds and CPU seconds of the tokenizer and ONNX Runtime alone."""
    program = [python_of("engine"), Path(__file__).with_name("alone.py"), "onnxruntime", "file"]
    variables = os.environ | {SETTINGS: str(file.with_name("settings.json"))}
    variables["PYTHONPATH"] = str(BENCHMARKS / "peers")
    done = subprocess.run([*program, file], check=True, stdout=subprocess.PIPE, env=variables)
    found = json.loads(done.stdout)
    return found["seconds"], found["cpu"]


def plain(url: str, texts: Sequence[str]) -> tuple[float, float]:
    """Seconds and CPU seconds that a client of tritonclient's takes."""
    groups = [texts[at : at + ROWS] for at in range(0, len(texts), ROWS)]
    with triton.InferenceServerClient(url) as client, ThreadPoolExecutor(IN_FLIGHT) as pool:
        began, cpu = time.monotonic(), time.process_time()
        running: set[Future[None]] = set()
        for group in groups:
            if len(running) == IN_FLIGHT:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    one.result()
            running.add(pool.submit(ask, client, group))
        for one in running:
            one.result()
        return time.monotonic() - began, time.process_time() - cpu


def ask(client: triton.InferenceServerClient, texts: Sequence[str]) -> None:
    """One request; its vectors are read."""
    tensor = triton.InferInput("text_input", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=object))
    answer = client.infer(MODEL, [tensor]).as_numpy("embedding")
    if answer is None or len(answer) != len(texts):
        raise SystemExit("the model does not answer each text")


def command(url: str, file: Path, *options: str) -> tuple[float, float]:
    """Seconds that `tritonctl embed` says it took, and its CPU seconds with its start."""
    output = file.with_name("out.jsonl")
    words = ["embed", MODEL, str(file), "--output", str(output), "--force", "--json", "--quiet"]
    program = [sys.executable, "-m", "tritonctl", *words, "--url", url, *options]
    program += ["--in-flight", str(IN_FLIGHT)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(program, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(json.loads(done.stdout)["duration_seconds"]), cpu


def told(took: dict[str, list[Took]], asked: argparse.Namespace) -> int:
    """The table; whether the goal is met."""
    load = os.getloadavg()[0]
    what = f"{asked.checkpoint.name} in {asked.precision}" if asked.checkpoint else "no computing"
    heading(
        f"{asked.lines} lines, {what}, {asked.rounds} rounds, load {load:.1f}",
        (
            "way",
            "lines/s, median",
            "to the first [least, most]",
            "client's CPU s for 1,000",
            "server's",
            "to the first, by CPU",
        ),
    )
    met = True
    base = next(iter(took.values()))
    whole = mean(base, "client") + mean(base, "server")
    for way, some in took.items():
        rates = [other.seconds / mine.seconds for mine, other in zip(some, base, strict=True)]
        client, server = (mean(some, name) for name in ("client", "server"))
        ratio = whole / (server + client)
        met &= way != EMBED or asked.checkpoint is None or ratio >= LEAST_RATIO
        rate = asked.lines / statistics.median(one.seconds for one in some)
        spread = f"{statistics.median(rates):.2f} [{min(rates):.2f}, {max(rates):.2f}]"
        per = 1000 / asked.lines
        say(
            way, f"{rate:.1f}", spread, f"{client * per:.3f}", f"{server * per:.2f}", f"{ratio:.3f}"
        )
    return int(not met)


def mean(some: Sequence[Took], field: str) -> float:
    """Of all rounds."""
    return statistics.mean(getattr(one, field) for one in some)


if __name__ == "__main__":
    sys.exit(main())
