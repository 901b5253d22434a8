# SPDX-License-Identifier: Apache-2.0
"""The pixel values of every known processor are transformers', to the bit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.builders.conftest import modules_of, write_json
from tests.sample_images import every_kind

pytestmark = pytest.mark.engine

SCRIPT = Path(__file__).resolve().parents[1] / "image_reference.py"
MOST = 50_000_000
# Sizes that leave half pixels, crops larger than the image, and what changes values.
SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ViTImageProcessor", {}),
    ("ViTImageProcessor", {"size": 96, "resample": 3, "image_mean": [0.4, 0.5, 0.6]}),
    ("ViTImageProcessor", {"size": {"height": 40, "width": 71}, "resample": 1}),
    ("ViTImageProcessor", {"size": 50, "do_normalize": False}),
    ("ViTImageProcessor", {"size": 50, "do_rescale": False}),
    ("ViTImageProcessor", {"size": 50, "do_rescale": False, "do_normalize": False}),
    ("DeiTImageProcessor", {}),
    ("DeiTImageProcessor", {"size": 91, "crop_size": 86}),
    ("DeiTImageProcessor", {"size": {"height": 96, "width": 70}, "crop_size": [110, 61]}),
    ("ConvNextImageProcessor", {}),
    ("ConvNextImageProcessor", {"size": 224, "crop_pct": 0.875, "image_std": [0.229, 0.2, 0.25]}),
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 97}, "crop_pct": 0.95, "resample": 2}),
    ("ConvNextImageProcessor", {"size": 90, "do_center_crop": True, "crop_size": 81}),
    ("CLIPImageProcessor", {}),
    ("CLIPImageProcessor", {"size": 75, "crop_size": 75, "rescale_factor": 0.01}),
    ("CLIPImageProcessor", {"do_resize": False, "crop_size": 83}),
    ("BitImageProcessor", {"size": {"shortest_edge": 60}, "crop_size": 51}),
    ("SiglipImageProcessor", {}),
    ("BeitImageProcessor", {"do_center_crop": True, "size": 64, "crop_size": 63}),
)


@pytest.fixture(scope="module")
def modules() -> Iterator[SimpleNamespace]:
    """What compiles settings, and what serves them."""
    names = ("taskcompile.image_processors",)
    with modules_of("onnxruntime", names) as compiling:
        with modules_of("../python_backends", ("tasklib.image_processing",)) as serving:
            settings = __import__("tasklib.image_settings", fromlist=["ImageSettings"])
        yield SimpleNamespace(
            compiled=vars(compiling)[names[0]].compile_image_processor,
            processor=vars(serving)["tasklib.image_processing"].ImageProcessor,
            settings=settings.ImageSettings,
        )


def test_pixels_are_those_of_transformers(
    onnxruntime_environment: Path, modules: SimpleNamespace, tmp_path: Path
) -> None:
    """All formats and modes through all processors; files say no more than they must."""
    images = every_kind()
    for name, content in images.items():
        (tmp_path / name).write_bytes(content)
    cases = []
    for number, (kind, settings) in enumerate(SETTINGS):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_json(folder / "preprocessor_config.json", {"image_processor_type": kind, **settings})
        files = [str(tmp_path / name) for name in images]
        cases.append({"folder": str(folder), "class": kind, "images": files})
    (tmp_path / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    answers = tmp_path / "answers.npz"
    subprocess.run([onnxruntime_environment, SCRIPT, tmp_path / "cases.json", answers], check=True)
    with np.load(answers) as expected:
        for case, (kind, changes), want in zip(cases, SETTINGS, expected.values(), strict=True):
            settings = modules.settings(**modules.compiled(Path(str(case["folder"])), {}))
            processor = modules.processor(settings, max_pixels=MOST)
            for row, (name, content) in zip(want, images.items(), strict=True):
                assert (processor.pixels(content) == row).all(), (kind, changes, name)
