# SPDX-License-Identifier: Apache-2.0
"""What a bare machine lacks for Docker Compose: an engine, plugins, an image to start from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.container_engine import DockerHost, MissingError
from tritonctl.host.files import cache_folder
from tritonctl.runtimes.docker.compose_command import has_image

BASE_IMAGE = "tritonctl-test/debian:1"
# An engine of our own has no network of its own: see tests/container_engine.py.
BUILD = {"build": {"network": "host"}}
# Debian's releases do not change any more; newer than what a stable machine has.
PLUGINS = {"docker-compose": "trixie", "docker-buildx": "trixie"}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SOURCES = Path("/etc/apt")


@contextmanager
def docker() -> Iterator[dict[str, str]]:
    """The variables of the environment by which an engine and Compose are found.

    The machine's own engine where one answers; else one of ours, which ends with all that it runs.
    Raises MissingError where there is neither.
    """
    with closing(DockerHost()) as host:
        yield host.variables | plugins()


def plugins() -> dict[str, str]:
    """The variable of the environment by which Compose is found, where it is not installed.

    Raises MissingError where it cannot be had.
    """
    return {} if has_compose() else {"DOCKER_CONFIG": str(plugin_folder())}


def program(name: str) -> str:
    """Its path; its name where it is not there."""
    return shutil.which(name) or name


def has_compose() -> bool:
    """Whether `docker compose` is there."""
    command = [program("docker"), "compose", "version"]
    done = subprocess.run(command, capture_output=True, check=False)
    return done.returncode == 0


def plugin_folder() -> Path:
    """A DOCKER_CONFIG with compose and buildx out of Debian's packages, downloaded once."""
    folder = cache_folder() / "tests" / "docker-config"
    plugins = folder / "cli-plugins"
    if all((plugins / name).is_file() for name in PLUGINS):
        return folder
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise MissingError("no compose plugin, and no apt to get one with")
    with tempfile.TemporaryDirectory() as scratch:
        _download(Path(scratch))
        plugins.mkdir(parents=True, exist_ok=True)
        for name in PLUGINS:
            [package] = Path(scratch).glob(f"{name}_*.deb")
            _run("dpkg-deb", "-x", str(package), f"{scratch}/files")
            found = Path(scratch) / "files" / "usr/libexec/docker/cli-plugins" / name
            staged = plugins / f".{name}.{os.getpid()}"
            shutil.copy2(found, staged)
            os.replace(staged, plugins / name)
    return folder


def _download(folder: Path) -> None:
    """`apt-get download` with lists and a cache of its own: the machine's stay as they are."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    suites = sorted(set(PLUGINS.values()))
    sources = [f"deb [signed-by={KEYRING}] {mirror()} {suite} main" for suite in suites]
    (folder / "sources.list").write_text("\n".join(sources), encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": f"{folder}/sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State": f"{folder}/state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": f"{folder}/cache",
        "APT::Sandbox::User": "root",
    }
    lines = "".join(f'{key} "{value}";\n' for key, value in settings.items())
    (folder / "apt.conf").write_text(lines, encoding="utf-8")
    environment = os.environ | {"APT_CONFIG": f"{folder}/apt.conf"}
    for command in (["update", "-qq"], ["download", "-qq", *PLUGINS]):
        _run("apt-get", *command, cwd=folder, environment=environment)


def mirror() -> str:
    """The mirror that this machine's apt uses for Debian itself."""
    files = [_SOURCES / "sources.list", *sorted((_SOURCES / "sources.list.d").glob("*"))]
    for file in files:
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        urls: list[str] = re.findall(r"https?://\S+", "\n".join(_active(text)))
        for url in urls:
            if url.rstrip("/").endswith("/debian"):
                return url
    raise MissingError("apt knows no Debian mirror: no compose plugin can be had")


def _active(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def import_base_image() -> None:
    """Make BASE_IMAGE without a registry: a minimal Debian, made once per machine."""
    # Imported again it would be another one, and leave the first without a name.
    if has_image(program("docker"), BASE_IMAGE):
        return
    archive = cache_folder() / "tests" / "debian.tar"
    if not archive.is_file():
        if not shutil.which("mmdebstrap"):
            raise MissingError("no mmdebstrap to make a base image with: tests/docker/install.sh")
        archive.parent.mkdir(parents=True, exist_ok=True)
        staged = archive.with_name(f".debian.{os.getpid()}.tar")
        _run("mmdebstrap", "--variant=apt", "--include=ca-certificates", _codename(), str(staged))
        os.replace(staged, archive)
    with archive.open("rb") as content:
        command = [program("docker"), "import", "-", BASE_IMAGE]
        subprocess.run(command, stdin=content, check=True, capture_output=True)


def _codename() -> str:
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    found = re.search(r"^VERSION_CODENAME=(\w+)", text, re.MULTILINE)
    return found[1] if found else "stable"


def _run(*argv: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, check=False)
    if done.returncode:
        raise MissingError(f"{argv[0]} failed: {done.stderr.decode()[-500:]}")
