# SPDX-License-Identifier: Apache-2.0
"""What this builder takes, and what it chooses where the request leaves it open."""

from pathlib import Path

from buildlib.builder_toml import architectures

ARCHITECTURES = architectures(Path(__file__).parent)

# Position scalings that survive the export. The others (longrope, dynamic) choose their
# frequencies by the length of each sequence; traced, the choice becomes a constant, and the
# engine answers wrongly without an error (measured: 13 of 32 prompts with longrope).
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

# Tokens one step of the engine works on: short steps keep streams smooth, because a step holds
# the interpreter lock of the process that serves it.
DEFAULT_MAX_NUM_TOKENS = 256
