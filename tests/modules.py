# SPDX-License-Identifier: Apache-2.0
"""Programs that lie outside every package, imported by their file: backends, the chart's, tools."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def module_of(file: Path, name: str) -> ModuleType:
    """The module in a file, executed anew each time; `sys.modules` does not have it."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
