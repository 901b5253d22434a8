# SPDX-License-Identifier: Apache-2.0
"""How a checkpoint's files of images are compiled, and what is refused; no library is imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders.conftest import Refusal, modules_of, safetensors, write_json

MODULES = ("taskcompile.image_processors", "taskcompile.image_task", "taskcompile.clip_text")
KNOWN = (
    "CLIPVisionModelWithProjection",
    "ConvNextForImageClassification",
    "ConvNextModel",
    "ViTForImageClassification",
    "ViTModel",
)
CONFIG = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "image_size": 224,
    "id2label": {"0": "cat", "1": "dog"},
}
# As openai/clip-vit-base-patch32, microsoft/resnet-50 and google/vit-base-patch16-224 have them.
OLD_CLIP = {
    "crop_size": 224,
    "do_center_crop": True,
    "do_normalize": True,
    "do_resize": True,
    "feature_extractor_type": "CLIPFeatureExtractor",
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "size": 224,
}
OLD_RESNET = {
    "crop_pct": 0.875,
    "do_normalize": True,
    "do_resize": True,
    "feature_extractor_type": "ConvNextFeatureExtractor",
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "size": 224,
}
VIT = {
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "ViTFeatureExtractor",
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 224, "width": 224},
}
# As transformers 5 writes it, with what it leaves null.
NEW_FAST = {
    "crop_size": None,
    "data_format": "channels_first",
    "default_to_square": True,
    "device": None,
    "disable_grouping": None,
    "do_center_crop": None,
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_pad": None,
    "do_rescale": True,
    "do_resize": True,
    "image_processor_type": "ViTImageProcessorFast",
    "input_data_format": None,
    "pad_size": None,
    "return_tensors": None,
    "size": {"height": 384, "width": 192},
}


@pytest.fixture(scope="module")
def builder() -> Iterator[SimpleNamespace]:
    """The modules that compile, and buildlib's."""
    with modules_of("onnxruntime", MODULES) as modules:
        modules.processors, modules.task, modules.clip = (vars(modules)[name] for name in MODULES)
        yield modules


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A classifier that passes every check."""
    folder = tmp_path / "vit"
    folder.mkdir()
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "preprocessor_config.json", VIT)
    safetensors(folder / "model.safetensors")
    return folder


def compiled(builder: SimpleNamespace, folder: Path, raw: Any, **config: Any) -> dict[str, Any]:
    write_json(folder / "preprocessor_config.json", raw)
    made: dict[str, Any] = builder.processors.compile_image_processor(folder, config)
    return made


def task_of(
    builder: SimpleNamespace, folder: Path, task: str, *, pooling: str | None = None, **changes: Any
) -> Any:
    write_json(folder / "config.json", CONFIG | changes)
    request = SimpleNamespace(
        checkpoint=folder, task=task, trust_remote_code=False, allow_pickle=False
    )
    return builder.task.compile_image_task(request, KNOWN, pooling=pooling, normalize=False)


def test_files_as_they_are_published(builder: SimpleNamespace, checkpoint: Path) -> None:
    """Old names, whole numbers for sizes, and the defaults of the class."""
    clip = compiled(builder, checkpoint, OLD_CLIP)
    assert clip["processor"] == "CLIPImageProcessor"
    assert clip["size"] == {"shortest_edge": 224}
    assert clip["crop_size"] == {"height": 224, "width": 224}
    assert (clip["do_rescale"], clip["rescale_factor"]) == (True, 1 / 255)
    assert (clip["height"], clip["width"]) == (224, 224)
    resnet = compiled(builder, checkpoint, OLD_RESNET)
    assert resnet["processor"] == "ConvNextImageProcessor"
    assert (resnet["size"], resnet["crop_pct"]) == ({"shortest_edge": 224}, 0.875)
    assert (resnet["height"], resnet["width"], resnet["do_center_crop"]) == (224, 224, False)
    vit = compiled(builder, checkpoint, VIT)
    assert (vit["processor"], vit["resample"], vit["crop_pct"]) == ("ViTImageProcessor", 2, None)
    fast = compiled(builder, checkpoint, NEW_FAST)
    assert (fast["processor"], fast["resample"]) == ("ViTImageProcessor", 2)
    assert (fast["height"], fast["width"]) == (384, 192)


def test_every_setting_is_there(builder: SimpleNamespace, checkpoint: Path) -> None:
    """Those that serving reads, and no others (python_backends/tasklib/image_settings.py)."""
    with modules_of("../python_backends", ("tasklib.image_settings",)) as served:
        settings = vars(served)["tasklib.image_settings"].ImageSettings
    made = compiled(builder, checkpoint, VIT)
    assert set(made) == {field.name for field in fields(settings)}


def test_the_newer_file_wins(builder: SimpleNamespace, checkpoint: Path) -> None:
    """transformers 5 nests the processor of a model that reads texts as well."""
    nested = {"image_processor": NEW_FAST, "processor_class": "CLIPProcessor"}
    write_json(checkpoint / "processor_config.json", nested)
    assert compiled(builder, checkpoint, VIT)["height"] == 384
    write_json(checkpoint / "processor_config.json", {"processor_class": "CLIPProcessor"})
    assert compiled(builder, checkpoint, VIT)["height"] == 224


def test_without_a_class_the_model_decides(builder: SimpleNamespace, checkpoint: Path) -> None:
    """As transformers looks it up."""
    raw = {"size": 200}
    assert compiled(builder, checkpoint, raw, model_type="vit")["size"]["width"] == 200
    resnet = compiled(builder, checkpoint, raw, model_type="resnet")
    assert (resnet["processor"], resnet["resample"]) == ("ConvNextImageProcessor", 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image_processor_type": "VitImageProcessor"}, "did you mean ViTImageProcessor"),
        ({"image_processor_type": "LevitImageProcessor"}, "LevitImageProcessor is not known"),
        ({"image_processor_type": "TimmWrapperImageProcessor"}, "is not known"),
        ({"auto_map": {"AutoImageProcessor": "a.B"}}, "Python code in the checkpoint"),
        ({"do_thumbnail": True}, "the setting do_thumbnail of"),
        ({"image_sdt": [1, 1, 1]}, "did you mean image_std"),
        ({"do_pad": True}, "do_pad is True; expected False"),
        ({"data_format": "channels_last"}, "data_format is 'channels_last'"),
        ({"input_data_format": "channels_last"}, "the setting input_data_format"),
        ({"crop_pct": 0.9}, "crop_pct is 0.9; expected nothing: only ConvNextImageProcessor"),
        ({"resample": 7}, "resample is 7; expected the number"),
        ({"do_resize": "yes"}, "do_resize is 'yes'; expected true or false"),
        ({"size": {"longest_edge": 9}}, "size is {'longest_edge': 9}; expected height and width"),
        ({"size": {"height": 0, "width": 9}}, "expected height and width"),
        ({"size": {"shortest_edge": 224}}, "keeps the shapes of the images"),
        ({"do_resize": False}, "keeps the shapes of the images"),
        ({"do_center_crop": True}, "crop_size is None; expected height and width"),
        ({"image_mean": [0.5]}, "image_mean is [0.5]; expected a number for each"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std is [0.5, 0, 0.5]; expected numbers other than 0"),
        ({"rescale_factor": 0}, "rescale_factor is 0; expected a number above 0"),
    ],
)
def test_what_would_be_guessed_is_refused(
    builder: SimpleNamespace,
    checkpoint: Path,
    refusal: Refusal,
    change: dict[str, Any],
    words: str,
) -> None:
    """By its name, with the file that has it."""
    said = refusal(lambda: compiled(builder, checkpoint, VIT | change))
    assert words in said
    assert "preprocessor_config.json" in said


def test_no_processor_is_an_error(
    builder: SimpleNamespace, checkpoint: Path, refusal: Refusal
) -> None:
    """Neither a file, nor a class that anybody names."""
    said = refusal(lambda: compiled(builder, checkpoint, {"size": 224}, model_type="own"))
    assert "names no image_processor_type, and config.json has the model_type 'own'" in said
    (checkpoint / "preprocessor_config.json").unlink()
    said = refusal(lambda: builder.processors.compile_image_processor(checkpoint, {}))
    assert "has no preprocessor_config.json" in said


def test_a_convnext_needs_its_own_kind_of_size(
    builder: SimpleNamespace, checkpoint: Path, refusal: Refusal
) -> None:
    """transformers fails on it, image by image."""
    raw = OLD_RESNET | {"size": {"height": 224, "width": 224}}
    said = refusal(lambda: compiled(builder, checkpoint, raw))
    assert "expected shortest_edge, as ConvNextImageProcessor requires" in said


def test_a_classifier(builder: SimpleNamespace, checkpoint: Path) -> None:
    """Its labels and its activation, as the pipeline of images has it."""
    task = task_of(builder, checkpoint, "image_classification")
    assert (task.labels, task.activation, task.output) == (("cat", "dog"), "softmax", "scores")
    assert task.shape == (3, 224, 224)
    record = task.record("5.0", 2)
    assert record["reference"]["class"] == "ViTForImageClassification, ViTImageProcessorPil"
    multi: dict[str, Any] = {"problem_type": "multi_label_classification"}
    assert task_of(builder, checkpoint, "image_classification", **multi).activation == "sigmoid"
    one: dict[str, Any] = {"id2label": {"0": "beauty"}}
    assert task_of(builder, checkpoint, "image_classification", **one).activation == "sigmoid"


def test_vectors_of_a_classifier_come_of_its_backbone(
    builder: SimpleNamespace, checkpoint: Path, refusal: Refusal
) -> None:
    """Without a pooler there is only the first token's state, and only if that is said."""
    said = refusal(lambda: task_of(builder, checkpoint, "image_embedding"))
    assert "no weights for the pooler that makes ViTModel's vectors" in said
    task = task_of(builder, checkpoint, "image_embedding", pooling="cls")
    assert (task.architecture, task.vector, task.output) == ("ViTModel", "cls", "embedding")
    assert task.record("5.0", 16)["embedding"] == {"dimension": 16, "normalized": False}
    said = refusal(lambda: task_of(builder, checkpoint, "image_embedding", pooling="mean"))
    assert "pooling is mean, which ViTModel does not have" in said


