# SPDX-License-Identifier: Apache-2.0
"""The moments between a call and the first token, by this machine's clock."""

from __future__ import annotations

import http.client
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tritonctl import TritonClient

PATIENCE_SECONDS = 300.0
_POLL_SECONDS = 0.02
# I1122 17:16:27.507827 28488 python_be.cc:2249] "TRITONBACKEND_ModelInstanceInitialize: ..."
_LINE = re.compile(r"^[IWE](\d{4} \d\d:\d\d:\d\d\.\d{6}) \d+ \S+\] ?(.*)$", re.MULTILINE)
_QUEUED = re.compile(r'"loading: (\S+):\d+"')
# A model begins to load; the line above is written when it joins the queue.
_BEGUN = re.compile(r'"TRITONBACKEND_ModelInstanceInitialize: (\S+)_\d+_\d+ ')
_LOADED = re.compile(r"\"successfully loaded '([^']+)'\"")
_LISTENING = "Started GRPCInferenceService"
_ANSWER_SECONDS = 1


@dataclass(frozen=True)
class Span:
    """A time span in seconds since the epoch."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


@dataclass(frozen=True)
class Log:
    """A start, by tritonserver's log."""

    first_line: float
    listening: float
    models: dict[str, Span]

    @property
    def loading(self) -> Span:
        """From the beginning of the first model to the end of the last."""
        spans = self.models.values()
        return Span(min(span.begin for span in spans), max(span.end for span in spans))


@dataclass(frozen=True)
class Seen:
    """A start, as client and caller see it."""

    called: float
    ready: float
    first_token: float
    returned: float


@dataclass(frozen=True)
class Start:
    """One start from the call to the first token. created, begun: of the container, if any."""

    seen: Seen
    log: Log
    created: float | None = None
    begun: float | None = None


def watched(
    command: Sequence[str], folder: Path, endpoints: tuple[str, str], request: tuple[str, str]
) -> Seen:
    """Run a command that starts a server; ask the server as soon as it is ready.

    endpoints: gRPC and HTTP; request: model and prompt.
    """
    grpc, rest = endpoints
    called = time.time()
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        while not _is_ready(rest):
            if process.poll() or time.time() > called + PATIENCE_SECONDS:
                process.kill()
                raise SystemExit(f"`{' '.join(command)}`: {process.communicate()[1][-3000:]}")
            time.sleep(_POLL_SECONDS)
        ready = time.time()
        first_token = _ask(grpc, *request)
        errors = process.communicate()[1]
        if process.returncode:
            raise SystemExit(f"`{' '.join(command)}`: {errors[-3000:]}")
        return Seen(called, ready, first_token, time.time())


def _is_ready(url: str) -> bool:
    connection = http.client.HTTPConnection(url, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _ask(url: str, model: str, prompt: str) -> float:
    """Ask for a text; return when its first piece came."""
    with TritonClient(url) as client:
        for chunk in client.stream(model, prompt):
            if chunk.text:
                return time.time()
    raise SystemExit(f"{url}: {model} answered {prompt!r} with no text")


def read_log(text: str) -> Log:
    """The moments of a start in tritonserver's log, which is in UTC."""
    year = datetime.now(UTC).year
    lines = [(_moment(year, when), message) for when, message in _LINE.findall(text)]
    queued: dict[str, float] = {}
    begun: dict[str, float] = {}
    models: dict[str, Span] = {}
    for when, message in lines:
        if match := _QUEUED.match(message):
            queued.setdefault(match[1], when)
        elif match := _BEGUN.match(message):
            begun.setdefault(match[1], when)
        elif match := _LOADED.match(message):
            models[match[1]] = Span(begun.get(match[1], queued[match[1]]), when)
    [listening] = [when for when, message in lines if _LISTENING in message]
    return Log(lines[0][0], listening, models)


def _moment(year: int, text: str) -> float:
    when = datetime.strptime(f"{year}{text}", "%Y%m%d %H:%M:%S.%f")
    return when.replace(tzinfo=UTC).timestamp()


def docker_moment(text: str) -> float:
    """A time in Docker's records, which has nanoseconds."""
    whole, _, rest = text.rstrip("Z").partition(".")
    when = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return when.timestamp() + float(f"0.{rest or 0}")


def of_container(seen: Seen, record: dict[str, Any], log: str) -> Start:
    """A start in a container, with Docker's record of it."""
    created, begun = record["Created"], record["State"]["StartedAt"]
    return Start(seen, read_log(log), docker_moment(created), docker_moment(begun))
