# SPDX-License-Identifier: Apache-2.0
"""TC7xx: whether engine, configuration and release of TensorRT-LLM fit together."""

from __future__ import annotations

from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import (
    tensorrt_llm_engine,
    tensorrt_llm_features,
    tensorrt_llm_guides,
    tensorrt_llm_llmapi,
    tensorrt_llm_parameters,
    tensorrt_llm_release,
    tensorrt_llm_together,
)

RULES: tuple[Rule, ...] = (
    *tensorrt_llm_parameters.RULES,
    *tensorrt_llm_guides.RULES,
    *tensorrt_llm_engine.RULES,
    *tensorrt_llm_features.RULES,
    *tensorrt_llm_release.RULES,
    *tensorrt_llm_llmapi.RULES,
    *tensorrt_llm_together.RULES,
)
