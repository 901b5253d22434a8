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
from tests.docker.deployments import OVERRIDE, compose
from tests.docker.test_compose import PATIENCE_SECONDS, streamed, url
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
BEAT = "2s"  # as rendered, rules are evaluated every quarter of a minute


@pytest.fixture
def observed(running: Path) -> Iterator[Path]:
    """Server and Prometheus, as rendered but for the image and its beat; Prometheus down again."""
    found = shutil.which("prometheus")
    if found is None:
        pytest.skip(
            "NO PROMETHEUS: its container is not tested here (Debian: apt install prometheus)"
        )
    build = {"context": "./prometheus-image", **machine.BUILD["build"]}
    ours = {"image": "tritonctl-test/prometheus:1", "pull_policy": "build", "build": build}
    override = running / "compose.override.yaml"
    settings = running / "prometheus" / "prometheus.yml"
    before = {file: file.read_text(encoding="utf-8") for file in (override, settings)}
    services = {**OVERRIDE["services"], "prometheus": ours}
    override.write_text(yaml.safe_dump({"services": services}), encoding="utf-8")
    faster = yaml.safe_load(before[settings])
    faster["global"] = dict.fromkeys(faster["global"], BEAT)
    settings.write_text(yaml.safe_dump(faster), encoding="utf-8")
    context = running / "prometheus-image"
    context.mkdir()
    shutil.copy2(found, context / "prometheus")
    (context / "Dockerfile").write_text(IMAGE, encoding="utf-8")
    try:
        compose(running, "up", "--detach", "--wait", "--build", "prometheus")
        yield running
    finally:
        compose(running, "rm", "--stop", "--force", "--volumes", "prometheus")
        for file, text in before.items():
            file.write_text(text, encoding="utf-8")
        shutil.rmtree(context)


def test_it_finds_the_server_and_knows_the_rules(observed: Path) -> None:
    """By its name in Docker's DNS; recording rules have values, alert rules are loaded."""
    prometheus = Prometheus(f"http://{compose(observed, 'port', 'prometheus', '9090')}")
    deadline = time.monotonic() + PATIENCE_SECONDS
    # Other tests have asked this server, too.
    answered = 'nv_inference_request_success{public_model="speller", step="ensemble"}'
    while not (before := prometheus.query(answered)):
        assert time.monotonic() < deadline, prometheus.query("up")
        time.sleep(1)
    for number in range(STREAMS):
        streamed(url(observed), f"{number} in English:")
    expected = str(int(before[0]["value"][1]) + STREAMS)
    while [series["value"][1] for series in prometheus.query(answered)] != [expected]:
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
    alerts = yaml.safe_load((observed / "prometheus/rules/alerts.yml").read_text("utf-8"))
    assert {rule["alert"] for group in alerts["groups"] for rule in group["rules"]} <= names
    assert {rule["health"] for rule in prometheus.rules()} == {"ok"}
