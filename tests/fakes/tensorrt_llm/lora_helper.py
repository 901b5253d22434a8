# SPDX-License-Identifier: Apache-2.0
"""LoraConfig, which is where the real package has it."""

from __future__ import annotations

from .llm_args import StrictModel

_NONE = type(None)


class LoraConfig(StrictModel):
    """Adapters that the PyTorch runtime prepares for."""

    FIELDS = {
        "lora_dir": ((list,), []),
        "lora_ckpt_source": ((str,), "hf"),
        "max_lora_rank": ((int,), 64),
        "lora_target_modules": ((list,), []),
        "trtllm_modules_to_hf_modules": ((dict,), {}),
        "max_loras": ((int, _NONE), None),
        "max_cpu_loras": ((int, _NONE), None),
        "swap_gate_up_proj_lora_b_weight": ((bool,), True),
    }
    lora_dir: list[str]
    max_lora_rank: int
    lora_target_modules: list[str]
