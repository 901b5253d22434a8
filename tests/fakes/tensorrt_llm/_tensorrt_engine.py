# SPDX-License-Identifier: Apache-2.0
"""Runs compiled engines. Releases from 1.3.0rc21 on do not have this module."""

from .llm import TrtLLM as LLM

__all__ = ["LLM"]
