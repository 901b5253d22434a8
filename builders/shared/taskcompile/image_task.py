# SPDX-License-Identifier: Apache-2.0
"""Compiles a checkpoint's files to an image task. Standard library only.

An unknown setting is refused by name, never guessed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasklib.task_file import FILE, SCHEMA

from buildlib.checkpoint import refuse_quantised
from buildlib.problems import BuildError, did_you_mean_class, read_json_object
from buildlib.request_types import BuilderRequest
from buildlib.weights import DOWNLOAD_AGAIN, check_weights, tensor_names
from taskcompile.image_processors import compile_image_processor
from taskcompile.scores import SIGMOID, SOFTMAX, read_labels
from taskcompile.task import refuse_remote_code

IMAGE_CLASSIFICATION = "image_classification"
IMAGE_EMBEDDING = "image_embedding"
IMAGE_TASKS = (IMAGE_CLASSIFICATION, IMAGE_EMBEDDING)
INPUT = "pixel_values"
# The graph's outputs: FP32[labels] and FP32[dimension] an image.
OUTPUTS = {IMAGE_CLASSIFICATION: "scores", IMAGE_EMBEDDING: "embedding"}

# The part of a model's output that is the vector.
POOLER, PROJECTION, CLS = "pooler_output", "image_embeds", "cls"

_HEAD = "ForImageClassification"
_CLIP = ("CLIPModel", "CLIPVisionModelWithProjection")
# Their positions fit one image size.
_FIXED_SIZE = ("Beit", "CLIP", "DeiT", "ViT")
# Their pooler has weights that checkpoints of classifiers lack.
_TRAINED_POOLERS = ("ViTModel", "DeiTModel")
_POOLER_WEIGHT = "pooler.dense.weight"
_WITH_TOKENS = ("Beit", "DeiT", "Dinov2", "ViT")
_CHANNELS = 3


@dataclass(frozen=True)
class ImageTask:
    """A compiled image task."""

    name: str
    folder: Path
    architecture: str  # the transformers class that is exported
    image: Mapping[str, Any]  # the `image` object of task.json, complete
    labels: tuple[str, ...] = ()
    activation: str = "none"
    vector: str = POOLER  # the part of the output that is the embedding
    normalize: bool = False  # vectors of length 1

    @property
    def output(self) -> str:
        """The name of the graph's output."""
        return OUTPUTS[self.name]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the graph's input."""
        return _CHANNELS, self.image["height"], self.image["width"]

    def record(self, version: str, dimension: int) -> dict[str, Any]:
        """Return task.json. `version`: of transformers. `dimension`: of the graph's output."""
        content = {"schema": SCHEMA, "task": self.name, "image": dict(self.image)}
        if self.name == IMAGE_CLASSIFICATION:
            content |= {"labels": list(self.labels), "activation": self.activation}
        else:
            content["embedding"] = {"dimension": dimension, "normalized": self.normalize}
        reference = f"{self.architecture}, {self.image['processor']}Pil"
        content["reference"] = {"library": "transformers", "version": version, "class": reference}
        return content

    def write(self, folder: Path, *, version: str, dimension: int) -> None:
        """Write task.json into `folder`."""
        text = json.dumps(self.record(version, dimension), indent=2, ensure_ascii=False)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")


def compile_image_task(
    request: BuilderRequest, exportable: tuple[str, ...], *, pooling: str | None, normalize: bool
) -> ImageTask:
    """Compile the task of the request's checkpoint.

    `exportable`: the classes that the builder exports. `pooling` and `normalize`: the project's
    settings for vectors.

    Raises:
        BuildError: the files are incomplete or have an unknown setting.
    """
    folder = request.checkpoint
    file = folder / "config.json"
    if not file.is_file():
        raise BuildError(
            f"{folder} has no config.json, so it is not a Hugging Face checkpoint",
            remedy="Point models.<name>.checkpoint at a folder made by save_pretrained().",
        )
    config = read_json_object(file, remedy=DOWNLOAD_AGAIN)
    task = str(request.task)
    refuse_remote_code(folder, config, trust_remote_code=request.trust_remote_code, task=task)
    refuse_quantised(folder, config)
    check_weights(folder, allow_pickle=request.allow_pickle)
    architecture = _architecture(file, config, task, exportable)
    image = compile_image_processor(folder, config)
    _check_input(file, config, architecture, image)
    if task == IMAGE_EMBEDDING:
        vector = _vector_source(folder, architecture, pooling)
        return ImageTask(task, folder, architecture, image, vector=vector, normalize=normalize)
    if pooling is not None or normalize:
        raise BuildError(
            f"engine.options sets pooling or normalize, and the task {task} has no vectors",
            remedy="Remove pooling and normalize from engine.options.",
        )
    labels = read_labels(file, config)
    # As in transformers' image-classification pipeline, which differs from the one for texts.
    multi = config.get("problem_type") == "multi_label_classification"
    activation = SIGMOID if multi or len(labels) == 1 else SOFTMAX
    return ImageTask(task, folder, architecture, image, labels, activation)


