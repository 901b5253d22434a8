# SPDX-License-Identifier: Apache-2.0
"""The names that users import."""

import sys

from . import llm_args
from .executor import CompletionOutput, RequestOutput
from .llm import TorchLLM as LLM
from .llm_args import KvCacheConfig
from .sampling_params import GuidedDecodingParams, SamplingParams

# A package in the real one; a backend's shared folder has no folders in it.
sys.modules[f"{__name__}.llm_args"] = llm_args

__all__ = [
    "LLM",
    "CompletionOutput",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "RequestOutput",
    "SamplingParams",
]
