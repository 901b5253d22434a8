# SPDX-License-Identifier: Apache-2.0
"""What a running container takes of a model that was written by hand, told by Docker's records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.handwritten import TWICE, write_model
from tests.unit.conftest import Sandbox
from tests.unit.runtimes.docker.test_current_servers import DEPLOYMENT
from tritonctl.errors import HostError, ServerError
from tritonctl.host.progress import Silent
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.publish import render
from tritonctl.runtimes.docker import capacity
from tritonctl.runtimes.docker.compose import COMPOSE_FILE, render_compose
from tritonctl.runtimes.server_state import ContainerServer, Deployment

SERVER = ContainerServer(
    pid=1,
    address="127.0.0.1",
    grpc_port=1,
    http_port=2,
    metrics_port=3,
    repository="/r",
    models=["mine"],
    settings="{}",
    exit_timeout_seconds=30,
    deployment=DEPLOYMENT,
)


class Deployed:
    """A project with a model by hand, and Docker's records of the container that serves it."""

    def __init__(self, sandbox: Sandbox) -> None:
        repository = sandbox.root / "model_repository"
        self.code = write_model(repository, "mine", TWICE)
        self.project = sandbox.load()
        plan = render(self.project, Silent()).plan
        text = render_compose(self.project, plan, Path(DEPLOYMENT.folder)).files[COMPOSE_FILE]
        service = yaml.safe_load(text)["services"][DEPLOYMENT.service]
        targets = [volume["target"] for volume in service["volumes"]]
        self.record: dict[str, Any] = {
            "Config": {"Image": service["image"]},
            "Mounts": [{"Destination": target, "Source": str(repository)} for target in targets],
            "HostConfig": {"Memory": int(service["mem_limit"])},
        }

    def docker(self, _: Deployment, verb: str, *__: str) -> dict[str, Any]:
        """`docker inspect`, `docker stats`."""
        return self.record if verb == "inspect" else {"MemUsage": "300MiB / 2GiB"}

    def reload(self) -> None:
        """What is asked before `mine` is reloaded."""
        plan = plan_repository(self.project)
        capacity.refuse_other_container(self.project, plan, SERVER, "mine")


@pytest.fixture
def deployed(built: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    """Up, with 300 MiB in use."""
    made = Deployed(built)
    monkeypatch.setattr(capacity, "docker_json", made.docker)
    monkeypatch.setattr(capacity, "current_servers", lambda state: [state])
    return made


def test_a_new_version_by_hand(deployed: Deployed) -> None:
    """Its code is another, and nothing else."""
    deployed.code.write_text("# other", encoding="utf-8")
    deployed.reload()


def test_it_needs_other_packages(deployed: Deployed) -> None:
    """They are in the image, or nowhere."""
    deployed.code.with_name("requirements.txt").write_text("wcwidth==0.2.13\n", encoding="utf-8")
    with pytest.raises(ServerError, match="mine needs a different image than the running server"):
        deployed.reload()


def test_it_does_not_fit_beside_the_first(deployed: Deployed) -> None:
    """By its files."""
    with deployed.code.with_name("weights.bin").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ServerError, match="a second version of mine, about 2") as caught:
        deployed.reload()
    assert "raise docker.memory" in caught.value.remedy


def test_it_cannot_be_read_there(deployed: Deployed) -> None:
    """The command that opens it is named."""
    deployed.code.chmod(0o200)
    with pytest.raises(HostError, match=r"may not read .*/mine/1/model\.py") as caught:
        deployed.reload()
    assert "chmod" in caught.value.remedy


def test_a_container_without_a_response_cache(deployed: Deployed) -> None:
    """Triton makes one at its start alone; with one, its size is part of the container's memory."""
    folder = deployed.code.parents[1]
    with (folder / "config.pbtxt").open("a", encoding="utf-8") as file:
        file.write("response_cache { enable: true }\n")
    deployed.record["Config"]["Cmd"] = ["tritonserver", "--exit-on-error=true"]
    with pytest.raises(
        ServerError, match="mine has a response cache, but the running server"
    ) as no:
        deployed.reload()
    assert "tritonctl down" in no.value.remedy
    plan = plan_repository(deployed.project)
    text = render_compose(deployed.project, plan, Path(DEPLOYMENT.folder)).files[COMPOSE_FILE]
    service = yaml.safe_load(text)["services"][DEPLOYMENT.service]
    assert "--cache-config=local,size=67108864" in service["command"]
    assert "response cache 64.0 MiB" in text
    grown = int(service["mem_limit"]) - deployed.record["HostConfig"]["Memory"]
    assert grown == 64 << 20
    deployed.record["Config"]["Cmd"] = service["command"]
    deployed.reload()