def test_clip_s_image_tower(builder: SimpleNamespace, checkpoint: Path, refusal: Refusal) -> None:
    """Its vectors are projected; the size of images is the tower's."""
    clip: dict[str, Any] = {"architectures": ["CLIPModel"], "model_type": "clip"}
    write_json(checkpoint / "preprocessor_config.json", OLD_CLIP)
    vision: dict[str, Any] = {"vision_config": {"image_size": 224}}
    task = task_of(builder, checkpoint, "image_embedding", **clip, **vision)
    assert (task.architecture, task.vector) == ("CLIPVisionModelWithProjection", "image_embeds")
    said = refusal(
        lambda: task_of(builder, checkpoint, "image_embedding", pooling="cls", **clip, **vision)
    )
    assert "the projection of" in said
    vision = {"vision_config": {"image_size": 336}}
    said = refusal(lambda: task_of(builder, checkpoint, "image_embedding", **clip, **vision))
    assert "image_size is 336, and the checkpoint's image processor makes 224 x 224" in said


@pytest.mark.parametrize(
    ("task", "change", "words"),
    [
        ("image_classification", {"architectures": ["ViTModel"]}, "Set task to image_embedding"),
        (
            "image_classification",
            {"architectures": ["OwnForImageClassification"]},
            "does not support the class",
        ),
        ("image_classification", {"architectures": []}, "names no architectures"),
        ("image_classification", {"image_size": [224, 192]}, "image_size is [224, 192]"),
        ("image_classification", {"num_channels": 1}, "num_channels is 1"),
        ("image_classification", {"auto_map": {"AutoModel": "a.B"}}, "brings its own code"),
        ("image_classification", {"id2label": {"0": "cat", "2": "dog"}}, "id2label"),
        ("image_embedding", {"architectures": ["ViTMdel"]}, "did you mean ViTModel"),
    ],
)
def test_checkpoints_that_are_refused(
    builder: SimpleNamespace,
    checkpoint: Path,
    refusal: Refusal,
    task: str,
    change: dict[str, Any],
    words: str,
) -> None:
    """Before anything is imported."""
    assert words in refusal(lambda: task_of(builder, checkpoint, task, **change))


