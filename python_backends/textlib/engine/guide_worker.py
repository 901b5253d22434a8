# SPDX-License-Identifier: Apache-2.0
"""A process that test-compiles guides, one after the other.

Standard input is a socket to the engine (`guide_trials`). The kernel enforces the limits, because a
compiler cannot be interrupted from within: it ends this process once they are used up. A program
calls `main` with a function that loads its compiler.
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

from textlib.errors import ModelConfigurationError
from textlib.frames import read_frame, write_frame
from textlib.triton.request_tensors import GuideSpec

# For all threads of a compiler together. The engine compiles again while every stream waits.
CPU_SECONDS = 2.0
MEMORY_BYTES = 512 << 20  # in addition to the process after loading
_MAX_REASON_LENGTH = 300
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

CompileGuide = Callable[[GuideSpec], object]


def main(load: Callable[[Mapping[str, Any]], CompileGuide]) -> None:
    """Answer each guide with {"problem": ..., "bytes": ...} until the socket closes.

    problem: continues the words "guided_decoding_guide"; empty if the guide compiles. bytes: memory
    growth since loading, which the compiler's cache occupies. load: turns the setup into a function
    that compiles a guide, or raises.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # If the machine or the container runs out of memory, the kernel ends this process first.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with socket.socket(fileno=0) as engine:
        setup = read_frame(engine)
        if setup is None:
            return
        try:
            compile_guide = load(json.loads(setup))
        except (ModelConfigurationError, OSError, RuntimeError) as error:
            write_frame(engine, _encode_message({"refused": str(error)}))
            return
        _limit_memory()
        loaded = _resident_bytes()
        write_frame(engine, _encode_message({"ready": True}))
        try:
            while (raw := read_frame(engine)) is not None:
                guide = GuideSpec(**json.loads(raw))
                problem = _compile_problem(compile_guide, guide)
                write_frame(
                    engine,
                    _encode_message({"problem": problem, "bytes": _resident_bytes() - loaded}),
                )
        except (BrokenPipeError, ConnectionResetError):  # the engine was killed
            return


def _resident_bytes() -> int:
    return _memory_sizes()[1]


def _memory_sizes() -> list[int]:
    """Return the bytes of address space and of resident memory."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return [int(pages) * resource.getpagesize() for pages in fields[:2]]


def _limit_memory() -> None:
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_memory_sizes()[0] + MEMORY_BYTES, hard_limit))


def _compile_problem(compile_guide: CompileGuide, guide: GuideSpec) -> str:
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


# C++ libraries prefix their messages with the time and a source line.
_SOURCE_LINE = re.compile(r"(?s)^.*?\.(?:cc|cpp|h|hpp):\d+:?\s")


def _reason(error: Exception) -> str:
    text = _SOURCE_LINE.sub("", str(error)).strip().rstrip(".")
    return " ".join(text.split())[:_MAX_REASON_LENGTH] or type(error).__name__


def _encode_message(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode()
