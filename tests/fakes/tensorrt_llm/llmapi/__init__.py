# SPDX-License-Identifier: Apache-2.0
"""The names that users import."""

from ..executor import CompletionOutput, RequestOutput
from ..llm import TorchLLM as LLM
from ..llm_args import KvCacheConfig
from ..sampling_params import GuidedDecodingParams, SamplingParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "RequestOutput",
    "SamplingParams",
]
