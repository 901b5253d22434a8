# SPDX-License-Identifier: Apache-2.0
"""A process that renders conversations: `python -m textlib.chat_worker TOKENIZER_FOLDER`.

Standard input is a socket to the tokenizer's stub (`chat_renderer`). A template is a program that
came with a checkpoint: Jinja's sandbox keeps it from the machine but not from looping, and one C
call such as `'a' * 10 ** 9` cannot be interrupted from within. So the kernel holds the limits: when
the CPU time is used up it ends this process, and the stub starts another one.
"""

import resource
import signal
import socket
import sys
from pathlib import Path

from textlib.chat_messages import CPU_SECONDS, FAILED, OK, parse_messages
from textlib.chat_template import ChatTemplate
from textlib.errors import ConfigurationError, RequestError
from textlib.frames import read_frame, write_frame

LOADING_CPU_SECONDS = 2.0
MEMORY_BYTES = 1 << 30


def _allow(cpu_seconds: float) -> None:
    """SIGPROF, unhandled, ends the process after that much CPU time; 0: never."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def _load(folder: Path) -> ChatTemplate | ConfigurationError:
    _allow(LOADING_CPU_SECONDS)
    try:
        return ChatTemplate(folder)
    except (ConfigurationError, OSError, UnicodeError) as error:
        return ConfigurationError(str(error))


def _answer(template: ChatTemplate | ConfigurationError, raw: bytes) -> tuple[bytes, bytes]:
    try:
        if isinstance(template, ConfigurationError):
            raise RequestError(f"messages cannot be used: {template}. Send text_input.")
        return OK, template.render(parse_messages(raw))
    except RequestError as error:
        return FAILED, str(error).encode("utf-8", "backslashreplace")
    except MemoryError:
        return FAILED, b"messages takes too much memory. Leave out old messages."


def main() -> None:
    """Answer each frame with a prompt or a refusal, until the stub hangs up."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server to act on
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stub = socket.socket(fileno=0)
    template = _load(Path(sys.argv[1]))
    _allow(0)
    while (raw := read_frame(stub)) is not None:
        _allow(CPU_SECONDS)
        status, content = _answer(template, raw)
        _allow(0)
        write_frame(stub, status + content)


if __name__ == "__main__":
    main()
