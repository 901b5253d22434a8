# SPDX-License-Identifier: Apache-2.0
"""Encoded images to pixel values: every kind of file, what is refused, and what that costs.

That the values are transformers' is in tests/builders/test_image_processors.py.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tasklib.graph_task import GraphTask, GraphWork
from tasklib.image_batches import ImageBatches, PixelBudget
from tasklib.image_processing import ImageProcessor, center_crop
from tasklib.image_settings import ImageSettings, image_settings
from tasklib.item_errors import ItemError
from tasklib.task_file import TaskDefinition
from textlib.errors import ModelConfigurationError
from textlib.triton.parameters import ModelParameters

from tests.sample_images import (
    ORIENTATION,
    bombs,
    encoded,
    every_kind,
    png_16_bit,
    smooth,
)

BACKENDS = Path(__file__).resolve().parents[2] / "python_backends"
PLAIN = ImageSettings(
    processor="ViTImageProcessor",
    do_resize=False,
    size={"height": 8, "width": 8},
    resample=2,
    crop_pct=None,
    do_center_crop=True,
    crop_size={"height": 8, "width": 8},
    do_rescale=False,
    rescale_factor=1 / 255,
    do_normalize=False,
    image_mean=(0.5, 0.5, 0.5),
    image_std=(0.5, 0.5, 0.5),
    height=8,
    width=8,
)
RESIZED = replace(PLAIN, do_resize=True, do_center_crop=False)
MOST = 40_000
DEFAULT = 50_000_000  # serving.max_image_pixels


@pytest.fixture(autouse=True)
def pillow_s_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor sets it for its process; other tests share this one."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)


def values(file: bytes, settings: ImageSettings = PLAIN) -> Any:
    """Pixels as [height, width, 3]."""
    return ImageProcessor(settings, max_pixels=MOST).pixels(file).transpose(1, 2, 0)


def refused(file: bytes, settings: ImageSettings = PLAIN, most: int = MOST) -> str:
    """Why it is not taken."""
    with pytest.raises(ItemError) as caught:
        ImageProcessor(settings, max_pixels=most).pixels(file)
    return str(caught.value)


def test_red_green_and_blue_stay_in_this_order() -> None:
    """Cropped from the middle, neither rescaled nor normalised."""
    image = smooth(12, 11)
    assert (values(encoded(image)) == np.asarray(image)[2:10, 1:9]).all()


def test_rescaled_then_normalised_by_channel() -> None:
    """In the order and the units of transformers."""
    image = smooth(8, 8)
    settings = replace(
        PLAIN, do_rescale=True, do_normalize=True, image_mean=(0.1, 0.2, 0.3), image_std=(1, 2, 4)
    )
    expected = (np.asarray(image) / 255 - [0.1, 0.2, 0.3]) / [1, 2, 4]
    assert np.abs(values(encoded(image), settings) - expected).max() < 1e-6


@pytest.mark.parametrize("have", range(1, 8))
@pytest.mark.parametrize("want", range(1, 8))
def test_a_crop_is_in_the_middle_and_what_is_missing_is_zero(have: int, want: int) -> None:
    """Of an odd difference the larger half is cut off behind, or added in front."""
    array = np.arange(1, have + 1)[:, None, None]
    cropped = center_crop(array, want, 1)[:, 0, 0].tolist()
    front, behind = abs(have - want) // 2, -(-abs(have - want) // 2)
    row = list(range(1, have + 1))
    expected = row[front : have - behind] if have >= want else [0] * behind + row + [0] * front
    assert cropped == expected


@pytest.mark.parametrize("name", every_kind())
def test_every_kind_of_file_becomes_the_same_tensor(name: str) -> None:
    """FP32, of the model's size; structure survives."""
    pixels = ImageProcessor(RESIZED, max_pixels=MOST).pixels(every_kind()[name])
    assert pixels.shape == (3, 8, 8)
    assert pixels.dtype == np.dtype(np.float32)
    assert 0 <= pixels.min() < pixels.max() <= 255


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_is_turned_as_its_camera_was(orientation: int) -> None:
    """What a viewer shows, in all eight ways to hold a camera."""
    stored = np.zeros((8, 8, 3), dtype=np.uint8)
    stored[0, 0] = 255  # row 0, column 0 of the file
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    seen = values(encoded(Image.fromarray(stored), exif=exif))
    corner = {
        1: (0, 0),
        2: (0, 7),
        3: (7, 7),
        4: (7, 0),
        5: (0, 0),
        6: (0, 7),
        7: (7, 7),
        8: (7, 0),
    }
    assert np.argwhere(seen[..., 0] == 255).tolist() == [list(corner[orientation])]


