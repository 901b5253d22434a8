# SPDX-License-Identifier: Apache-2.0
"""The program behind FakeKubectl, started a hundred times by a test: it imports next to nothing.

pathlib alone would take as long as all else here.
"""

# ruff: noqa: PTH120, PTH123

from __future__ import annotations

import marshal
import os
import sys

_LEFT_OUT = (
    "--request-timeout=",
    "--context=",
    "--namespace=",
    "--output=json",
    "--address=127.0.0.1",
)


def main(folder: str, arguments: list[str]) -> int:
    """Answer as `folder`/said has it; `folder`/asked has a line more."""
    stdin = "" if sys.stdin.isatty() else sys.stdin.read()
    with open(f"{folder}/asked", "a", encoding="utf-8") as asked:
        asked.write(f"{[*arguments, *([stdin] if stdin else [])]!r}\n")
    words = [word for word in arguments if not word.startswith(_LEFT_OUT)]
    with open(f"{folder}/said", "rb") as file:
        said = marshal.load(file)  # noqa: S302 - our own
    for end in range(len(words), 0, -1):
        if answer := said.get(" ".join(words[:end])):
            if "forward" in answer:
                program = f"{os.path.dirname(__file__)}/port_forward.py"
                command = [sys.executable, "-I", "-S", program, str(answer["forward"])]
                os.execv(command[0], command)  # noqa: S606 - no shell is wanted
            sys.stdout.write(answer["out"])
            sys.stderr.write(answer["err"])
            return int(answer["status"])
    sys.stderr.write(f"Error from server (NotFound): {' '.join(words)} not found\n")
    return 1
