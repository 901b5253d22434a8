# SPDX-License-Identifier: Apache-2.0
"""The architectures that this builder supports, and its defaults."""

from pathlib import Path

from buildlib.builder_toml import read_description

_DESCRIPTION = read_description(Path(__file__).parent)
ARCHITECTURES = tuple(_DESCRIPTION["architectures"])
REFUSAL_REASONS: dict[str, str] = _DESCRIPTION["refused"]
REFUSED_SETTINGS: dict[str, dict[str, str]] = _DESCRIPTION["refused_settings"]
DEFAULT_MAX_NUM_TOKENS: int = _DESCRIPTION["max_num_tokens"]

# Position scalings that survive the export. The others (longrope, dynamic) choose their
# frequencies by the length of each sequence. Tracing makes the choice a constant, and the engine
# answers wrongly without an error (measured: 13 of 32 prompts with longrope).
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
