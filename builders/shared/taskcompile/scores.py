# SPDX-License-Identifier: Apache-2.0
"""Reads labels and the activation of scores from config.json. Standard library only."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError, did_you_mean
from taskcompile.prompts import FILE as MODEL_CONFIG

SOFTMAX, SIGMOID, NONE = "softmax", "sigmoid", "none"
# problem_type of transformers.
_PROBLEM_TYPES = {
    "regression": NONE,
    "multi_label_classification": SIGMOID,
    "single_label_classification": SOFTMAX,
}
# Activations of cross-encoders, by the class of torch.nn in sentence-transformers' dotted names.
_CLASSES = {"Sigmoid": SIGMOID, "Identity": NONE}
_OLD_KEY = "sbert_ce_default_activation_function"


def read_labels(file: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels in the order of the graph's scores.

    transformers omits id2label if it is LABEL_0 and LABEL_1.

    Raises:
        BuildError: the ids are not 0, 1, 2 and so on, two labels are equal, or their number
            contradicts num_labels.
    """
    id2label = config.get("id2label")
    if id2label is None:
        count = config.get("num_labels", 2)
        id2label = {str(number): f"LABEL_{number}" for number in range(count)}
    remedy = f"Write id2label into {file}: the label's name by number, from 0 on."
    if not isinstance(id2label, dict) or not id2label:
        raise BuildError(
            f"{file}: id2label is {id2label!r:.80}, expected names by number", remedy=remedy
        )
    names = {str(key): str(name) for key, name in id2label.items()}
    expected_numbers = [str(number) for number in range(len(names))]
    if sorted(names) != sorted(expected_numbers):
        raise BuildError(
            f"{file}: id2label has the numbers {', '.join(sorted(names)):.120}, expected 0 to "
            f"{len(names) - 1}",
            remedy=remedy,
        )
    labels = tuple(names[number] for number in expected_numbers)
    duplicates = sorted({label for label in labels if labels.count(label) > 1})
    if duplicates:
        raise BuildError(f"{file}: id2label has {duplicates[0]!r} more than once", remedy=remedy)
    if config.get("num_labels", len(labels)) != len(labels):
        raise BuildError(
            f"{file}: num_labels is {config['num_labels']}, and id2label has {len(labels)} names",
            remedy=remedy,
        )
    return labels


def classifier_activation(file: Path, config: Mapping[str, Any], labels: tuple[str, ...]) -> str:
    """Return the activation that transformers' text-classification pipeline uses.

    Raises:
        BuildError: transformers does not have the problem_type.
    """
    kind = config.get("problem_type")
    if kind is None:
        return SIGMOID if len(labels) == 1 else SOFTMAX
    if kind not in _PROBLEM_TYPES:
        raise BuildError(
            f"{file}: problem_type is {kind!r}{did_you_mean(str(kind), _PROBLEM_TYPES)}",
            remedy=f"Set it to one of {', '.join(_PROBLEM_TYPES)}, as the model was trained.",
        )
    if kind == "single_label_classification" and len(labels) == 1:
        return SIGMOID  # the pipeline decides this before it reads problem_type
    return _PROBLEM_TYPES[kind]


def reranker_activation(
    folder: Path, config: Mapping[str, Any], model_config: Mapping[str, Any]
) -> str:
    """Return the activation that sentence-transformers' CrossEncoder uses for one score.

    Raises:
        BuildError: the activation is unknown.
    """
    file = folder / "config.json"
    section = config.get("sentence_transformers") or {}
    settings = (
        (folder / MODEL_CONFIG, "activation_fn", model_config.get("activation_fn")),
        (file, "sentence_transformers.activation_fn", section.get("activation_fn")),
        (file, _OLD_KEY, config.get(_OLD_KEY)),
    )
    for path, key, value in settings:
        if value is None:
            continue
        package, _, name = str(value).rpartition(".")
        if not package.startswith("torch.nn") or name not in _CLASSES:
            raise BuildError(
                f"{path}: {key} is {value}, which is not known{did_you_mean(name, _CLASSES)}",
                remedy=f"Use a cross-encoder with one of torch.nn's {', '.join(_CLASSES)}.",
            )
        return _CLASSES[name]
    return SIGMOID
