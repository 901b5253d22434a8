# SPDX-License-Identifier: Apache-2.0
"""TC2xx: whether declared tensors are those of the model's files, or of its Python code."""

from tritonctl.checks.rules.tensors import (
    batch,
    completed,
    files,
    graph,
    python_code,
    python_complete,
    python_config,
    python_io,
    python_methods,
    python_names,
    python_values,
    pytorch,
)

__all__ = [
    "batch",
    "completed",
    "files",
    "graph",
    "python_code",
    "python_complete",
    "python_config",
    "python_io",
    "python_methods",
    "python_names",
    "python_values",
    "pytorch",
]