def test_classifiers_have_no_pooling(
    builder: SimpleNamespace, checkpoint: Path, refusal: Refusal
) -> None:
    """What says nothing is an error."""
    said = refusal(lambda: task_of(builder, checkpoint, "image_classification", pooling="cls"))
    assert "has no vectors" in said


CLIP = {
    "architectures": ["CLIPModel"],
    "model_type": "clip",
    "projection_dim": 512,
    "text_config": {"max_position_embeddings": 77},
}


def clip_of(builder: SimpleNamespace, folder: Path, most: int | None = None, **changes: Any) -> Any:
    write_json(folder / "config.json", CLIP | changes)
    request = SimpleNamespace(
        checkpoint=folder,
        trust_remote_code=False,
        allow_pickle=False,
        limits=SimpleNamespace(max_seq_len=most),
    )
    return builder.clip.compile_clip_text(request, pooling=None, normalize=True)


def test_clip_s_texts(builder: SimpleNamespace, checkpoint: Path, refusal: Refusal) -> None:
    """As long as its tokenizer and its positions allow, of the projection's width."""
    said = refusal(lambda: clip_of(builder, checkpoint))
    assert "has no tokenizer.json" in said
    write_json(checkpoint / "tokenizer.json", {})
    write_json(checkpoint / "tokenizer_config.json", {"model_max_length": 1e30})
    assert builder.clip.is_clip(checkpoint)
    task = clip_of(builder, checkpoint)
    assert (task.dimension, task.normalized, task.text.max_seq_len) == (512, True, 77)
    assert task.inputs == ("input_ids", "attention_mask")
    assert clip_of(builder, checkpoint, 32).text.max_seq_len == 32
    said = refusal(lambda: clip_of(builder, checkpoint, 78))
    assert "engine.max_seq_len is 78, and" in said
    said = refusal(lambda: clip_of(builder, checkpoint, projection_dim=None))
    assert "projection_dim is None" in said
    write_json(checkpoint / "tokenizer_config.json", {"truncation_side": "left"})
    said = refusal(lambda: clip_of(builder, checkpoint))
    assert "CLIP reads the end of a text" in said
