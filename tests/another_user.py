# SPDX-License-Identifier: Apache-2.0
"""What another user of this machine can do: programs as `nobody`. Needs root."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NOBODY = 65534
# The interpreter may lie in root's home: it is loaded, with these modules, before it drops root.
_DROP = f"""
import os, pathlib, socket, sys
os.setgroups([])
os.setresgid({_NOBODY}, {_NOBODY}, {_NOBODY})
os.setresuid({_NOBODY}, {_NOBODY}, {_NOBODY})
os.chdir("/")
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


def as_nobody(code: str, *arguments: object) -> str:
    """Run Python code as nobody, without groups; `arguments` are its sys.argv[1:]. Its output."""
    command = [sys.executable, "-c", _DROP + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's: only what lies in it protects itself."""
    with tempfile.TemporaryDirectory(prefix="tritonctl-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
