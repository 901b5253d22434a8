# SPDX-License-Identifier: Apache-2.0
"""TC15x to TC19x: settings that Triton's own validation of a configuration refuses."""

from tritonctl.checks.rules.config import (
    backend_parameters,
    batching,
    instances,
    model,
    optimization,
    sequences,
    tensors,
)

__all__ = [
    "backend_parameters",
    "batching",
    "instances",
    "model",
    "optimization",
    "sequences",
    "tensors",
]
