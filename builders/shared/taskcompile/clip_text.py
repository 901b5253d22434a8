# SPDX-License-Identifier: Apache-2.0
"""CLIP's tower of texts, for the task embedding: compiled from the checkpoint's files.

Its vectors compare with those of its images, so both have the checkpoint's own projection, and the
length 1 only where the project asks for it. Standard library only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildlib.checkpoint import refuse_quantised
from buildlib.problems import BuildError, read_json_object
from buildlib.request import Request
from buildlib.weights import DOWNLOAD_AGAIN, check_weights, refuse_pointer
from taskcompile.task import EMBEDDING, Normalize, Task, Text, refuse_remote_code

CLASSES = ("CLIPModel", "CLIPTextModelWithProjection")
# The class that is exported of either.
ARCHITECTURE = CLASSES[-1]
INPUTS = ("input_ids", "attention_mask")
_SAVE_TOKENIZER = "Save it again: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
# Tokens behind the end of a text change nothing: the state at its end is the vector's.
_PADDING = 0


def is_clip(checkpoint: Path) -> bool:
    """Whether the checkpoint is a CLIP with a tower of texts."""
    file = checkpoint / "config.json"
    if not file.is_file():
        return False
    names = read_json_object(file, remedy=DOWNLOAD_AGAIN).get("architectures")
    return isinstance(names, list) and bool(names) and names[0] in CLASSES


def compile_clip_text(request: Request, *, pooling: str | None, normalize: bool) -> Task:
    """The task of the request's checkpoint.

    Raises:
        BuildError: the files lack something, or the request asks for what CLIP does not have.
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
    own = tower if isinstance(tower, dict) else config
    dimension = config.get("projection_dim", own.get("projection_dim"))
    if type(dimension) is not int or dimension < 1:
        raise BuildError(
            f"{file}: projection_dim is {dimension!r}, expected a whole number",
            remedy="Add it as the model was trained, or save the model again.",
        )
    text = Text(
        max_seq_len=_max_seq_len(request, file, own),
        pad_id=_PADDING,
        inputs=INPUTS,
    )
    return Task(
        name=EMBEDDING,
        text=text,
        library="transformers",
        reference=ARCHITECTURE,
        steps=(Normalize(),) if normalize else (),
        dimension=dimension,
    )


def _max_seq_len(request: Request, file: Path, own: Mapping[str, Any]) -> int:
    folder = request.checkpoint
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise BuildError(f"{folder} has no {name}", remedy=_SAVE_TOKENIZER)
        refuse_pointer(folder / name)
    positions = own.get("max_position_embeddings", 77)
    settings = read_json_object(folder / "tokenizer_config.json", remedy=_SAVE_TOKENIZER)
    if settings.get("truncation_side", "right") != "right":
        raise BuildError(
            f"{folder / 'tokenizer_config.json'}: truncation_side is not right, and the end of a "
            "text is what CLIP reads",
            remedy="Set it to right.",
        )
    limit = settings.get("model_max_length")
    most = positions
    if isinstance(limit, int | float) and limit >= 1:
        most = min(most, int(limit))
    asked = request.limits.max_seq_len
    if asked is not None and asked > most:
        raise BuildError(
            f"engine.max_seq_len is {asked}, and {file} reads {most} tokens of a text",
            remedy=f"Set engine.max_seq_len to {most} or less.",
        )
    return asked or most
