# SPDX-License-Identifier: Apache-2.0
"""What shaped an engine: libraries and machine. Standard library only."""

import importlib.metadata
import platform
from collections.abc import Iterable
from pathlib import Path


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed `packages`, and of Python."""
    installed = {name: importlib.metadata.version(name) for name in packages}
    return {**installed, "python": platform.python_version()}


def cpu_name() -> str:
    """Return what the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
