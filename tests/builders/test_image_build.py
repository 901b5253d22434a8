# SPDX-License-Identifier: Apache-2.0
"""Real builds of small models of images, proven against transformers, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.exported import header_of
from tests.builders.runs import Built, run, run_kept
from tests.builders.warm import make_warm
from tests.engine_cache import content, kept
from tests.sample_images import encoded, smooth

pytestmark = pytest.mark.engine
exhaustive = pytest.mark.exhaustive

TESTS = Path(__file__).resolve().parents[1]
BUILD = TESTS.parent / "builders" / "onnxruntime" / "build.py"
SCRIPT = TESTS / "tiny_vision.py"
PRECISIONS = ("fp32", "fp16", "int8")
LABELS = ["kite", "lamp", "moth", "nail", "oboe"]
CLASSIFIERS = ("ConvNext", "ConvNextV2", "DeiT", "Dinov2", "ResNet", "Swin", "ViT")
CONTROLS = {
    "blue for red",
    "mean and deviation left out",
    "values of 0 to 255",
    "another filter",
    "one pixel to the side",
    "EXIF not read",
    "the answer to another image",
}

Build = Callable[..., Built]
Checkpoint = Callable[[str], Path]


@pytest.fixture(scope="session")
def checkpoint(
    onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    """A small model of images with random weights."""
    inputs = {"script": content(SCRIPT), "python": onnxruntime_environment.parents[1].name}

    def make(name: str) -> Path:
        def write(folder: Path) -> None:
            make_warm(onnxruntime_environment, SCRIPT, name, folder)

        into = tmp_path_factory.mktemp(name) / "model"
        return kept("vision", inputs | {"name": name}, write, into)

    return make


@pytest.fixture(scope="session")
def build(onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Run build.py as the host does; `fresh`: also where an equal run was kept."""

    def build(
        folder: Path, task: str, precision: str = "fp32", *, fresh: bool = False, **changes: Any
    ) -> Built:
        asked = {
            "schema": "tritonctl.build/1",
            "model": "m",
            "checkpoint": str(folder),
            "precision": precision,
            "limits": {"max_batch_size": 8},
            "task": task,
            **changes,
        }
        work = tmp_path_factory.mktemp("build")
        return (run if fresh else run_kept)(onnxruntime_environment, BUILD, asked, work)

    return build


def figures(done: Built) -> dict[str, float]:
    """The measures of the proof."""
    assert done.code == 0, done.result
    return {one["name"]: one["value"] for one in done.result["proof"]["figures"]}


def failed(done: Built) -> str:
    assert done.code == 1, done.result
    return f"{done.result['problem']} {done.result['remedy']}"


def test_a_classifier_is_built_and_proven(build: Build, checkpoint: Checkpoint) -> None:
    """Artefact, task and proof; every mistake made on purpose was seen."""
    done = build(checkpoint("ViTForImageClassification"), "image_classification")
    measured = figures(done)
    assert (measured["pixels"], measured["label"], measured["order"]) == (0, 1, 1)
    assert measured["score"] < 1e-5
    wrong = {control["name"] for control in done.result["proof"]["controls"]}
    assert wrong == CONTROLS | {"the activation left out", "labels in reverse order"}
    files = [entry["path"] for entry in done.result["files"]]
    assert files == ["engine/model.onnx", "proof/cases.json", "task/task.json"]
    (inputs,), (outputs,) = (done.result["tensors"][side] for side in ("inputs", "outputs"))
    assert inputs == {"name": "pixel_values", "data_type": "TYPE_FP32", "dims": [3, 32, 32]}
    assert outputs == {"name": "scores", "data_type": "TYPE_FP32", "dims": [5]}
    task = json.loads((done.staging / "task" / "task.json").read_text(encoding="utf-8"))
    assert (task["labels"], task["activation"]) == (LABELS, "softmax")
    assert (task["image"]["processor"], task["image"]["resample"]) == ("ViTImageProcessor", 2)
    proof = json.loads((done.staging / "proof" / "cases.json").read_text(encoding="utf-8"))
    assert len(proof["cases"]) == done.result["proof"]["cases"]
    assert sorted(proof["cases"][0]["expected"]) == ["label", "score"]


@exhaustive
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_every_classifier_in_every_precision(
    build: Build, checkpoint: Checkpoint, family: str, precision: str
) -> None:
    """The same best label as transformers', near-equal scores aside."""
    folder = checkpoint(f"{family}ForImageClassification")
    if (family, precision) == ("ResNet", "int8"):
        assert "convolutions, which dynamic int8" in failed(
            build(folder, "image_classification", precision, fresh=True)
        )
        return
    measured = figures(build(folder, "image_classification", precision))
    assert measured["pixels"] == 0
    print(family, precision, measured)  # noqa: T201 - the table of the documentation


