# SPDX-License-Identifier: Apache-2.0
"""Why a download failed, in words: what a model of the hub lacks, and the next command."""

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

AGAIN = "run `tritonctl fetch` again: it goes on where the download ended"
_FORBIDDEN = (401, 403)


@dataclass
class Refusal(Exception):  # noqa: N818 - what is told, not what is raised by a defect
    """What failed, and what to do about it. `kind` decides the exit code."""

    kind: str
    problem: str
    remedy: str


def endpoint() -> str:
    """The hub's address, for people: without a name and a password in it."""
    return str(httpx.URL(constants.ENDPOINT).copy_with(userinfo=b"")).rstrip("/")


def explained(error: Exception, repo: str, revision: str) -> Refusal:
    """What an exception of the library means."""
    match error:
        case Refusal():
            return error
        case GatedRepoError():
            refusal = _gated(repo)
        case RevisionNotFoundError():
            refusal = _no_revision(repo, revision)
        case RepositoryNotFoundError():
            refusal = _missing(repo)
        case HfHubHTTPError():
            refusal = _answered(error, repo)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            refusal = Refusal("disk", "the disk is full", f"free space, then {AGAIN}")
        case OSError(errno=errno.EACCES | errno.EROFS):
            place = error.filename or constants.HF_HUB_CACHE
            remedy = "make it writable, or set HF_HOME to a folder that is"
            refusal = Refusal("disk", f"{place} cannot be written", remedy)
        case _:
            refusal = _unreachable(error, repo)
    return refusal


def _no_revision(repo: str, revision: str) -> Refusal:
    return Refusal(
        "revision",
        f"{repo} has no revision {revision} on the hub at {endpoint()}",
        f"see its branches and tags at {endpoint()}/{repo}/tree/main, and correct `revision:`; "
        "of a commit that tritonctl.lock pins, `tritonctl fetch --update` takes the newest",
    )


def _unreachable(error: Exception, repo: str) -> Refusal:
    return Refusal(
        "network",
        f"the download of {repo} from {endpoint()} failed: {_reason(error)}",
        f"check network and proxy (HTTPS_PROXY, HF_ENDPOINT), then {AGAIN}",
    )


def _token() -> str:
    """Where the token that was sent comes from, for people."""
    if os.environ.get("HF_TOKEN"):
        return "the one in HF_TOKEN"
    return f"the one in {constants.HF_TOKEN_PATH}" if get_token() else ""


def _gated(repo: str) -> Refusal:
    sent = _token()
    why = f"the account of the token ({sent}) has no access" if sent else "no token was sent"
    return Refusal(
        "gated",
        f"{repo} is gated, and {why}",
        f"accept its conditions at {endpoint()}/{repo}, set HF_TOKEN to a token of that account "
        f"(`export HF_TOKEN=…`), then {AGAIN}",
    )


def _missing(repo: str) -> Refusal:
    sent = _token()
    why = "or the token's account may not see it" if sent else "or it is private: no token was sent"
    return Refusal(
        "repo",
        f"the hub at {endpoint()} has no model {repo}, {why}",
        "correct `checkpoint:`; for a private model set HF_TOKEN to a token that may read it "
        "(`export HF_TOKEN=…`) and run `tritonctl fetch` again",
    )


def _answered(error: HfHubHTTPError, repo: str) -> Refusal:
    status = error.response.status_code
    if status in _FORBIDDEN:
        sent = _token() or "none"
        return Refusal(
            "token",
            f"the hub at {endpoint()} refuses the token ({sent}): HTTP {status}",
            "set HF_TOKEN to a valid token, or unset it for a public model; then run "
            "`tritonctl fetch` again",
        )
    return Refusal(
        "network",
        f"the hub at {endpoint()} answered HTTP {status} for {repo}",
        f"wait, or check HF_ENDPOINT; then {AGAIN}",
    )


def _reason(error: BaseException) -> str:
    """The first line of the deepest cause: the library wraps what the network said."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
