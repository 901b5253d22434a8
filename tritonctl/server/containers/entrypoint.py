# SPDX-License-Identifier: Apache-2.0
"""First process of Triton's container: runs tritonserver, lets streams finish before it ends.

`python3 serve.py tritonserver ARGUMENTS` in an image that has this file and the supervisor;
`--healthy` is its health check. Standard library only.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Run as a file, in an image that has no tritonctl but these few modules of it.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tritonctl.server import supervisor
from tritonctl.server.becoming import becoming
from tritonctl.server.readiness import Readiness, is_ready

TOKEN_PLACEHOLDER = "@TRITON_TOKEN@"  # noqa: S105 - stands for one on the command line
TOKEN_VARIABLE = "TRITON_TOKEN"  # noqa: S105 - the variable's name
# A second model repository, where `tritonctl reload` puts a new version beside the served one.
BESIDE = "/beside"
BESIDE_VARIABLE = "TRITON_BESIDE"  # its folder on the host
# Where a gateway asks whether to send requests.
READINESS_PORT = 8003
READINESS_VARIABLE = "TRITON_READINESS_PORT"
_HTTP_PORT = 8000
_READY_URL = "http://127.0.0.1:{port}/v2/health/ready"
_ANSWER_SECONDS = 3
_LOAD = "--load-model="
_DEFAULTS = {
    "--exit-timeout-secs": "30",
    "--metrics-port": "8002",
    "--model-repository": "/models",
}


def main(argv: Sequence[str]) -> int:
    """Run the server until it ends; its status, or 0 if it was asked to end."""
    if list(argv) == ["--healthy"]:
        return 0 if healthy() else 1
    supervisor.hold_signals()
    readiness = _readiness(os.environ.get(READINESS_VARIABLE))
    command = with_beside(with_token(argv, os.environ.pop(TOKEN_VARIABLE, "")))
    with becoming(command, stack_bytes=supervisor.STACK_BYTES) as (becomes, needs):
        server = subprocess.Popen(
            becomes,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            pass_fds=[needs],
        )
    output = _Output()
    echo = threading.Thread(target=output.pass_on, args=(server,), daemon=True)
    echo.start()
    ending = _ContainerEnding(server, specification(argv), readiness, output)
    supervisor.on_signals(ending)
    returncode = server.wait()
    supervisor.stop_looking()
    supervisor.kill_group(server.pid)
    echo.join(_ANSWER_SECONDS)
    if ending.requested:
        return 0
    return 128 - returncode if returncode < 0 else returncode  # a signal as a shell reports it


def _readiness(port: str | None) -> Readiness | None:
    if not port:
        return None
    readiness = Readiness(_READY_URL.format(port=_HTTP_PORT))
    readiness.listen("", int(port))
    return readiness


def with_token(argv: Sequence[str], token: str) -> list[str]:
    """The command line with the token of the restricted protocols: a random one where none is."""
    token = token or secrets.token_urlsafe(32)
    return [argument.replace(TOKEN_PLACEHOLDER, token) for argument in argv]


def with_beside(argv: Sequence[str], beside: str = BESIDE) -> list[str]:
    """The command line with the second repository, where `tritonctl up` has mounted a folder.

    Plain `docker compose` mounts a device instead.
    """
    return [*argv, *([f"--model-repository={beside}"] if Path(beside).is_dir() else ())]


def specification(argv: Sequence[str]) -> dict[str, Any]:
    """What the supervisor has to know of a server, read off its command line."""
    given = dict(argument.split("=", 1) for argument in argv if "=" in argument)
    options = _DEFAULTS | given
    return {
        "exit_timeout_seconds": int(options["--exit-timeout-secs"]),
        "metrics_url": f"http://127.0.0.1:{options['--metrics-port']}/metrics",
        "composing_models": supervisor.composing_models(
            Path(options["--model-repository"]), _loaded(argv)
        ),
    }


def _loaded(argv: Sequence[str]) -> list[str] | None:
    """The models that it loads; None: all of its repository."""
    loaded = [argument.split("=", 1)[1] for argument in argv if argument.startswith(_LOAD)]
    return None if "*" in loaded or not loaded else loaded


def healthy(port: int = _HTTP_PORT) -> bool:
    """Whether every model is ready."""
    return is_ready(_READY_URL.format(port=port))


class _Output:
    """Passes on what the server prints, and keeps it once the server is asked to end."""

    def __init__(self) -> None:
        self.keep = False
        self.lines: list[bytes] = []

    def pass_on(self, server: subprocess.Popen[bytes]) -> None:
        """Pass on every line until the server ends."""
        if server.stdout is None:
            return
        for line in server.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            if self.keep:
                self.lines.append(line)


class _ContainerEnding(supervisor.Ending):
    """As for an embedded server, but the log is a pipe."""

    def __init__(
        self,
        server: subprocess.Popen[bytes],
        spec: dict[str, Any],
        readiness: Readiness | None,
        output: _Output,
    ) -> None:
        super().__init__(server, spec, readiness)
        self._output = output

    def _mark(self) -> None:
        self._output.keep = True

    def _report(self, text: str) -> None:
        sys.stdout.buffer.write(f"{text}\n".encode())
        sys.stdout.buffer.flush()

    def _printed(self) -> str:
        return b"".join(self._output.lines).decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
