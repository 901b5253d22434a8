# SPDX-License-Identifier: Apache-2.0
"""Pixel values of transformers' processors on Pillow: run in the builder's environment.

Usage: image_reference.py CASES.json ANSWERS.npz
CASES: a list of {"folder": of a preprocessor_config.json, "class": without Pil, "images": files}.
What transformers' image pipelines do: `load_image`, then the checkpoint's processor.
"""

import json
import sys
from pathlib import Path

import numpy as np
import transformers  # noqa: TID251 - this script runs in the builder's environment
from transformers.image_utils import load_image  # noqa: TID251 - same


def main(cases: str, answers: str) -> None:
    """Write one array FP32[images, 3, height, width] for each case, in order."""
    arrays = []
    for case in json.loads(Path(cases).read_text(encoding="utf-8")):
        kind = getattr(transformers, case["class"] + "Pil")
        processor = kind.from_pretrained(case["folder"])
        images = [load_image(file) for file in case["images"]]
        arrays.append(np.stack([processor(image).pixel_values[0] for image in images]))
    np.savez(answers, *arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