def _architecture(
    file: Path, config: Mapping[str, Any], task: str, exportable: tuple[str, ...]
) -> str:
    task_classes = [
        name for name in exportable if (_HEAD in name) == (task == IMAGE_CLASSIFICATION)
    ]
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise BuildError(
            f"{file}: names no architectures",
            remedy=f"Add the model's class, one of: {', '.join(task_classes)}.",
        )
    saved_class = str(names[0])
    if task == IMAGE_CLASSIFICATION:
        name = saved_class
    elif saved_class in _CLIP:
        name = _CLIP[-1]  # without the text tower
    else:
        name = f"{saved_class.partition(_HEAD)[0]}Model" if _HEAD in saved_class else saved_class
    if name in task_classes:
        return name
    if _HEAD not in saved_class and task == IMAGE_CLASSIFICATION and saved_class in exportable:
        raise BuildError(
            f"the task {task} needs a checkpoint of a class ...{_HEAD}, and this one is "
            f"{saved_class}",
            remedy=f"Set task to {IMAGE_EMBEDDING}, or use another checkpoint.",
        )
    raise BuildError(
        f"the task {task} does not support the class {saved_class}"
        f"{did_you_mean_class(saved_class, exportable)}",
        remedy=f"Use a checkpoint of one of: {', '.join(task_classes)}. Or export it yourself as "
        "model.onnx and serve it as `task: tensors`.",
    )


def _check_input(
    file: Path, config: Mapping[str, Any], architecture: str, image: Mapping[str, Any]
) -> None:
    vision = config.get("vision_config")
    model_config = vision if isinstance(vision, dict) else config
    channels = model_config.get("num_channels", _CHANNELS)
    if channels != _CHANNELS:
        raise BuildError(
            f"{file}: num_channels is {channels}, and images have red, green and blue here",
            remedy="Serve it as `task: tensors`, with your own step in front.",
        )
    size = model_config.get("image_size")
    expected_size = list(size) if isinstance(size, list | tuple) else [size, size]
    processor_size = [image["height"], image["width"]]
    if (
        architecture.startswith(_FIXED_SIZE)
        and size is not None
        and expected_size != processor_size
    ):
        raise BuildError(
            f"{file}: image_size is {size}, and the checkpoint's image processor makes "
            f"{processor_size[0]} x {processor_size[1]} pixels (height x width)",
            remedy="One of the two files is of another model: download the checkpoint again.",
        )


def _vector_source(folder: Path, architecture: str, pooling: str | None) -> str:
    if architecture in _CLIP:
        if pooling is not None:
            raise BuildError(
                f"engine.options.pooling is {pooling}, and the projection of {architecture} makes "
                "the vectors",
                remedy="Remove pooling from engine.options.",
            )
        return PROJECTION
    if pooling == CLS and architecture.startswith(_WITH_TOKENS):
        return CLS
    if pooling is not None:
        options = f"{CLS}, or nothing" if architecture.startswith(_WITH_TOKENS) else "nothing"
        raise BuildError(
            f"engine.options.pooling is {pooling}, which {architecture} does not have",
            remedy=f"Set it to {options}: without it the vector is the model's pooler_output.",
        )
    names = tensor_names(folder)
    if architecture in _TRAINED_POOLERS and names and not _has_pooler(names):
        raise BuildError(
            f"{folder}: has no weights for the pooler that makes {architecture}'s vectors; "
            "transformers would initialise them randomly",
            remedy=f"Set engine.options.pooling to {CLS}, for the state of its first token.",
        )
    return POOLER


def _has_pooler(names: tuple[str, ...]) -> bool:
    return any(name.endswith(_POOLER_WEIGHT) for name in names)
