# SPDX-License-Identifier: Apache-2.0
"""What the stages leave in their working directories. Standard library only."""

from pathlib import Path

from buildlib.artefact import TOKENIZER

CHECKPOINT = Path("checkpoint")
ENGINE = Path("engine")
FOLDERS = (CHECKPOINT, TOKENIZER)
