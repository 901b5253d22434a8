# SPDX-License-Identifier: Apache-2.0
"""A wall clock that jumps under running processes: `faked_clock.c`, preloaded into them.

Only what is started with `environment()` sees it. The monotonic clock goes on as on a real machine
whose time is set.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_suffix(".c")
_AHEAD = struct.Struct("=q")


class FakedClock:
    """How far the wall clock of its processes is from the machine's; changed under them."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("NO COMPILER: the wall clock that tests set is written in C")
        self._library, self._file = folder / "faked_clock.so", folder / "ahead"
        command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([*command, "-o", self._library, _SOURCE], check=True)
        self._file.write_bytes(_AHEAD.pack(0))

    def jump_to(self, seconds: int) -> None:
        """From now on the wall clock says so many seconds more (or less) than the machine's."""
        with self._file.open("r+b", buffering=0) as file:
            file.write(_AHEAD.pack(seconds))

    def environment(self) -> dict[str, str]:
        """For the processes that shall see it."""
        return {"LD_PRELOAD": str(self._library), "FAKED_CLOCK": str(self._file)}
