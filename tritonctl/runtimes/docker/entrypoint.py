# SPDX-License-Identifier: Apache-2.0
"""First process of Triton's container: run tritonserver, let streams finish on shutdown.

`python3 entrypoint.py tritonserver ARGUMENTS` in an image that has this file and the supervisor;
`--healthy` is its health check. Standard library only.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# Runs as a file, in an image that has only a few modules of tritonctl.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tritonctl.supervision import supervisor
from tritonctl.supervision.exec_launcher import launcher_command
from tritonctl.supervision.new_requests import outer_ensembles
from tritonctl.supervision.progress import ProgressWatch, describe_change
from tritonctl.supervision.readiness import Readiness, is_ready

TOKEN_PLACEHOLDER = "@TRITON_TOKEN@"  # noqa: S105 - replaced on the command line
TOKEN_VARIABLE = "TRITON_TOKEN"  # noqa: S105 - the variable's name
# A second model repository, in which `tritonctl reload` stages a new version.
STANDBY_FOLDER = "/beside"
STANDBY_VARIABLE = "TRITON_BESIDE"  # its folder on the host
READINESS_VARIABLE = "TRITON_READINESS_PORT"
_HTTP_PORT = 8000
_READY_URL = "http://127.0.0.1:{port}/v2/health/ready"
_ECHO_SECONDS = 3
_LOAD = "--load-model="
_DEFAULTS = {
    "--exit-timeout-secs": "30",
    "--metrics-port": "8002",
    "--model-repository": "/models",
}


def main(argv: Sequence[str]) -> int:
    """Run the server until it exits; return its status, or 0 after a stop request."""
    if list(argv) == ["--healthy"]:
        return 0 if is_healthy() else 1
    supervisor.hold_signals()
    spec = specification(argv)
    progress = ProgressWatch(spec["metrics_url"], _print_progress)
    readiness = _readiness(os.environ.get(READINESS_VARIABLE), progress)
    command = with_standby(with_token(argv, os.environ.pop(TOKEN_VARIABLE, "")))
    with launcher_command(command, stack_bytes=supervisor.STACK_BYTES) as (exec_argv, record_fd):
        server = subprocess.Popen(
            exec_argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            pass_fds=[record_fd],
        )
    output = _Output()
    echo = threading.Thread(target=output.forward, args=(server,), daemon=True)
    echo.start()
    progress.start()
    shutdown = _ContainerShutdown(server, spec | {"argv": command}, readiness, output)
    supervisor.install_signal_handlers(shutdown)
    returncode = server.wait()
    supervisor.stop_timer()
    supervisor.kill_group(server.pid)
    echo.join(_ECHO_SECONDS)
    if shutdown.requested:
        return 0
    return 128 - returncode if returncode < 0 else returncode  # a signal as a shell reports it


def _print(text: str) -> None:
    sys.stdout.buffer.write(f"{text}\n".encode())
    sys.stdout.buffer.flush()


def _print_progress(frozen: Iterable[str]) -> None:
    _print(f"tritonctl: {describe_change(frozen)}")


def _readiness(port: str | None, progress: ProgressWatch) -> Readiness | None:
    if not port:
        return None
    readiness = Readiness(
        _READY_URL.format(port=_HTTP_PORT), makes_progress=progress.makes_progress
    )
    readiness.listen("", int(port))
    return readiness


def with_token(argv: Sequence[str], token: str) -> list[str]:
    """Insert the restricted protocols' token into the command line, by default a random one."""
    token = token or secrets.token_urlsafe(32)
    return [argument.replace(TOKEN_PLACEHOLDER, token) for argument in argv]


def with_standby(argv: Sequence[str], standby: str = STANDBY_FOLDER) -> list[str]:
    """Add the second repository to the command line if `tritonctl up` has mounted a folder.

    Plain `docker compose` mounts a device instead.
    """
    return [*argv, *([f"--model-repository={standby}"] if Path(standby).is_dir() else ())]


def specification(argv: Sequence[str]) -> dict[str, Any]:
    """Derive the supervisor's specification from the server's command line."""
    explicit = dict(argument.split("=", 1) for argument in argv if "=" in argument)
    options = _DEFAULTS | explicit
    repository, models = Path(options["--model-repository"]), _startup_models(argv)
    return {
        "exit_timeout_seconds": int(options["--exit-timeout-secs"]),
        "metrics_url": f"http://127.0.0.1:{options['--metrics-port']}/metrics",
        "composing_models": supervisor.composing_models(repository, models),
        "outer_ensembles": outer_ensembles(repository, models),
    }


def _startup_models(argv: Sequence[str]) -> list[str] | None:
    """Return the models to load at startup; None: all of the repository."""
    models = [argument.split("=", 1)[1] for argument in argv if argument.startswith(_LOAD)]
    return None if "*" in models or not models else models


def is_healthy(port: int = _HTTP_PORT) -> bool:
    """Whether every model is ready."""
    return is_ready(_READY_URL.format(port=port))


class _Output:
    """Forwards the server's output, and keeps it once the shutdown has started."""

    def __init__(self) -> None:
        self.keep = False
        self.lines: list[bytes] = []

    def forward(self, server: subprocess.Popen[bytes]) -> None:
        """Forward every line until the server exits."""
        if server.stdout is None:
            return
        for line in server.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            if self.keep:
                self.lines.append(line)


class _ContainerShutdown(supervisor.ServerShutdown):
    """Shutdown of a server in a container, whose log is a pipe."""

    def __init__(
        self,
        server: subprocess.Popen[bytes],
        spec: dict[str, Any],
        readiness: Readiness | None,
        output: _Output,
    ) -> None:
        super().__init__(server, spec, readiness)
        self._output = output

    def _mark_log(self) -> None:
        self._output.keep = True

    def _append_to_log(self, text: str) -> None:
        _print(text)

    def _new_output(self) -> str:
        return b"".join(self._output.lines).decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
