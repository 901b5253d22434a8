# SPDX-License-Identifier: Apache-2.0
"""The profile `observability`: Prometheus in its container finds the server's and knows the rules.

Its image cannot be had without a registry: ours has the machine's prometheus, laid out as
prom/prometheus is (nobody, /bin/prometheus, /etc/prometheus, /prometheus).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docker import machine
from tests.docker.conftest import OVERRIDE
from tests.docker.test_compose import PATIENCE_SECONDS, compose, rendered, streamed, url
from tests.prometheus_server import Prometheus

pytestmark = pytest.mark.docker

IMAGE = f"""
FROM {machine.BASE_IMAGE}
COPY prometheus /bin/prometheus
RUN mkdir -p /prometheus /etc/prometheus && chown 65534:65534 /prometheus
USER 65534
WORKDIR /prometheus
VOLUME /prometheus
ENTRYPOINT ["/bin/prometheus"]
"""
STREAMS = 5


@pytest.fixture
def observed(deployable: Path, nothing_left: None) -> Iterator[Path]:
    """Server and Prometheus, as rendered but for the image; down again, with the volume."""
    found = shutil.which("prometheus")
    if found is None:
        pytest.skip(
            "NO PROMETHEUS: its container is not tested here (Debian: apt install prometheus)"
        )
    build = {"context": "./prometheus-image", **machine.BUILD["build"]}
    ours = {"image": "tritonctl-test/prometheus:1", "pull_policy": "build", "build": build}
    folder = rendered(deployable, {**OVERRIDE["services"], "prometheus": ours})
    context = folder / "prometheus-image"
    context.mkdir()
    shutil.copy2(found, context / "prometheus")
    (context / "Dockerfile").write_text(IMAGE, encoding="utf-8")
    try:
        compose(folder, "--profile", "observability", "build", "triton", "prometheus")
        compose(folder, "up", "--detach", "--wait", "triton", "prometheus")
        yield folder
    finally:
        compose(folder, "--profile", "observability", "down", "--volumes")
        shutil.rmtree(context)


def test_it_finds_the_server_and_knows_the_rules(observed: Path) -> None:
    """By its name in Docker's DNS; recording rules have values, alert rules are loaded."""
    for number in range(STREAMS):
        streamed(url(observed), f"{number} in English:")
    prometheus = Prometheus(f"http://{compose(observed, 'port', 'prometheus', '9090')}")
    deadline = time.monotonic() + PATIENCE_SECONDS
    answered = 'nv_inference_request_success{public_model="speller", step="ensemble"}'
    while [series["value"][1] for series in prometheus.query(answered)] != [str(STREAMS)]:
        assert time.monotonic() < deadline, prometheus.query("up")
        time.sleep(1)
    [up] = prometheus.query("up")
    assert (up["metric"]["job"], up["value"][1]) == ("triton", "1")
    while not prometheus.query('model:nv_inference_request_success:rate5m{model="speller"}'):
        assert time.monotonic() < deadline
        time.sleep(1)
    while any(rule["health"] == "unknown" for rule in prometheus.rules()):
        assert time.monotonic() < deadline, prometheus.rules()  # each group has its own beat
        time.sleep(1)
    names = {rule["name"] for rule in prometheus.rules()}
    expected = yaml.safe_load((observed / "prometheus/rules/alerts.yml").read_text("utf-8"))
    assert {rule["alert"] for group in expected["groups"] for rule in group["rules"]} <= names
    assert {rule["health"] for rule in prometheus.rules()} == {"ok"}
