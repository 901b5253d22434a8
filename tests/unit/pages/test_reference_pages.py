# SPDX-License-Identifier: Apache-2.0
"""The pages that are made from the code are those of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
# What such a page has in it, at least.
PAGES = {
    "metrics": (
        "| `tritonctl_active_streams` | gauge |",
        "| `tritonctl_time_to_first_token_seconds_bucket` | counter |",
    ),
    "builders": (
        "| `fp8` | – | – | yes | yes |",  # not on Ampere, on Ada and Hopper
        "| 26.07, default | 2.71.0 | 1.2.1 |",
        "| 9.0 | Hopper | 11.8 | H100 (80 GiB)",
    ),
    "openai": (
        "| POST | `/v1/chat/completions` |",
        "| `messages` | list of object, required |",
        "| 429 |",
    ),
    "cli": ("## `tritonctl build`", "| `--json` |"),
    "json-output": ("`tritonctl.status/1`", "| `size_bytes` | integer |"),
    "tensors": (
        "| `text_input` | BYTES [1] | the prompt",
        "(`trtllm_engine` only)",
        "| `output_ids` | INT32 [n] |",
    ),
    "support_matrix": (
        "| `Qwen2ForCausalLM` | accepted | CPU: int8_sq, w4a8_awq |",
        "| `ConvNextForImageClassification` | fp32 fp16 int8 | all | mock; H100: fp16 |",
        "| `ViTModel` | fp32 fp16 int8 | all | mock |",
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_that_of_the_code(name: str) -> None:
    """`make reference` has been run since a metric, a release, a tensor was changed."""
    command = [sys.executable, str(DOCS / f"{name.partition('-')[0]}_page.py")]
    made = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    assert [text for text in PAGES[name] if text not in made] == []
    kept = (DOCS / "reference" / f"{name.replace('_', '-')}.md").read_text(encoding="utf-8")
    assert kept == made, "make reference"
