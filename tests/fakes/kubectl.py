# SPDX-License-Identifier: Apache-2.0
"""A kubectl for tests: it answers from a file, and keeps what it was asked.

It lies in a folder for the PATH. Answers are looked up by the arguments without --request-timeout,
--context and --namespace, by the longest beginning that is known: `get pods`.
"""

from __future__ import annotations

import ast
import json
import marshal
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_RUN = "import sys; sys.path.append(sys.argv[1]); from kubectl_program import main; "
_RUN += "sys.exit(main(sys.argv[2], sys.argv[3:]))"


class FakeKubectl:
    """A cluster of answers: `said` by the arguments; `asked` is every command line so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: dict[str, dict[str, Any]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._keep()
        program = folder / "kubectl"
        words = [sys.executable, "-I", "-S", "-c", _RUN, str(Path(__file__).parent), str(folder)]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
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
        (self.folder / "said").write_bytes(marshal.dumps(self.said))

    @property
    def asked(self) -> list[list[str]]:
        """Every command line so far."""
        file = self.folder / "asked"
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        return [ast.literal_eval(line) for line in text.splitlines()]
