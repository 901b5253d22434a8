# SPDX-License-Identifier: Apache-2.0
"""Entry point of the `tritonctl` command and of `python -m tritonctl`."""

import os
import sys
from contextlib import suppress

from tritonctl.errors import EXIT_INTERRUPTED


def main() -> None:
    """Run the command line; `tritonctl.errors` lists the exit codes."""
    try:
        from tritonctl.cli import application

        command = application(sys.argv[1:])
    except KeyboardInterrupt:  # during imports there is nothing to clean up
        sys.exit(EXIT_INTERRUPTED)
    try:
        command()
    except SystemExit as done:
        if done.code == EXIT_INTERRUPTED:
            _leave(EXIT_INTERRUPTED)
        raise


def _leave(code: int) -> None:
    """Exit at once: an interrupted gRPC channel may block Python's normal exit."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
