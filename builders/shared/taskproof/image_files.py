# SPDX-License-Identifier: Apache-2.0
"""Finds the images of static calibration. Standard library only."""

from pathlib import Path

from buildlib.problems import BuildError
from buildlib.request_types import BuilderRequest

_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")


def calibration_images(request: BuilderRequest) -> list[Path]:
    """Return the first `samples` images of `engine.calibration.data`.

    Raises:
        BuildError: it is not a folder with images.
    """
    calibration = request.calibration
    if calibration is None or not calibration.data.is_dir():
        value = calibration.data if calibration else "nothing"
        raise BuildError(
            f"static calibration of an image model needs images, and engine.calibration.data "
            f"is {value}",
            remedy="Set it to a folder of images like those that users will send.",
        )
    files = sorted(f for f in calibration.data.rglob("*") if f.suffix.lower() in _SUFFIXES)
    if not files:
        raise BuildError(
            f"{calibration.data}: holds no images ({', '.join(_SUFFIXES)})",
            remedy="Put a few hundred there, like those that users will send.",
        )
    return files[: calibration.samples]
