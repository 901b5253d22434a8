# SPDX-License-Identifier: Apache-2.0
"""TC15x to TC19x: settings that Triton's own validation of a configuration refuses."""

from tritonctl.checks.rules.config import (
    batching,
    instances,
    model,
    onnxruntime,
    optimization,
    sequences,
    tensors,
)

__all__ = ["batching", "instances", "model", "onnxruntime", "optimization", "sequences", "tensors"]
