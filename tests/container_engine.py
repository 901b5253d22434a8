# SPDX-License-Identifier: Apache-2.0
"""Docker for tests: the machine's, or a dockerd of our own; an image without a registry."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tritonctl.host.files import cache_folder, try_exclusive

# Of this interpreter: another one's image is another image.
_PYTHON = hashlib.sha256(f"{sys.version}{sys.base_prefix}".encode()).hexdigest()[:12]
IMAGE = f"tritonctl-test/python:{_PYTHON}"
PATIENCE_SECONDS = 120.0
_UNUSED = "until=168h"


class MissingError(Exception):
    """Something cannot be had on this machine; says what."""


def _program(name: str) -> str:
    return shutil.which(name) or name


def answers(host: str | None = None) -> bool:
    """Whether `docker` is here and its server, or that at `host`, answers."""
    if not shutil.which("docker"):
        return False
    command = [_program("docker"), *(["-H", host] if host else []), "version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def can_start() -> bool:
    """Whether we may start a dockerd of our own."""
    return os.geteuid() == 0 and bool(shutil.which("dockerd") and shutil.which("docker"))


class DockerHost:
    """The machine's Docker Engine, or one of our own that lives as long as a run of tests.

    Ours keeps its images and its build cache for the next run, where no other run uses them.
    """

    def __init__(self) -> None:
        """Find or start it. Raises MissingError where there is neither."""
        self.variables: dict[str, str] = {}
        self._running = ExitStack()
        if answers():
            return
        if not can_start():
            raise MissingError(
                "no Docker Engine answers, and none can be started (dockerd and root)"
            )
        # A socket's path may have 107 characters: pytest's folders are too deep.
        self._folder = Path(tempfile.mkdtemp(prefix="tritonctl-docker-", dir="/run"))
        self.variables = {"DOCKER_HOST": f"unix://{self._folder}/docker.sock"}
        self._start()

    def prove(self) -> None:
        """Have an engine that answers: ours is started anew where it died."""
        if not answers(self.variables.get("DOCKER_HOST")):
            if not self.variables:
                raise RuntimeError("the machine's Docker Engine does not answer any more")
            self.close()
            self._start()

    @property
    def daemon(self) -> int:
        """The process id of ours."""
        return int((self._folder / "pid").read_text(encoding="ascii"))

    def close(self) -> None:
        """End ours, with all that it runs."""
        self._running.close()

    def _start(self) -> None:
        with ExitStack() as started:
            self._folder.mkdir(exist_ok=True)
            started.callback(_remove, self._folder)
            kept = cache_folder() / "tests" / "docker-data"
            ours = started.enter_context(try_exclusive(kept.with_name("docker-data.lock")))
            data = kept if ours else self._folder / "data"
            try:
                host = started.enter_context(own_dockerd(self._folder, data))
            except DaemonError:
                if not ours:
                    raise
                shutil.rmtree(kept)  # of another version of Docker, or half written
                host = started.enter_context(own_dockerd(self._folder, data))
            _tidy(host)
            self._running = started.pop_all()


def _remove(folder: Path) -> None:
    """Also where a dockerd that was killed left mounts below."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    below = [place for line in lines if (place := line.split()[1]).startswith(f"{folder}/")]
    for place in reversed(below):
        subprocess.run([_program("umount"), "--lazy", place], check=True)
    shutil.rmtree(folder)


