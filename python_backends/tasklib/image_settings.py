# SPDX-License-Identifier: Apache-2.0
"""The settings of a checkpoint's image processor, as compiled by the build. Standard library only.

The build reads preprocessor_config.json, fills in the defaults of its class and rejects unknown
settings (builders/shared/taskcompile/image_processors.py); here nothing has a default.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasklib.task_file import FILE, TaskDefinition
from textlib.errors import ModelConfigurationError


@dataclass(frozen=True)
class ImageSettings:
    """The `image` object of task.json, with the names of transformers."""

    processor: str  # the class name without `Fast` and `Pil`
    do_resize: bool
    size: Mapping[str, int]  # height and width, or shortest_edge, in pixels
    resample: int  # Pillow's number of a filter
    crop_pct: float | None  # of ConvNeXT, else None
    do_center_crop: bool
    crop_size: Mapping[str, int]
    do_rescale: bool
    rescale_factor: float
    do_normalize: bool
    image_mean: Sequence[float]
    image_std: Sequence[float]
    height: int  # of the tensor, in pixels
    width: int


def image_settings(task: TaskDefinition) -> ImageSettings:
    """Return the image settings of a task.

    Raises ModelConfigurationError for a task without images, and for settings of another version.
    """
    if task.image is None:
        raise ModelConfigurationError(
            f"the task {task.task} reads no images: {FILE} has no `image`."
        )
    expected_keys, actual_keys = set(ImageSettings.__dataclass_fields__), set(task.image)
    if expected_keys != actual_keys:
        raise ModelConfigurationError(
            f"{FILE}: `image` lacks {sorted(expected_keys - actual_keys)}, and "
            f"{sorted(actual_keys - expected_keys)} is unknown. Another version wrote it; run "
            "`tritonctl build --force` again."
        )
    return ImageSettings(**task.image)
