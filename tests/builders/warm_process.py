# SPDX-License-Identifier: Apache-2.0
"""Runs programs, each in a fork of this process, whose libraries are imported already; run in a
builder's environment.

python warm_process.py LIBRARY ... < REQUESTS

REQUESTS, JSON by the line: `arguments` (the program's file first), `folder` to run in, the whole
`environment`, the files `stdin`, `stdout` and `stderr`. Each is answered with its exit status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any


def become(asked: dict[str, Any]) -> int:
    """Be the program asked for, as `python PROGRAM ARGUMENTS` would be it; its exit status."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY
        os.dup2(os.open(asked[name], flags), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - what it read is another's
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = asked["arguments"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(status: int) -> None:
    """Without a second for freeing what the libraries hold."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Answer until standard input ends, as it does with whoever writes it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    for library in sys.argv[1:]:
        importlib.import_module(library)
    # A fork has one thread, and would wait without end for a lock that another thread held.
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, "a library has started a thread"
    gc.freeze()
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            end(become(json.loads(line)))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
