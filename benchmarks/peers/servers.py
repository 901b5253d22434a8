# SPDX-License-Identifier: Apache-2.0
"""The servers that are compared, each started alone and stopped again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import CHECKOUT, MODEL, SILENT, running, speller, write_project
from engine import INTERVAL
from meter import MARKER, processes
from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, environment_python

HERE = Path(__file__).resolve().parent
SETTINGS = "PEERS_SETTINGS"
START_SECONDS, STOP_SECONDS = 120, 15
MOST_ROWS = 32


@dataclass(frozen=True)
class Subject:
    """What is served: text or embeddings, and one request that every server must answer."""

    name: str
    folder: Path
    models: Mapping[str, Any]
    path: str
    probe: Mapping[str, Any]

    @property
    def settings(self) -> Path:
        """The file that tells a peer what to load."""
        return self.folder / "settings.json"


@dataclass(frozen=True)
class Up:
    """A server that answers. marker: in the environment of its processes.

    program: the command that is load and engine in one, without a server; a job's file follows.
    """

    protocol: str
    url: str
    marker: str
    program: tuple[str | Path, ...] = ()


Serving = Callable[[Subject, str], AbstractContextManager[Up]]


def python_of(name: str) -> Path:
    """The interpreter of a pinned environment, made on first use."""
    recipe = EnvironmentRecipe(f"peers-{name}", (("-r", f"{name}.txt"),), folder=HERE)
    return environment_python(ensure_environment(recipe, SILENT))


def environment(subject: Subject, marker: str) -> dict[str, str]:
    """What a peer's process sees: its settings, its marker, no proxy, no calls home."""
    return os.environ | {
        SETTINGS: str(subject.settings),
        MARKER: marker,
        "BENTOML_DO_NOT_TRACK": "True",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": f"{HERE}{os.pathsep}{CHECKOUT}",
    }


@contextmanager
def tritonctl(subject: Subject, marker: str, **serving: Any) -> Iterator[Up]:
    """Ours: what `tritonctl up` starts, with these fields of `serving`."""
    models = {name: {**model, "serving": serving} for name, model in subject.models.items()}
    os.environ[MARKER] = marker
    try:
        with running(write_project(subject.folder, models)) as state:
            yield Up("grpc", state.grpc_url, marker)
    finally:
        del os.environ[MARKER]


def fused(subject: Subject, marker: str) -> AbstractContextManager[Up]:
    """Ours as one model, without an ensemble."""
    return tritonctl(subject, marker, fused=True)


def fused_single(subject: Subject, marker: str) -> AbstractContextManager[Up]:
    """The same, each token in a response of its own."""
    return tritonctl(subject, marker, fused=True, stream_interval_ms=0)


def inline(subject: Subject, marker: str) -> AbstractContextManager[Up]:
    """Ours, the text made in the engine's step."""
    return tritonctl(subject, marker, inline_detokenizer=True)


def bentoml(subject: Subject, marker: str) -> AbstractContextManager[Up]:
    """`bentoml serve`."""
    service = "Text" if subject.name == "text" else "Embeddings"
    command = ["-m", "bentoml", "serve", f"bentoml_service:{service}", "--host", "127.0.0.1"]
    return peer(subject, marker, "bentoml", [*command, "--port"])


@contextmanager
def bentoml_gathered(subject: Subject, marker: str) -> Iterator[Up]:
    """The same, with pieces gathered as ours are: first at once, then every 10 ms."""
    os.environ[INTERVAL] = "0.010"
    try:
        with bentoml(subject, marker) as up:
            yield up
    finally:
        del os.environ[INTERVAL]


def litserve(subject: Subject, marker: str) -> AbstractContextManager[Up]:
    """A program that runs LitServer."""
    return peer(subject, marker, "litserve", ["litserve_server.py", subject.name])


def ray(subject: Subject, marker: str) -> AbstractContextManager[Up]:
    """A program that runs a Ray cluster of one node, and Serve on it."""
    return peer(subject, marker, "ray", ["ray_serve_app.py"])


@contextmanager
def peer(
    subject: Subject,
    marker: str,
    name: str,
    command: list[str],
    *,
    folder: Path = HERE,
    protocol: str = "http",
) -> Iterator[Up]:
    """A peer's program, its port as the last argument, once it answers.

    name: of its environment. folder: of its program.
    """
    port = free_port()
    log = subject.folder / f"{name}.log"
    with log.open("a") as out:
        process = subprocess.Popen(
            [str(python_of(name)), *command, str(port)],
            cwd=folder, env=environment(subject, marker), stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}{subject.path}"
        wait_for_answer(process, url, subject.probe, log)
        yield Up(protocol, url, marker)
    finally:
        end(process, marker)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_answer(
    process: subprocess.Popen[bytes], url: str, probe: Mapping[str, Any], log: Path
) -> None:
    """Ask until it answers; ends the benchmark with its log when it does not."""
    body, deadline = json.dumps(probe).encode(), time.monotonic() + START_SECONDS
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError, urllib.error.URLError), urllib.request.urlopen(request, timeout=5):
            return
        time.sleep(0.1)
    raise SystemExit(f"{url} does not answer; its log ends with:\n{log.read_text()[-3000:]}")


def end(process: subprocess.Popen[bytes], marker: str) -> None:
    """Ask to stop, then kill whatever has the marker of this start."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    for pid in processes(marker):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@contextmanager
def in_process(subject: Subject, marker: str) -> Iterator[Up]:
    """No server: in_process.py is load and engine."""
    program = (python_of("engine"), HERE / "in_process.py", subject.name, "load")
    yield Up("none", "", marker, program)


SERVERS: dict[str, Serving] = {
    "tritonctl": tritonctl,
    "inline": inline,
    "fused": fused,
    "fused_single": fused_single,
    "bentoml": bentoml,
    "bentoml_gathered": bentoml_gathered,
    "litserve": litserve,
    "ray": ray,
    "in_process": in_process,
}


def text_subject(folder: Path) -> Subject:
    """The shipped speller in int8."""
    probe = {"prompt": "7 in English:", "max_tokens": 4}
    return Subject("text", folder, speller(), "/generate", probe)


def encoder_subject(folder: Path, checkpoint: Path) -> Subject:
    """A sentence encoder as an ONNX graph in fp32."""
    engine = {
        "builder": "onnxruntime", "precision": "fp32", "max_batch_size": MOST_ROWS,
        "options": {"pooling": "mean"},
    }  # fmt: skip
    model = {"task": "tensors", "checkpoint": str(checkpoint), "engine": engine}
    return Subject("encoder", folder, {MODEL: model}, "/encode", {"rows": [[101, 2023, 102]]})
