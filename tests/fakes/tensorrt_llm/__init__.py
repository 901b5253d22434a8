# SPDX-License-Identifier: Apache-2.0
"""A stand-in for NVIDIA's TensorRT-LLM: its signatures, checks and threads; a small Llama in numpy.

What it refuses, ignores and hands back is what the releases 1.2.1, 1.3.0rc22 and 1.3.0rc29 do, as
far as their sources and documentation tell: https://github.com/NVIDIA/TensorRT-LLM
"""

from ._version import __version__
from .llm import TorchLLM as LLM
from .sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams", "__version__"]
