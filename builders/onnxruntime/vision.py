# SPDX-License-Identifier: Apache-2.0
"""From a Hugging Face model of images to ONNX. Importing this module imports torch."""

import os
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError
from buildlib.request import Request
from options import Options
from taskcompile.image_task import CLS, IMAGE_CLASSIFICATION, INPUT, ImageTask

# Read when the libraries below are imported: the network is never needed here.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import torch
import transformers

from export import exported
from heads import activated

_BATCH = 2  # 0 and 1 are constants to torch.export


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
    transformers.logging.disable_progress_bar()
    kind = getattr(transformers, task.architecture)
    model, info = kind.from_pretrained(
        task.folder,
        config=_config(task.folder),
        dtype=torch.float32,
        local_files_only=True,
        use_safetensors=None if request.allow_pickle else True,
        output_loading_info=True,
        attn_implementation="eager",
    )
    missing = sorted(info["missing_keys"])
    if task.vector == CLS and all(name.startswith("pooler.") for name in missing):
        missing = []  # not asked
    if missing:
        raise BuildError(
            f"{task.folder}: the weights lack {len(missing)} tensors of {task.architecture}, for "
            f"example {missing[0]}",
            remedy="Save or download the checkpoint again: it is incomplete.",
        )
    module = VisionModel(model, task)
    module.eval()
    return module


def _config(folder: Path) -> Any:
    """The model's; of one with a tower of texts its images', which may not have the projection."""
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    if not hasattr(config, "vision_config"):
        return config
    config.vision_config.projection_dim = config.projection_dim
    return config.vision_config


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


def version() -> str:
    """Of transformers."""
    return str(transformers.__version__)
