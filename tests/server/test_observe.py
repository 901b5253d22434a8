# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes a real Triton under traffic: rules and every panel of the dashboard."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.prometheus_server import Prometheus, installed, prometheus
from tests.servers import Handle
from tritonctl.errors import TritonctlError
from tritonctl.monitoring.dashboard import dashboard
from tritonctl.monitoring.files import observability_files
from tritonctl.monitoring.rules import alert_groups
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.runtimes.server_state import Server

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        not installed(), reason="NO PROMETHEUS: apt-get install prometheus; no panel was queried"
    ),
]

MODEL = "int8"
OF = f'{{public_model="{MODEL}"}}'
PATIENCE = 120.0
ANSWERED, REFUSED, CANCELLED = 12, 4, 4
STEP_SECONDS = 0.01  # slow enough that a client goes away before its answer is complete
FAILURES = f'sum(nv_inference_request_failure{{public_model="{MODEL}",step="ensemble"}})'


@dataclass(frozen=True)
class Watched:
    """A server and the Prometheus that looks at it; what the two had before the traffic."""

    handle: Handle
    state: Server
    prometheus: Prometheus
    failures: float
    proofs: int

    @property
    def answered(self) -> int:
        """Requests since, those that prove the server alive among them."""
        return ANSWERED + self.handle.proofs - self.proofs


@dataclass
class Looking:
    """The Prometheus of the module; another one where the server had to be started anew."""

    folder: Path
    stack: ExitStack
    watched: Watched | None = None

    def at(self, handle: Handle) -> Watched:
        """Known traffic since it looks."""
        if self.watched is None or self.watched.state != handle.state:
            self.stack.close()
            files = observability_files(
                handle.project, targets=[urlsplit(handle.state.metrics_url).netloc]
            )
            folder = self.folder / handle.state.shm_prefix
            folder.mkdir()
            server = self.stack.enter_context(prometheus(folder, files))
            until(lambda: server.query(f"nv_inference_request_success{OF}"), "a first scrape")
            failures = server.value(FAILURES) if server.query(FAILURES) else 0.0
            self.watched = Watched(handle, handle.state, server, failures, handle.proofs)
            traffic(handle.state)
        return self.watched


@pytest.fixture(scope="module")
def looking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Looking]:
    """Nobody is looked at yet."""
    with ExitStack() as stack:
        yield Looking(tmp_path_factory.mktemp("prometheus"), stack)


@pytest.fixture
def watched(request: pytest.FixtureRequest, life_handle: Handle, looking: Looking) -> Watched:
    """The int8 speller with a slow step and every kind of promise."""
    life_handle.ready(request.node, STEP_SECONDS)
    return looking.at(life_handle)


def traffic(state: Server) -> None:
    """Answers, refusals and clients that go away."""
    with TritonClient(state.grpc_url) as client:
        for _ in range(ANSWERED):
            client.generate(MODEL, "515 in English:", SamplingParameters(max_tokens=16))
        for _ in range(REFUSED):
            with pytest.raises(TritonctlError):
                client.generate(MODEL, "x", SamplingParameters(max_tokens=-1))
        for _ in range(CANCELLED):
            long = SamplingParameters(max_tokens=450, end_id=-1)
            for _ in client.stream(MODEL, "515 in English:", long):
                break