def test_the_first_frame_counts() -> None:
    """Of a GIF that is animated."""
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    file = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert values(file)[0, 0].tolist() == [255, 0, 0]


def test_transparency_is_dropped() -> None:
    """The colour stays, as in transformers."""
    file = encoded(Image.new("RGBA", (8, 8), (10, 20, 30, 0)))
    assert values(file)[0, 0].tolist() == [10, 20, 30]


def test_deep_grey_is_scaled() -> None:
    """Pillow's own conversion makes everything above 255 white."""
    settings = replace(PLAIN, crop_size={"height": 1, "width": 5}, height=1, width=5)
    assert values(png_16_bit([0, 255, 256, 4096, 65535]), settings)[0, :, 1].tolist() == [
        0,
        0,
        1,
        16,
        255,
    ]


def test_a_data_url_for_clients_that_speak_json() -> None:
    """Base64 of the same file."""
    file = encoded(smooth(8, 8))
    url = b"data:image/png;base64," + base64.b64encode(file)
    assert (values(url) == values(file)).all()
    assert "without `;base64,`" in refused(b"data:image/png," + file)
    assert "base64 is wrong" in refused(b"data:image/png;base64,????")


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"", "image is empty."),
        (
            b"not an image",
            "has an unsupported format, expected JPEG, PNG, WEBP, GIF, BMP: it begins with",
        ),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "unsupported format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "unsupported format"),
        (encoded(smooth(16, 16), "TIFF"), "unsupported format"),
        (encoded(smooth(64, 64), "JPEG")[:700], "cannot be decoded: image file is truncated"),
        (encoded(smooth(64, 64))[:2000], "cannot be decoded: "),
        (encoded(smooth(64, 64), "WEBP")[:300], "cannot be decoded: "),
        (encoded(smooth(64, 64), "BMP")[:999], "cannot be decoded: "),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 64, "unsupported format"),
    ],
)
def test_what_is_no_whole_image_is_refused(file: bytes, reason: str) -> None:
    """With the reason; Pillow's further formats, some of which start programs, are not opened."""
    assert reason in refused(file)


def test_damage_anywhere_is_an_error_or_an_image() -> None:
    """No byte of a file makes anything but an ItemError."""
    generator = np.random.default_rng(3)
    processor = ImageProcessor(RESIZED, max_pixels=MOST)
    refusals = 0
    for file in every_kind().values():
        for _ in range(12):
            damaged = bytearray(file)
            for at in generator.integers(0, len(file), 3):
                damaged[at] = generator.integers(0, 256)
            try:
                processor.pixels(bytes(damaged))
            except ItemError:
                refusals += 1
    assert refusals > 20


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", bombs(300))
def test_a_large_image_is_refused_by_its_header(name: str) -> None:
    """Of 40,000 pixels; from twice as many on Pillow refuses by itself, as WebP has to be."""
    file = encoded(smooth(220, 220).convert("RGB" if name != "gif" else "P"), name.upper())
    assert "220 x 220 pixels, more than this model's limit of 40000" in refused(file)
    assert "more pixels than this model's limit of 40000" in refused(bombs(300)[name])


