# SPDX-License-Identifier: Apache-2.0
"""Kubernetes out of Debian's own packages and source, made once a machine: no registry is asked."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.container_engine import MissingError
from tests.docker.machine import KEYRING, mirror
from tritonctl.host.files import cache_folder

BINARIES = "opt/kubernetes"
PAUSE = "localhost/pause:1"
_SUITE = "bookworm"  # its package `kubernetes` is of 1.20.2
_PACKAGES = (
    "ca-certificates golang-go gcc libc6-dev dpkg-dev containerd runc etcd-server "
    "containernetworking-plugins kubernetes-client iptables iproute2 conntrack kmod procps socat "
    "ethtool util-linux mount ipset curl openssl"
)
_NEEDED = ("mmdebstrap", "unshare", "nsenter")


def folder() -> Path:
    """Where it is kept."""
    return cache_folder() / "tests" / "kubernetes"


def debian() -> Path:
    """The root of the machine."""
    return folder() / "debian"


def program(name: str) -> str:
    """Its path; its name where it is not there."""
    return shutil.which(name) or name


def require() -> None:
    """Raise MissingError where this machine can have no cluster."""
    if os.geteuid() != 0:
        raise MissingError("a cluster needs root, for namespaces and mounts")
    if not Path("/sys/fs/cgroup/memory").is_dir():
        raise MissingError("Kubernetes 1.20 needs cgroup v1, and this machine has v2 alone")
    for name in _NEEDED:
        if not shutil.which(name):
            raise MissingError(f"no {name}: tests/docker/install.sh")


def make() -> None:
    """Have it in the cache: a quarter of an hour the first time.

    Raises MissingError where this machine can have none, BuildError where it should and does not.
    """
    require()
    if not (debian() / BINARIES / "pause.tar").is_file():
        shutil.rmtree(debian(), ignore_errors=True)
        _make_debian(debian())
        _build(debian())


class BuildError(Exception):
    """Kubernetes could not be compiled: a mistake of the tests', which no skip may hide."""


def _make_debian(root: Path) -> None:
    root.mkdir(parents=True)
    signed = f"[signed-by={KEYRING}]"
    sources = [f"{kind} {signed} {mirror()} {_SUITE} main" for kind in ("deb", "deb-src")]
    choice = ("--variant=minbase", f"--include={_PACKAGES.replace(' ', ',')}")
    _run(MissingError, program("mmdebstrap"), *choice, _SUITE, str(root), *sources)
    for name in ("etc/resolv.conf", "etc/hosts"):  # for the source package
        shutil.copy(f"/{name}", root / name)


def _build(root: Path) -> None:
    """The daemons and the image of a pod's first process, by the root's own compilers."""
    work = root / "src"
    work.mkdir()
    for name in ("build.sh", "daemons.go"):
        shutil.copy(Path(__file__).with_name(name), work)
    script = (
        f"mount --make-rprivate / && mount -t proc proc {root}/proc && "
        f"exec chroot {root} bash /src/build.sh /src /{BINARIES}"
    )
    _run(BuildError, program("unshare"), "--mount", "bash", "-c", script)
    _write_image(root / BINARIES / "pause.tar", root / BINARIES / "pause")
    shutil.rmtree(work)


def _write_image(archive: Path, binary: Path) -> None:
    """An image of one program, as `docker save` writes them."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(binary, arcname="pause")
    content = layer.getvalue()
    configuration = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/pause"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(content)}"]},
        }
    ).encode()
    named = f"{_digest(configuration)}.json"
    index = [{"Config": named, "RepoTags": [PAUSE], "Layers": ["layer.tar"]}]
    files = {
        named: configuration,
        "layer.tar": content,
        "manifest.json": json.dumps(index).encode(),
    }
    staged = archive.with_name(".pause.tar")
    with tarfile.open(staged, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    staged.rename(archive)  # the last of all: with it the cluster is made


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _run(error: type[Exception], *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise error(f"{command[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
