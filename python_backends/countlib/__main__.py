# SPDX-License-Identifier: Apache-2.0
"""A process that counts prompts' tokens, before any server sees them: `python -m countlib FOLDER`.

FOLDER: the version folder of the step that tokenises. Standard input and output are JSON lines:

    {"id": 1, "tensors": {"text_input": ["7342 in English:"]}}     a request's public tensors
    {"id": 1, "tokens": [9]}                                       of each of its items
    {"id": 1, "more_than": 16384}                                  too long to be counted to its end
    {"id": 1, "error": "messages is empty, ..."}                   what the step would answer

The first line out is {"ready": true}, or {"error": ...} and the end. Requests that have come
together are counted together. Long ones are counted in a thread of their own, so that short ones do
not wait for them: answers come in any order.
"""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from countlib.counters import Counter, counter_of
from textlib.errors import ConfigurationError

LONG_BYTES = 32_768
_READ_BYTES = 1 << 20
_OUT = threading.Lock()


def _say(lines: Sequence[dict[str, Any]]) -> None:
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with _OUT:
        while content:
            content = content[os.write(1, content) :]


def _batches() -> Iterator[list[bytes]]:
    """The lines that have come so far, each time; until the end of standard input."""
    rest = b""
    pieces: list[bytes] = []
    while piece := os.read(0, _READ_BYTES):
        pieces.append(piece)
        if b"\n" in piece:  # a long line comes in many pieces: it is joined once
            *lines, rest = b"".join(pieces).split(b"\n")
            pieces = [rest]
            yield lines


def _count(counter: Counter, lines: Sequence[bytes]) -> None:
    asked = [json.loads(line) for line in lines]
    answers = counter.count([one["tensors"] for one in asked])
    _say([{"id": one["id"], **answer} for one, answer in zip(asked, answers, strict=True)])


def main() -> None:
    """Count until standard input ends."""
    parser = argparse.ArgumentParser(description="Counts prompts' tokens.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--max-input-len", type=int, default=1)
    parser.add_argument("--add-special-tokens", choices=["true", "false"], default="true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the frontend to act on
    try:
        counter = counter_of(
            arguments.folder, arguments.max_input_len, arguments.add_special_tokens
        )
    except (ConfigurationError, OSError) as error:
        _say([{"error": str(error)}])
        sys.exit(1)
    _say([{"ready": True}])
    with ThreadPoolExecutor(1) as aside:
        for lines in _batches():
            short = [line for line in lines if len(line) <= LONG_BYTES]
            for line in lines:
                if len(line) > LONG_BYTES:
                    aside.submit(_count, counter, [line])
            if short:
                _count(counter, short)
    counter.close()


main()
