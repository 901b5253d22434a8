# SPDX-License-Identifier: Apache-2.0
"""`init` and `plan` of models of images, from their files alone."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests import headers
from tritonctl.engines.estimates.vision import is_clip, read_clip_texts, read_vision
from tritonctl.engines.planning.plans import plan_model
from tritonctl.engines.proposals.proposal import InitOptions
from tritonctl.engines.proposals.recognition import recognise
from tritonctl.engines.proposals.writing import write_project
from tritonctl.errors import BuildFailedError, ConfigurationError
from tritonctl.project.file import load_project

MIB = 1 << 20
HIDDEN, WIDE, LAYERS, LABELS = 768, 3072, 12, 1000
PATCHES = (224 // 16) ** 2 + 1
# As the model's own page gives it: 86.6 M.
VIT_BASE_PARAMETERS = 86_567_656
VIT: dict[str, Any] = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "id2label": {str(number): f"label {number}" for number in range(LABELS)},
}
RESNET: dict[str, Any] = {
    "architectures": ["ResNetForImageClassification"],
    "model_type": "resnet",
    "hidden_sizes": [256, 512, 1024, 2048],
    "depths": [3, 4, 6, 3],
    "embedding_size": 64,
    "id2label": {"0": "cat", "1": "dog"},
}
PROCESSOR = {"image_processor_type": "ViTImageProcessor", "size": {"height": 224, "width": 224}}


def vit_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of ViT base as transformers saves it."""
    shapes: dict[str, tuple[int, ...]] = {
        "vit.embeddings.cls_token": (1, 1, HIDDEN),
        "vit.embeddings.position_embeddings": (1, PATCHES, HIDDEN),
        "vit.embeddings.patch_embeddings.projection.weight": (HIDDEN, 3, 16, 16),
        "vit.embeddings.patch_embeddings.projection.bias": (HIDDEN,),
        "vit.layernorm.weight": (HIDDEN,),
        "vit.layernorm.bias": (HIDDEN,),
        "classifier.weight": (LABELS, HIDDEN),
        "classifier.bias": (LABELS,),
    }
    square, up, down = (HIDDEN, HIDDEN), (WIDE, HIDDEN), (HIDDEN, WIDE)
    layers = {f"attention.attention.{part}": square for part in ("query", "key", "value")}
    layers |= {"attention.output.dense": square, "intermediate.dense": up, "output.dense": down}
    for number in range(LAYERS):
        layer = f"vit.encoder.layer.{number}"
        for name, shape in layers.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        for norm in ("layernorm_before", "layernorm_after"):
            shapes |= {f"{layer}.{norm}.weight": (HIDDEN,), f"{layer}.{norm}.bias": (HIDDEN,)}
    return shapes


def write(
    folder: Path,
    config: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    processor: dict[str, Any] | None = None,
) -> Path:
    """A checkpoint on paper."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    headers.write_header(folder / "model.safetensors", shapes, dtype="F32")
    text = json.dumps(PROCESSOR if processor is None else processor)
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")
    return headers.stretch(folder)


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    """ViT base."""
    return write(tmp_path / "vit", VIT, vit_shapes())


def test_a_classifier_of_images(vit: Path, tmp_path: Path) -> None:
    """Its task, memory for its weights and its patches, and images for the load test."""
    folder = tmp_path / "project"
    write_project(folder, InitOptions("pets", str(vit)))
    project = load_project(folder / "tritonctl.yaml")
    model = project.models["pets"]
    assert (model.task, model.engine.builder) == ("image_classification", "onnxruntime")
    assert model.engine.max_seq_len is None
    plan = plan_model(project, "pets")
    assert plan.parameters == VIT_BASE_PARAMETERS
    assert plan.weights == 4 * VIT_BASE_PARAMETERS
    rows = (folder / "inputs.jsonl").read_text(encoding="utf-8").splitlines()
    sizes = set()
    for row in rows:
        tensor = json.loads(row)["inputs"]["image"]
        assert (tensor["shape"], tensor["datatype"]) == ([1, 1], "BYTES")
        head, _, data = tensor["data"][0].partition(",")
        assert head == "data:image/png;base64"
        image = Image.open(io.BytesIO(base64.b64decode(data)))
        image.load()
        sizes.add(image.size)
    assert len(set(rows)) == len(rows) > 10
    assert (640, 480) in sizes


def test_patches_are_tokens(vit: Path, tmp_path: Path) -> None:
    """The first token counts, too; only matrices become integers."""
    source = read_vision(vit, ["ViTForImageClassification"])
    assert (source.max_length, source.hidden_size, source.num_attention_heads) == (
        PATCHES,
        HIDDEN,
        12,
    )
    roles = {tensor.name: tensor.kind for tensor in source.tensors}
    assert roles["vit.encoder.layer.0.output.dense.weight"] == "linear"
    assert roles["vit.embeddings.patch_embeddings.projection.weight"] == "other"


def test_convolutions_have_no_attention(tmp_path: Path) -> None:
    """The first stage is the widest; the processor says how large an image is."""
    processor = {"feature_extractor_type": "ConvNextFeatureExtractor", "size": 320}
    folder = write(tmp_path / "resnet", RESNET, {"classifier.1.weight": (2, 2048)}, processor)
    source = read_vision(folder, ["ResNetForImageClassification"])
    assert (source.max_length, source.hidden_size, source.num_attention_heads) == (80 * 80, 256, 0)
    assert recognise(folder).task == "image_classification"


def test_clip_s_texts_are_left_out(tmp_path: Path) -> None:
    """Of its two towers, images need one."""
    tower = {key: VIT[key] for key in VIT if key not in ("architectures", "id2label")}
    config = {"architectures": ["CLIPModel"], "model_type": "clip", "vision_config": tower}
    shapes = {"vision_model.x.weight": (8, 8), "text_model.x.weight": (9, 9), "logit_scale": (1,)}
    folder = write(tmp_path / "clip", config, shapes)
    source = read_vision(folder, ["CLIPModel"])
    assert [tensor.name for tensor in source.tensors] == ["vision_model.x.weight"]
    assert source.max_length == PATCHES
    found = recognise(folder)
    assert (found.task, found.kind) == ("image_embedding", "vision")


def test_clip_s_texts(tmp_path: Path) -> None:
    """The other tower, with the sizes of its class where the file has none."""
    config = {"architectures": ["CLIPTextModelWithProjection"], "hidden_size": 640}
    shapes: dict[str, tuple[int, ...]] = {
        "text_model.x.weight": (9, 9),
        "vision_model.x.weight": (8, 8),
    }
    folder = write(tmp_path / "clip", config, shapes)
    assert is_clip(folder)
    source = read_clip_texts(folder)
    assert (source.max_length, source.hidden_size, source.num_attention_heads) == (77, 640, 8)
    assert [tensor.name for tensor in source.tensors] == ["text_model.x.weight"]
    with pytest.raises(ConfigurationError, match="tokenizer"):
        recognise(folder)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert (recognise(folder).task, recognise(folder).max_length) == ("embedding", 77)


def test_what_no_file_says_is_refused(vit: Path, tmp_path: Path) -> None:
    """The builder's own words where it knows better."""
    (vit / "preprocessor_config.json").write_text('{"do_thumbnail": true}', encoding="utf-8")
    with pytest.raises(BuildFailedError) as caught:
        write_project(tmp_path / "project", InitOptions("pets", str(vit)))
    assert "the setting do_thumbnail of ViTImageProcessor is not supported" in str(caught.value)
    (vit / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigurationError, match=r"has no preprocessor_config\.json"):
        recognise(vit)
