# SPDX-License-Identifier: Apache-2.0
"""builders/tensorrt_llm/arguments.toml; in a copy, tests.fakes has written its text in here."""

from pathlib import Path

TEXT = (Path(__file__).parents[3] / "builders" / "tensorrt_llm" / "arguments.toml").read_text(
    encoding="utf-8"
)
