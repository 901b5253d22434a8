# SPDX-License-Identifier: Apache-2.0
"""A process that renders conversations: `python -m textlib.chat.worker TOKENIZER_FOLDER`.

Standard input is a socket to the tokenizer's stub (`renderer.py`). A template is a program from a
checkpoint: Jinja's sandbox protects the machine but does not stop loops, and one C call such as
`'a' * 10 ** 9` cannot be interrupted from within. So the kernel enforces the limits: it ends this
process when the CPU time is used up, and the stub starts another one.
"""

import resource
import signal
import socket
import sys
from pathlib import Path

from textlib.chat.messages import CPU_SECONDS, FAILED, OK, parse_messages
from textlib.chat.template import ChatTemplate
from textlib.errors import ModelConfigurationError, RequestError
from textlib.frames import read_frame, write_frame

LOADING_CPU_SECONDS = 2.0
MEMORY_BYTES = 1 << 30


def _limit_cpu(cpu_seconds: float) -> None:
    """Let an unhandled SIGPROF end the process after this CPU time; 0: no limit."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def _load(folder: Path) -> ChatTemplate | ModelConfigurationError:
    _limit_cpu(LOADING_CPU_SECONDS)
    try:
        return ChatTemplate(folder)
    except (ModelConfigurationError, OSError, UnicodeError) as error:
        return ModelConfigurationError(str(error))


def _answer(template: ChatTemplate | ModelConfigurationError, raw: bytes) -> tuple[bytes, bytes]:
    try:
        if isinstance(template, ModelConfigurationError):
            raise RequestError(f"messages cannot be used: {template}. Send text_input.")
        return OK, template.render(parse_messages(raw))
    except RequestError as error:
        return FAILED, str(error).encode("utf-8", "backslashreplace")
    except MemoryError:
        return FAILED, b"messages takes too much memory. Leave out old messages."


def main() -> None:
    """Answer each frame with a prompt or an error until the stub hangs up."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stub = socket.socket(fileno=0)
    template = _load(Path(sys.argv[1]))
    _limit_cpu(0)
    while (raw := read_frame(stub)) is not None:
        _limit_cpu(CPU_SECONDS)
        status, content = _answer(template, raw)
        _limit_cpu(0)
        write_frame(stub, status + content)


if __name__ == "__main__":
    main()
