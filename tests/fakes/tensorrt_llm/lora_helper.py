# SPDX-License-Identifier: Apache-2.0
"""LoraConfig, which is where the real package has it."""

from __future__ import annotations

from .llm_args import StrictModel


class LoraConfig(StrictModel):
    """Adapters that the PyTorch runtime prepares for."""

    DEFAULTS = {"lora_dir": [], "max_lora_rank": 64, "lora_target_modules": []}
    lora_dir: list[str]
    max_lora_rank: int
    lora_target_modules: list[str]
