# SPDX-License-Identifier: Apache-2.0
"""Compiles the task embedding of CLIP's text tower. Standard library only.

Text vectors compare with image vectors, so both use the checkpoint's projection. Vectors have
length 1 only if the project sets `normalize`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasklib.task_file import TextSettings

from buildlib.checkpoint import refuse_quantised
from buildlib.problems import BuildError, read_json_object
from buildlib.request_types import BuilderRequest
from buildlib.weights import DOWNLOAD_AGAIN, check_weights, refuse_lfs_pointer
from taskcompile.task import (
    EMBEDDING,
    Normalize,
    TextTask,
    refuse_remote_code,
)

CLASSES = ("CLIPModel", "CLIPTextModelWithProjection")
# The class that is exported for both.
ARCHITECTURE = CLASSES[-1]
INPUTS = ("input_ids", "attention_mask")
_SAVE_TOKENIZER = "Save it again: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
# Tokens after the end of a text change nothing: CLIP takes the state at the end.
_PADDING = 0


def is_clip(checkpoint: Path) -> bool:
    """Whether the checkpoint is a CLIP with a text tower."""
    file = checkpoint / "config.json"
    if not file.is_file():
        return False
    names = read_json_object(file, remedy=DOWNLOAD_AGAIN).get("architectures")
    return isinstance(names, list) and bool(names) and names[0] in CLASSES


def compile_clip_text(request: BuilderRequest, *, pooling: str | None, normalize: bool) -> TextTask:
    """Compile the task of the request's checkpoint.

    Raises:
        BuildError: the files are incomplete, or CLIP does not support the request.
    """
    folder = request.checkpoint
    file = folder / "config.json"
    config = read_json_object(file, remedy=DOWNLOAD_AGAIN)
    refuse_remote_code(folder, config, trust_remote_code=request.trust_remote_code, task=EMBEDDING)
    refuse_quantised(folder, config)
    check_weights(folder, allow_pickle=request.allow_pickle)
    if pooling is not None:
        raise BuildError(
            f"engine.options.pooling is {pooling}, and CLIP projects the state at a text's end",
            remedy="Remove pooling from engine.options.",
        )
    tower = config.get("text_config")
    text_config = tower if isinstance(tower, dict) else config
    dimension = config.get("projection_dim", text_config.get("projection_dim"))
    if type(dimension) is not int or dimension < 1:
        raise BuildError(
            f"{file}: projection_dim is {dimension!r}, expected a whole number",
            remedy="Add it as the model was trained, or save the model again.",
        )
    text = TextSettings(
        max_seq_len=_max_seq_len(request, file, text_config),
        pad_id=_PADDING,
        inputs=INPUTS,
    )
    return TextTask(
        name=EMBEDDING,
        text=text,
        library="transformers",
        reference=ARCHITECTURE,
        steps=(Normalize(),) if normalize else (),
        dimension=dimension,
    )


def _max_seq_len(request: BuilderRequest, file: Path, text_config: Mapping[str, Any]) -> int:
    folder = request.checkpoint
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise BuildError(f"{folder} has no {name}", remedy=_SAVE_TOKENIZER)
        refuse_lfs_pointer(folder / name)
    positions = text_config.get("max_position_embeddings", 77)
    settings = read_json_object(folder / "tokenizer_config.json", remedy=_SAVE_TOKENIZER)
    if settings.get("truncation_side", "right") != "right":
        raise BuildError(
            f"{folder / 'tokenizer_config.json'}: truncation_side is not right, and CLIP reads "
            "the end of a text",
            remedy="Set it to right.",
        )
    limit = settings.get("model_max_length")
    max_tokens = positions
    if isinstance(limit, int | float) and limit >= 1:
        max_tokens = min(max_tokens, int(limit))
    requested = request.limits.max_seq_len
    if requested is not None and requested > max_tokens:
        raise BuildError(
            f"engine.max_seq_len is {requested}, and {file} reads {max_tokens} tokens of a text",
            remedy=f"Set engine.max_seq_len to {max_tokens} or less.",
        )
    return requested or max_tokens
