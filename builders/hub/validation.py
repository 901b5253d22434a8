# SPDX-License-Identifier: Apache-2.0
"""Checks what a hub sends before it becomes a path: file names, commits and ETags.

huggingface_hub joins the headers `ETag` and `X-Repo-Commit` to paths of its cache unchecked.
"""

import re
from collections.abc import Iterable
from functools import partial
from pathlib import PurePosixPath

import httpx
from huggingface_hub import constants, set_client_factory
from huggingface_hub.utils._http import default_client_factory

from download_errors import DownloadError, endpoint

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r"[A-Za-z0-9][\w.+:=~-]{0,127}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Linux limits names to 255 bytes and paths to 4096.
_MAX_NAME_BYTES, _MAX_PATH_BYTES = 255, 2048


def check_commit(repo: str, revision: str, commit: str | None) -> str:
    """Return the commit of a revision. Raise DownloadError unless the hub sent the requested one.

    A revision of 40 hexadecimal digits is a commit: tritonctl.lock pins it, or the project does.
    """
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise _untrusted(f"names the commit of {repo} {_quoted(commit)}")
    if _COMMIT.fullmatch(revision) and commit != revision:
        raise _untrusted(f"sent commit {commit} of {repo}, and {revision} was requested")
    return commit


def check_revision(revision: str) -> None:
    """Raise DownloadError for a revision that is not a branch, a tag or a commit."""
    if not is_inner_path(revision):
        raise DownloadError(
            "revision",
            f"the revision {_quoted(revision)} is not a branch, a tag or a commit",
            "correct `revision:` in tritonctl.yaml",
        )


def check_names(repo: str, names: Iterable[str]) -> None:
    """Raise DownloadError unless every name is a path that stays in the model's folder."""
    for name in names:
        if not is_inner_path(name):
            raise _untrusted(
                f"lists the file {_quoted(name)} of {repo}, which is not a path inside it"
            )


def check_responses(commit: str) -> None:
    """Let the library's further requests fail if a response names a path or another commit."""
    set_client_factory(partial(_checking_client, commit))


def _checking_client(commit: str) -> httpx.Client:
    client: httpx.Client = default_client_factory()
    client.event_hooks["response"].append(partial(_check_response, commit))
    return client


def _check_response(commit: str, response: httpx.Response) -> None:
    sent_commit = response.headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT, commit)
    if sent_commit != commit:
        raise _untrusted(
            f"sent a file of commit {_quoted(sent_commit)}, and {commit} was requested"
        )
    etags = [response.headers.get(constants.HUGGINGFACE_HEADER_X_LINKED_ETAG)]
    if response.request.method == "HEAD":
        etags.append(response.headers.get("ETag"))
    for etag in filter(None, etags):
        # As the library strips it.
        if not _ETAG.fullmatch(etag.lstrip("W/").strip('"')):
            raise _untrusted(f"sent the ETag {_quoted(etag)}, which is not a file name")


def is_inner_path(name: str) -> bool:
    """Whether a name of the hub is a relative path that stays inside a folder."""
    path = PurePosixPath(str(name))
    return (
        not path.is_absolute()
        # Not "", "a//b" or "./a", which Git has not and which would be two names of one file.
        and path.as_posix() == name != "."
        and ".." not in path.parts
        and not _CONTROL.search(name)
        and "\\" not in name
        and all(len(part.encode()) <= _MAX_NAME_BYTES for part in path.parts)
        and len(name.encode()) <= _MAX_PATH_BYTES
    )


def _quoted(text: str | None) -> str:
    """Quote a text of the hub for a message: short, without control characters."""
    return ascii(text)[:100]


def _untrusted(problem: str) -> DownloadError:
    return DownloadError(
        "untrusted",
        f"the hub at {endpoint()} {problem}",
        "check HF_ENDPOINT and the proxy (HTTPS_PROXY): a hub never sends this",
    )
