# SPDX-License-Identifier: Apache-2.0
"""The images that static calibration measures ranges on. Standard library only."""

from pathlib import Path

from buildlib.problems import BuildError
from buildlib.request import Request

_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")


def require_images(request: Request) -> list[Path]:
    """Those of `engine.calibration.data`, as many as are asked for.

    Raises:
        BuildError: it is no folder of images.
    """
    calibration = request.calibration
    if calibration is None or not calibration.data.is_dir():
        given = calibration.data if calibration else "nothing"
        raise BuildError(
            f"static calibration of a model of images needs images, and engine.calibration.data "
            f"is {given}",
            remedy="Set it to a folder of images like those that will be sent.",
        )
    files = sorted(f for f in calibration.data.rglob("*") if f.suffix.lower() in _SUFFIXES)
    if not files:
        raise BuildError(
            f"{calibration.data}: holds no images ({', '.join(_SUFFIXES)})",
            remedy="Put a few hundred there, like those that will be sent.",
        )
    return files[: calibration.samples]
