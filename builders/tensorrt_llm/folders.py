# SPDX-License-Identifier: Apache-2.0
"""What the stage quantise leaves in its working directory. Standard library only."""

from pathlib import Path

from buildlib.artefact import TOKENIZER

CHECKPOINT = Path("checkpoint")
FOLDERS = (CHECKPOINT, TOKENIZER)
