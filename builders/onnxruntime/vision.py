# SPDX-License-Identifier: Apache-2.0
"""Exports image models and CLIP's text tower to ONNX. Importing this module imports torch."""

import os
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError
from buildlib.request_types import BuilderRequest
from options import OnnxRuntimeOptions
from taskcompile.image_task import CLS, IMAGE_CLASSIFICATION, INPUT, ImageTask
from taskcompile.task import TextTask

# The libraries below read these on import: this module never uses the network.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import torch
import transformers

from export import export_module
from heads import apply_activation

# torch.export treats 0 and 1 as constants.
_BATCH, _LENGTH = 2, 8


class VisionModel(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """Maps pixel values FP32[batch, 3, height, width] to the task's output."""

    def __init__(self, model: Any, task: ImageTask) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.names, self.outputs = (INPUT,), (task.output,)

    def forward(self, pixel_values: Any) -> tuple[Any]:
        """Return scores FP32[batch, labels] or vectors FP32[batch, dimension]."""
        answer = self.model(pixel_values=pixel_values)
        if self.task.name == IMAGE_CLASSIFICATION:
            return (apply_activation(answer.logits, self.task.activation),)
        if self.task.vector == CLS:
            vectors = answer.last_hidden_state[:, 0]
        else:
            vectors = answer[self.task.vector].flatten(1)  # convolutions leave [batch, d, 1, 1]
        if self.task.normalize:
            vectors = torch.nn.functional.normalize(vectors, p=2, dim=1)
        return (vectors,)


def load_vision(task: ImageTask, request: BuilderRequest) -> VisionModel:
    """Return the checkpoint in fp32 and evaluation mode.

    Raises:
        BuildError: tensors are missing. transformers would initialise them randomly.
    """
    unused = "pooler." if task.vector == CLS else None
    module = VisionModel(_load_model(task.architecture, request, "vision_config", unused), task)
    module.eval()
    return module


def _load_model(name: str, request: BuilderRequest, tower: str, unused: str | None = None) -> Any:
    """Return a model of the class `name`. Weights that start with `unused` may be missing."""
    transformers.logging.disable_progress_bar()
    folder = request.checkpoint
    model, info = getattr(transformers, name).from_pretrained(
        folder,
        config=_tower_config(folder, tower),
        dtype=torch.float32,
        local_files_only=True,
        use_safetensors=None if request.allow_pickle else True,
        output_loading_info=True,
        attn_implementation="eager",
    )
    missing = sorted(info["missing_keys"])
    if unused:
        missing = [key for key in missing if not key.startswith(unused)]
    if missing:
        raise BuildError(
            f"{folder}: the weights lack {len(missing)} tensors of {name}, for example "
            f"{missing[0]}",
            remedy="Save or download the checkpoint again: it is incomplete.",
        )
    return model


def _tower_config(folder: Path, tower: str) -> Any:
    """Return the model's config, or that of one tower with the projection size."""
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    tower_config = getattr(config, tower, None)
    if tower_config is None:
        return config
    tower_config.projection_dim = config.projection_dim
    return tower_config


def export_vision(module: VisionModel, options: OnnxRuntimeOptions) -> Any:
    """Return the ModelProto. The batch is variable, the image size is fixed.

    Raises:
        BuildError: torch cannot express the model in opset_version.
    """
    example = torch.rand((_BATCH, *module.task.shape))
    return export_module(
        module,
        (example,),
        ({0: torch.export.Dim("batch")},),
        options,
        module.task.architecture,
    )


class TextTower(torch.nn.Module):  # type: ignore[misc]  # same
    """CLIP's text tower: maps INT64[batch, tokens] twice to vectors FP32[batch, dimension]."""

    def __init__(self, model: Any, task: TextTask) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.names, self.outputs = task.inputs, (task.output,)

    def forward(self, input_ids: Any, attention_mask: Any) -> tuple[Any]:
        """Return the projected state at the end of each text."""
        vectors = self.model(input_ids=input_ids, attention_mask=attention_mask).text_embeds
        if self.task.normalized:
            vectors = torch.nn.functional.normalize(vectors, p=2, dim=1)
        return (vectors,)


def load_text_tower(task: TextTask, request: BuilderRequest) -> TextTower:
    """Return CLIP's text tower in fp32 and evaluation mode. Raises BuildError as above."""
    model = _load_model(task.reference, request, "text_config")
    module = TextTower(model, task)
    module.eval()
    return module


def export_text_tower(module: TextTower, options: OnnxRuntimeOptions, max_seq_len: int) -> Any:
    """Return the ModelProto with variable batch and tokens. Raises BuildError as above."""
    example = torch.ones((_BATCH, min(_LENGTH, max_seq_len)), dtype=torch.int64)
    shape = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=max_seq_len)}
    examples = tuple(example.clone() for _ in module.names)
    return export_module(module, examples, (shape, shape), options, module.task.reference)


def transformers_version() -> str:
    """Return the version of transformers."""
    return str(transformers.__version__)
