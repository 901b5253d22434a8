# SPDX-License-Identifier: Apache-2.0
"""Check that `docker compose` is usable, and run its commands for one deployment."""

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
from tritonctl.host.hash_mismatch import hash_mismatch
from tritonctl.host.process import run
from tritonctl.repository.packages import files_asking_for
from tritonctl.repository.server_environment import StubProgram
from tritonctl.runtimes.server_state import Deployment

_TIMEOUT_SECONDS = 60
_EMBEDDED_REMEDY = "or run without containers: `tritonctl up --mode embedded`"
_IMAGE_UNAVAILABLE = re.compile(
    r"failed to resolve source metadata|pull access denied|manifest unknown|no such host"
    r"|failed to do request|dial tcp|connection refused|not found|unauthorized|denied",
    re.IGNORECASE,
)
# BuildKit's messages if the base image is unavailable: it repeats the failed step.
_BASE_UNAVAILABLE = re.compile(
    r"^ > \[.*internal\] load metadata for|failed to resolve source metadata|pull access denied",
    re.MULTILINE,
)
# pip's messages: no such version, or a version without a wheel, as the image has no compiler.
_BUILD_STEP = re.compile(r"^#\d+ [\d.]+ ")  # BuildKit's prefix of a program's output
_PACKAGE_FAILED = re.compile(r"(?:No matching distribution found|Failed building wheel) for (\S+)")
# Messages of Docker's proxy, and of Docker if another container has the port.
_PORT_IN_USE = re.compile(
    r"(?:listen tcp\d? |Bind for )(\S+):(\d+)\b.*(?:already in use|already allocated)"
)


@dataclass(frozen=True)
class Compose:
    """Docker Compose for one deployment and its profiles."""

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
        """Run a command to completion. Raises CommandFailedError with its last lines."""
        argv = self.command(*arguments)
        cwd = self.folder if self.folder.is_dir() else None
        environment = os.environ | dict(self.variables)
        run(argv, cwd=cwd, environment=environment, on_line=on_line, remedy=remedy)

    def command(self, *arguments: str) -> list[str]:
        """Return the full command line; compose finds compose.yaml and its override by folder."""
        profiles = [part for profile in self.profiles for part in ("--profile", profile)]
        start = [self.docker, "compose", "--ansi", "never", "--project-name", self.name]
        return [*start, *profiles, *arguments]

    def output_of(self, *arguments: str) -> str:
        """Return the output of a command; "" if it fails."""
        result = _run_captured(self.command(*arguments), self.folder, self.variables)
        return result.stdout.strip() if result.returncode == 0 else ""


def require_docker(variables: Mapping[str, str] | None = None) -> str:
    """Return the path of `docker` after checking that Compose v2 and an engine answer.

    Raises HostError if one of them does not.
    """
    docker = shutil.which("docker")
    if docker is None:
        raise HostError(
            "Docker is not installed: `docker` is not in PATH",
            remedy=f"install Docker Engine with its compose plugin, {_EMBEDDED_REMEDY}",
        )
    _require_compose(docker)
    result = _run_captured(
        [docker, "version", "--format", "{{.Server.Version}}"], None, variables or {}
    )
    if result.returncode:
        raise _engine_error(result.stderr.strip())
    return docker


def _require_compose(docker: str) -> None:
    result = _run_captured([docker, "compose", "version", "--short"], None, {})
    if result.returncode == 0:
        return
    old = shutil.which("docker-compose")
    version = _run_captured([old, "version", "--short"], None, {}).stdout.strip() if old else ""
    if version.startswith("1."):
        raise HostError(
            f"only Compose v1 is installed (docker-compose {version}): it cannot read compose.yaml",
            remedy="install the plugin of Compose v2 (`apt install docker-compose-plugin` or "
            f"`docker-compose-v2`), {_EMBEDDED_REMEDY}",
        )
    raise HostError(
        "Docker has no compose plugin: it does not know `docker compose`",
        remedy="install it (`apt install docker-compose-plugin` or `docker-compose-v2`), "
        f"{_EMBEDDED_REMEDY}",
        details=result.stderr.strip(),
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
        remedy=f"start it: `sudo systemctl start docker`, {_EMBEDDED_REMEDY}",
        details=message,
    )


def require_image(
    compose: Compose,
    service: str,
    programs: Sequence[StubProgram],
    on_line: Callable[[str], None],
) -> None:
    """Build, find or pull the image of a service. Raises HostError on failure.

    programs: the image's programs, so that the error can name the file that requires a package.
    """
    config = json.loads(compose.output_of("config", "--format", "json") or "{}")
    spec: dict[str, Any] = config.get("services", {}).get(service, {})
    output: list[str] = []

    def keep(line: str) -> None:
        output.append(_BUILD_STEP.sub("", line))
        on_line(line)

    try:
        if "build" in spec:
            remedy = f"read the lines above; `docker compose build` in {compose.folder} repeats it"
            compose.run("build", service, remedy=remedy, on_line=keep)
        elif spec and not has_image(compose.docker, str(spec.get("image"))):
            compose.run("pull", service, remedy="pull it manually", on_line=on_line)
    except CommandFailedError as error:
        raise (
            _hash_error("\n".join(output), compose.folder)
            or _package_error(error, programs)
            or _image_error(error, spec)
        ) from error


