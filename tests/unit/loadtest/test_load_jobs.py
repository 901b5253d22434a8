# SPDX-License-Identifier: Apache-2.0
"""A load test whose model cannot answer as it asks is refused: nothing is written or sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.commands import run_here
from tests.loadtests.mock_process import mock_endpoint
from tests.loopback_http import Answering, listening
from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.loadtest.run import jobs
from tritonctl.loadtest.run.jobs import LoadTarget, create_load_job, resolve_target
from tritonctl.project.scenario import Scenario
from tritonctl.protocol.channel import Endpoint

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
    monkeypatch.setattr(jobs, "collect_facts", lambda *_: {"models": configs})
    project = sandbox.load()
    if not refused:
        job = create_load_job(project, "s", scenario(kind), LoadTarget("127.0.0.1:1"))
        assert job.folder.is_dir()
        return
    with pytest.raises(ConfigurationError, match=r"loadtests\.s\.kind: tensors, but m streams"):
        create_load_job(project, "s", scenario(kind), LoadTarget("127.0.0.1:1"))
    assert not (project.state / "loadtests").exists()


def test_what_serves_is_told_of_the_projects_own_server_alone(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who names a URL may mean any server: this machine and this project say nothing of it."""
    monkeypatch.setattr(jobs, "collect_facts", lambda *_: {"models": {}})
    project = sandbox.load()
    named = create_load_job(project, "s", scenario("text"), LoadTarget("127.0.0.1:1"))
    assert not {"engine", "cpu", "gpus"} & set(named.facts)
    own = create_load_job(project, "s", scenario("text"), LoadTarget("127.0.0.1:1", shm_prefix=""))
    assert own.facts["engine"] is None  # nothing is built, and a load test needs nothing built
    assert isinstance(own.facts["gpus"], list)


def test_a_model_that_a_server_named_by_its_address_does_not_have(sandbox: Sandbox) -> None:
    """Exit code 2 and the nearest name, as of the project's own; no folder of a run."""
    arrivals = {"process": "constant", "rate": 1}
    requests = [{"prompts": "prompts.jsonl"}]
    sandbox.data["loadtests"] = {
        "s": {"model": "mok", "requests": requests, "arrivals": arrivals, "count": 1}
    }
    sandbox.write()
    with mock_endpoint() as url:
        done = run_here("loadtest", "run", "--url", url, "--json", cwd=sandbox.root)
    told = json.loads(done.stdout)
    assert (done.returncode, told["problem"]) == (2, "the server has no model mok")
    assert told["remedy"] == "did you mean `mock`? it has mock, mock_tensors"
    assert not (sandbox.root / ".tritonctl" / "loadtests").exists()


class _Triton(Answering):
    """Metadata and repository index over HTTP; configurations are not told."""

    index: bool = True

    def answer(self) -> None:
        """As Triton does."""
        answers: dict[tuple[str, str], Any] = {
            ("GET", "/v2"): {"name": "triton"},
            ("GET", "/v2/models/m"): {"name": "m"},
            ("GET", "/v2/models/n"): {"name": "n"},
        }
        if self.index:
            answers["POST", "/v2/repository/index"] = [{"name": "m", "state": ""}, {"name": "n"}]
        answer = answers.get((self.command, self.path))
        refused = {"error": f"Request for unknown model: '{self.path}' is not found"}
        self.send(200 if answer else 400, json.dumps(answer or refused).encode())


class _Restricted(_Triton):
    """One of tritonctl's own, whose index takes a token."""

    index = False


@pytest.mark.parametrize(("model", "known"), [("m", True), ("n", True), ("o", False)])
@pytest.mark.parametrize("server", [_Triton, _Restricted])
def test_a_model_over_http(
    sandbox: Sandbox, server: type[_Triton], model: str, known: bool
) -> None:
    """A model that the index lists is accepted, even without metadata."""
    asked = scenario("tensors").model_copy(update={"model": model, "protocol": "http"})
    with listening(server) as url:
        if known:
            assert create_load_job(sandbox.load(), "s", asked, LoadTarget(url)).folder.is_dir()
            return
        with pytest.raises(UsageError, match="the server has no model o"):
            create_load_job(sandbox.load(), "s", asked, LoadTarget(url))


@pytest.mark.parametrize("address", ["bad url:1", "nonsense", "127.0.0.1", "127.0.0.1:x"])
def test_an_address_that_is_none(sandbox: Sandbox, address: str) -> None:
    """A wrong value of --url: exit code 2."""
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        resolve_target(sandbox.load(), "grpc", Endpoint(address))
