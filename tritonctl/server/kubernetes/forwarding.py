# SPDX-License-Identifier: Apache-2.0
"""A port of a pod or Service on this machine, by `kubectl port-forward`."""

from __future__ import annotations

import io
import re
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tritonctl.host.process import end_group
from tritonctl.server.kubernetes.kubectl import Kubectl, name
from tritonctl.server.kubernetes.refusals import ClusterError, Reason, refusal

_LISTENS = re.compile(r"Forwarding from 127\.0\.0\.1:(\d{1,5}) ->")
_USED = "Handling connection for"
_START_SECONDS = 30.0
_KEPT_LINES = 20


class Forward:
    """A connection to a pod; `port` is the local one, on 127.0.0.1."""

    def __init__(self, target: str, process: subprocess.Popen[str], flags: str) -> None:
        self.target, self.port = target, 0
        self._process, self._flags = process, flags
        self._said: deque[str] = deque(maxlen=_KEPT_LINES)
        self._known = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True, name="kubectl port-forward")
        self._reader.start()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether kubectl still forwards. It ends with the pod."""
        return self._process.poll() is None

    def require_alive(self, within: float = 0.0) -> None:
        """Raises ClusterError where it has ended, or ends in these seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within)
        if not self.alive:
            raise self._ended()

    def wait_for_port(self) -> None:
        """Until it listens. Raises ClusterError."""
        self._known.wait(_START_SECONDS)
        if self.port:
            return
        if self.alive:
            raise ClusterError(
                f"`kubectl port-forward {self.target}` does not listen after {_START_SECONDS:g} s",
                remedy=f"`kubectl{self._flags} get pods` shows whether the pod runs",
                reason=Reason.TIMEOUT,
                details="\n".join(self._said),
            )
        raise self._ended()

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            end_group(self._process)
        self._reader.join(timeout=1)

    def _read(self) -> None:
        with self._process.stdout or io.StringIO() as lines:
            for text in lines:
                line = text.rstrip("\r\n")
                if line.startswith(_USED):
                    continue
                self._said.append(line)
                if match := _LISTENS.match(line):
                    self.port = int(match[1])
                    self._known.set()
        self._process.wait()
        self._known.set()

    def _ended(self) -> ClusterError:
        self._reader.join(timeout=1)
        said = "\n".join(line for line in self._said if not line.startswith("Forwarding from"))
        error = refusal(said, flags=self._flags)
        lost = isinstance(error, ClusterError) and error.reason is Reason.OTHER
        if isinstance(error, ClusterError) and not lost:
            return error
        return ClusterError(
            f"the connection to {self.target} has ended: "
            + error.problem.removeprefix("kubectl failed: "),
            remedy=f"`kubectl{self._flags} get pods` shows whether the pod runs; then try again",
            reason=Reason.UNREACHABLE,
            details=said or None,
        )


@contextmanager
def port_forward(kubectl: Kubectl, target: str, port: int) -> Iterator[Forward]:
    """Forward a local port, which kubectl chooses, to `port` of `pod/NAME` or `service/NAME`.

    A Service means one of its pods. It ends with the context, and when this process does, however
    that ends (on Linux). Raises ClusterError.
    """
    kind, _, called = target.partition("/")
    if kind not in ("pod", "service", "deployment"):
        raise ValueError(f"{target}: pod/NAME, service/NAME or deployment/NAME")
    name("the object's name", called)
    process = kubectl.start("port-forward", "--address=127.0.0.1", target, f":{port}")
    forward = Forward(target, process, kubectl.flags)
    try:
        forward.wait_for_port()
        yield forward
    finally:
        forward.close()
