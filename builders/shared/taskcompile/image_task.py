# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint's files to a task of images. Standard library only.

What is not known is refused by its name, never guessed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildlib.checkpoint import refuse_quantised
from buildlib.problems import BuildError, nearest_class, read_json_object
from buildlib.request import Request
from buildlib.weights import DOWNLOAD_AGAIN, check_weights, tensor_names
from taskcompile.image_processors import image_processor
from taskcompile.scores import SIGMOID, SOFTMAX, read_labels
from taskcompile.task import FILE, SCHEMA, refuse_remote_code

IMAGE_CLASSIFICATION = "image_classification"
IMAGE_EMBEDDING = "image_embedding"
IMAGE_TASKS = (IMAGE_CLASSIFICATION, IMAGE_EMBEDDING)
INPUT = "pixel_values"
# The graph's outputs: FP32[labels] and FP32[dimension] an image.
OUTPUTS = {IMAGE_CLASSIFICATION: "scores", IMAGE_EMBEDDING: "embedding"}

# What of a model's answer is the vector.
POOLER, PROJECTION, CLS = "pooler_output", "image_embeds", "cls"

_HEAD = "ForImageClassification"
_CLIP = ("CLIPModel", "CLIPVisionModelWithProjection")
# Their positions are of one size of image.
_FIXED_SIZE = ("Beit", "CLIP", "DeiT", "ViT")
# Their pooler has weights, which checkpoints that classify do not have.
_TRAINED_POOLERS = ("ViTModel", "DeiTModel")
_POOLER_WEIGHT = "pooler.dense.weight"
_WITH_TOKENS = ("Beit", "DeiT", "Dinov2", "ViT")
_CHANNELS = 3


@dataclass(frozen=True)
class ImageTask:
    """A compiled task of images.

    `architecture`: the class of transformers that is exported. `image`: of task.json, every
    setting. `vector`: what of its answer is the embedding, of length 1 with `normalize`.
    """

    name: str
    folder: Path
    architecture: str
    image: Mapping[str, Any]
    labels: tuple[str, ...] = ()
    activation: str = "none"
    vector: str = POOLER
    normalize: bool = False

    @property
    def output(self) -> str:
        """The graph's output."""
        return OUTPUTS[self.name]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the graph's input."""
        return _CHANNELS, self.image["height"], self.image["width"]

    def record(self, version: str, dimension: int) -> dict[str, Any]:
        """task.json; `version`: of transformers, `dimension`: of the graph's output."""
        made = {"schema": SCHEMA, "task": self.name, "image": dict(self.image)}
        if self.name == IMAGE_CLASSIFICATION:
            made |= {"labels": list(self.labels), "activation": self.activation}
        else:
            made["embedding"] = {"dimension": dimension, "normalized": self.normalize}
        reference = f"{self.architecture}, {self.image['processor']}Pil"
        made["reference"] = {"library": "transformers", "version": version, "class": reference}
        return made

    def write(self, folder: Path, *, version: str, dimension: int) -> None:
        """Write task.json into `folder`."""
        text = json.dumps(self.record(version, dimension), indent=2, ensure_ascii=False)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")


def compile_image_task(
    request: Request, known: tuple[str, ...], *, pooling: str | None, normalize: bool
) -> ImageTask:
    """The task of the request's checkpoint.

    `known`: the classes that the builder exports. `pooling` and `normalize`: what the project says
    of a checkpoint's vectors.

    Raises:
        BuildError: the files lack something, or name what is not known.
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
    architecture = _architecture(file, config, task, known)
    image = image_processor(folder, config)
    _check_input(file, config, architecture, image)
    if task == IMAGE_EMBEDDING:
        vector = _vector(folder, architecture, pooling)
        return ImageTask(task, folder, architecture, image, vector=vector, normalize=normalize)
    if pooling is not None or normalize:
        raise BuildError(
            f"engine.options sets pooling or normalize, and the task {task} has no vectors",
            remedy="Remove pooling and normalize from engine.options.",
        )
    labels = read_labels(file, config)
    # As transformers' image-classification pipeline, which is not the one of texts here.
    multi = config.get("problem_type") == "multi_label_classification"
    activation = SIGMOID if multi or len(labels) == 1 else SOFTMAX
    return ImageTask(task, folder, architecture, image, labels, activation)


def _architecture(file: Path, config: Mapping[str, Any], task: str, known: tuple[str, ...]) -> str:
    fitting = [name for name in known if (_HEAD in name) == (task == IMAGE_CLASSIFICATION)]
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise BuildError(
            f"{file}: names no architectures",
            remedy=f"Add the model's class, one of: {', '.join(fitting)}.",
        )
    given = str(names[0])
    if task == IMAGE_CLASSIFICATION:
        name = given
    elif given in _CLIP:
        name = _CLIP[-1]  # without the tower of texts
    else:
        name = f"{given.partition(_HEAD)[0]}Model" if _HEAD in given else given
    if name in fitting:
        return name
    if _HEAD not in given and task == IMAGE_CLASSIFICATION and given in known:
        raise BuildError(
            f"the task {task} needs a checkpoint of a class ...{_HEAD}, and this one is {given}",
            remedy=f"Set task to {IMAGE_EMBEDDING}, or use another checkpoint.",
        )
    raise BuildError(
        f"{given} is no class that is known for the task {task}{nearest_class(given, known)}",
        remedy=f"Use a checkpoint of one of: {', '.join(fitting)}. Or export it yourself as "
        "model.onnx and serve it as `task: tensors`.",
    )


def _check_input(
    file: Path, config: Mapping[str, Any], architecture: str, image: Mapping[str, Any]
) -> None:
    vision = config.get("vision_config")
    own = vision if isinstance(vision, dict) else config
    channels = own.get("num_channels", _CHANNELS)
    if channels != _CHANNELS:
        raise BuildError(
            f"{file}: num_channels is {channels}, and images have red, green and blue here",
            remedy="Serve it as `task: tensors`, with a step of your own in front.",
        )
    size = own.get("image_size")
    wanted = list(size) if isinstance(size, list | tuple) else [size, size]
    made = [image["height"], image["width"]]
    if architecture.startswith(_FIXED_SIZE) and size is not None and wanted != made:
        raise BuildError(
            f"{file}: image_size is {size}, and the checkpoint's image processor makes "
            f"{made[0]} x {made[1]} pixels (height x width)",
            remedy="One of the two files is of another model: download the checkpoint again.",
        )


def _vector(folder: Path, architecture: str, pooling: str | None) -> str:
    if architecture in _CLIP:
        if pooling is not None:
            raise BuildError(
                f"engine.options.pooling is {pooling}, and {architecture} has a projection, which "
                "makes the vectors",
                remedy="Remove pooling from engine.options.",
            )
        return PROJECTION
    if pooling == CLS and architecture.startswith(_WITH_TOKENS):
        return CLS
    if pooling is not None:
        can = f"{CLS}, or nothing" if architecture.startswith(_WITH_TOKENS) else "nothing"
        raise BuildError(
            f"engine.options.pooling is {pooling}, which {architecture} does not have",
            remedy=f"Set it to {can}: then the vector is the model's pooler_output.",
        )
    names = tensor_names(folder)
    if architecture in _TRAINED_POOLERS and names and not _has_pooler(names):
        raise BuildError(
            f"{folder}: has no weights of the pooler that makes {architecture}'s vectors; "
            "transformers would invent them",
            remedy=f"Set engine.options.pooling to {CLS}, for the state of its first token.",
        )
    return POOLER


def _has_pooler(names: tuple[str, ...]) -> bool:
    return any(name.endswith(_POOLER_WEIGHT) for name in names)
