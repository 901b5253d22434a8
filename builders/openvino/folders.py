# SPDX-License-Identifier: Apache-2.0
"""What lies in engine/ beside the graph. Standard library only."""

import json
import shutil
from pathlib import Path

from buildlib.artefact import TOKENIZER
from buildlib.checkpoint import Checkpoint

ENGINE = Path("engine")
WEIGHTS = ENGINE / "openvino_model.bin"
FOLDERS = (ENGINE, TOKENIZER)


def write_companions(checkpoint: Checkpoint) -> None:
    """Write the configuration files beside the engine."""
    shutil.copyfile(checkpoint.folder / "config.json", ENGINE / "config.json")
    # Always written, and only ids: without an eos_token_id here the pipeline adds -1 to every
    # request's stop tokens and refuses it, and a penalty or temperature meant for chat would
    # otherwise creep into requests that ask for greedy decoding.
    ids = {
        "bos_token_id": checkpoint.bos_token_id,
        "eos_token_id": list(checkpoint.eos_token_ids),
        "pad_token_id": checkpoint.pad_token_id,
    }
    text = json.dumps({name: value for name, value in ids.items() if value is not None}, indent=2)
    (ENGINE / "generation_config.json").write_text(text + "\n", encoding="utf-8")
