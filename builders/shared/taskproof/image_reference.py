# SPDX-License-Identifier: Apache-2.0
"""The reference for images: transformers in fp32, with its processor on Pillow.

Needs torch, transformers and Pillow.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.image_utils import load_image

from taskcompile.image_task import CLS, IMAGE_CLASSIFICATION, ImageTask
from taskproof.image_proof_data import ReferenceOutput

_SMALLEST = 1e-12


class ImageReference:
    """The checkpoint as transformers' image pipelines run it: `load_image`, processor, model."""

    def __init__(self, task: ImageTask, model: Any) -> None:
        transformers.logging.set_verbosity_error()
        kind = getattr(transformers, f"{task.image['processor']}Pil")
        self._task, self._model = task, model
        self._processor = kind.from_pretrained(task.folder)

    @property
    def name(self) -> str:
        """The library and its version."""
        return f"transformers {transformers.__version__}"

    def run(self, files: Sequence[bytes]) -> ReferenceOutput:
        """Run each encoded image alone."""
        images = [load_image(Image.open(io.BytesIO(file))) for file in files]
        pixels = np.stack([self._processor(image).pixel_values[0] for image in images])
        pixels = pixels.astype(np.float32)
        if self._task.name == IMAGE_CLASSIFICATION:
            return ReferenceOutput(pixels, self._scores(images))
        return ReferenceOutput(pixels, self._vectors(pixels))

    def _scores(self, images: Sequence[Any]) -> Any:
        labels = self._task.labels
        classify = transformers.pipeline(
            "image-classification",
            model=self._model,
            image_processor=self._processor,
            device="cpu",
        )
        answers = [classify(image, top_k=len(labels)) for image in images]
        by_label = [{entry["label"]: entry["score"] for entry in answer} for answer in answers]
        rows = [[row[label] for label in labels] for row in by_label]
        return np.array(rows, dtype=np.float32)

    def _vectors(self, pixels: Any) -> Any:
        with torch.inference_mode():
            answers = [self._model(pixel_values=torch.from_numpy(image[None])) for image in pixels]
        if self._task.vector == CLS:
            rows = [answer.last_hidden_state[0, 0] for answer in answers]
        else:
            rows = [answer[self._task.vector].reshape(-1) for answer in answers]
        vectors = np.stack([row.numpy() for row in rows])
        if not self._task.normalize:
            return vectors
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _SMALLEST)
