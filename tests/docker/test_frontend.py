# SPDX-License-Identifier: Apache-2.0
"""The OpenAI API in containers: its image is built, and answers as nobody."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import Cli
from tests.docker.deployments import OVERRIDE, Composed, compose, rendered, succeeded
from tests.docker.machine import BUILD
from tests.servers import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.exhaustive]

ANSWER = " seven thousand three hundred forty-two"


@pytest.fixture
def project(deployable: Path, composed: Composed) -> Iterator[Path]:
    """With a frontend, which nobody else has started; as it was afterwards."""
    composed.stop()
    file = deployable / "tritonctl.yaml"
    before = file.read_text(encoding="utf-8")
    data = yaml.safe_load(before) | {"frontend": {"port": 9123}}
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    services = OVERRIDE["services"] | {"frontend": BUILD}
    rendered(deployable, services)
    yield deployable
    succeeded(deployable, "down")
    file.write_text(before, encoding="utf-8")


def test_it_streams_from_a_container(project: Path, cli: Cli) -> None:
    """`up --on docker` starts it, `down` ends it; it runs as nobody on a file system read-only."""
    up = cli("up", "--on", "docker", "--json", cwd=project, timeout=900)
    assert up.returncode == 0, up.stderr
    folder = project / "deploy"
    container = compose(folder, "--profile", "frontend", "ps", "--quiet", "frontend")
    assert container
    wait_until(lambda: _completed() == ANSWER, "an answer")
    ids = compose(folder, "--profile", "frontend", "exec", "-T", "frontend", "id", "-u")
    assert ids != "0"
    log = compose(folder, "--profile", "frontend", "logs", "--no-log-prefix", "frontend")
    assert '"outcome": "stop"' in log


def _completed() -> str:
    body = {"model": "speller", "prompt": "7342 in English:", "max_tokens": 24}
    request = urllib.request.Request(
        "http://127.0.0.1:9123/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            text: str = json.load(answer)["choices"][0]["text"]
            return text
    except OSError:
        return ""