def _tidy(host: str) -> None:
    """What a killed run left, and images and layers that no run of the last week used."""
    docker = [_program("docker"), "-H", host]

    def ask(*command: str) -> list[str]:
        done = subprocess.run([*docker, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"docker {' '.join(command)}: {done.stderr}")
        return done.stdout.split()

    if containers := ask("ps", "--all", "--quiet"):
        ask("rm", "--force", "--volumes", *containers)
    ask("network", "prune", "--force")
    if volumes := ask("volume", "ls", "--quiet"):
        ask("volume", "rm", "--force", *volumes)
    ask("image", "prune", "--all", "--force", "--filter", _UNUSED)
    ask("builder", "prune", "--force", "--filter", _UNUSED)


class DaemonError(Exception):
    """A dockerd of ours does not answer; has its log."""


@contextmanager
def own_dockerd(folder: Path, data: Path | None = None) -> Iterator[str]:
    """Run a dockerd whose state lies in `folder`, its images in `data`; gives its DOCKER_HOST."""
    host = f"unix://{folder}/docker.sock"
    command = [_program("dockerd"), "--data-root", str(data or folder / "data")]
    command += ["--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"]
    command += ["--host", host, "--bridge=none", "--iptables=false"]
    with (folder / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _await_answer(daemon, host, folder / "dockerd.log")
        yield host
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE_SECONDS)


def _await_answer(daemon: subprocess.Popen[bytes], host: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and daemon.poll() is None:
        command = [_program("docker"), "-H", host, "info"]
        if not subprocess.run(command, capture_output=True, check=False).returncode:
            return
        time.sleep(0.2)
    raise DaemonError(f"dockerd does not answer:\n{log.read_text(encoding='utf-8')[-3000:]}")


def import_python_image() -> None:
    """Make IMAGE of this interpreter: its standard library and the libraries it links."""
    here = [_program("docker"), "image", "inspect", IMAGE]
    if subprocess.run(here, capture_output=True, check=False).returncode:
        _import(IMAGE, [])


def import_packages_image(image: str, packages: Path) -> None:
    """Make `image` of this interpreter and a folder of packages, with the libraries they link."""
    linked = _linked(packages.rglob("*.so*"))
    bundled = [path for path in linked if path.is_relative_to(packages)]
    outside = sorted(linked - set(bundled) - set(_python_files()))
    _import(image, [packages, *outside], "--change", f"ENV PYTHONPATH={packages}")


def remove_image(image: str) -> None:
    """Of this name; layers that others have stay."""
    command = [_program("docker"), "image", "rm", "--force", image]
    subprocess.run(command, check=True, capture_output=True)


def _import(image: str, more: list[Path], *options: str) -> None:
    command = [_program("docker"), "import", *options, "-", image]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        with tarfile.open(fileobj=process.stdin, mode="w|", dereference=True) as tar:
            for path in _python_files():
                tar.add(path, arcname=str(path).lstrip("/"), filter=_lean)
            for path in more:
                tar.add(path, arcname=str(path).lstrip("/"))
            link = tarfile.TarInfo("usr/bin/python3")
            link.type, link.linkname = tarfile.SYMTYPE, str(_interpreter())
            tar.addfile(link)
        process.stdin.close()
    if process.returncode:
        raise RuntimeError(f"`{' '.join(command)}` ended with status {process.returncode}")


def add_programs(image: str, programs: dict[str, str]) -> None:
    """Make `image` of IMAGE and some Python programs in /usr/bin, by their names."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, source in programs.items():
            content = f"#!/usr/bin/python3\n{source}".encode()
            member = tarfile.TarInfo(f"usr/bin/{name}")
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    docker = _program("docker")
    made = subprocess.run(
        [docker, "create", IMAGE, "python3"], check=True, capture_output=True, text=True
    )
    container = made.stdout.strip()
    for command, data in (
        ([docker, "cp", "-", f"{container}:/"], archive.getvalue()),
        ([docker, "commit", container, image], b""),
        ([docker, "rm", container], b""),
    ):
        subprocess.run(command, input=data, check=True, capture_output=True)


def _interpreter() -> Path:
    return Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}").resolve()


def _python_files() -> list[Path]:
    library = Path(sys.base_prefix, "lib", f"python3.{sys.version_info.minor}")
    linked = _linked([_interpreter(), *library.glob("lib-dynload/*.so")])
    return [_interpreter(), library, *sorted(linked)]


def _linked(files: Iterable[Path]) -> set[Path]:
    """The shared libraries that files link, as far as they are found on this machine."""
    command = [_program("ldd"), *map(str, files)]
    # Its status tells of a file that is no program; what the others link is told all the same.
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {Path(found) for found in re.findall(r"(/\S+) \(0x", told)}


def _lean(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(member.name).parts
    left_out = {"site-packages", "test", "tests", "__pycache__", "idlelib", "ensurepip"}
    return None if left_out & set(parts) else member
