# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint's image processor does, as the build compiled it. Standard library only.

The build reads preprocessor_config.json, fills in what its class leaves to defaults and refuses
what is not known (builders/shared/taskcompile/image_processors.py); here nothing is a default.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasklib.task_file import FILE, Task
from textlib.errors import ConfigurationError


@dataclass(frozen=True)
class ImageSettings:
    """The `image` object of task.json, under the names of transformers.

    `processor`: the class without `Fast` and `Pil`. `size`: height and width, or shortest_edge, in
    pixels; `resample`: Pillow's number of a filter. `crop_pct`: ConvNeXT's, else None. `height` and
    `width`: of the tensor, in pixels.
    """

    processor: str
    do_resize: bool
    size: Mapping[str, int]
    resample: int
    crop_pct: float | None
    do_center_crop: bool
    crop_size: Mapping[str, int]
    do_rescale: bool
    rescale_factor: float
    do_normalize: bool
    image_mean: Sequence[float]
    image_std: Sequence[float]
    height: int
    width: int


def image_settings(task: Task) -> ImageSettings:
    """The image part of a task that reads images.

    Raises ConfigurationError for another task, and for settings of another version.
    """
    if task.image is None:
        raise ConfigurationError(f"the task {task.task} reads no images: {FILE} has no `image`.")
    known, given = set(ImageSettings.__dataclass_fields__), set(task.image)
    if known != given:
        raise ConfigurationError(
            f"{FILE}: `image` lacks {sorted(known - given)}, and {sorted(given - known)} is "
            "unknown. Another version wrote it; run `tritonctl build --force` again."
        )
    return ImageSettings(**task.image)
