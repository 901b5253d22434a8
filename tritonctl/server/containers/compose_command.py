# SPDX-License-Identifier: Apache-2.0
"""Drives `docker compose`: checks that it is usable, and runs its verbs for one deployment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.errors import CommandFailedError, HostError
from tritonctl.host.process import run
from tritonctl.repository.packages import files_asking_for
from tritonctl.repository.server_environment import Program
from tritonctl.server.state import Deployment

_ANSWER_SECONDS = 60
_EMBEDDED = "or run without containers: `tritonctl up --on embedded`"
_NOT_HERE = re.compile(
    r"failed to resolve source metadata|pull access denied|manifest unknown|no such host"
    r"|failed to do request|dial tcp|connection refused|not found|unauthorized|denied",
    re.IGNORECASE,
)
# Of BuildKit where the base image never came: the step that asks for it is repeated as what failed.
_NO_BASE = re.compile(
    r"^ > \[.*internal\] load metadata for|failed to resolve source metadata|pull access denied",
    re.MULTILINE,
)
# Of pip: no such version, or one that must be compiled, for which the image has no compiler.
_NOT_INSTALLED = re.compile(r"(?:No matching distribution found|Failed building wheel) for (\S+)")
# Of Docker's own proxy, and of Docker where another container has the port.
_TAKEN = re.compile(
    r"(?:listen tcp\d? |Bind for )(\S+):(\d+)\b.*(?:already in use|already allocated)"
)


@dataclass(frozen=True)
class Compose:
    """Docker Compose for one deployment: its folder, its name, which profiles are meant."""

    docker: str
    folder: Path
    name: str
    profiles: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        *arguments: str,
        remedy: str,
        on_line: Callable[[str], object] | None = None,
    ) -> None:
        """Run a verb to its end. Raises CommandFailedError with its last lines."""
        argv = self.command(*arguments)
        cwd = self.folder if self.folder.is_dir() else None
        environment = os.environ | dict(self.variables)
        run(argv, cwd=cwd, environment=environment, on_line=on_line, remedy=remedy)

    def command(self, *arguments: str) -> list[str]:
        """The whole command line of a verb. compose.yaml and its override are found by folder."""
        profiles = [part for profile in self.profiles for part in ("--profile", profile)]
        start = [self.docker, "compose", "--ansi", "never", "--project-name", self.name]
        return [*start, *profiles, *arguments]

    def ask(self, *arguments: str) -> str:
        """What a verb prints; "" when it fails."""
        done = _answer(self.command(*arguments), self.folder, self.variables)
        return done.stdout.strip() if done.returncode == 0 else ""


def require_docker(variables: Mapping[str, str] | None = None) -> str:
    """The program `docker`, after checking that Compose v2 and an engine answer.

    Raises HostError for the one that does not.
    """
    docker = shutil.which("docker")
    if docker is None:
        raise HostError(
            "Docker is not installed: no program `docker` in PATH",
            remedy=f"install Docker Engine with its compose plugin, {_EMBEDDED}",
        )
    _require_compose(docker)
    answer = _answer([docker, "version", "--format", "{{.Server.Version}}"], None, variables or {})
    if answer.returncode:
        raise _engine_error(answer.stderr.strip())
    return docker


def _require_compose(docker: str) -> None:
    answer = _answer([docker, "compose", "version", "--short"], None, {})
    if answer.returncode == 0:
        return
    old = shutil.which("docker-compose")
    version = _answer([old, "version", "--short"], None, {}).stdout.strip() if old else ""
    if version.startswith("1."):
        raise HostError(
            f"only Compose v1 is installed (docker-compose {version}): it cannot read compose.yaml",
            remedy="install the plugin of Compose v2 (`apt install docker-compose-plugin` or "
            f"`docker-compose-v2`), {_EMBEDDED}",
        )
    raise HostError(
        "Docker has no compose plugin: it does not know `docker compose`",
        remedy="install it (`apt install docker-compose-plugin` or `docker-compose-v2`), "
        f"{_EMBEDDED}",
        details=answer.stderr.strip(),
    )


def _engine_error(message: str) -> HostError:
    if "permission denied" in message.lower():
        return HostError(
            "no permission to use Docker's socket",
            remedy='join its group: `sudo usermod -aG docker "$USER"`, then log in again',
            details=message,
        )
    return HostError(
        "Docker is installed, but its engine does not answer",
        remedy=f"start it: `sudo systemctl start docker`, {_EMBEDDED}",
        details=message,
    )


def require_image(
    compose: Compose,
    service: str,
    programs: Sequence[Program],
    on_line: Callable[[str], None],
) -> None:
    """Build, find or pull the image of a service. Raises HostError when that cannot be done.

    programs: what is to be in it, for an error to name whose packages could not be installed.
    """
    config = json.loads(compose.ask("config", "--format", "json") or "{}")
    spec: dict[str, Any] = config.get("services", {}).get(service, {})
    try:
        if "build" in spec:
            remedy = f"read the lines above; `docker compose build` in {compose.folder} repeats it"
            compose.run("build", service, remedy=remedy, on_line=on_line)
        elif spec and not image_is_here(compose.docker, str(spec.get("image"))):
            compose.run("pull", service, remedy="pull it by hand", on_line=on_line)
    except CommandFailedError as error:
        raise _package_error(error, programs) or _image_error(error, spec) from error


def image_is_here(docker: str, image: str) -> bool:
    """Whether an image is on this machine."""
    return _answer([docker, "image", "inspect", image], None, {}).returncode == 0


def _image_error(error: CommandFailedError, spec: Mapping[str, Any]) -> HostError:
    build = spec.get("build")
    image = build.get("args", {}).get("BASE_IMAGE") if build else spec.get("image")
    details = error.details or ""
    # Steps of a build speak of connections, too: what counts is that the base never came.
    if (build and not _NO_BASE.search(details)) or not _NOT_HERE.search(details):
        return error
    word = "docker.base_image" if build else "docker.image"
    return HostError(
        f"the image {image} is not on this machine and cannot be pulled",
        remedy=f"fetch it (`docker pull {image}`, or `docker load` of an archive), "
        f"or set {word} in tritonctl.yaml to a local image",
        details=details,
    )


def _package_error(error: CommandFailedError, programs: Sequence[Program]) -> HostError | None:
    """None where no package failed, or none that a model names."""
    found = _NOT_INSTALLED.search(error.details or "")
    files = files_asking_for(found.group(1), programs) if found else []
    if found is None or not files:
        return None
    return HostError(
        f"{found.group(1)} cannot be installed in the image: {', '.join(map(str, files))} "
        "asks for it",
        remedy="name a version that is there as a wheel, or set `docker.image` to an image that "
        "has it",
        details=error.details,
    )


def port_error(error: CommandFailedError) -> HostError | None:
    """The error for a port that is already taken; None for any other failure."""
    taken = _TAKEN.search(error.details or "")
    if taken is None:
        return None
    address, port = taken.groups()
    return HostError(
        f"cannot publish port {port} on {address}: it is taken",
        remedy=f"stop what listens there (`ss -ltnp | grep :{port}`), or choose another one in "
        "tritonctl.yaml (`server`, `gateway`) or in deploy/",
        details=error.details,
    )


def refuse_other_owner(compose: Compose) -> None:
    """Raise HostError for another deployment of the same name: starting ours would replace it."""
    listing = _answer([compose.docker, "compose", "ls", "--all", "--format", "json"], None, {})
    for entry in json.loads(listing.stdout or "[]"):
        files = [Path(file) for file in str(entry.get("ConfigFiles", "")).split(",")]
        if entry.get("Name") == compose.name and compose.folder not in {f.parent for f in files}:
            raise HostError(
                f"another deployment is already called `{compose.name}`: {files[0].parent}",
                remedy=f"stop it (`docker compose -p {compose.name} down`), or rename the folder "
                "of one of the two projects",
            )


def container_status(docker: str, container: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Docker's record of a container's state, with its RestartCount; {} if it is gone."""
    done = _answer([docker, "inspect", "--format", "{{json .}}", container], None, variables)
    if done.returncode:
        return {}
    record = json.loads(done.stdout)
    return {**record["State"], "RestartCount": record["RestartCount"]}


def docker_json(deployment: Deployment, verb: str, *arguments: str) -> dict[str, Any]:
    """What `docker VERB` says of a deployment's container. Raises HostError."""
    answer = docker_answer(deployment, verb, "--format", "{{json .}}", *arguments)
    record: dict[str, Any] = json.loads(answer)
    return record


def docker_answer(deployment: Deployment, *arguments: str, missing: str | None = None) -> str:
    """What `docker ARGUMENTS` prints; `missing`: words of a refusal that is an answer, too.

    Raises HostError.
    """
    argv = ["docker", *arguments]
    variables = deployment.variables
    done = _answer(argv, None, variables)
    if done.returncode == 0 or (missing and missing.lower() in done.stderr.lower()):
        return done.stdout
    require_docker(variables)
    raise HostError(
        f"`{' '.join(argv)}` failed: {done.stderr.strip()}",
        remedy="see whether the container runs: `docker ps`",
    )


def _answer(
    argv: Sequence[str], cwd: Path | None, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            cwd=cwd if cwd and cwd.is_dir() else None,
            env=os.environ | dict(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 1, "", str(error))