def has_image(docker: str, image: str) -> bool:
    """Whether the image is on this machine."""
    return _run_captured([docker, "image", "inspect", image], None, {}).returncode == 0


def _image_error(error: CommandFailedError, spec: Mapping[str, Any]) -> HostError:
    build = spec.get("build")
    image = build.get("args", {}).get("BASE_IMAGE") if build else spec.get("image")
    details = error.details or ""
    # Build steps may also report connection errors: only an unavailable base image counts.
    if (build and not _BASE_UNAVAILABLE.search(details)) or not _IMAGE_UNAVAILABLE.search(details):
        return error
    word = "docker.base_image" if build else "docker.image"
    return HostError(
        f"the image {image} is not on this machine and cannot be pulled",
        remedy=f"fetch it (`docker pull {image}`, or `docker load` of an archive), "
        f"or set {word} in tritonctl.yaml to a local image",
        details=details,
    )


def _hash_error(output: str, folder: Path) -> HostError | None:
    """Return the error for a package whose hash is not in the image's lock."""
    mismatch = hash_mismatch(output)
    if mismatch is None:
        return None
    locks = sorted(folder.glob("*/*requirements.lock")) or [folder]
    return HostError(
        f"the image cannot be built: {mismatch.problem(locks)}", remedy=mismatch.remedy
    )


def _package_error(error: CommandFailedError, programs: Sequence[StubProgram]) -> HostError | None:
    """Return the error for a failed package that a model requires; None for other failures."""
    match = _PACKAGE_FAILED.search(error.details or "")
    files = files_asking_for(match.group(1), programs) if match else []
    if match is None or not files:
        return None
    return HostError(
        f"{match.group(1)} cannot be installed in the image: {', '.join(map(str, files))} "
        "requires it",
        remedy="name a version that has a wheel, or set `docker.image` to an image that includes "
        "it",
        details=error.details,
    )


def port_error(error: CommandFailedError) -> HostError | None:
    """Return the error for a port in use; None for other failures."""
    match = _PORT_IN_USE.search(error.details or "")
    if match is None:
        return None
    address, port = match.groups()
    return HostError(
        f"cannot publish port {port} on {address}: it is in use",
        remedy=f"stop the other listener (`ss -ltnp | grep :{port}`), or choose another port in "
        "tritonctl.yaml (`server`, `gateway`) or in deploy/",
        details=error.details,
    )


def refuse_name_conflict(compose: Compose) -> None:
    """Raise HostError for another deployment of the same name, which ours would replace."""
    listing = _run_captured(
        [compose.docker, "compose", "ls", "--all", "--format", "json"], None, {}
    )
    for entry in json.loads(listing.stdout or "[]"):
        files = [Path(file) for file in str(entry.get("ConfigFiles", "")).split(",")]
        if entry.get("Name") == compose.name and compose.folder not in {f.parent for f in files}:
            raise HostError(
                f"another deployment already has the name `{compose.name}`: {files[0].parent}",
                remedy=f"stop it (`docker compose -p {compose.name} down`), or rename the folder "
                "of one of the two projects",
            )


def container_status(docker: str, container: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return Docker's record of a container's state plus RestartCount; {} if it is removed."""
    result = _run_captured(
        [docker, "inspect", "--format", "{{json .}}", container], None, variables
    )
    if result.returncode:
        return {}
    record = json.loads(result.stdout)
    return {**record["State"], "RestartCount": record["RestartCount"]}


def docker_json(deployment: Deployment, verb: str, *arguments: str) -> dict[str, Any]:
    """Return the JSON of `docker VERB` for a deployment's container. Raises HostError."""
    output = docker_output(deployment, verb, "--format", "{{json .}}", *arguments)
    record: dict[str, Any] = json.loads(output)
    return record


def docker_output(deployment: Deployment, *arguments: str, missing_text: str | None = None) -> str:
    """Return the output of `docker ARGUMENTS`. Raises HostError on failure.

    missing_text: part of an error message that counts as success.
    """
    argv = ["docker", *arguments]
    variables = deployment.variables
    result = _run_captured(argv, None, variables)
    if result.returncode == 0 or (missing_text and missing_text.lower() in result.stderr.lower()):
        return result.stdout
    require_docker(variables)
    raise HostError(
        f"`{' '.join(argv)}` failed: {result.stderr.strip()}",
        remedy="check whether the container runs: `docker ps`",
    )


def _run_captured(
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
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 1, "", str(error))
