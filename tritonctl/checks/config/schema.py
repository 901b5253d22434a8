# SPDX-License-Identifier: Apache-2.0
"""Load Triton's ModelConfig schema without the client library around it.

Importing `tritonclient.grpc` takes longer than checking a model; the schema alone loads fast.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

_MODULE_NAME = "tritonclient.grpc.model_config_pb2"


@cache
def model_config_schema() -> Any:
    """Return the generated module of Triton's model_config.proto."""
    if _MODULE_NAME in sys.modules:
        return sys.modules[_MODULE_NAME]
    package = importlib.util.find_spec("tritonclient")
    folders = package.submodule_search_locations if package else None
    assert folders, "tritonclient is a dependency of tritonctl"  # noqa: S101
    file = Path(next(iter(folders))) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("tritonctl.checks._model_config_pb2", file)
    assert spec, file  # noqa: S101
    assert spec.loader, file  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
