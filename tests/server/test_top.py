# SPDX-License-Identifier: Apache-2.0
"""`tritonctl top` of a real server: what clients counted is what it shows; a server that dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import write_project
from tests.json_page import as_documented
from tests.server.test_lifecycle import up
from tests.servers import Handle, wait_until
from tritonctl.errors import RequestRejectedError
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.protocol.metrics import scrape
from tritonctl.runtimes.server_state import Server
from tritonctl.top.counters import Reading
from tritonctl.top.figures import ServerLoad, WindowFigures, figures
from tritonctl.top.layout import layout_of

pytestmark = pytest.mark.server

Cli = Callable[..., subprocess.CompletedProcess[str]]
PROMPT = "777777 in English:"
THREADS, STREAMS, TOKENS = 4, 5, 12
REFUSED = 3
PUBLISHED_SECONDS = 60  # engines publish every tenth of a second, if they get a core


def ask(url: str, lengths: list[int]) -> None:
    """Streams of a known length."""
    sampling = SamplingParameters(max_tokens=TOKENS, end_id=-1)
    with TritonClient(url) as client:
        for _ in range(STREAMS):
            lengths.append(client.generate("int8", PROMPT, sampling).num_output_tokens)  # noqa: PERF401


def under_load(state: Server, project: Project) -> WindowFigures:
    """The figures of a window with a known number of requests."""
    before = at_rest(state, project)
    lengths: list[int] = []
    threads = [threading.Thread(target=ask, args=(state.grpc_url, lengths)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with TritonClient(state.grpc_url) as client:
        for _ in range(REFUSED):
            with pytest.raises(RequestRejectedError):
                client.generate("int8", "")
    assert lengths == [TOKENS] * THREADS * STREAMS
    deadline = time.monotonic() + PUBLISHED_SECONDS
    while True:
        after = Reading.of(scrape(state.metrics_url), time.monotonic())
        found = figures([before, after], layout_of(project.repository))
        if all_is_published(found) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def at_rest(state: Server, project: Project) -> Reading:
    """A reading after which nothing is told of the request that `up` sends when all is loaded."""
    deadline = time.monotonic() + PUBLISHED_SECONDS
    before = Reading.of(scrape(state.metrics_url), time.monotonic())
    while time.monotonic() < deadline:
        time.sleep(1)
        after = Reading.of(scrape(state.metrics_url), time.monotonic())
        (model,) = figures([before, after], layout_of(project.repository)).models
        if (model.requests_per_s, model.tokens_per_s, model.active_streams) == (0, 0, 0):
            return after
        before = after
    pytest.fail("the figures of a server that nobody asks do not come to rest")


def all_is_published(found: WindowFigures) -> bool:
    """The last token of the last stream, the end of that stream, every refusal with its reason."""
    (model,) = found.models
    requests, tokens = model.requests_per_s * found.interval_seconds, (model.tokens_per_s or 0)
    return (
        round(requests) >= THREADS * STREAMS
        and round(tokens * found.interval_seconds) >= THREADS * STREAMS * TOKENS
        and model.failures.get("invalid", 0) >= REFUSED
        and (model.active_streams, model.kv_used) == (0, 0)
    )


def test_what_clients_counted(life: Handle) -> None:
    """Requests, failures once each, tokens and times to first token, to the last one."""
    project, state = life.project, life.state
    found = under_load(state, project)
    (model,) = found.models
    requests = THREADS * STREAMS
    assert model.model == "int8"
    assert [s.model for s in model.steps] == ["int8_tokenizer", "int8_engine", "int8_detokenizer"]
    assert model.requests_per_s * found.interval_seconds == pytest.approx(requests)
    assert model.failures == {"invalid": REFUSED}
    assert {step.silent for step in model.steps} == {0}
    assert (model.tokens_per_s or 0) * found.interval_seconds == pytest.approx(requests * TOKENS)
    assert model.ttft is not None
    assert model.itl is not None
    assert model.ttft.n == requests
    assert requests < model.itl.n <= requests * (TOKENS - 1)  # tokens may share a response
    assert model.ttft.p50_ms <= model.ttft.p99_ms
    assert (model.active_streams, model.kv_used) == (0, 0)
    assert {step.instances for step in model.steps} == {1}
    assert [step.batch_factor is not None for step in model.steps] == [True] * 3


def test_the_machine_as_triton_sees_it(life: Handle) -> None:
    """Once Triton has looked: two seconds after its start."""
    project, state = life.project, life.state

    def server() -> ServerLoad:
        readings = [Reading.of(scrape(state.metrics_url), time.monotonic()) for _ in range(2)]
        return figures(readings, layout_of(project.repository)).server

    wait_until(lambda: server().host_memory_total_bytes is not None, "Triton has looked")
    found = server()
    assert found.host_cpu is not None
    assert found.host_cpu <= 1
    assert 0 < (found.host_memory_used_bytes or 0) < (found.host_memory_total_bytes or 0)


def test_once_for_people_and_for_scripts(cli: Cli, life: Handle) -> None:
    """Of the project's server, and of the same as if it were a stranger's."""
    project, state = life.project, life.state
    text = cli("top", "--once", "--interval", "0.5", cwd=project.root)
    assert text.returncode == 0, text.stderr
    assert [line.split()[0] for line in text.stdout.splitlines()[3:7]] == [
        "int8",
        "tokenizer",
        "engine",
        "detokenizer",
    ]
    done = cli("top", "--once", "--interval", "0.5", "--json", cwd=project.root)
    record = as_documented("top", done.stdout)
    assert record["server"]["rss_bytes"] > 2**26
    address = state.metrics_url.removeprefix("http://").removesuffix("/metrics")
    done = cli(
        "top", "--once", "--interval", "0.5", "--json", "--metrics-url", address, cwd=project.state
    )
    assert [m["model"] for m in json.loads(done.stdout)["models"]] == ["int8"]
    done = cli(
        "top",
        "--once",
        "--interval",
        "0.5",
        "--json",
        "--metrics-url",
        address,
        cwd=project.root.parent,
    )
    names = [m["model"] for m in json.loads(done.stdout)["models"]]
    assert names == ["int8", "int8_detokenizer", "int8_engine", "int8_tokenizer"]
    assert cli("top", "--once", "--metrics-url", state.grpc_url, cwd=project.root).returncode == 7


def records(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """As they come."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def test_a_server_that_is_killed_and_started_again(cli: Cli, life: Handle) -> None:
    """On other ports: shown as gone, then as there again; Ctrl-C ends it with 0."""
    project, state = life.project, life.state
    top = subprocess.Popen(
        [sys.executable, "-m", "tritonctl", "top", "--json", "--interval", "0.3"],
        cwd=project.root,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        seen = records(top)
        assert next(seen)["problem"] is None
        life.kill()
        gone = next(record for record in seen if record["problem"])
        assert "models" not in gone
        life.wait_until_gone()
        again = up(cli, project)
        back = next(record for record in seen if not record["problem"])
        assert back["url"] == again.metrics_url != state.metrics_url
        assert back["models"][0]["model"] == "int8"
    finally:
        top.send_signal(signal.SIGINT)
        top.communicate(timeout=60)
    assert top.returncode == 0


def test_nothing_runs(cli: Cli, tmp_path: Path) -> None:
    """Exit code 7 and the command that starts it."""
    write_project(tmp_path, {"int8": "int8"})
    done = cli("top", cwd=tmp_path)
    assert done.returncode == 7
    assert "tritonctl up" in done.stderr
