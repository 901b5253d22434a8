# SPDX-License-Identifier: Apache-2.0
"""The folders that the stages leave in their working directories. Standard library only."""

from pathlib import Path

from buildlib.artefact import TOKENIZER

CHECKPOINT = Path("checkpoint")
ENGINE = Path("engine")
FOLDERS = (CHECKPOINT, TOKENIZER)
