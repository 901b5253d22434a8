# SPDX-License-Identifier: Apache-2.0
"""TC2xx: whether declared tensors are those of the model's files, or of its Python code.

Nothing is imported or run: graphs are read from their files, Python by its syntax tree.
"""

from __future__ import annotations

from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import (
    tensors_batch,
    tensors_files,
    tensors_graph,
    tensors_python,
    tensors_python_config,
    tensors_python_io,
    tensors_python_methods,
    tensors_python_values,
    tensors_pytorch,
)

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            *tensors_files.RULES,
            *tensors_graph.RULES,
            *tensors_batch.RULES,
            *tensors_pytorch.RULES,
            *tensors_python.RULES,
            *tensors_python_config.RULES,
            *tensors_python_io.RULES,
            *tensors_python_methods.RULES,
            *tensors_python_values.RULES,
        ),
        key=lambda rule: rule.id,
    )
)
