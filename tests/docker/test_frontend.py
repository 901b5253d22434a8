# SPDX-License-Identifier: Apache-2.0
"""The OpenAI API in containers: its image is built, and answers as nobody."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Cli
from tests.docker.deployments import OVERRIDE, Composed, compose, rendered, succeeded
from tests.docker.machine import BUILD

pytestmark = [pytest.mark.docker, pytest.mark.exhaustive]

PROMPT = "7342 in English:"
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
    """`up --mode docker` starts it, `down` ends it; it runs as nobody, files read-only."""
    up = cli("up", "--mode", "docker", "--json", cwd=project, timeout=900)
    assert up.returncode == 0, up.stderr
    folder = project / "deploy"
    container = compose(folder, "--profile", "frontend", "ps", "--quiet", "frontend")
    assert container
    url = "http://127.0.0.1:9123/v1"
    assert json.loads(up.stdout)["frontend"] == url
    status = json.loads(cli("status", "--json", cwd=project).stdout)
    assert (status["frontend"]["url"], status["frontend"]["ready"]) == (url, True)
    _, answer = _asked(prompt=PROMPT)
    assert answer["choices"][0]["text"] == ANSWER
    ids = compose(folder, "--profile", "frontend", "exec", "-T", "frontend", "id", "-u")
    assert ids != "0"
    log = compose(folder, "--profile", "frontend", "logs", "--no-log-prefix", "frontend")
    assert '"outcome": "stop"' in log
    assert "not counted" not in log
    assert '"outcome": "stop"' in cli("logs", "frontend", cwd=project).stdout
    status, refused = _asked(prompt="7 " * 600)
    assert (status, refused["error"]["code"]) == (400, "context_length_exceeded")
    assert "your prompt has" in refused["error"]["message"]  # the frontend's words, not the step's
    _, named = _asked(prompt=PROMPT, logprobs=0)
    assert "".join(named["choices"][0]["logprobs"]["tokens"]) == ANSWER


def _asked(**fields: Any) -> tuple[int, Any]:
    """The status, and the record that answers it."""
    request = urllib.request.Request(
        "http://127.0.0.1:9123/v1/completions",
        json.dumps({"model": "speller", "max_tokens": 24} | fields).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
