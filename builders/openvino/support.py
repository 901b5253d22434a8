# SPDX-License-Identifier: Apache-2.0
"""What this builder takes, and what it chooses where the request leaves it open."""

from pathlib import Path

from buildlib.builder_toml import read_description

_DESCRIPTION = read_description(Path(__file__).parent)
ARCHITECTURES = tuple(_DESCRIPTION["architectures"])
REFUSED: dict[str, str] = _DESCRIPTION["refused"]
DEFAULT_MAX_NUM_TOKENS: int = _DESCRIPTION["max_num_tokens"]

# Position scalings that survive the export. The others (longrope, dynamic) choose their
# frequencies by the length of each sequence; traced, the choice becomes a constant, and the
# engine answers wrongly without an error (measured: 13 of 32 prompts with longrope).
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
