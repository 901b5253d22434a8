# SPDX-License-Identifier: Apache-2.0
"""A hub on loopback that speaks the HTTP API of huggingface.co as huggingface_hub uses it.

https://huggingface.co/docs/hub/api: model info at a revision; `resolve` with ETag, X-Repo-Commit
and redirects of large files to a store with ranges; refusals with X-Error-Code.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.loopback_http import Answering, listening

_LARGE = (".safetensors", ".onnx", ".bin")
TOKEN = "hf_aSecretThatNobodyMaySee0123456789"  # noqa: S105 - of this server alone


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    range: str | None
    token: str | None


@dataclass
class Repo:
    """A model: its commits, newest last, each with its files; branches and tags; who may read."""

    commits: dict[str, dict[str, bytes]]
    references: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False
    readers: tuple[str, ...] = ()

    def commit_of(self, revision: str) -> str | None:
        """The commit of a branch, tag or commit."""
        commit = self.references.get(revision, revision)
        return commit if commit in self.commits else None


@dataclass
class Hub:
    """What the server has, what it was asked, and how it misbehaves."""

    repos: dict[str, Repo] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    # Bytes of the next large file after which the connection stays silent; the event tells.
    stall_after: int | None = None
    stalled: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    corrupt: bool = False
    status: int | None = None
    # What a hostile hub sends: another commit in the model's info, other headers of its files.
    sha: str | None = None
    file_headers: dict[str, str] = field(default_factory=dict)
    url: str = ""

    def put(self, name: str, commit: str, files: dict[str, bytes], **fields: Any) -> Repo:
        """Add a commit on `main`."""
        repo = self.repos.setdefault(name, Repo({}, **fields))
        repo.commits[commit] = files
        repo.references["main"] = commit
        return repo

    def downloads(self) -> list[Asked]:
        """Requests for the content of large files."""
        return [one for one in self.asked if one.method == "GET" and "/store/" in one.path]


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub on a free port."""
    hub = Hub()

    class Handler(_Handler):
        pass

    Handler.hub = hub
    with listening(Handler) as hub.url:
        try:
            yield hub
        finally:
            hub.go_on.set()


class _Handler(Answering):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        """Clients that are interrupted are part of the tests."""
        with suppress(ConnectionError):
            super().handle()

    def answer(self) -> None:
        """As the hub would."""
        bearer = self.headers.get("Authorization", "")
        self._token = bearer.removeprefix("Bearer ") or None
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(Asked(self.command, path, self.headers.get("Range"), self._token))
        if self.hub.status:
            return self.send(self.hub.status, b"")
        if stored := re.fullmatch(r"/store/([^/]+/[^/]+)/(\w+)/(.+)", path):
            return self._content(self.hub.repos[stored[1]].commits[stored[2]][stored[3]])
        if info := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self._info(info[1], info[2] or "main")
        if file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(file[1], file[2], file[3])
        return self.send(404, b"")

    def _repo(self, name: str, revision: str) -> tuple[Repo, str] | None:
        """The repository that may be seen, and the commit; else the refusal is sent."""
        if self._token is not None and not self._token.startswith("hf_"):
            self._refuse(401, None, "Invalid credentials in Authorization header")
            return None
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and self._token not in repo.readers):
            # As the real one: whether it exists is nobody's business without a token.
            status = 404 if self._token else 401
            self._refuse(status, "RepoNotFound", "Repository not found")
            return None
        commit = repo.commit_of(revision)
        if commit is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repo, commit

    def _info(self, name: str, revision: str) -> None:
        if (found := self._repo(name, revision)) is None:
            return
        repo, commit = found
        siblings = []
        for file, content in repo.commits[commit].items():
            one: dict[str, Any] = {"rfilename": file, "size": len(content)}
            one["blobId"] = hashlib.sha1(content, usedforsecurity=False).hexdigest()
            if file.endswith(_LARGE):
                digest = hashlib.sha256(content).hexdigest()
                one["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(one)
        record = {
            "_id": "0" * 24,
            "id": name,
            "modelId": name,
            "sha": commit if self.hub.sha is None else self.hub.sha,
            "private": repo.private,
            "gated": "manual" if repo.gated else False,
            "disabled": False,
            "tags": [],
            "siblings": siblings,
        }
        self.send(200, json.dumps(record).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, file: str) -> None:
        if (found := self._repo(name, revision)) is None:
            return
        repo, commit = found
        if repo.gated and self._token not in repo.readers:
            status = 403 if self._token else 401
            self._refuse(status, "GatedRepo", "Access to model is restricted")
            return
        content = repo.commits[commit].get(file)
        if content is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if file.endswith(_LARGE):
            digest = hashlib.sha256(content).hexdigest()
            headers |= {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{digest}"'}
            headers["Location"] = f"{self.hub.url}/store/{name}/{commit}/{file}"
            self.send(302, b"", headers | self.hub.file_headers)
            return
        digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        self.send(200, content, headers | {"ETag": f'"{digest}"'} | self.hub.file_headers)

    def _content(self, content: bytes) -> None:
        begin = 0
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            begin = int(asked[1])
        part = content[begin:]
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.hub.corrupt:
            part = bytes(len(part))
        stall, self.hub.stall_after = self.hub.stall_after, None
        if stall is not None:
            self.wfile.write(part[:stall])
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.go_on.wait()
            part = b""
            self.close_connection = True
        self.wfile.write(part)

    def _refuse(self, status: int, code: str | None, message: str) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.send(status, json.dumps({"error": message}).encode(), headers)
