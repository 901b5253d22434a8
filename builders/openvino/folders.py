# SPDX-License-Identifier: Apache-2.0
"""The folders of the artefact, and the files in engine/ next to the graph.

Standard library only.
"""

import json
import shutil
from pathlib import Path

from buildlib.artefact import TOKENIZER
from buildlib.checkpoint import DecoderCheckpoint

ENGINE = Path("engine")
WEIGHTS = ENGINE / "openvino_model.bin"
FOLDERS = (ENGINE, TOKENIZER)


def write_companions(checkpoint: DecoderCheckpoint) -> None:
    """Write the configuration files next to the engine."""
    shutil.copyfile(checkpoint.folder / "config.json", ENGINE / "config.json")
    # Without an eos_token_id the pipeline adds -1 to every request's stop tokens and refuses it.
    # Other keys, such as a penalty or temperature for chat, would change greedy decoding.
    ids = {
        "bos_token_id": checkpoint.bos_token_id,
        "eos_token_id": list(checkpoint.eos_token_ids),
        "pad_token_id": checkpoint.pad_token_id,
    }
    text = json.dumps({name: value for name, value in ids.items() if value is not None}, indent=2)
    (ENGINE / "generation_config.json").write_text(text + "\n", encoding="utf-8")
