# SPDX-License-Identifier: Apache-2.0
"""Projects in containers for benchmarks: engine, images, up and down; removes what it made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

import bench
from tests.container_engine import MissingError
from tests.docker import machine
from tritonctl import Project, load_project
from tritonctl.runtimes.docker.compose import deployment_name
from tritonctl.runtimes.docker.compose_command import Compose

Override = Mapping[str, Mapping[str, Any]]  # changes by service


@contextmanager
def engine() -> Iterator[None]:
    """A Docker Engine with Compose and a base image; removes new images at the end."""
    try:
        with machine.docker() as variables:
            os.environ |= variables
            with _images_removed():
                machine.import_base_image()
                yield
    except MissingError as missing:
        raise SystemExit(f"NO DOCKER: {missing}") from missing


@contextmanager
def _images_removed() -> Iterator[None]:
    before = _images()
    try:
        yield
    finally:
        made = sorted(_images() - before)
        if made:
            _docker("image", "rm", "--force", *made)


def _images() -> set[str]:
    listed = _docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()
    return {image for image in listed if "<none>" not in image}


def _docker(*arguments: str) -> str:
    command = [machine.program("docker"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write_project(folder: Path, models: Mapping[str, Any], **sections: Any) -> Project:
    """A project in the new `folder`, which names the deployment."""
    folder.mkdir()
    return bench.write_project(
        folder, models, docker={"base_image": machine.BASE_IMAGE}, **sections
    )


def tritonctl(folder: Path, *arguments: str) -> str:
    """Run a command as a user types it; end this program with its message when it fails."""
    command = [sys.executable, "-m", "tritonctl", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"`tritonctl {' '.join(arguments)}` in {folder}: {done.stderr}")
    return done.stdout


def deploy(folder: Path, *profiles: str) -> Compose:
    """Build the engines, render deploy/, build the images."""
    tritonctl(folder, "build")
    tritonctl(folder, "render")
    tritonctl(folder, "deploy", "compose")
    name = deployment_name(load_project(folder))
    compose = Compose(machine.program("docker"), folder / "deploy", name, profiles)
    services = list(_configuration(compose)["services"])
    override(compose, {service: {} for service in services})
    compose.run("build", remedy="read the lines above")
    return compose


def override(compose: Compose, services: Override) -> None:
    """Write compose.override.yaml: changes of services, and how their images are built here."""
    built = {name: {**machine.BUILD, **changed} for name, changed in services.items()}
    text = yaml.safe_dump({"services": built})
    (compose.folder / "compose.override.yaml").write_text(text, encoding="utf-8")


def command_of(compose: Compose, service: str) -> list[str]:
    """The command of a service."""
    command: list[str] = _configuration(compose)["services"][service]["command"]
    return command


def _configuration(compose: Compose) -> dict[str, Any]:
    configuration: dict[str, Any] = json.loads(compose.output_of("config", "--format", "json"))
    return configuration


@contextmanager
def up(compose: Compose, *services: str) -> Iterator[None]:
    """`docker compose up --wait`, then down."""
    try:
        compose.run("up", "--detach", "--wait", *services, remedy="see `docker compose logs`")
        yield
    finally:
        down(compose)


def down(compose: Compose) -> None:
    """Remove containers, networks and volumes."""
    compose.run("down", "--volumes", "--remove-orphans", remedy="see `docker ps --all`")


def published(compose: Compose, service: str, inside: int) -> str:
    """The address (`host:port`) of a service's port."""
    return compose.output_of("port", service, str(inside))


def container_of(compose: Compose, service: str) -> str:
    """The container's id, or ""."""
    return compose.output_of("ps", "--all", "--quiet", service)


def inspected(container: str) -> dict[str, Any]:
    """Docker's record of a container."""
    records: list[dict[str, Any]] = json.loads(_docker("inspect", container))
    return records[0]


def log_of(container: str) -> str:
    """The output of a container."""
    command = [machine.program("docker"), "logs", container]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.stdout
