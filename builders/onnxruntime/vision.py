# SPDX-License-Identifier: Apache-2.0
"""From a model of images, and CLIP's of texts, to ONNX. Importing this module imports torch."""

import os
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError
from buildlib.request import Request
from options import Options
from taskcompile.image_task import CLS, IMAGE_CLASSIFICATION, INPUT, ImageTask
from taskcompile.task import Task

# Read when the libraries below are imported: the network is never needed here.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import torch
import transformers

from export import exported
from heads import activated

# Not 0 or 1: torch.export takes those for constants.
_BATCH, _LENGTH = 2, 8


class VisionModel(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """Pixel values FP32[batch, 3, height, width] to the task's output."""

    def __init__(self, model: Any, task: ImageTask) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.names, self.outputs = (INPUT,), (task.output,)

    def forward(self, pixel_values: Any) -> tuple[Any]:
        """Scores FP32[batch, labels] or vectors FP32[batch, dimension]."""
        answer = self.model(pixel_values=pixel_values)
        if self.task.name == IMAGE_CLASSIFICATION:
            return (activated(answer.logits, self.task.activation),)
        if self.task.vector == CLS:
            vectors = answer.last_hidden_state[:, 0]
        else:
            vectors = answer[self.task.vector].flatten(1)  # convolutions leave [batch, d, 1, 1]
        if self.task.normalize:
            vectors = torch.nn.functional.normalize(vectors, p=2, dim=1)
        return (vectors,)


def load_vision(task: ImageTask, request: Request) -> VisionModel:
    """Return the checkpoint in fp32, in evaluation mode.

    Raises:
        BuildError: the weights do not cover the model: transformers would invent the rest.
    """
    unused = "pooler." if task.vector == CLS else None
    module = VisionModel(_loaded(task.architecture, request, "vision_config", unused), task)
    module.eval()
    return module


def _loaded(name: str, request: Request, tower: str, unused: str | None = None) -> Any:
    """A model of this class; weights that begin with `unused` may be missing."""
    transformers.logging.disable_progress_bar()
    folder = request.checkpoint
    model, info = getattr(transformers, name).from_pretrained(
        folder,
        config=_config(folder, tower),
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


def _config(folder: Path, tower: str) -> Any:
    """The model's; of one with two towers that of this one, which may not have the projection."""
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    own = getattr(config, tower, None)
    if own is None:
        return config
    own.projection_dim = config.projection_dim
    return own


def export_vision(module: VisionModel, options: Options) -> Any:
    """Return the ModelProto: the batch is variable, the size of the images is not.

    Raises:
        BuildError: torch cannot express the model in the operator set that was asked for.
    """
    example = torch.rand((_BATCH, *module.task.shape))
    return exported(
        module,
        (example,),
        ({0: torch.export.Dim("batch")},),
        options,
        module.task.architecture,
    )


class TextTower(torch.nn.Module):  # type: ignore[misc]  # same
    """CLIP's: INT64[batch, tokens] twice to vectors FP32[batch, dimension]."""

    def __init__(self, model: Any, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.names, self.outputs = task.inputs, (task.output,)

    def forward(self, input_ids: Any, attention_mask: Any) -> tuple[Any]:
        """The projected state at each text's end."""
        vectors = self.model(input_ids=input_ids, attention_mask=attention_mask).text_embeds
        if self.task.normalized:
            vectors = torch.nn.functional.normalize(vectors, p=2, dim=1)
        return (vectors,)


def load_text_tower(task: Task, request: Request) -> TextTower:
    """Return CLIP's tower of texts in fp32, in evaluation mode. Raises BuildError as above."""
    model = _loaded(task.reference, request, "text_config")
    module = TextTower(model, task)
    module.eval()
    return module


def export_text_tower(module: TextTower, options: Options, max_seq_len: int) -> Any:
    """Return the ModelProto: batch and tokens are variable. Raises BuildError as above."""
    example = torch.ones((_BATCH, min(_LENGTH, max_seq_len)), dtype=torch.int64)
    shape = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=max_seq_len)}
    examples = tuple(example.clone() for _ in module.names)
    return exported(module, examples, (shape, shape), options, module.task.reference)


def version() -> str:
    """Of transformers."""
    return str(transformers.__version__)
