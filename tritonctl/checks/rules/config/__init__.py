# SPDX-License-Identifier: Apache-2.0
"""TC15x to TC19x: what Triton's own validation of a configuration refuses."""

from tritonctl.checks.rules.config import (
    batching,
    instances,
    model,
    optimization,
    sequences,
    tensors,
)

__all__ = ["batching", "instances", "model", "optimization", "sequences", "tensors"]
