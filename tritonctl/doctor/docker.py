# SPDX-License-Identifier: Apache-2.0
"""Containers on this machine: an engine, who may speak to it, Compose, GPUs inside."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from dataclasses import dataclass

from tritonctl.doctor.findings import COMPOSE, CONTAINERS, TOOLKIT, Finding
from tritonctl.errors import HostError
from tritonctl.host import containers
from tritonctl.host.gpus import InstalledGpu

_ANSWER_SECONDS = 20
_WHY_ENGINE = "`server.mode: docker`, `tritonctl deploy compose` and the container runner need one"
_WHY_COMPOSE = "`tritonctl deploy compose` writes for Compose v2; v1 has had no fixes since 2023"
_WHY_TOOLKIT = "without it no container sees a GPU"


@dataclass(frozen=True)
class Answer:
    """What a program printed; `status` is None when it is missing or hangs."""

    status: int | None
    text: str


def ask(*command: str) -> Answer:
    """Run a program that only reports something."""
    program = shutil.which(command[0])
    if program is None:
        return Answer(None, f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer(None, str(error))
    return Answer(done.returncode, (done.stdout + done.stderr).strip())


def container_findings(gpus: list[InstalledGpu]) -> list[Finding]:
    """Engine, Compose and, with GPUs, NVIDIA's container toolkit."""
    findings = [engine_finding(), compose_finding()]
    return [*findings, toolkit_finding()] if gpus else findings


def engine_finding() -> Finding:
    """Docker or podman, running, and open to this user."""
    try:
        engine = containers.engine()
    except HostError as error:
        return Finding(CONTAINERS, "missing", *_engine_trouble(error), why=_WHY_ENGINE)
    return Finding(CONTAINERS, "ok", f"{engine.name} {engine.version}", why=_WHY_ENGINE)


def _engine_trouble(error: HostError) -> tuple[str, str]:
    """The problem, and the command that solves it."""
    message = (error.details or "").lower()
    if "permission denied" in message:
        socket = os.environ.get("DOCKER_HOST", "/var/run/docker.sock")
        user = getpass.getuser()
        remedy = f"sudo usermod -aG docker {user}, then log in again (this is as powerful as root)"
        return f"{user} may not use {socket}", remedy
    if "cannot connect" in message or "is the docker daemon running" in message:
        return "Docker is installed, but its daemon does not run", "sudo systemctl start docker"
    return error.problem, error.remedy


def compose_finding() -> Finding:
    """Compose v2 is a plugin of docker; v1 was a separate program."""
    compose = ask("docker", "compose", "version", "--short")
    if compose.status == 0:
        return Finding(COMPOSE, "ok", compose.text.removeprefix("v"), why=_WHY_COMPOSE)
    remedy = "apt install docker-compose-plugin (Docker's packages) or docker-compose-v2 (Ubuntu's)"
    old = ask("docker-compose", "version", "--short")
    if old.status == 0:
        detail = f"only v1 ({old.text}), which does not read our compose.yaml"
        if not old.text.removeprefix("v").startswith("1."):
            detail = f"{old.text} as docker-compose only, not as `docker compose`"
        return Finding(COMPOSE, "missing", detail, remedy, why=_WHY_COMPOSE)
    return Finding(COMPOSE, "missing", "no `docker compose`", remedy, why=_WHY_COMPOSE)


def toolkit_finding() -> Finding:
    """NVIDIA's container toolkit: installed, and known to Docker."""
    name, why = TOOLKIT, _WHY_TOOLKIT
    version = ask("nvidia-ctk", "--version")
    if version.status != 0:
        remedy = "apt install nvidia-container-toolkit, from NVIDIA's repository"
        return Finding(name, "missing", version.text, remedy, why=why)
    detail = version.text.splitlines()[0]
    known = ask("docker", "info", "--format", "{{json .Runtimes}} {{json .CDISpecDirs}}")
    if known.status == 0 and "nvidia" in known.text:
        return Finding(name, "ok", detail, why=why)
    remedy = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
    return Finding(name, "missing", f"{detail}, but Docker does not know it", remedy, why=why)
