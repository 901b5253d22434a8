# SPDX-License-Identifier: Apache-2.0
"""Reads the steps after the encoder from sentence-transformers' modules.json.

Supports the format before 5.3 and the one since. Standard library only.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError, did_you_mean, read_json_object
from buildlib.weights import DOWNLOAD_AGAIN, check_safetensors, refuse_lfs_pointer
from taskcompile.task import Dense, EmbeddingStep, Normalize, Pooling

MODULES = "modules.json"
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")

_PACKAGE = "sentence_transformers."
_SUPPORTED_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
# Flags of the old format, in the order in which their vectors are concatenated.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_DIMENSION = ("embedding_dimension", "word_embedding_dimension")
_SENTENCE = "sentence_embedding"
_NAMES = ("module_input_name", "module_output_name")
_DENSE_KEYS = ("in_features", "out_features", "bias", "activation_function", "use_residual")
# Classes of torch.nn without parameters and settings.
_ACTIVATIONS = (
    *("ELU", "GELU", "Hardswish", "Identity", "LeakyReLU", "Mish", "ReLU", "ReLU6", "SELU"),
    *("SiLU", "Sigmoid", "Softplus", "Softsign", "Tanh"),
)
_TORCH = ("torch.nn", "torch.nn.modules.activation", "torch.nn.modules.linear")
_DEFAULT_ACTIVATION = "Tanh"
# The settings files of the first module: all names that sentence-transformers uses.
_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_SAVE = (
    "Save the model again with sentence-transformers, or use one that consists of "
    f"{', '.join(_SUPPORTED_MODULES)}."
)
# Settings of the first module with the values that change nothing for a text.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction", "sequence-classification"),
    "module_output_name": ("token_embeddings", "scores"),
    "method_output_name": ("last_hidden_state", "logits"),
    "unpad_inputs": (None, False, True),
}
_EMPTY = (
    *("processing_kwargs", "model_args", "model_kwargs", "config_args", "config_kwargs"),
    *("tokenizer_args", "processor_kwargs", "tokenizer_name_or_path"),
    *("query_length", "document_length", "query_expansion"),
)


@dataclass(frozen=True)
class TransformerSettings:
    """The settings of the first module."""

    max_seq_length: int | None  # tokens; None: the tokenizer decides
    lower_case: bool


def has_modules(folder: Path) -> bool:
    """Whether sentence-transformers saved the folder."""
    return (folder / MODULES).is_file()


def read_modules(
    folder: Path, hidden_size: int, *, allow_pickle: bool
) -> tuple[EmbeddingStep, ...]:
    """Return the steps after an encoder whose states have `hidden_size` values.

    Raises:
        BuildError: modules.json or a module's config.json has an unknown setting.
    """
    entries = _read_entries(folder)
    if not entries or _class_of(folder, entries[0]) != "Transformer":
        raise BuildError(f"{folder / MODULES}: its first module is not a Transformer", remedy=_SAVE)
    if entries[0].get("path"):
        raise BuildError(
            f"{folder / MODULES}: keeps the encoder in the folder {entries[0]['path']!r}",
            remedy="Save the model again with sentence-transformers 3 or later: it then lies in "
            "the folder itself.",
        )
    steps: list[EmbeddingStep] = []
    for entry in entries[1:]:
        width = vector_width(steps, hidden_size)
        steps.append(_read_step(folder, entry, steps, width, allow_pickle=allow_pickle))
    if not any(isinstance(step, Pooling) for step in steps):
        raise BuildError(
            f"{folder / MODULES}: has no Pooling, so it makes no vector of a text", remedy=_SAVE
        )
    return tuple(steps)


def vector_width(steps: Sequence[EmbeddingStep], hidden_size: int) -> int:
    """Return the number of values in a vector after the steps."""
    width = hidden_size
    for step in steps:
        if isinstance(step, Pooling):
            width *= len(step.modes)
        elif isinstance(step, Dense):
            width = step.out_features
    return width


def refuse_other_modules(folder: Path) -> None:
    """Raise BuildError if modules.json exists and has more than a Transformer."""
    if not has_modules(folder):
        return
    names = [_class_of(folder, entry) for entry in _read_entries(folder)]
    if names != ["Transformer"]:
        raise BuildError(
            f"{folder / MODULES}: its modules are {', '.join(names)}; the scores of a classifier "
            "or cross-encoder come from its Transformer alone",
            remedy="Use a cross-encoder that is one ...ForSequenceClassification.",
        )


def read_settings(folder: Path) -> TransformerSettings:
    """Return the settings of the first module. Without a file, return the defaults.

    Raises:
        BuildError: a setting is unknown or would change how texts are read.
    """
    file = next((folder / name for name in _SETTINGS if (folder / name).is_file()), None)
    if file is None:
        return TransformerSettings(None, lower_case=False)
    record = read_json_object(file, remedy=DOWNLOAD_AGAIN)
    for key, value in record.items():
        if key in ("max_seq_length", "do_lower_case"):
            continue
        if key == "modality_config":
            _check_modality(file, value)
        elif key in _EMPTY:
            if value:
                raise _unsupported_setting(file, key, value)
        elif value not in _NEUTRAL.get(key, ()):
            raise _unsupported_setting(file, key, value)
    max_seq_length = record.get("max_seq_length")
    if max_seq_length is not None and (
        isinstance(max_seq_length, bool) or not isinstance(max_seq_length, int)
    ):
        raise _unsupported_setting(file, "max_seq_length", max_seq_length)
    return TransformerSettings(max_seq_length, lower_case=bool(record.get("do_lower_case")))


def _check_modality(file: Path, value: Any) -> None:
    is_valid = isinstance(value, Mapping) and value.keys() == {"text"}
    outputs = ("last_hidden_state", "logits")
    if not is_valid or value["text"].get("method_output_name") not in outputs:
        raise _unsupported_setting(file, "modality_config", value)


def _unsupported_setting(file: Path, key: str, value: Any) -> BuildError:
    return BuildError(
        f"{file}: {key} is {value!r:.120}, which this builder does not know how to follow",
        remedy=f"Remove {key}, if the model was not trained with it, or use another checkpoint.",
    )


def _read_entries(folder: Path) -> list[dict[str, Any]]:
    file = folder / MODULES
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BuildError(f"{file}: cannot be read: {error}", remedy=DOWNLOAD_AGAIN) from error
    if not isinstance(entries, list) or not all(isinstance(module, dict) for module in entries):
        raise BuildError(f"{file}: expected a list of modules", remedy=DOWNLOAD_AGAIN)
    return sorted(entries, key=lambda entry: int(entry.get("idx", 0)))


def _class_of(folder: Path, entry: Mapping[str, Any]) -> str:
    """Return the class of a module. Raises BuildError for an unknown class."""
    kind = str(entry.get("type"))
    name = kind.rpartition(".")[2]
    if not kind.startswith(_PACKAGE) or name not in _SUPPORTED_MODULES:
        raise BuildError(
            f"{folder / MODULES}: the module {kind} is not "
            f"known{did_you_mean(name, _SUPPORTED_MODULES)}",
            remedy=_SAVE,
        )
    if entry.get("kwargs"):
        raise BuildError(
            f"{folder / MODULES}: {kind} is called with kwargs {entry['kwargs']}, which cannot be "
            "given to an exported graph",
            remedy=_SAVE,
        )
    return name


def _read_step(
    folder: Path,
    entry: Mapping[str, Any],
    previous_steps: list[EmbeddingStep],
    width: int,
    *,
    allow_pickle: bool,
) -> EmbeddingStep:
    kind = _class_of(folder, entry)
    module_folder = folder / str(entry.get("path") or kind)
    if not module_folder.resolve().is_relative_to(folder.resolve()):
        raise BuildError(
            f"{folder / MODULES}: {module_folder} lies outside the checkpoint", remedy=_SAVE
        )
    pooled = any(isinstance(step, Pooling) for step in previous_steps)
    if kind == "Transformer" or pooled == (kind == "Pooling"):
        raise BuildError(
            f"{folder / MODULES}: {kind} stands where one Pooling, then Dense and Normalize are "
            "expected",
            remedy=_SAVE,
        )
    if kind == "Pooling":
        return _read_pooling(module_folder / "config.json", width)
    if kind == "Dense":
        return _read_dense(module_folder, width, allow_pickle=allow_pickle)
    file = module_folder / "config.json"
    _check_vector_names(
        file, read_json_object(file, remedy=DOWNLOAD_AGAIN) if file.is_file() else {}, ()
    )
    return Normalize()


def _read_pooling(file: Path, width: int) -> Pooling:
    record = read_json_object(file, remedy=DOWNLOAD_AGAIN)
    _check_keys(file, record, (*_FLAGS, *_DIMENSION, "pooling_mode", "include_prompt"))
    for key in _DIMENSION:
        if record.get(key, width) != width:
            raise BuildError(
                f"{file}: {key} is {record[key]}, and the encoder's states have {width} values",
                remedy=DOWNLOAD_AGAIN,
            )
    chosen = record.get("pooling_mode")
    if chosen is None:
        modes = tuple(mode for flag, mode in _FLAGS.items() if record.get(flag)) or ("mean",)
    else:
        modes = (chosen,) if isinstance(chosen, str) else tuple(chosen)
    for mode in modes:
        if mode not in MODES:
            raise BuildError(
                f"{file}: pooling_mode {mode!r} is not known{did_you_mean(str(mode), MODES)}",
                remedy=f"Use a model that pools by {', '.join(MODES)}.",
            )
    return Pooling(modes, include_prompt=bool(record.get("include_prompt", True)))


def _read_dense(folder: Path, width: int, *, allow_pickle: bool) -> Dense:
    file = folder / "config.json"
    record = read_json_object(file, remedy=DOWNLOAD_AGAIN)
    _check_vector_names(file, record, _DENSE_KEYS)
    sizes = [record.get(key) for key in ("in_features", "out_features")]
    if not all(isinstance(size, int) and size > 0 for size in sizes) or sizes[0] != width:
        raise BuildError(
            f"{file}: takes {sizes[0]} values and gives {sizes[1]}; the step before it gives "
            f"{width}",
            remedy=DOWNLOAD_AGAIN,
        )
    _check_weights(folder, allow_pickle=allow_pickle)
    return Dense(
        folder=folder,
        in_features=width,
        out_features=int(record["out_features"]),
        bias=bool(record.get("bias", True)),
        activation=_read_activation(file, record.get("activation_function")),
        residual=bool(record.get("use_residual", False)),
    )


def _read_activation(file: Path, value: Any) -> str:
    if value is None:
        return _DEFAULT_ACTIVATION
    package, _, name = str(value).rpartition(".")
    if package not in _TORCH or name not in _ACTIVATIONS:
        raise BuildError(
            f"{file}: the activation {value} is not known{did_you_mean(name, _ACTIVATIONS)}",
            remedy=f"Use a model with one of torch.nn's {', '.join(_ACTIVATIONS)}.",
        )
    return name


def _check_weights(folder: Path, *, allow_pickle: bool) -> None:
    safe, pickle = folder / "model.safetensors", folder / "pytorch_model.bin"
    if safe.is_file():
        check_safetensors(safe)
    elif pickle.is_file() and allow_pickle:
        refuse_lfs_pointer(pickle)
    elif pickle.is_file():
        raise BuildError(
            f"{folder}: has its weights as a Python pickle only, and reading one can run any code",
            remedy="Save the model again with sentence-transformers; or set engine.allow_pickle to "
            "true where you trust the file.",
        )
    else:
        raise BuildError(f"{folder}: has no model.safetensors", remedy=DOWNLOAD_AGAIN)


def _check_vector_names(file: Path, record: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    """Check that a module reads and writes the sentence vector and has only supported keys."""
    _check_keys(file, record, (*keys, *_NAMES))
    for key in _NAMES:
        if record.get(key) not in (None, _SENTENCE):
            raise _unsupported_setting(file, key, record[key])


def _check_keys(file: Path, record: Mapping[str, Any], supported: tuple[str, ...]) -> None:
    for key, value in record.items():
        if key not in supported:
            raise _unsupported_setting(file, key, value)
