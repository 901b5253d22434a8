# SPDX-License-Identifier: Apache-2.0
"""Run the frontend: `python -m tritonctl.frontend CONFIG.json`; with `--live`, check its health."""

from __future__ import annotations

import http.client
import logging
import sys
from http import HTTPStatus
from pathlib import Path

from tritonctl.errors import TritonctlError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.serve import run

_ANSWER_SECONDS = 3


def main(file: Path) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    try:
        return 0 if run(FrontendConfig.read(file)) else 1
    except TritonctlError as error:
        logging.getLogger("tritonctl.frontend").error("%s: %s", error.problem, error.remedy)
        return error.exit_code


def is_live(file: Path) -> bool:
    """Whether the frontend with this configuration answers; its container's health check."""
    port = FrontendConfig.read(file).settings.port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/health/live")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    config_file = Path(sys.argv[1])
    sys.exit((0 if is_live(config_file) else 1) if "--live" in sys.argv[2:] else main(config_file))
