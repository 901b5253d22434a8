# SPDX-License-Identifier: Apache-2.0
"""A load test whose model cannot answer as it asks is refused: nothing is written or sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.errors import ConfigurationError
from tritonctl.loadtest.run import jobs
from tritonctl.loadtest.run.jobs import Target, load_job
from tritonctl.project.scenario import Scenario

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

STREAMS = {"model_transaction_policy": {"decoupled": True}}


def scenario(kind: str) -> Scenario:
    """One request a second."""
    arrivals = {"process": "constant", "rate": 1}
    data = {"model": "m", "kind": kind, "requests": [{"prompts": "p.jsonl"}], "arrivals": arrivals}
    return Scenario.model_validate(data, strict=False)


@pytest.mark.parametrize(
    ("kind", "configs", "refused"),
    [
        ("tensors", {"m": STREAMS}, True),
        ("tensors", {"m": {}, "n": STREAMS}, False),
        ("tensors", {}, False),
        ("text", {"m": STREAMS}, False),
    ],
)
def test_tensors_for_a_model_that_streams(
    sandbox: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    configs: dict[str, Any],
    refused: bool,
) -> None:
    """As far as the server tells its configuration."""
    monkeypatch.setattr(jobs, "facts", lambda *_: {"models": configs})
    project = sandbox.load()
    if not refused:
        job = load_job(project, "s", scenario(kind), Target("127.0.0.1:1"))
        assert job.folder.is_dir()
        return
    with pytest.raises(ConfigurationError, match=r"loadtests\.s\.kind: tensors, but m streams"):
        load_job(project, "s", scenario(kind), Target("127.0.0.1:1"))
    assert not (project.state / "loadtests").exists()


def test_what_serves_is_told_of_the_projects_own_server_alone(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who names a URL may mean any server: this machine and this project say nothing of it."""
    monkeypatch.setattr(jobs, "facts", lambda *_: {"models": {}})
    project = sandbox.load()
    named = load_job(project, "s", scenario("text"), Target("127.0.0.1:1"))
    assert not {"engine", "cpu", "gpus"} & set(named.facts)
    own = load_job(project, "s", scenario("text"), Target("127.0.0.1:1", shm_prefix=""))
    assert own.facts["engine"] is None  # nothing is built, and a load test needs nothing built
    assert isinstance(own.facts["gpus"], list)
