# SPDX-License-Identifier: Apache-2.0
"""When what happened between a call and the first token, by the clock of this machine."""

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

from tritonctl.protocol.client import TritonClient

PATIENCE_SECONDS = 300.0
_POLL_SECONDS = 0.02
# I1122 17:16:27.507827 28488 python_be.cc:2249] "TRITONBACKEND_ModelInstanceInitialize: ..."
_LINE = re.compile(r"^[IWE](\d{4} \d\d:\d\d:\d\d\.\d{6}) \d+ \S+\] ?(.*)$", re.MULTILINE)
_QUEUED = re.compile(r'"loading: (\S+):\d+"')
# Of a model whose turn has come; the line before is written when it is put in the queue.
_BEGUN = re.compile(r'"TRITONBACKEND_ModelInstanceInitialize: (\S+)_\d+_\d+ ')
_LOADED = re.compile(r"\"successfully loaded '([^']+)'\"")
_LISTENING = "Started GRPCInferenceService"
_ANSWER_SECONDS = 1


@dataclass(frozen=True)
class Span:
    """From, until: seconds since the epoch."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.end - self.begin


@dataclass(frozen=True)
class Log:
    """What tritonserver tells of its start."""

    first_line: float
    listening: float
    models: dict[str, Span]

    @property
    def loading(self) -> Span:
        """From the first model's begin to the last one's end."""
        spans = self.models.values()
        return Span(min(span.begin for span in spans), max(span.end for span in spans))


@dataclass(frozen=True)
class Seen:
    """What a client and the caller see."""

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
    """Run what starts a server; meanwhile ask as soon as it is ready.

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
        said = process.communicate()[1]
        if process.returncode:
            raise SystemExit(f"`{' '.join(command)}`: {said[-3000:]}")
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
    """When the first piece of text was there."""
    with TritonClient(url) as client:
        for chunk in client.stream(model, prompt):
            if chunk.text:
                return time.time()
    raise SystemExit(f"{url}: {model} answered {prompt!r} with no text")


def read_log(text: str) -> Log:
    """The moments of a start, from tritonserver's log; its clock is UTC."""
    year = datetime.now(UTC).year
    lines = [(_moment(year, when), said) for when, said in _LINE.findall(text)]
    queued: dict[str, float] = {}
    begun: dict[str, float] = {}
    models: dict[str, Span] = {}
    for when, said in lines:
        if found := _QUEUED.match(said):
            queued.setdefault(found[1], when)
        elif found := _BEGUN.match(said):
            begun.setdefault(found[1], when)
        elif found := _LOADED.match(said):
            models[found[1]] = Span(begun.get(found[1], queued[found[1]]), when)
    [listening] = [when for when, said in lines if _LISTENING in said]
    return Log(lines[0][0], listening, models)


def _moment(year: int, text: str) -> float:
    when = datetime.strptime(f"{year}{text}", "%Y%m%d %H:%M:%S.%f")
    return when.replace(tzinfo=UTC).timestamp()


def docker_moment(text: str) -> float:
    """Of Docker's records, which have nanoseconds."""
    whole, _, rest = text.rstrip("Z").partition(".")
    when = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return when.timestamp() + float(f"0.{rest or 0}")


def of_container(seen: Seen, record: dict[str, Any], log: str) -> Start:
    """A start in a container, from Docker's record of it."""
    created, begun = record["Created"], record["State"]["StartedAt"]
    return Start(seen, read_log(log), docker_moment(created), docker_moment(begun))
