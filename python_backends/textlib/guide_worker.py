# SPDX-License-Identifier: Apache-2.0
"""A process that compiles guides, one after the other, to find out whether they do.

Standard input is a socket to the engine (`guide_trials`). The kernel holds the limits, because a
compiler cannot be interrupted from within: once they are used up it ends this process. A program
calls `main` with what loads its compiler.
"""

import ctypes
import json
import re
import resource
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from textlib.errors import ConfigurationError
from textlib.frames import read_frame, write_frame
from textlib.request_tensors import Guide

# Of all threads of a compiler together. The engine does it once more, where every stream waits.
CPU_SECONDS = 2.0
MEMORY_BYTES = 512 << 20  # beyond what a process has that has loaded
_LONGEST_REASON = 300
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

Compile = Callable[[Guide], object]


def main(load: Callable[[Mapping[str, Any]], Compile]) -> None:
    """Answer each guide with {"problem": what is wrong, "bytes": ...}, until nobody asks.

    problem: continues the words "guided_decoding_guide"; empty if nothing is wrong. bytes: what
    this process has grown by since it loaded, which is what its compiler remembers.
    load: makes of the setup what compiles a guide, or raises.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server to act on
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Where the machine or the container has no memory left, the kernel ends this process first.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with socket.socket(fileno=0) as engine:
        setup = read_frame(engine)
        if setup is None:
            return
        try:
            compile_guide = load(json.loads(setup))
        except (ConfigurationError, OSError, RuntimeError) as error:
            write_frame(engine, _packed({"refused": str(error)}))
            return
        _bound()
        loaded = _resident()
        write_frame(engine, _packed({"ready": True}))
        try:
            while (raw := read_frame(engine)) is not None:
                guide = Guide(**json.loads(raw))
                problem = _problem(compile_guide, guide)
                write_frame(engine, _packed({"problem": problem, "bytes": _resident() - loaded}))
        except (BrokenPipeError, ConnectionResetError):  # the engine was killed
            return


def _resident() -> int:
    return _memory()[1]


def _memory() -> list[int]:
    """Bytes: of addresses, of memory."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return [int(pages) * resource.getpagesize() for pages in fields[:2]]


def _bound() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_memory()[0] + MEMORY_BYTES, most))


def _problem(compile_guide: Compile, guide: Guide) -> str:
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        compile_guide(guide)
    except MemoryError:
        return f" takes more than {MEMORY_BYTES >> 20} MB to compile. Send a simpler one."
    except (RuntimeError, ValueError) as error:
        return f" is refused: {_reason(error)}."
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


# In front of what a library of C++ says: the time, and where in its own source.
_SOURCE_LINE = re.compile(r"(?s)^.*?\.(?:cc|cpp|h|hpp):\d+:?\s")


def _reason(error: Exception) -> str:
    text = _SOURCE_LINE.sub("", str(error)).strip().rstrip(".")
    return " ".join(text.split())[:_LONGEST_REASON] or type(error).__name__


def _packed(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode()