@exhaustive
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("CLIPModel", {}),
        ("CLIPModel", {"normalize": True}),
        ("CLIPVisionModelWithProjection", {}),
        ("ConvNextModel", {}),
        ("ResNetModel", {}),
        ("DeiTModel", {}),
        ("Dinov2Model", {"pooling": "cls"}),
        ("Dinov2ForImageClassification", {}),
        ("SwinModel", {}),
        ("ViTModel", {}),
        ("ViTForImageClassification", {"pooling": "cls", "normalize": True}),
    ],
)
def test_every_kind_of_vector_in_every_precision(
    build: Build, checkpoint: Checkpoint, name: str, options: dict[str, Any], precision: str
) -> None:
    """The direction and the length of transformers'."""
    folder = checkpoint(name)
    if (name, precision) == ("ResNetModel", "int8"):
        assert "convolutions, which dynamic int8" in failed(
            build(folder, "image_embedding", precision, fresh=True)
        )
        return
    done = build(folder, "image_embedding", precision, options=options)
    measured = figures(done)
    assert measured["pixels"] == 0
    print(name, options, precision, measured)  # noqa: T201 - as above
    task = json.loads((done.staging / "task" / "task.json").read_text(encoding="utf-8"))
    normalized = options.get("normalize", False)
    (output,) = done.result["tensors"]["outputs"]
    assert task["embedding"] == {"dimension": output["dims"][0], "normalized": normalized}


@exhaustive
def test_convolutions_are_quantised_with_images(
    build: Build, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """A ResNet in int8: ranges measured on a folder of images, of which one is broken."""
    for number in range(8):
        file = tmp_path / f"{number}.png"
        file.write_bytes(encoded(smooth(60, 50 + number, seed=number)))
    asked = {
        "options": {"calibration": "static"},
        "calibration": {
            "data": str(tmp_path),
            "samples": 6,
            "max_seq_len": 1,
            "batch_size": 1,
            "seed": 0,
        },
    }
    folder = checkpoint("ResNetForImageClassification")
    done = build(folder, "image_classification", "int8", fresh=True, **asked)
    assert figures(done)["score"] > 1e-4  # it is quantised
    (tmp_path / "0.png").write_bytes(b"broken")
    said = failed(build(folder, "image_classification", "int8", fresh=True, **asked))
    assert "0.png: image has an unsupported format" in said


@exhaustive
def test_accuracy_on_images_of_one_s_own(
    build: Build, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Before and after; a label that the model has not, and a minimum that it misses."""
    folder = checkpoint("ViTForImageClassification")
    (tmp_path / "a.png").write_bytes(encoded(smooth(60, 50)))
    listing = tmp_path / "own.jsonl"
    evaluation = {"prompts": str(listing), "max_tokens": 1}

    def judged(label: str, **changes: Any) -> Built:
        listing.write_text(json.dumps({"image": "a.png", "label": label}), encoding="utf-8")
        asked = evaluation | changes
        return build(folder, "image_classification", fresh=True, evaluation=asked)

    rights = [judged(label).result["proof"]["evaluation"] for label in LABELS]
    assert sorted(one["engine"] for one in rights) == [0, 0, 0, 0, 1]
    assert [one["engine"] for one in rights] == [one["reference"] for one in rights]
    wrong = LABELS[[one["engine"] for one in rights].index(0)]
    assert "an accuracy of 0 on" in failed(judged(wrong, min_score=0.5))
    assert "has the label 'cat', which the model does not have" in failed(judged("cat"))


@exhaustive
def test_a_model_that_ignores_its_images_is_refused(build: Build, checkpoint: Checkpoint) -> None:
    """All weights but the head's bias are zero: no proof could tell one answer from another."""
    folder = checkpoint("ViTForImageClassification")
    file = folder / "model.safetensors"
    raw = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    first, last = header_of(file)["classifier.weight"]["data_offsets"]
    raw[start + first : start + last] = bytes(last - first)
    file.write_bytes(raw)
    said = failed(build(folder, "image_classification", fresh=True))
    assert "does not detect the deliberate mistake 'the answer to another image'" in said


@exhaustive
def test_weights_that_are_no_numbers_are_refused(build: Build, checkpoint: Checkpoint) -> None:
    """Instead of answers that are none."""
    folder = checkpoint("ViTForImageClassification")
    file = folder / "model.safetensors"
    raw = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    first, _ = header_of(file)["classifier.bias"]["data_offsets"]
    raw[start + first : start + first + 4] = np.float32(np.nan).tobytes()
    file.write_bytes(raw)
    said = failed(build(folder, "image_classification", fresh=True))
    assert "does not answer as transformers" in said


@exhaustive
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["CLIPModel", "CLIPTextModelWithProjection"])
def test_clip_s_texts_in_every_precision(
    build: Build, checkpoint: Checkpoint, name: str, precision: str
) -> None:
    """The state at a text's end, whatever is behind it; cut where the model's positions end."""
    done = build(checkpoint(name), "embedding", precision, options={"normalize": True})
    measured = figures(done)
    assert measured["tokens"] == 1
    assert measured["batch cosine"] > 0.98
    print(name, precision, measured)  # noqa: T201 - as above
    wrong = {control["name"] for control in done.result["proof"]["controls"]}
    assert {"texts cut one token too early", "the state of the first token"} <= wrong
    files = [entry["path"] for entry in done.result["files"]]
    assert {"tokenizer/tokenizer.json", "task/task.json", "proof/cases.json"} <= set(files)
    names = [tensor["name"] for tensor in done.result["tensors"]["inputs"]]
    assert names == ["input_ids", "attention_mask"]


@exhaustive
def test_an_old_clip_s_end_is_its_largest_id(build: Build, checkpoint: Checkpoint) -> None:
    """OpenAI's own files name an end that no text has; then transformers looks at the ids."""
    folder = checkpoint("CLIPModel")
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["text_config"]["eos_token_id"] = 2
    file.write_text(json.dumps(config), encoding="utf-8")
    assert figures(build(folder, "embedding", fresh=True))["cosine"] > 0.99999
