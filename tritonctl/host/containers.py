# SPDX-License-Identifier: Apache-2.0
"""Docker or podman, through the command line: which one, which image, how to run in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import HostError

ENGINES = ("docker", "podman")
_ANSWER_SECONDS = 60
_REMOVE_SECONDS = 30
_APPEAR_SECONDS = 3  # one of 30 `run`s, ended within half a second, left one that came later
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class ContainerEngine:
    """A container engine that answers: `program` is its path, `version` the server's."""

    name: str
    program: str
    version: str


def engine() -> ContainerEngine:
    """TRITONCTL_CONTAINER_ENGINE, else the first of docker and podman that is installed.

    Raises HostError without one, or when it does not answer.
    """
    names = _names()
    programs = {name: program for name in names if (program := shutil.which(name))}
    if not programs:
        raise HostError(
            f"no container engine: {' and '.join(names)} not found",
            remedy="install Docker or podman, or run where the tools are with `--runner current`",
        )
    name, program = next(iter(programs.items()))
    answer = _ask(program, "version", "--format", "{{.Server.Version}}")
    if answer.returncode:
        raise HostError(
            f"{name} does not answer",
            remedy="start it (`systemctl start docker`), or join its group: see `docker info`",
            details=answer.stderr.strip(),
        )
    return ContainerEngine(name, program, answer.stdout.strip())


def installed() -> str:
    """The program that `engine` would use, or its name if it is not installed."""
    names = _names()
    return next((path for name in names if (path := shutil.which(name))), names[0])


def _names() -> tuple[str, ...]:
    chosen = os.environ.get("TRITONCTL_CONTAINER_ENGINE")
    return (chosen,) if chosen else ENGINES


def local_image(engine: ContainerEngine, image: str) -> str:
    """The id of a local image. Raises HostError when it has to be pulled.

    Images of NVIDIA's are tens of gigabytes behind a login: pulling is the user's decision.
    """
    answer = _ask(engine.program, "image", "inspect", "--format", "{{.Id}}", image)
    if answer.returncode:
        raise HostError(
            f"the image {image} is not on this machine",
            remedy=f"pull it: `{engine.name} pull {image}`",
            details=answer.stderr.strip(),
        )
    return answer.stdout.strip()


def image_digests(engine: ContainerEngine, image: str) -> list[str]:
    """The `sha256:...` digests of a local image in its registries, and its own id.

    Raises HostError when it has to be pulled.
    """
    identity = local_image(engine, image)
    answer = _ask(engine.program, "image", "inspect", "--format", "{{json .RepoDigests}}", identity)
    known = json.loads(answer.stdout) if answer.returncode == 0 else None
    return [identity, *(text.rpartition("@")[2] for text in known or ())]


def remove(engine: ContainerEngine, name: str) -> None:
    """Remove a container, running or not, if it exists, of a `run` that was ended.

    An engine that is just making the container shows it only when it is made, so it is looked for
    a few seconds. One that is just starting it refuses to remove it, so it is asked again for half
    a minute; nobody else would end the container. Raises HostError then.
    """
    began = time.monotonic()
    while True:
        answer = _ask(engine.program, "rm", "--force", name)
        absent = _ask(engine.program, "container", "inspect", name).returncode != 0
        waited = time.monotonic() - began
        if absent and waited >= _APPEAR_SECONDS:
            return
        if not absent and waited > _REMOVE_SECONDS:
            raise HostError(
                f"{engine.name} does not remove the container {name}",
                remedy=f"remove it: `{engine.name} rm --force {name}`",
                details=answer.stderr.strip(),
            )
        time.sleep(_POLL_SECONDS)


def run_command(
    program: str,
    *,
    name: str,
    read_only: Sequence[Path],
    writable: Sequence[Path],
    workdir: Path,
    environment: Mapping[str, str],
    gpus: bool,
) -> list[str]:
    """The beginning of `docker run`; image and command follow.

    Every path is the same inside as outside. No network, no privileges, files owned by the caller.
    """
    command = [program, "run", "--rm", "--init", "--name", name, "--network", "none"]
    command += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--ipc", "private"]
    if hasattr(os, "getuid"):  # Docker Desktop on Windows gives files to the caller by itself
        command += ["--user", f"{os.getuid()}:{os.getgid()}"]
    command += ["--workdir", str(workdir)]
    command += ["--gpus", "all"] if gpus else []
    for key, value in environment.items():
        command += ["--env", f"{key}={value}"]
    # A dict: Docker refuses to mount a path twice, such as prompts that also calibrate.
    places = {**dict.fromkeys(read_only, ",readonly"), **dict.fromkeys(writable, "")}
    for path, mode in places.items():
        command += ["--mount", f"type=bind,source={path},target={path}{mode}"]
    return [*command, "--entrypoint", ""]


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f"`{' '.join(command)}` gave no answer within {_ANSWER_SECONDS} s",
            remedy="check the container engine: `docker info`",
        ) from error
