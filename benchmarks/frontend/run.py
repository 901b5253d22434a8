# SPDX-License-Identifier: Apache-2.0
"""What the OpenAI API costs: one Triton asked by gRPC, by the frontend, by LiteLLM's proxy.

Usage: python benchmarks/frontend/run.py [--streams 1 32 128] [--rounds 5] [--seconds 4]
           [--ways direct frontend litellm]

The shipped speller on a real Triton has the first core; frontend, proxy and the load share the
others, and idle cores do not sleep. Within a round each way is measured once, in random order;
figures are medians over the rounds, ratios those of the same round. Answers take 100 ms and more.
Exit code 1 if a goal is missed: tokens/s 0.97 of the direct rate, TTFT P50 at most 2 ms above, CPU
per token 0.3 of the proxy's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "peers"), str(BENCHMARKS.parent)]

from bench import (  # noqa: E402
    EXAMPLE,
    MODEL,
    PROMPTS,
    SILENT,
    awake,
    heading,
    on_cores,
    read_lines,
    running,
    say,
    write_project,
)
from meter import MARKER  # noqa: E402
from servers import end, free_port  # noqa: E402
from tests.clients.frontend_process import frontend as frontend_process  # noqa: E402
from tritonctl import Project  # noqa: E402
from tritonctl.frontend.config import FrontendConfig  # noqa: E402
from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, environment_python  # noqa: E402
from tritonctl.runtimes.server_state import EmbeddedServer  # noqa: E402

HERE = Path(__file__).resolve().parent
LEAST_RATE, MOST_LATER_MS, MOST_CPU = 0.97, 2.0, 0.3
WARM_UP, PATIENCE_SECONDS, CASES = 1.0, 90.0, 256
MOST_STREAMS = 128
# Of LiteLLM's production guide: no logs of requests, one worker for each core that it has. Without
# a key it checks none, which is the fastest.
LITELLM = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}
Result = dict[str, float]


@dataclass(frozen=True)
class Way:
    """How the model is asked. marker: in the environment of the processes in between."""

    name: str
    protocol: str
    url: str
    marker: str = "none"
    fields: Mapping[str, Any] = field(default_factory=dict)


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement")
    parser.add_argument("--ways", nargs="+", choices=sorted(WAYS), default=sorted(WAYS))
    parser.add_argument("--folder", type=Path, help="where the engine is, or will be, built")
    arguments = parser.parse_args()
    every = os.sched_getaffinity(0)
    first = {min(every)}
    others = every - first or every
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = arguments.folder or Path(name)
        granted = stack.enter_context(awake())
        print(
            f"load average {os.getloadavg()[0]:.1f}; the server on {first}, the others on {others};"
        )
        print(f"idle cores {'do not' if granted else 'may'} sleep")
        project = write_project(folder, speller())
        state = stack.enter_context(running(project, first))
        with on_cores(others):
            ways = [
                stack.enter_context(WAYS[way](folder, project, state)) for way in arguments.ways
            ]
            results = measure(folder, ways, arguments)
    print(f"\nload average after: {os.getloadavg()[0]:.1f}")
    return 0 if table(ways, arguments.streams, results) else 1


def speller() -> dict[str, Any]:
    """The shipped checkpoint in int8, all streams at a time."""
    engine = {
        "builder": "openvino", "precision": "int8", "max_batch_size": MOST_STREAMS,
        "max_seq_len": 512,
    }  # fmt: skip
    return {MODEL: {"checkpoint": str(EXAMPLE / "checkpoint"), "engine": engine}}


@contextmanager
def direct(_: Path, __: Project, state: EmbeddedServer) -> Iterator[Way]:
    """The ensemble itself, by gRPC."""
    yield Way("direct", "grpc", state.grpc_url)


@contextmanager
def frontend(folder: Path, project: Project, state: EmbeddedServer) -> Iterator[Way]:
    """`tritonctl frontend` in a process of its own."""
    marker = f"frontend-{os.getpid()}"
    config = FrontendConfig.of(project, [state.grpc_url])
    with frontend_process(config, folder, **{MARKER: marker}) as url:
        chat = f"{url}/v1/chat/completions"
        yield Way("frontend", "http", chat, marker, {"ignore_eos": True})


@contextmanager
def litellm(folder: Path, _: Project, state: EmbeddedServer) -> Iterator[Way]:
    """LiteLLM's proxy with its Triton provider, which asks Triton's HTTP endpoint."""
    recipe = EnvironmentRecipe("frontend-litellm", (("-r", "litellm.txt"),), folder=HERE)
    python = environment_python(ensure_environment(recipe, SILENT))
    marker, port = f"litellm-{os.getpid()}", free_port()
    place = f"{state.http_url}/v2/models/{MODEL}/generate"
    params = {"model": f"triton/{MODEL}", "api_base": place, "api_key": "none"}
    settings = {
        "model_list": [{"model_name": MODEL, "litellm_params": params}],
        "litellm_settings": {"set_verbose": False, "request_timeout": 600, "telemetry": False},
        "general_settings": {"disable_spend_logs": True},
    }
    file, log = folder / "litellm.yaml", folder / "litellm.log"
    file.write_text(json.dumps(settings), encoding="utf-8")
    command = [str(python.parent / "litellm"), "--config", str(file), "--host", "127.0.0.1",
               "--port", str(port), "--num_workers", str(len(os.sched_getaffinity(0)))]  # fmt: skip
    with log.open("a") as out:
        process = subprocess.Popen(
            command, env=os.environ | LITELLM | {MARKER: marker}, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        wait(f"{url}/health/liveliness", process, log)
        yield Way("litellm", "http", f"{url}/v1/chat/completions", marker, {"end_id": -1})
    finally:
        end(process, marker)


WAYS = {"direct": direct, "frontend": frontend, "litellm": litellm}


def wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers; ends the benchmark with its log when it does not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5):  # noqa: S310
            return
        time.sleep(0.2)
    raise SystemExit(f"{url} does not answer; its log ends with:\n{log.read_text()[-3000:]}")


Results = dict[tuple[str, int], list[Result]]


def measure(folder: Path, ways: Sequence[Way], arguments: argparse.Namespace) -> Results:
    """All rounds."""
    results: Results = defaultdict(list)
    for number in range(arguments.rounds):
        for streams in arguments.streams:
            for way in random.sample(ways, len(ways)):
                result = measured(folder, way, streams, arguments, number)
                results[way.name, streams].append(result)
                sys.stderr.write(f"round {number + 1}, {way.name}, {streams}: {result}\n")
    return results


def measured(
    folder: Path, way: Way, streams: int, arguments: argparse.Namespace, seed: int
) -> Result:
    """One measurement, by a process of its own."""
    job = {
        "way": way.protocol, "url": way.url, "marker": way.marker, "fields": dict(way.fields),
        "model": MODEL, "tokens": longest(streams), "streams": streams, "warm_up": WARM_UP,
        "seconds": arguments.seconds, "seed": seed,
        "prompts": [line["text_input"] for line in read_lines(PROMPTS)[:CASES]],
    }  # fmt: skip
    file = folder / "job.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, HERE / "load.py", file],
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    result: Result = json.loads(done.stdout)
    if result["failed"]:
        raise SystemExit(f"{way.name}, {streams} streams: {result}")
    return result


def longest(streams: int) -> int:
    """Tokens of the longest answer: each takes 100 ms and more, and many end within a run."""
    return {1: 448, 2: 384}.get(streams, 256 if streams <= 32 else 96)


def table(ways: Sequence[Way], streams: Sequence[int], results: Results) -> bool:
    """Print a row for each way and load; whether all goals are kept."""
    columns = ("streams", "way", "tokens/s", "to directly", "TTFT P50 ms", "later", "TTFT P99 ms",
               "whole P50 ms", "CPU in between, us/token", "to LiteLLM's", "CPU of the load",
               "goals")  # fmt: skip
    heading("One Triton, directly, through the frontend, through LiteLLM's proxy", columns)
    good = True
    for count in streams:
        for way in ways:
            runs, plain = results[way.name, count], results.get(("direct", count))
            proxy = results.get(("litellm", count))
            rate = paired(runs, plain, lambda a, b: a["tokens"] / b["tokens"])
            later = paired(runs, plain, lambda a, b: a["ttft_p50"] - b["ttft_p50"])
            cpu = paired(runs, proxy, lambda a, b: a["cpu"] / b["cpu"])
            kept = (
                (not rate or rate[1] >= LEAST_RATE)
                and (not later or later[1] <= MOST_LATER_MS)
                and (not cpu or cpu[1] <= MOST_CPU)
            )
            judged = way.name == "frontend"
            good &= kept or not judged
            middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            say(
                count, way.name, f"{middle['tokens']:.0f}", shown(rate, "{:.3f}"),
                f"{middle['ttft_p50']:.2f}", shown(later, "{:+.2f}"), f"{middle['ttft_p99']:.1f}",
                f"{middle['whole_p50']:.0f}",
                "" if way.name == "direct" else f"{middle['cpu']:.1f}",
                shown(cpu, "{:.2f}") if judged else "", f"{middle['client_cpu']:.1f}",
                ("kept" if kept else "MISSED") if judged else "",
            )  # fmt: skip
    return good


def paired(runs: Sequence[Result], base: Sequence[Result] | None, of: Any) -> list[float]:
    """Lowest, median and highest over the rounds; nothing without a base, or of the base itself."""
    if base is None or base is runs or not all(run["requests"] for run in [*runs, *base]):
        return []  # one that begins no answer in time has no figure to compare with
    values = [of(a, b) for a, b in zip(runs, base, strict=True)]
    return [min(values), statistics.median(values), max(values)]


def shown(values: Sequence[float], form: str) -> str:
    """Median [lowest to highest]."""
    if not values:
        return ""
    low, middle, high = (form.format(value) for value in values)
    return f"{middle} [{low} to {high}]"


if __name__ == "__main__":
    sys.exit(main())
