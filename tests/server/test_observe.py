# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes a real Triton under traffic: rules and every panel of the dashboard."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.prometheus_server import Prometheus, installed, prometheus
from tritonctl.errors import TritonctlError
from tritonctl.host.progress import Silent
from tritonctl.observe.alerts import alert_groups
from tritonctl.observe.dashboard import GPU_ROW, dashboard
from tritonctl.observe.files import observability_files
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.repository.publish import render
from tritonctl.server.lifecycle import start, stop
from tritonctl.server.state import Server

pytestmark = [
    pytest.mark.server,
    pytest.mark.alone,
    pytest.mark.skipif(
        not installed(), reason="NO PROMETHEUS: apt-get install prometheus; no panel was queried"
    ),
]

CHECKOUT = Path(__file__).resolve().parents[2]
MODEL = "int8"
OF = f'{{public_model="{MODEL}"}}'
PATIENCE = 120.0
ANSWERED, REFUSED, CANCELLED = 12, 4, 4
# Slow enough that a client goes away before its answer is complete.
SLOW = """

_fast_step = OpenvinoEngine.step


def _slow_step(self):
    import time
    time.sleep(0.01)
    return _fast_step(self)


OpenvinoEngine.step = _slow_step
"""


@dataclass(frozen=True)
class Watched:
    """A server and the Prometheus that looks at it."""

    state: Server
    prometheus: Prometheus


@pytest.fixture(scope="module")
def project(
    speller_project: Project, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """The int8 speller with a slow step and every kind of promise."""
    root = tmp_path_factory.mktemp("observed")
    record = json.loads((speller_project.root / "tritonctl.yaml").read_text())
    slo = {"ttft_p99_ms": 500, "itl_p99_ms": 100, "e2e_p99_ms": 10_000, "error_rate": 0.001}
    record["models"] = {MODEL: record["models"][MODEL] | {"slo": slo}}
    (root / "tritonctl.yaml").write_text(json.dumps(record))
    shutil.copytree(speller_project.state / "engines", root / ".tritonctl" / "engines")
    shutil.copytree(CHECKOUT / "python_backends", root / "python_backends")
    with (root / "python_backends" / "openvino_engine" / "model.py").open("a") as file:
        file.write(SLOW)
    project = load_project(root / "tritonctl.yaml")
    try:
        yield project
    finally:
        stop(project, Silent())


@pytest.fixture(scope="module")
def watched(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Both, and known traffic since Prometheus looks."""
    state, _ = start(project, render(project, Silent()), Silent())
    files = observability_files(project, targets=[urlsplit(state.metrics_url).netloc])
    with prometheus(tmp_path_factory.mktemp("prometheus"), files) as looking:
        until(lambda: looking.query(f"nv_inference_request_success{OF}"), "a first scrape")
        traffic(state)
        yield Watched(state, looking)


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
    """Each query is understood and answered with numbers; the GPU's are only understood."""
    asked = list(panels())
    assert len(asked) > 30
    for row, title, expression in asked:
        if row == GPU_ROW:
            watched.prometheus.query(expression)
            continue
        until(partial(numbers, watched.prometheus, expression), f"{title}: {expression}")


def numbers(prometheus: Prometheus, expression: str) -> list[float]:
    """The values of a query that are numbers."""
    values = [float(series["value"][1]) for series in prometheus.query(expression)]
    return [value for value in values if value == value]  # noqa: PLR0124 - not NaN


def test_each_failure_counts_once_and_a_cancellation_not_at_all(watched: Watched) -> None:
    """Triton's own counter of the ensemble says 12 where 4 requests failed and 4 were left."""
    raw = f'sum(nv_inference_request_failure{{public_model="{MODEL}",step="ensemble"}})'
    until(lambda: watched.prometheus.value(raw) == 2 * REFUSED + CANCELLED, "Triton's count")
    failures, requests = f"public_model:failures:rate5m{OF}", f"public_model:requests:rate5m{OF}"
    share = f"sum({failures}) / sum({requests})"
    right = REFUSED / (ANSWERED + REFUSED)
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
    mean = f"sum({name}_sum{OF}) / sum({name}_count{OF})"
    median = f'public_model:{name}:quantile5m{{public_model="{MODEL}",quantile="0.5"}}'
    until(lambda: numbers(watched.prometheus, median), "a median")
    measured = watched.prometheus.value(mean)
    assert 0.005 < watched.prometheus.value(median) < 4 * measured


def test_a_stuck_process_is_told(watched: Watched, project: Project) -> None:
    """Its last values stay; only the seconds that it counts stand still.

    Stopped and not killed: the supervisor ends a server one of whose processes is gone.
    """
    [rule] = [
        rule
        for group in alert_groups(project)
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
    process = stub(project, f"{MODEL}_tokenizer")
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
