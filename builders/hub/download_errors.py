# SPDX-License-Identifier: Apache-2.0
"""Turns exceptions of a download into a problem and the next command."""

import errno
import os
from dataclasses import dataclass

import httpx
from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

RETRY = "run `tritonctl fetch` again: it resumes the download"
_FORBIDDEN = (401, 403)


@dataclass
class DownloadError(Exception):
    """A failed download with its remedy."""

    kind: str  # decides the exit code
    problem: str
    remedy: str


def endpoint() -> str:
    """Return the hub's address without user name and password, for messages."""
    return str(httpx.URL(constants.ENDPOINT).copy_with(userinfo=b"")).rstrip("/")


def to_download_error(error: Exception, repo: str, revision: str) -> DownloadError:
    """Return the DownloadError for an exception of the library."""
    match error:
        case DownloadError():
            return error
        case GatedRepoError():
            failure = _gated_model(repo)
        case RevisionNotFoundError():
            failure = _no_revision(repo, revision)
        case RepositoryNotFoundError():
            failure = _no_model(repo)
        case HfHubHTTPError():
            failure = _http_error(error, repo)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            failure = DownloadError("disk", "the disk is full", f"free space, then {RETRY}")
        case OSError(errno=errno.EACCES | errno.EROFS):
            path = error.filename or constants.HF_HUB_CACHE
            remedy = "make it writable, or set HF_HOME to a folder that is"
            failure = DownloadError("disk", f"{path} cannot be written", remedy)
        case _:
            failure = _unreachable(error, repo)
    return failure


def _no_revision(repo: str, revision: str) -> DownloadError:
    return DownloadError(
        "revision",
        f"{repo} has no revision {revision} on the hub at {endpoint()}",
        f"see its branches and tags at {endpoint()}/{repo}/tree/main, and correct `revision:`; "
        "of a commit that tritonctl.lock pins, `tritonctl fetch --update` takes the newest",
    )


def _unreachable(error: Exception, repo: str) -> DownloadError:
    return DownloadError(
        "network",
        f"the download of {repo} from {endpoint()} failed: {_root_cause(error)}",
        f"check network and proxy (HTTPS_PROXY, HF_ENDPOINT), then {RETRY}",
    )


def _token_source() -> str:
    """Return the source of the sent token for messages, or ""."""
    if os.environ.get("HF_TOKEN"):
        return "the one in HF_TOKEN"
    return f"the one in {constants.HF_TOKEN_PATH}" if get_token() else ""


def _gated_model(repo: str) -> DownloadError:
    token_source = _token_source()
    reason = (
        f"the account of the token ({token_source}) has no access"
        if token_source
        else "no token was sent"
    )
    return DownloadError(
        "gated",
        f"{repo} is gated, and {reason}",
        f"accept its conditions at {endpoint()}/{repo}, set HF_TOKEN to a token of that account "
        f"(`export HF_TOKEN=…`), then {RETRY}",
    )


def _no_model(repo: str) -> DownloadError:
    token_source = _token_source()
    reason = (
        "or the token's account may not see it"
        if token_source
        else "or it is private: no token was sent"
    )
    return DownloadError(
        "repo",
        f"the hub at {endpoint()} has no model {repo}, {reason}",
        "correct `checkpoint:`; for a private model set HF_TOKEN to a token that may read it "
        "(`export HF_TOKEN=…`) and run `tritonctl fetch` again",
    )


def _http_error(error: HfHubHTTPError, repo: str) -> DownloadError:
    status = error.response.status_code
    if status in _FORBIDDEN:
        token_source = _token_source() or "none"
        return DownloadError(
            "token",
            f"the hub at {endpoint()} refuses the token ({token_source}): HTTP {status}",
            "set HF_TOKEN to a valid token, or unset it for a public model; then run "
            "`tritonctl fetch` again",
        )
    return DownloadError(
        "network",
        f"the hub at {endpoint()} answered HTTP {status} for {repo}",
        f"wait, or check HF_ENDPOINT; then {RETRY}",
    )


def _root_cause(error: BaseException) -> str:
    """Return the first line of the root cause. The library wraps network errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
