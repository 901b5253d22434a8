# SPDX-License-Identifier: Apache-2.0
"""The frontend's process: `python -m tritonctl.frontend CONFIG.json`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from tritonctl.errors import TritonctlError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.serve import run


def main(file: Path) -> int:
    """Serve until it is asked to end; 0 then."""
    try:
        return 0 if run(FrontendConfig.read(file)) else 1
    except TritonctlError as error:
        logging.getLogger("tritonctl.frontend").error("%s: %s", error.problem, error.remedy)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
