# SPDX-License-Identifier: Apache-2.0
"""Conversations to prompts, through a worker process that can be ended when a template runs wild.

One conversation costs one round trip of about 0.1 ms. Standard library only: the stub itself never
runs a template.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from textlib.chat_messages import CPU_SECONDS, MOST_BYTES, OK
from textlib.errors import EngineFailedError, RequestError, TextPathError
from textlib.frames import read_frame, write_frame

# The kernel limits a worker's CPU time; this is for one that gets none. A busy machine may take
# twenty times as long for what it is allowed.
_SILENCE_SECONDS = 30.0


class ChatRenderer:
    """The chat template of the tokenizer in `folder`. Safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._start()

    def render(self, messages: bytes) -> bytes | TextPathError:
        """The prompt, UTF-8, for a JSON array of messages; or why it has none."""
        if len(messages) > MOST_BYTES:
            return RequestError(
                f"messages has {len(messages)} bytes, the limit is {MOST_BYTES}. "
                "Leave out old messages."
            )
        with self._lock:
            try:
                write_frame(self._socket, messages)
                answer = read_frame(self._socket)
            except TimeoutError:
                return self._restarted(f"said nothing for {_SILENCE_SECONDS:.0f} s")
            except OSError:  # it has died
                answer = None
            if answer is None:
                return self._restarted()
        content = answer[len(OK) :]
        return content if answer.startswith(OK) else RequestError(content.decode("utf-8"))

    def close(self) -> None:
        """End the worker."""
        self._socket.close()
        self._worker.kill()
        self._worker.wait()

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_SILENCE_SECONDS)
        with theirs:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "textlib.chat_worker", str(self._folder)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONUTF8": "1"},
            )

    def _restarted(self, fault: str = "") -> TextPathError:
        """Replace the worker at once, so that the next conversation finds it ready."""
        self.close()
        status = self._worker.returncode
        self._start()
        if status == -signal.SIGPROF:
            return RequestError(
                f"messages: the checkpoint's chat template ran for {CPU_SECONDS} s without an end "
                "and was stopped. Send fewer messages, or correct the template."
            )
        return EngineFailedError(
            "messages could not be rendered: the chat template's process "
            f"{fault or f'ended with {status}'}. "
            "Send the request again; the server's log may say more."
        )
