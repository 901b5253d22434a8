# SPDX-License-Identifier: Apache-2.0
"""Docker or podman through their command line: detection, images, `run`, removal."""

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
_APPEAR_SECONDS = 3  # 1 of 30 `run`s killed within 0.5 s left a container that appeared later
_APPEAR_ANSWERS = 20  # on a busy machine: in answers of the engine, whichever takes longer
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class ContainerEngine:
    """A working container engine."""

    name: str
    program: str  # path
    version: str  # of the server


def find_engine() -> ContainerEngine:
    """Return TRITONCTL_CONTAINER_ENGINE, else the first installed one of docker and podman.

    Raises HostError without one, or when it does not respond.
    """
    names = _names()
    programs = {name: program for name in names if (program := shutil.which(name))}
    if not programs:
        raise HostError(
            f"no container engine: {' and '.join(names)} not found",
            remedy="install Docker or podman, or run where the tools are with `--runner current`",
        )
    name, program = next(iter(programs.items()))
    answer = _run(program, "version", "--format", "{{.Server.Version}}")
    if answer.returncode:
        raise HostError(
            f"{name} does not answer",
            remedy="start it (`systemctl start docker`), or join its group: see `docker info`",
            details=answer.stderr.strip(),
        )
    return ContainerEngine(name, program, answer.stdout.strip())


def engine_program() -> str:
    """Return the path of the container engine's program, or its name if not installed."""
    names = _names()
    return next((path for name in names if (path := shutil.which(name))), names[0])


def _names() -> tuple[str, ...]:
    chosen = os.environ.get("TRITONCTL_CONTAINER_ENGINE")
    return (chosen,) if chosen else ENGINES


def local_image(engine: ContainerEngine, image: str) -> str:
    """Return the id of a local image. Raises HostError if it must be pulled.

    NVIDIA's images are tens of gigabytes behind a login: pulling is the user's decision.
    """
    answer = _run(engine.program, "image", "inspect", "--format", "{{.Id}}", image)
    if answer.returncode:
        raise HostError(
            f"the image {image} is not on this machine",
            remedy=f"pull it: `{engine.name} pull {image}`",
            details=answer.stderr.strip(),
        )
    return answer.stdout.strip()


def image_digests(engine: ContainerEngine, image: str) -> list[str]:
    """Return the id of a local image and its `sha256:...` digests in registries.

    Raises HostError if it must be pulled.
    """
    identity = local_image(engine, image)
    answer = _run(engine.program, "image", "inspect", "--format", "{{json .RepoDigests}}", identity)
    digests = json.loads(answer.stdout) if answer.returncode == 0 else None
    return [identity, *(text.rpartition("@")[2] for text in digests or ())]


def remove_container(engine: ContainerEngine, name: str) -> None:
    """Remove the container of a killed `run`, running or not, if it exists.

    An engine lists a container only after creating it, so the function waits a few seconds for it,
    longer where the engine answers slowly.
    An engine refuses to remove a container that is starting, so the function retries for half a
    minute. Raises HostError then, because nothing else would stop the container.
    """
    started, appear_seconds = time.monotonic(), float(_APPEAR_SECONDS)
    while True:
        attempt_started = time.monotonic()
        answer = _run(engine.program, "rm", "--force", name)
        is_absent = _run(engine.program, "container", "inspect", name).returncode != 0
        attempt_ended = time.monotonic()
        appear_seconds = max(appear_seconds, _APPEAR_ANSWERS * (attempt_ended - attempt_started))
        waited = attempt_ended - started
        if is_absent and waited >= min(appear_seconds, _REMOVE_SECONDS):
            return
        if not is_absent and waited > _REMOVE_SECONDS:
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
    """Return the start of `docker run`, without image and command.

    Paths inside and outside are the same. No network, no privileges, files owned by the caller.
    """
    command = [program, "run", "--rm", "--init", "--name", name, "--network", "none"]
    command += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--ipc", "private"]
    if hasattr(os, "getuid"):  # Docker Desktop on Windows already assigns files to the caller
        command += ["--user", f"{os.getuid()}:{os.getgid()}"]
    command += ["--workdir", str(workdir)]
    command += ["--gpus", "all"] if gpus else []
    for key, value in environment.items():
        command += ["--env", f"{key}={value}"]
    # A dict, because Docker refuses to mount a path twice (prompts that also calibrate).
    places = {**dict.fromkeys(read_only, ",readonly"), **dict.fromkeys(writable, "")}
    for path, mode in places.items():
        command += ["--mount", f"type=bind,source={path},target={path}{mode}"]
    return [*command, "--entrypoint", ""]


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f"`{' '.join(command)}` did not answer within {_ANSWER_SECONDS} s",
            remedy="check the container engine: `docker info`",
        ) from error
