# SPDX-License-Identifier: Apache-2.0
"""A kubectl for tests: it answers from a file, and keeps what it was asked.

`install` puts it on a PATH. Answers are looked up by the arguments without --request-timeout,
--context and --namespace, by the longest beginning that is known: `get pods`.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ALWAYS = ("--request-timeout=", "--context=", "--namespace=")


class FakeKubectl:
    """A cluster of answers: `said` by the arguments; `asked` is every command line so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: dict[str, dict[str, Any]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._keep()
        program = folder / "kubectl"
        program.write_text(
            f'#!/bin/sh\nexec {sys.executable} -I -S {Path(__file__)} {folder} "$@"\n',
            encoding="utf-8",
        )
        program.chmod(0o755)

    def says(self, asked: str, answer: object = "", *, err: str = "", status: int = 0) -> None:
        """What it answers to arguments that begin so: text, or something that becomes JSON."""
        text = answer if isinstance(answer, str) else json.dumps(answer)
        self.said[asked] = {"out": text, "err": err, "status": status}
        self._keep()

    def lists(self, asked: str, items: Sequence[Mapping[str, Any]]) -> None:
        """It answers to `get ...` with these objects."""
        self.says(asked, {"kind": "List", "items": list(items)})

    def forwards(self, target: str, port: int) -> None:
        """`port-forward TARGET` leads to a port of this machine, until it is ended."""
        self.said[f"port-forward {target}"] = {"forward": port}
        self._keep()

    def _keep(self) -> None:
        (self.folder / "said.json").write_text(json.dumps(self.said), encoding="utf-8")

    @property
    def asked(self) -> list[list[str]]:
        """Every command line so far."""
        file = self.folder / "asked.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]


def _main(folder: Path, arguments: list[str]) -> int:
    stdin = "" if sys.stdin.isatty() else sys.stdin.read()
    with (folder / "asked.jsonl").open("a", encoding="utf-8") as asked:
        asked.write(json.dumps([*arguments, *([stdin] if stdin else [])]) + "\n")
    words = [word for word in arguments if not word.startswith(_ALWAYS)]
    words = [word for word in words if word not in ("--output=json", "--address=127.0.0.1")]
    said = json.loads((folder / "said.json").read_text(encoding="utf-8"))
    for end in range(len(words), 0, -1):
        if answer := said.get(" ".join(words[:end])):
            if "forward" in answer:
                return _forward(answer["forward"])
            sys.stdout.write(answer["out"])
            sys.stderr.write(answer["err"])
            return int(answer["status"])
    sys.stderr.write(f"Error from server (NotFound): {' '.join(words)} not found\n")
    return 1


def _forward(port: int) -> int:
    """As kubectl: a line with the local port, then a line for each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        local = listening.getsockname()[1]
        _say(f"Forwarding from 127.0.0.1:{local} -> {port}")
        while True:
            taken, _ = listening.accept()
            _say(f"Handling connection for {local}")
            try:
                further = socket.create_connection(("127.0.0.1", port))
            except OSError:
                _say("error: lost connection to pod")
                return 1
            for one, other in ((taken, further), (further, taken)):
                threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        other.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(_main(Path(sys.argv[1]), sys.argv[2:]))
