# SPDX-License-Identifier: Apache-2.0
"""Compiles a checkpoint's image processor: every setting, with the defaults of its class.

The classes are transformers' `<name>Pil`; their defaults are below. An unknown class, setting or
value is refused, because its effect on the pixels would be a guess. Standard library only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError, did_you_mean, did_you_mean_class, read_json_object
from buildlib.weights import DOWNLOAD_AGAIN

# As in transformers, the newer file wins if it contains the processor.
_PROCESSOR = "processor_config.json"
_PREPROCESSOR = "preprocessor_config.json"
_NESTED = "image_processor"

_SAVE_AGAIN = (
    "Save the processor again: AutoImageProcessor.from_pretrained(FOLDER).save_pretrained(FOLDER)."
)
_SQUARE = {"height": 224, "width": 224}
_HALF = [0.5, 0.5, 0.5]
_CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
_CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
_BILINEAR, _BICUBIC = 2, 3
_FILTER_COUNT = 6  # of Pillow, numbered from 0
_CHANNELS = 3
_CONVNEXT = "ConvNextImageProcessor"

# Defaults of every class; its entry below overrides them.
_SHARED: dict[str, Any] = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": _HALF,
    "image_std": _HALF,
    "default_to_square": True,
    "crop_size": None,
    "crop_pct": None,
}
_CLIP: dict[str, Any] = {
    "size": {"shortest_edge": 224},
    "default_to_square": False,
    "resample": _BICUBIC,
    "do_center_crop": True,
    "crop_size": _SQUARE,
    "image_mean": _CLIP_MEAN,
    "image_std": _CLIP_STD,
}
_CLASSES: dict[str, dict[str, Any]] = {
    "BeitImageProcessor": {"size": _SQUARE, "resample": _BICUBIC, "crop_size": _SQUARE},
    "BitImageProcessor": _CLIP,
    "CLIPImageProcessor": _CLIP,
    _CONVNEXT: {
        "size": {"shortest_edge": 384},
        "default_to_square": False,
        "resample": _BICUBIC,
        "crop_pct": 224 / 256,
    },
    "DeiTImageProcessor": {
        "size": {"height": 256, "width": 256},
        "resample": _BICUBIC,
        "do_center_crop": True,
        "crop_size": _SQUARE,
    },
    "SiglipImageProcessor": {"size": _SQUARE, "default_to_square": False, "resample": _BICUBIC},
    "ViTImageProcessor": {"size": _SQUARE, "resample": _BILINEAR},
}
# By config.json's model_type, if the file names no class.
_CLASS_BY_MODEL_TYPE = {
    "beit": "BeitImageProcessor",
    "clip": "CLIPImageProcessor",
    "clip_vision_model": "CLIPImageProcessor",
    "convnext": _CONVNEXT,
    "convnextv2": _CONVNEXT,
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "resnet": _CONVNEXT,
    "siglip": "SiglipImageProcessor",
    "siglip_vision_model": "SiglipImageProcessor",
    "swin": "ViTImageProcessor",
    "vit": "ViTImageProcessor",
}
# These change no pixels of a single image. `do_convert_rgb` is applied always, as in pipelines.
_WITHOUT_EFFECT = {
    "_processor_class",
    "_valid_processor_keys",
    "device",
    "disable_grouping",
    "do_convert_rgb",
    "do_reduce_labels",
    "feature_extractor_type",
    "image_processor_type",
    "pad_size",
    "processor_class",
    "reduce_labels",
    "return_tensors",
}
# Supported only with the value that changes nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "data_format": ("channels_first",),
    "do_pad": (False,),
    "use_square_size": (False,),
}
_BOOLEANS = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "default_to_square")
_SUPPORTED_KEYS = {*_SHARED, "size", "resample"}


def compile_image_processor(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `image` object of task.json (python_backends/tasklib/image_settings.py).

    `config`: the checkpoint's config.json.

    Raises:
        BuildError: the processor is missing or not supported.
    """
    path, raw = _read(folder)
    name = _class_name(path, raw, config)
    _refuse_unsupported(path, name, raw)
    values = _SHARED | _CLASSES[name]
    # As in transformers, null stands for the default of the class.
    values |= {key: raw[key] for key in values if raw.get(key) is not None}
    for key in _BOOLEANS:
        if not isinstance(values[key], bool):
            raise _invalid_setting(path, key, values[key], "true or false")
    is_convnext = name == _CONVNEXT
    if "crop_pct" in raw and raw["crop_pct"] is not None and not is_convnext:
        raise _invalid_setting(
            path, "crop_pct", raw["crop_pct"], f"nothing: only {_CONVNEXT} has it"
        )
    size = _size(path, "size", values["size"], square=values["default_to_square"])
    crop = values["crop_size"]
    crop_size = _size(path, "crop_size", crop, square=True) if crop is not None else {}
    compiled = {
        "processor": name,
        "do_resize": values["do_resize"],
        "size": size,
        "resample": _filter(path, values["resample"]),
        "crop_pct": _number(path, "crop_pct", values["crop_pct"]) if is_convnext else None,
        "do_center_crop": values["do_center_crop"],
        "crop_size": crop_size,
        "do_rescale": values["do_rescale"],
        "rescale_factor": _number(path, "rescale_factor", values["rescale_factor"]),
        "do_normalize": values["do_normalize"],
        "image_mean": _channels(path, "image_mean", values["image_mean"]),
        "image_std": _channels(path, "image_std", values["image_std"]),
    }
    if 0 in compiled["image_std"]:
        raise _invalid_setting(path, "image_std", values["image_std"], "numbers other than 0")
    height, width = _output_size(path, compiled)
    return compiled | {"height": height, "width": width}


