# SPDX-License-Identifier: Apache-2.0
"""An index of Python packages on loopback (PEP 503, 691, 700), with wheels made for a test."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.loopback_http import Answering, listening

_HEAD = "Metadata-Version: 2.1\n"
_JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class Index:
    """Wheels by their names; what was asked; whether it answers; JSON or HTML."""

    wheels: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    down: bool = False
    html: bool = False
    url: str = ""

    def put(self, name: str, version: str, needs: Sequence[str] = (), filling: int = 0) -> str:
        """Add a wheel whose module says its version; returns its name."""
        file = f"{name}-{version}-py3-none-any.whl"
        self.wheels[file] = wheel(name, version, needs, filling)
        return file


def wheel(name: str, version: str, needs: Sequence[str], filling: int) -> bytes:
    """A wheel of one module; filling: incompressible bytes in it."""
    info = f"{name}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {one}\n" for one in needs)
    files = {
        f"{name}.py": f"version = {version!r}\n".encode(),
        f"{name}_data": bytes(filling),
        f"{info}/METADATA": f"{_HEAD}Name: {name}\nVersion: {version}\n{requires}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{one},,\n" for one in [*files, f"{info}/RECORD"]).encode()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return whole.getvalue()


@contextmanager
def indexing() -> Iterator[Index]:
    """An index on a free port, at /simple."""
    index = Index()

    class Handler(_Handler):
        pass

    Handler.index = index
    with listening(Handler) as url:
        index.url = f"{url}/simple"
        yield index


class _Handler(Answering):
    index: Index

    def answer(self) -> None:
        """As an index would."""
        self.index.asked.append(self.path)
        parts = unquote(self.path).strip("/").split("/")
        if self.index.down:
            self._send(503, b"", "text/plain")
        elif parts[0] == "files" and parts[-1].removesuffix(".metadata") in self.index.wheels:
            self._send(200, self._file(parts[-1]), "application/octet-stream")
        elif names := [n for n in self.index.wheels if n.split("-")[0] == parts[-1]]:
            wants_json = _JSON in self.headers.get("Accept", "") and not self.index.html
            self._send(200, *(self._json(names) if wants_json else _page(names)))
        else:
            self._send(404, b"", "text/plain")

    def _file(self, name: str) -> bytes:
        content = self.index.wheels[name.removesuffix(".metadata")]
        if not name.endswith(".metadata"):
            return content
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.read(next(n for n in archive.namelist() if n.endswith("/METADATA")))

    def _json(self, names: list[str]) -> tuple[bytes, str]:
        files = [
            {
                "filename": name,
                "url": f"/files/{name}",
                "hashes": {},
                "size": len(self.index.wheels[name]),
                "core-metadata": True,
            }
            for name in names
        ]
        versions = [name.split("-")[1] for name in names]
        record = {"meta": {"api-version": "1.1"}, "name": names[0].split("-")[0]}
        return json.dumps(record | {"versions": versions, "files": files}).encode(), _JSON

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send(status, body, {"Content-Type": kind})


def _page(names: list[str]) -> tuple[bytes, str]:
    links = "".join(f'<a href="/files/{name}">{name}</a>\n' for name in names)
    return f"<!DOCTYPE html><html><body>\n{links}</body></html>".encode(), "text/html"