def until(condition: Callable[[], Any], what: str) -> Any:
    """What a condition gives once it gives something."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.5)
    return found


def close_to(prometheus: Prometheus, expression: str, value: float, tolerance: float) -> bool:
    """Whether the only series has about that value by now."""
    found = prometheus.query(expression)
    return len(found) == 1 and abs(float(found[0]["value"][1]) - value) <= tolerance


def panels() -> Iterator[tuple[str, str, str]]:
    """Row, title and query of every panel."""
    row = ""
    for panel in dashboard()["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            continue
        for target in panel["targets"]:
            expression = re.sub(r"\$(model|instance)\b", ".*", target["expr"])
            assert "$" not in expression
            yield row, panel["title"], expression


def test_every_panel_has_data(watched: Watched) -> None:
    """Each query is understood and answered with numbers; the GPU's and the cache's are only
    understood.
    """
    asked = list(panels())
    assert len(asked) > 30
    for row, title, expression in asked:
        if row == "GPU" or title == "Answered from the cache":
            watched.prometheus.query(expression)
            continue
        until(partial(numbers, watched.prometheus, expression), f"{title}: {expression}")


def numbers(prometheus: Prometheus, expression: str) -> list[float]:
    """The values of a query that are numbers."""
    values = [float(series["value"][1]) for series in prometheus.query(expression)]
    return [value for value in values if value == value]  # noqa: PLR0124 - not NaN


def test_each_failure_counts_once_and_a_cancellation_not_at_all(watched: Watched) -> None:
    """Triton's own counter of the ensemble says 12 where 4 requests failed and 4 were left."""
    counted = watched.failures + 2 * REFUSED + CANCELLED
    until(lambda: watched.prometheus.value(FAILURES) == counted, "Triton's count")
    failures, requests = f"public_model:failures:rate5m{OF}", f"public_model:requests:rate5m{OF}"
    share = f"sum({failures}) / sum({requests})"
    right = REFUSED / (watched.answered + REFUSED)
    until(lambda: close_to(watched.prometheus, share, right, 0.04), f"a share of {right}")
    reasons = (
        f'sum(public_model:errors:rate5m{{public_model="{MODEL}",reason="%s"}}) / sum({failures})'
    )
    until(lambda: close_to(watched.prometheus, reasons % "invalid", 1, 0.1), "invalid requests")
    assert close_to(watched.prometheus, reasons % "unattributed", 0, 0.1)


def test_client_mistakes_spend_no_budget(watched: Watched) -> None:
    """A quarter of the requests was refused, and none of it was the server's fault."""
    bad = f'public_model:slo_bad_ratio:rate5m{{public_model="{MODEL}",slo="error_rate"}}'
    until(lambda: close_to(watched.prometheus, bad, 0, 0.02), "a clean budget")


def test_quantiles_lie_where_the_engine_s_sums_say(watched: Watched) -> None:
    """The median of the time per token is near its mean: every step takes 10 ms or longer."""
    name = "tritonctl_inter_token_latency_seconds"
    mean = f"sum(increase({name}_sum{OF}[5m])) / sum(increase({name}_count{OF}[5m]))"
    median = f'public_model:{name}:quantile5m{{public_model="{MODEL}",quantile="0.5"}}'
    until(lambda: numbers(watched.prometheus, median), "a median")
    measured = watched.prometheus.value(mean)
    assert 0.005 < watched.prometheus.value(median) < 4 * measured


def test_a_stuck_process_is_told(watched: Watched) -> None:
    """Its last values stay; only the seconds that it counts stand still.

    Stopped and not killed: the supervisor ends a server one of whose processes is gone.
    """
    [rule] = [
        rule
        for group in alert_groups(watched.handle.project)
        for rule in group["rules"]
        if rule["alert"] == "TritonStubGone"
    ]
    expression = rule["expr"].replace("[1m]", "[15s]")
    assert expression != rule["expr"]
    until(
        lambda: (
            len(watched.prometheus.query("increase(tritonctl_uptime_seconds_total[15s]) > 0")) == 3
        ),
        "three processes that count",
    )
    assert watched.prometheus.query(expression) == []
    watched.handle.spent = True  # Triton may give up a lock that it has waited too long for
    process = stub(watched.handle.project, f"{MODEL}_tokenizer")
    os.kill(process, signal.SIGSTOP)
    try:
        [stuck] = until(lambda: watched.prometheus.query(expression), "the one that stands still")
        assert stuck["metric"]["model"] == f"{MODEL}_tokenizer"
    finally:
        os.kill(process, signal.SIGCONT)
    until(lambda: watched.prometheus.query(expression) == [], "all counting again")


def stub(project: Project, model: str) -> int:
    """The process of a Python model."""
    file = project.repository / model / "1" / "model.py"
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            if str(file) in entry.read_bytes().decode().split("\0"):
                found.append(int(entry.parent.name))
    [process] = found
    return process
