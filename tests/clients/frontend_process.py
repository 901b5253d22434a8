# SPDX-License-Identifier: Apache-2.0
"""The frontend as a process of its own, in front of a server that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tritonctl.frontend.config import FrontendConfig
from tritonctl.runtimes.ports import reserved_ports

PATIENCE_SECONDS = 30.0


@contextmanager
def frontend(config: FrontendConfig, folder: Path, **environment: str) -> Iterator[str]:
    """Its address, http://HOST:PORT, on a free port, once it says that it is ready.

    environment: variables on top of this process's. Raises AssertionError with its log.
    """
    with reserved_ports("127.0.0.1", {"port": 0}) as (port,):
        settings = config.settings.model_copy(update={"port": port, "address": "127.0.0.1"})
        file, log = folder / "frontend.json", folder / "frontend.log"
        config.model_copy(update={"settings": settings}).write(file)
    with log.open("a") as out:
        command = [sys.executable, "-m", "tritonctl.frontend", str(file)]
        process = subprocess.Popen(command, env=os.environ | environment, stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _ready(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _ready(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{url}/health/ready", timeout=5):  # noqa: S310
        return True
    return False


def post(url: str, body: Mapping[str, Any]) -> tuple[int, Any]:
    """Status, and the object that came."""
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), head)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own server
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