def _read(folder: Path) -> tuple[Path, dict[str, Any]]:
    newer = folder / _PROCESSOR
    if newer.is_file():
        nested = read_json_object(newer, remedy=DOWNLOAD_AGAIN).get(_NESTED)
        if isinstance(nested, dict):
            return newer, nested
    path = folder / _PREPROCESSOR
    if not path.is_file():
        raise BuildError(
            f"{folder} has no {_PREPROCESSOR}, so its image preprocessing is unknown",
            remedy=f"Copy the model's own {_PREPROCESSOR} next to config.json. {_SAVE_AGAIN}",
        )
    return path, read_json_object(path, remedy=DOWNLOAD_AGAIN)


def _class_name(path: Path, raw: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    if raw.get("auto_map"):
        raise BuildError(
            f"{path}: its image processor is Python code in the checkpoint (auto_map)",
            remedy="Use a checkpoint whose processor is a class of transformers.",
        )
    declared_class = raw.get("image_processor_type") or raw.get("feature_extractor_type")
    if declared_class is None:
        declared_class = _CLASS_BY_MODEL_TYPE.get(str(config.get("model_type")))
    if declared_class is None:
        raise BuildError(
            f"{path}: names no image_processor_type, and config.json has the model_type "
            f"{config.get('model_type')!r}, whose processor is unknown",
            remedy=f"Add image_processor_type, one of: {', '.join(_CLASSES)}.",
        )
    name = str(declared_class).removesuffix("Fast").removesuffix("Pil")
    name = name.replace("FeatureExtractor", "ImageProcessor")
    if name not in _CLASSES:
        raise BuildError(
            f"{path}: the image processor {declared_class} is not "
            f"known{did_you_mean_class(name, _CLASSES)}",
            remedy=f"Known are {', '.join(_CLASSES)}, with `Fast` or without. Or export the model "
            "as model.onnx and serve it as `task: tensors`, with a step of your own in front.",
        )
    return name


def _refuse_unsupported(path: Path, name: str, raw: Mapping[str, Any]) -> None:
    for key, value in raw.items():
        if value is None or key in _WITHOUT_EFFECT or key in _SUPPORTED_KEYS:
            continue
        if key in _NEUTRAL:
            if value not in _NEUTRAL[key]:
                raise _invalid_setting(path, key, value, f"{_NEUTRAL[key][0]!r}, or none")
            continue
        raise BuildError(
            f"{path}: the setting {key} of {name} is not supported"
            f"{did_you_mean(key, _SUPPORTED_KEYS)}",
            remedy="If it changes no pixels, remove it; else serve the model as `task: tensors` "
            f"with your own step. {_SAVE_AGAIN}",
        )


def _size(path: Path, key: str, value: Any, *, square: bool) -> dict[str, int]:
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"height": value, "width": value} if square else {"shortest_edge": value}
    elif isinstance(value, list) and len(value) == 2:  # noqa: PLR2004 - height and width
        value = dict(zip(("height", "width"), value, strict=True))
    elif isinstance(value, dict):
        value = {name: edge for name, edge in value.items() if edge is not None}
    is_valid = isinstance(value, dict) and set(value) in ({"height", "width"}, {"shortest_edge"})
    if not is_valid or not all(type(edge) is int and edge > 0 for edge in value.values()):
        raise _invalid_setting(path, key, value, "height and width, or shortest_edge, in pixels")
    return dict(value)


def _filter(path: Path, value: Any) -> int:
    if type(value) is not int or not 0 <= value < _FILTER_COUNT:
        raise _invalid_setting(
            path, "resample", value, "the number of one of Pillow's filters, 0 to 5"
        )
    return int(value)


def _number(path: Path, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise _invalid_setting(path, key, value, "a number above 0")
    return float(value)


def _channels(path: Path, key: str, value: Any) -> list[float]:
    values = value if isinstance(value, list) else [value] * _CHANNELS
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(values) != _CHANNELS or len(numbers) != _CHANNELS:
        raise _invalid_setting(path, key, value, "a number for each of red, green and blue")
    return [float(v) for v in numbers]


def _output_size(path: Path, compiled: Mapping[str, Any]) -> tuple[int, int]:
    """Return height and width of every processed image. A batch needs one size."""
    size = compiled["size"]
    to_square = compiled["do_resize"] and compiled["crop_pct"] is not None
    if to_square and "shortest_edge" not in size:
        raise _invalid_setting(path, "size", size, f"shortest_edge, as {_CONVNEXT} requires")
    if compiled["do_center_crop"]:
        crop = compiled["crop_size"]
        if "height" not in crop:
            raise _invalid_setting(
                path, "crop_size", crop or None, "height and width, with do_center_crop"
            )
        return crop["height"], crop["width"]
    if to_square:
        return size["shortest_edge"], size["shortest_edge"]
    if compiled["do_resize"] and "height" in size:
        return size["height"], size["width"]
    raise BuildError(
        f"{path}: keeps the shapes of the images (size {size}, do_resize "
        f"{str(compiled['do_resize']).lower()}, do_center_crop false), so no two may share a batch",
        remedy="Set do_center_crop and crop_size, or a size of height and width, as in training.",
    )


def _invalid_setting(path: Path, key: str, value: Any, expected: str) -> BuildError:
    return BuildError(
        f"{path}: {key} is {value!r:.80}; expected {expected}",
        remedy=f"Correct {key} as the model was trained. {_SAVE_AGAIN}",
    )
