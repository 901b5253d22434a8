# SPDX-License-Identifier: Apache-2.0
"""`docker.image: name@sha256:...` is the image on this machine, or the start is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.container_engine import DockerHost
from tritonctl.errors import HostError
from tritonctl.host.containers import ContainerEngine, find_engine, image_digests
from tritonctl.security.digests import verify_image

pytestmark = pytest.mark.docker

NAME = "tritonctl-test/digest"
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Registry:
    """The reading half of a registry's API, with one image of one empty layer."""

    def __init__(self) -> None:
        with io.BytesIO() as buffer:
            tarfile.open(fileobj=buffer, mode="w").close()
            plain = buffer.getvalue()
        layer = gzip.compress(plain, mtime=0)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "rootfs": {"type": "layers", "diff_ids": [_digest(plain)]},
            }
        ).encode()
        self.blobs = {_digest(content): content for content in (layer, config)}
        record: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": len(config),
                "digest": _digest(config),
            },
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "size": len(layer),
                    "digest": _digest(layer),
                }
            ],
        }
        self.manifest = json.dumps(record).encode()
        self.digest = _digest(self.manifest)

    def find(self, path: str) -> tuple[str, bytes] | None:
        """Kind and content of what a path names."""
        kind, _, reference = path.rpartition("/")
        if path == "/v2/":
            return "application/json", b"{}"
        if kind == f"/v2/{NAME}/manifests" and reference in ("1", self.digest):
            return _MANIFEST, self.manifest
        if kind == f"/v2/{NAME}/blobs" and reference in self.blobs:
            return "application/octet-stream", self.blobs[reference]
        return None


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: Registry

    def do_GET(self) -> None:
        found = self.registry.find(self.path)
        kind, content = found or ("application/json", b'{"errors": []}')
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Docker-Content-Digest", _digest(content))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815 - the base's name

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the base's name
        """Nothing to log."""


@contextmanager
def _registry() -> Iterator[tuple[str, Registry]]:
    """A registry on loopback, and where it is."""

    class Answers(_Answers):
        registry = Registry()

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", Answers.registry
        server.shutdown()


@pytest.fixture(scope="module")
def pulled(docker_variables: DockerHost) -> Iterator[tuple[str, str]]:
    """Name and digest of an image that was really pulled, by its tag."""
    program = shutil.which("docker") or "docker"
    with _registry() as (host, registry):
        name = f"{host}/{NAME}"
        subprocess.run([program, "pull", "--quiet", f"{name}:1"], check=True, capture_output=True)
        yield name, registry.digest
        subprocess.run([program, "image", "rm", f"{name}:1"], check=True, capture_output=True)


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> ContainerEngine:
    """Docker, also where podman is the first to be found."""
    monkeypatch.setenv("TRITONCTL_CONTAINER_ENGINE", "docker")
    return find_engine()


def test_the_image_that_is_meant(pulled: tuple[str, str], docker: ContainerEngine) -> None:
    """By digest, with and without a tag; a name without a digest is taken as it is."""
    name, digest = pulled
    assert digest in image_digests(docker, f"{name}:1")
    for image in (f"{name}@{digest}", f"{name}:1@{digest}", f"{name}:1"):
        verify_image(docker, image)


def test_another_image(pulled: tuple[str, str], docker: ContainerEngine) -> None:
    """One flipped digit, although the tag is here: told with the command that fetches it."""
    name, digest = pulled
    other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    with pytest.raises(HostError) as error:
        verify_image(docker, f"{name}:1@{other}")
    assert f"docker pull {name}:1@{other}" in error.value.remedy
    assert digest in error.value.problem


@pytest.mark.parametrize("digest", ["sha256:abc", "md5:" + "0" * 32, "sha256:" + "G" * 64])
def test_no_digest_at_all(pulled: tuple[str, str], docker: ContainerEngine, digest: str) -> None:
    """A typing error is not taken for an image without a digest."""
    with pytest.raises(HostError, match="no valid digest"):
        verify_image(docker, f"{pulled[0]}@{digest}")
