# SPDX-License-Identifier: Apache-2.0
"""Forward a port of a pod or Service to this machine with `kubectl port-forward`."""

from __future__ import annotations

import io
import re
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tritonctl.host.process import terminate_group
from tritonctl.runtimes.kubernetes.api_errors import ClusterError, ClusterErrorReason, kubectl_error
from tritonctl.runtimes.kubernetes.kubectl import Kubectl, require_name

_LISTENS = re.compile(r"Forwarding from 127\.0\.0\.1:(\d{1,5}) ->")
_CONNECTION_NOTICE = "Handling connection for"
_START_SECONDS = 30.0
_MAX_LINES = 20


class PortForward:
    """A connection to a pod; `port` is the local one, on 127.0.0.1."""

    def __init__(self, target: str, process: subprocess.Popen[str], flags: str) -> None:
        self.target, self.port = target, 0
        self._process, self._flags = process, flags
        self._output_lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._port_known = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True, name="kubectl port-forward")
        self._reader.start()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether kubectl still forwards; it exits with the pod."""
        return self._process.poll() is None

    def require_alive(self, seconds: float = 0.0) -> None:
        """Raise ClusterError if the forward has closed or closes within `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        if not self.alive:
            raise self._closed_error()

    def wait_for_port(self) -> None:
        """Wait until the local port listens. Raises ClusterError."""
        self._port_known.wait(_START_SECONDS)
        if self.port:
            return
        if self.alive:
            raise ClusterError(
                f"`kubectl port-forward {self.target}` does not listen after {_START_SECONDS:g} s",
                remedy=f"`kubectl{self._flags} get pods` shows whether the pod runs",
                reason=ClusterErrorReason.TIMEOUT,
                details="\n".join(self._output_lines),
            )
        raise self._closed_error()

    def close(self) -> None:
        """Stop forwarding."""
        with suppress(OSError):
            terminate_group(self._process)
        self._reader.join(timeout=1)

    def _read(self) -> None:
        with self._process.stdout or io.StringIO() as lines:
            for text in lines:
                line = text.rstrip("\r\n")
                if line.startswith(_CONNECTION_NOTICE):
                    continue
                self._output_lines.append(line)
                if match := _LISTENS.match(line):
                    self.port = int(match[1])
                    self._port_known.set()
        self._process.wait()
        self._port_known.set()

    def _closed_error(self) -> ClusterError:
        self._reader.join(timeout=1)
        output = "\n".join(
            line for line in self._output_lines if not line.startswith("Forwarding from")
        )
        error = kubectl_error(output, flags=self._flags)
        is_unspecific = isinstance(error, ClusterError) and error.reason is ClusterErrorReason.OTHER
        if isinstance(error, ClusterError) and not is_unspecific:
            return error
        return ClusterError(
            f"the connection to {self.target} was closed: "
            + error.problem.removeprefix("kubectl failed: "),
            remedy=f"`kubectl{self._flags} get pods` shows whether the pod runs; then try again",
            reason=ClusterErrorReason.UNREACHABLE,
            details=output or None,
        )


@contextmanager
def port_forward(kubectl: Kubectl, target: str, port: int) -> Iterator[PortForward]:
    """Forward a local port, which kubectl chooses, to `port` of `pod/NAME` or `service/NAME`.

    For a Service, kubectl picks one of its pods. The forward closes with the context and, on Linux,
    with this process, even if it is killed. Raises ClusterError.
    """
    kind, _, object_name = target.partition("/")
    if kind not in ("pod", "service", "deployment"):
        raise ValueError(f"{target}: pod/NAME, service/NAME or deployment/NAME")
    require_name("the object's name", object_name)
    process = kubectl.start("port-forward", "--address=127.0.0.1", target, f":{port}")
    forward = PortForward(target, process, kubectl.flags)
    try:
        forward.wait_for_port()
        yield forward
    finally:
        forward.close()
