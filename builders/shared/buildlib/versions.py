# SPDX-License-Identifier: Apache-2.0
"""The libraries and the CPU that made an engine. Standard library only."""

import importlib.metadata
import platform
from collections.abc import Iterable
from pathlib import Path


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed versions of `packages` and of Python."""
    installed = {name: importlib.metadata.version(name) for name in packages}
    return {**installed, "python": platform.python_version()}


def cpu_name() -> str:
    """Return the CPU's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
