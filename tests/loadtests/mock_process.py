# SPDX-License-Identifier: Apache-2.0
"""The mock endpoint as a process: `with mock_endpoint("--ttft", "20") as url: ...`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.json_page import as_documented

PROGRAM = Path(__file__).resolve().parents[2] / "loadtests" / "mock_endpoint.py"
_END_SECONDS = 60


@contextmanager
def mock_endpoint(*arguments: str | Path) -> Iterator[str]:
    """Its address. Ended by SIGTERM, and that must be clean."""
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield as_documented("loadtest mock", process.stdout.readline())["grpc"]
        except BaseException:
            process.kill()
            raise
        process.terminate()
        assert process.wait(_END_SECONDS) == 0


def read_truth(file: Path) -> list[dict[str, Any]]:
    """What a mock that has ended wrote, in order of arrival."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return sorted(map(json.loads, lines), key=lambda record: record["i"])
