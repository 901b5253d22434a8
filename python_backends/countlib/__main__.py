# SPDX-License-Identifier: Apache-2.0
"""Count the tokens of prompts before a server receives them: `python -m countlib FOLDER`.

FOLDER: the version folder of the tokenizer step. Standard input and output are JSON lines:

    {"id": 1, "tensors": {"text_input": ["7342 in English:"]}}     a request's public tensors
    {"id": 1, "tokens": [9]}                                       tokens of each item
    {"id": 1, "more_than": 16384}                                  too long for an exact count
    {"id": 1, "error": "messages is empty, ..."}                   the error of the step

The first line of output is {"ready": true}, or {"error": ...} before the process ends. Requests
that arrive together are counted together. A separate thread counts long ones, so that short ones do
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

from countlib.counters import TokenCounter, open_counter
from textlib.errors import ModelConfigurationError

LONG_BYTES = 32_768
_READ_BYTES = 1 << 20
_OUT = threading.Lock()


def _write_lines(lines: Sequence[dict[str, Any]]) -> None:
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with _OUT:
        while content:
            content = content[os.write(1, content) :]


def _batches() -> Iterator[list[bytes]]:
    """Yield batches of received lines until the end of standard input."""
    tail = b""
    pieces: list[bytes] = []
    while piece := os.read(0, _READ_BYTES):
        pieces.append(piece)
        if b"\n" in piece:  # joins the pieces of a long line only once
            *lines, tail = b"".join(pieces).split(b"\n")
            pieces = [tail]
            yield lines


def _count(counter: TokenCounter, lines: Sequence[bytes]) -> None:
    requests = [json.loads(line) for line in lines]
    answers = counter.count([request["tensors"] for request in requests])
    _write_lines(
        [{"id": request["id"], **answer} for request, answer in zip(requests, answers, strict=True)]
    )


def main() -> None:
    """Count until standard input ends."""
    parser = argparse.ArgumentParser(description="Counts prompts' tokens.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--max-input-len", type=int, default=1)
    parser.add_argument("--add-special-tokens", choices=["true", "false"], default="true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the frontend handles Ctrl-C
    try:
        counter = open_counter(
            arguments.folder, arguments.max_input_len, arguments.add_special_tokens
        )
    except (ModelConfigurationError, OSError) as error:
        _write_lines([{"error": str(error)}])
        sys.exit(1)
    _write_lines([{"ready": True}])
    with ThreadPoolExecutor(1) as long_executor:
        for lines in _batches():
            short = [line for line in lines if len(line) <= LONG_BYTES]
            for line in lines:
                if len(line) > LONG_BYTES:
                    long_executor.submit(_count, counter, [line])
            if short:
                _count(counter, short)
    counter.close()


main()
