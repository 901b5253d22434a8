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
from collections.abc import Iterator
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
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar:
        for path in _python_files():
            tar.add(path, arcname=str(path).lstrip("/"), filter=_lean)
        link = tarfile.TarInfo("usr/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, str(_interpreter())
        tar.addfile(link)
    command = [_program("docker"), "import", "-", IMAGE]
    subprocess.run(command, input=archive.getvalue(), check=True, capture_output=True)


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
    linked = subprocess.run(
        [_program("ldd"), _interpreter(), *library.glob("lib-dynload/*.so")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    libraries = {Path(found) for found in re.findall(r"(/\S+) \(0x", linked)}
    return [_interpreter(), library, *sorted(libraries)]


def _lean(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(member.name).parts
    left_out = {"site-packages", "test", "tests", "__pycache__", "idlelib", "ensurepip"}
    return None if left_out & set(parts) else member
