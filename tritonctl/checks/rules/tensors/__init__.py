# SPDX-License-Identifier: Apache-2.0
"""TC2xx: declared tensors that differ from the model's files or its Python code."""

from tritonctl.checks.rules.tensors import (
    batch,
    completed,
    files,
    graph,
    python_arguments,
    python_code,
    python_complete,
    python_config,
    python_failures,
    python_io,
    python_methods,
    python_names,
    python_objects,
    python_returns,
    python_values,
    pytorch,
    sequences,
)

__all__ = [
    "batch",
    "completed",
    "files",
    "graph",
    "python_arguments",
    "python_code",
    "python_complete",
    "python_config",
    "python_failures",
    "python_io",
    "python_methods",
    "python_names",
    "python_objects",
    "python_returns",
    "python_values",
    "pytorch",
    "sequences",
]
