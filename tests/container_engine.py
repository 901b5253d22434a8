# SPDX-License-Identifier: Apache-2.0
"""Docker for tests: the machine's, or a dockerd of our own; an image without a registry."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

IMAGE = "tritonctl-test/python:1"
PATIENCE_SECONDS = 60.0


def _program(name: str) -> str:
    return shutil.which(name) or name


def answers() -> bool:
    """Whether `docker` is here and its server answers."""
    if not shutil.which("docker"):
        return False
    done = subprocess.run([_program("docker"), "version"], capture_output=True, check=False)
    return done.returncode == 0


def can_start() -> bool:
    """Whether we may start a dockerd of our own."""
    return os.geteuid() == 0 and bool(shutil.which("dockerd") and shutil.which("docker"))


@contextmanager
def own_dockerd(folder: Path) -> Iterator[str]:
    """Run a dockerd whose state lies in `folder`; gives its DOCKER_HOST."""
    host = f"unix://{folder}/docker.sock"
    command = [_program("dockerd"), "--data-root", f"{folder}/data"]
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
    raise RuntimeError(f"dockerd does not answer:\n{log.read_text(encoding='utf-8')[-3000:]}")


def import_python_image() -> None:
    """Make IMAGE of this interpreter: its standard library and the libraries it links."""
    _import(IMAGE, [])


def import_packages_image(image: str, packages: Path) -> None:
    """Make `image` of this interpreter and a folder of packages, with the libraries they link."""
    linked = _linked(packages.rglob("*.so*"))
    bundled = [path for path in linked if path.is_relative_to(packages)]
    outside = sorted(linked - set(bundled) - set(_python_files()))
    _import(image, [packages, *outside], "--change", f"ENV PYTHONPATH={packages}")


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
