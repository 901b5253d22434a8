# SPDX-License-Identifier: Apache-2.0
"""Check containers on this machine: engine, permission, Compose, GPU support."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from dataclasses import dataclass

from tritonctl.doctor.findings import COMPOSE, CONTAINERS, TOOLKIT, DoctorFinding
from tritonctl.errors import HostError
from tritonctl.host import containers
from tritonctl.host.gpus import InstalledGpu

_TIMEOUT_SECONDS = 20
_ENGINE_REASON = (
    "`server.mode: docker`, `tritonctl deploy compose` and the container runner need one"
)
_COMPOSE_REASON = "`tritonctl deploy compose` writes for Compose v2; v1 has had no fixes since 2023"
_TOOLKIT_REASON = "without it no container sees a GPU"


@dataclass(frozen=True)
class CommandOutput:
    """Exit status and output of a program."""

    status: int | None  # None if the program is missing or hangs
    text: str


def command_output(*command: str) -> CommandOutput:
    """Run a program and return its output."""
    program = shutil.which(command[0])
    if program is None:
        return CommandOutput(None, f"{command[0]} is not installed")
    try:
        process = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return CommandOutput(None, str(error))
    return CommandOutput(process.returncode, (process.stdout + process.stderr).strip())


def container_findings(gpus: list[InstalledGpu]) -> list[DoctorFinding]:
    """Return findings on engine, Compose and, with GPUs, NVIDIA's container toolkit."""
    findings = [engine_finding(), compose_finding()]
    return [*findings, toolkit_finding()] if gpus else findings


def engine_finding() -> DoctorFinding:
    """Check that Docker or podman runs and that this user may access it."""
    try:
        engine = containers.find_engine()
    except HostError as error:
        return DoctorFinding(CONTAINERS, "missing", *_engine_problem(error), reason=_ENGINE_REASON)
    return DoctorFinding(CONTAINERS, "ok", f"{engine.name} {engine.version}", reason=_ENGINE_REASON)


def _engine_problem(error: HostError) -> tuple[str, str]:
    """Return the problem and the command that solves it."""
    message = (error.details or "").lower()
    if "permission denied" in message:
        socket = os.environ.get("DOCKER_HOST", "/var/run/docker.sock")
        user = getpass.getuser()
        remedy = f"sudo usermod -aG docker {user}, then log in again (this is as powerful as root)"
        return f"{user} may not use {socket}", remedy
    if "cannot connect" in message or "is the docker daemon running" in message:
        return "Docker is installed, but its daemon is not running", "sudo systemctl start docker"
    return error.problem, error.remedy


def compose_finding() -> DoctorFinding:
    """Check for Compose v2, a plugin of docker; v1 was a separate program."""
    compose = command_output("docker", "compose", "version", "--short")
    if compose.status == 0:
        return DoctorFinding(COMPOSE, "ok", compose.text.removeprefix("v"), reason=_COMPOSE_REASON)
    remedy = "apt install docker-compose-plugin (Docker's packages) or docker-compose-v2 (Ubuntu's)"
    old = command_output("docker-compose", "version", "--short")
    if old.status == 0:
        detail = f"only v1 ({old.text}), which does not read our compose.yaml"
        if not old.text.removeprefix("v").startswith("1."):
            detail = f"{old.text} as docker-compose only, not as `docker compose`"
        return DoctorFinding(COMPOSE, "missing", detail, remedy, reason=_COMPOSE_REASON)
    return DoctorFinding(COMPOSE, "missing", "no `docker compose`", remedy, reason=_COMPOSE_REASON)


def toolkit_finding() -> DoctorFinding:
    """Check that NVIDIA's container toolkit is installed and configured in Docker."""
    name, reason = TOOLKIT, _TOOLKIT_REASON
    version = command_output("nvidia-ctk", "--version")
    if version.status != 0:
        remedy = "apt install nvidia-container-toolkit, from NVIDIA's repository"
        return DoctorFinding(name, "missing", version.text, remedy, reason=reason)
    detail = version.text.splitlines()[0]
    docker_info = command_output(
        "docker", "info", "--format", "{{json .Runtimes}} {{json .CDISpecDirs}}"
    )
    if docker_info.status == 0 and "nvidia" in docker_info.text:
        return DoctorFinding(name, "ok", detail, reason=reason)
    remedy = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
    return DoctorFinding(
        name, "missing", f"{detail}, but not configured in Docker", remedy, reason=reason
    )
