# SPDX-License-Identifier: Apache-2.0
"""TC7xx: mismatches between engine, configuration and release of TensorRT-LLM."""

from tritonctl.checks.rules.tensorrt_llm import (
    engine,
    features,
    guides,
    llmapi,
    parameters,
    release,
    together,
)

__all__ = ["engine", "features", "guides", "llmapi", "parameters", "release", "together"]
