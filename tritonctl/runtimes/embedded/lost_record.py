# SPDX-License-Identifier: Apache-2.0
"""Find an embedded server whose records are lost, by its processes and their command lines.

A full disk, a restored backup or `rm -rf .tritonctl` may damage or remove the records while the
server runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tritonctl.host.files import read_record
from tritonctl.host.process import process_start_time
from tritonctl.protocol.restrictions import token_in
from tritonctl.repository.contents import CONFIG
from tritonctl.runtimes.server_state import EmbeddedServer, FrontendProcess, ServerFiles
from tritonctl.supervision.supervisor import child_processes

_SERVER = "tritonctl.runtimes.embedded.supervise"
_PROGRAM = "tritonctl.runtimes.embedded.supervise_program"
_PREFIX = "python,shm-region-prefix-name="


def find_server(files: ServerFiles) -> EmbeddedServer | None:
    """Return the running server of these files, without what only its record had.

    Its settings, release, TLS files and readiness port are unknown: `up` refuses to keep it.
    """
    for pid, server in _supervised(_SERVER, files.specification):
        arguments = _command_line(server)
        if arguments and arguments[0].endswith("/tritonserver"):
            return _server(pid, arguments, files)
    return None


def find_program(specification: Path) -> int | None:
    """Return the pid of the supervisor that runs the program of `specification`."""
    return next((pid for pid, _ in _supervised(_PROGRAM, specification)), None)


def _server(pid: int, arguments: Sequence[str], files: ServerFiles) -> EmbeddedServer:
    options: dict[str, list[str]] = {}
    for argument in arguments[1:]:
        name, _, value = argument.partition("=")
        options.setdefault(name, []).append(value)
    [address], [http_address] = options["--grpc-address"], options["--http-address"]
    repository = files.paths / options["--model-repository"][0]
    prefixes = [v for v in options["--backend-config"] if v.startswith(_PREFIX)]
    return EmbeddedServer(
        pid=pid,
        process_started=process_start_time(pid) or 0,
        address=address,
        plain_address=http_address,
        grpc_port=int(options["--grpc-port"][0]),
        http_port=int(options["--http-port"][0]),
        metrics_port=int(options["--metrics-port"][0]),
        repository=str(repository),
        models=_models(options["--load-model"], repository),
        settings="",
        shm_prefix=prefixes[0].removeprefix(_PREFIX),
        exit_timeout_seconds=int(options["--exit-timeout-secs"][0]),
        token=token_in(arguments),
        frontend=_frontend(files),
    )


def _models(loaded: list[str], repository: Path) -> list[str]:
    """Return the models loaded at startup; `*` stands for all of the repository."""
    if loaded != ["*"]:
        return loaded
    return sorted(config.parent.name for config in repository.glob(f"*/{CONFIG}"))


def _frontend(files: ServerFiles) -> FrontendProcess | None:
    pid = find_program(files.frontend_specification)
    if pid is None:
        return None
    settings = read_record(files.frontend_config).get("settings", {})
    return FrontendProcess(
        pid=pid,
        process_started=process_start_time(pid) or 0,
        address=settings.get("address", ""),
        port=settings.get("port", 0),
    )


def _supervised(module: str, specification: Path) -> Iterator[tuple[int, int]]:
    """Yield the supervisor and each process that it runs; the supervisor's guard runs none."""
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if _runs(pid, module, specification):
            for child in child_processes(pid):
                if not _runs(child, module, specification):
                    yield pid, child


def _runs(pid: int, module: str, specification: Path) -> bool:
    """Whether the process is a supervisor of this specification, or its guard."""
    arguments = _command_line(pid)
    return arguments[-2:-1] == [module] and Path(arguments[-1]).resolve() == specification.resolve()


def _command_line(pid: int) -> list[str]:
    """Return a process' arguments; [] if it has exited or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return text.decode("utf-8", "surrogateescape").split("\0")[:-1]
