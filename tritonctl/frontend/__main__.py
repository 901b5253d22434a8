# SPDX-License-Identifier: Apache-2.0
"""The frontend's process: `python -m tritonctl.frontend CONFIG.json`.

With `--live` its health check.
"""

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
    """Serve until it is asked to end; 0 then."""
    try:
        return 0 if run(FrontendConfig.read(file)) else 1
    except TritonctlError as error:
        logging.getLogger("tritonctl.frontend").error("%s: %s", error.problem, error.remedy)
        return error.exit_code


def is_live(file: Path) -> bool:
    """Whether the frontend with that configuration answers: the health check of its container."""
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
    given = Path(sys.argv[1])
    sys.exit((0 if is_live(given) else 1) if "--live" in sys.argv[2:] else main(given))