def test_bombs_take_no_memory(tmp_path: Path) -> None:
    """16,000 x 16,000 pixels, with the default limit, in a process that may not have 1 GB."""
    for name, file in bombs(16_000).items():
        (tmp_path / name).write_bytes(file)
    program = f"""
import resource, sys
from pathlib import Path
sys.path.insert(0, {str(BACKENDS)!r})
from tasklib.image_decoding import open_image, prepare_pillow
from tasklib.item_errors import ItemError
prepare_pillow({DEFAULT})
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for file in Path({str(tmp_path)!r}).iterdir():
    try:
        open_image(file.read_bytes(), {DEFAULT})
    except ItemError as error:
        assert "limit" in str(error), error
        print(file.name)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, sorted(done.stdout.split())) == (0, sorted(bombs(16_000))), done.stderr


def test_an_image_that_grows_is_refused() -> None:
    """2 x 18,000 pixels fit; 9,000 times as high as the edge that is asked for they do not."""
    settings = replace(RESIZED, size={"shortest_edge": 8}, do_center_crop=True)
    file = encoded(Image.new("RGB", (2, 18_000)))
    assert "2 x 18000 pixels, and resized 576000, more than" in refused(file, settings)
    # Pillow first makes it as wide as it becomes.
    assert "and resized 144000, more than this model's limit of 40000" in refused(file, RESIZED)


def test_a_jpeg_of_too_many_scans_is_refused() -> None:
    """Each goes over all pixels: a small file may ask for minutes of work."""
    file = encoded(smooth(200, 190), "JPEG", progressive=True)
    start = file.rindex(b"\xff\xda")
    scan = file[start:-2]
    assert ImageProcessor(RESIZED, max_pixels=MOST).pixels(file).any()
    assert "scans over 190 x 200 pixels" in refused(file[:-2] + scan * 30 + file[-2:])


def test_a_thousand_images_of_one_request_and_one_bad_one() -> None:
    """The index says which; other requests have their answers, in their order."""
    batches = ImageBatches(ImageProcessor(PLAIN, max_pixels=MOST), max_pixels=MOST, threads=4)
    good = [encoded(Image.new("RGB", (8, 8), (shade, 0, 0))) for shade in range(200)]
    spoilt = [*good[:3], b"oops", *good[4:6]]
    answers = batches.pixels([good, spoilt, [], [b""], [good[7]]])
    batches.close()
    first, second, empty, alone, last = answers
    assert not isinstance(first, ItemError)
    assert first[:, 0, 0, 0].tolist() == list(range(200))
    assert str(second).startswith("image[3] has an unsupported format")
    assert not isinstance(empty, ItemError)
    assert empty.shape == (0, 3, 8, 8)
    assert str(alone) == "image is empty."
    assert not isinstance(last, ItemError)
    assert last[0, 0, 0, 0] == 7


def test_decoded_pixels_are_bounded_together() -> None:
    """An image that does not fit waits until another has ended."""
    budget, inside, most = PixelBudget(10), 0, 0
    lock = threading.Lock()

    def take(pixels: int) -> None:
        nonlocal inside, most
        with budget.reserve(pixels):
            with lock:
                inside += min(pixels, 10)
                most = max(most, inside)
            with lock:
                inside -= min(pixels, 10)

    threads = [threading.Thread(target=take, args=(1 + n % 12,)) for n in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert 0 < most <= 10


def test_settings_of_another_version_are_refused() -> None:
    """Neither guessed nor ignored."""
    record: Mapping[str, Any] = dict(vars(PLAIN))
    assert image_settings(TaskDefinition("image_embedding", image=record)) == PLAIN
    with pytest.raises(ModelConfigurationError, match=r"`image` lacks \[\], and \['gamma'\]"):
        image_settings(TaskDefinition("image_embedding", image={**record, "gamma": 1}))
    with pytest.raises(ModelConfigurationError, match="reads no images"):
        image_settings(TaskDefinition("embedding"))


def test_an_engine_that_takes_images_itself() -> None:
    """With `serving.fused`: the same pixels, the same errors, and labels of the graph's scores."""
    task = TaskDefinition("image_classification", image=dict(vars(PLAIN)), labels=["bad", "good"])
    known = {"max_pixels": str(MOST), "inline_image_processor": "true", "inline_labels": "true"}
    fused = GraphTask(task, Path(), ModelParameters("m", known), ["pixel_values"], ["scores"])
    image = encoded(smooth(8, 8))
    requests = [{"image": np.array([[file]], dtype=object)} for file in (image, b"", image)]

    first, second, third = fused.prepare_all(requests)

    assert str(second) == "image is empty."
    assert isinstance(first, GraphWork)
    assert isinstance(third, GraphWork)
    assert (first.feed["pixel_values"][0].transpose(1, 2, 0) == values(image)).all()
    answer = first.answer({"scores": np.array([[0.25, 0.75]], dtype=np.float32)})
    assert answer["label"].tolist() == [[b"good", b"bad"]]
    assert answer["score"].tolist() == [[0.75, 0.25]]
