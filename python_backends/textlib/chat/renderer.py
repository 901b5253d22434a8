# SPDX-License-Identifier: Apache-2.0
"""Render conversations to prompts in a worker process, which the kernel stops if a template loops.

A conversation costs one round trip of about 0.1 ms. Standard library only: the stub itself never
runs a template.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from textlib.chat.messages import CPU_SECONDS, MAX_BYTES, OK
from textlib.errors import EngineFailedError, RequestError, TextPathError
from textlib.frames import read_frame, write_frame

# The kernel limits a worker's CPU time; this limit is for a worker without CPU time. A busy machine
# may take twenty times as long.
_SILENCE_SECONDS = 30.0


class ChatRenderer:
    """The chat template of the tokenizer in `folder`. Safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._start()

    def render(self, messages: bytes) -> bytes | TextPathError:
        """Return the prompt, UTF-8, for the tensor `messages`, or an error."""
        if len(messages) > MAX_BYTES:
            return RequestError(
                f"messages has {len(messages)} bytes, the limit is {MAX_BYTES}. "
                "Leave out old messages."
            )
        with self._lock:
            try:
                write_frame(self._socket, messages)
                answer = read_frame(self._socket)
            except TimeoutError:
                return self._restart(f"did not answer for {_SILENCE_SECONDS:.0f} s")
            except OSError:  # the worker has ended
                answer = None
            if answer is None:
                return self._restart()
        content = answer[len(OK) :]
        return content if answer.startswith(OK) else RequestError(content.decode("utf-8"))

    def close(self) -> None:
        """Kill the worker."""
        self._socket.close()
        self._worker.kill()
        self._worker.wait()

    def _start(self) -> None:
        self._socket, child_end = socket.socketpair()
        self._socket.settimeout(_SILENCE_SECONDS)
        with child_end:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "textlib.chat.worker", str(self._folder)],
                stdin=child_end.fileno(),
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUTF8": "1"},
            )

    def _restart(self, fault: str = "") -> TextPathError:
        """Start a new worker at once, so that it is ready for the next conversation."""
        self.close()
        status = self._worker.returncode
        self._start()
        if status == -signal.SIGPROF:
            return RequestError(
                f"messages: the checkpoint's chat template was stopped after {CPU_SECONDS} s of "
                "CPU time. Send fewer messages, or correct the template."
            )
        return EngineFailedError(
            "messages could not be rendered: the chat template's process "
            f"{fault or f'ended with {status}'}. "
            "Send the request again; the server's log may say more."
        )
