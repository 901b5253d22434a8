# SPDX-License-Identifier: Apache-2.0
"""Labels and the activation of scores, as config.json says them. Standard library only."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError, nearest
from taskcompile.prompts import FILE as MODEL_CONFIG

SOFTMAX, SIGMOID, NONE = "softmax", "sigmoid", "none"
# problem_type of transformers; the scores of a plain one are a distribution.
_PROBLEM_TYPES = {
    "regression": NONE,
    "multi_label_classification": SIGMOID,
    "single_label_classification": SOFTMAX,
}
# Of cross-encoders: classes of torch.nn, by sentence-transformers' dotted names.
_CLASSES = {"Sigmoid": SIGMOID, "Identity": NONE}
_OLD_KEY = "sbert_ce_default_activation_function"


def read_labels(file: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the scores, in the graph's order.

    transformers leaves id2label out where it is LABEL_0 and LABEL_1.

    Raises:
        BuildError: ids are not 0, 1, 2 and so on, two labels are alike, or the number contradicts
            num_labels.
    """
    given = config.get("id2label")
    if given is None:
        count = config.get("num_labels", 2)
        given = {str(number): f"LABEL_{number}" for number in range(count)}
    remedy = f"Write id2label into {file}: the label's name by number, from 0 on."
    if not isinstance(given, dict) or not given:
        raise BuildError(
            f"{file}: id2label is {given!r:.80}, expected names by number", remedy=remedy
        )
    names = {str(key): str(name) for key, name in given.items()}
    wanted = [str(number) for number in range(len(names))]
    if sorted(names) != sorted(wanted):
        raise BuildError(
            f"{file}: id2label has the numbers {', '.join(sorted(names)):.120}, expected 0 to "
            f"{len(names) - 1}",
            remedy=remedy,
        )
    labels = tuple(names[number] for number in wanted)
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise BuildError(f"{file}: id2label has {twice[0]!r} more than once", remedy=remedy)
    if config.get("num_labels", len(labels)) != len(labels):
        raise BuildError(
            f"{file}: num_labels is {config['num_labels']}, and id2label has {len(labels)} names",
            remedy=remedy,
        )
    return labels


def classifier_activation(file: Path, config: Mapping[str, Any], labels: tuple[str, ...]) -> str:
    """As transformers' text-classification pipeline does it.

    Raises:
        BuildError: a problem_type that transformers does not have.
    """
    kind = config.get("problem_type")
    if kind is None:
        return SIGMOID if len(labels) == 1 else SOFTMAX
    if kind not in _PROBLEM_TYPES:
        raise BuildError(
            f"{file}: problem_type is {kind!r}{nearest(str(kind), _PROBLEM_TYPES)}",
            remedy=f"Set it to one of {', '.join(_PROBLEM_TYPES)}, as the model was trained.",
        )
    if kind == "single_label_classification" and len(labels) == 1:
        return SIGMOID  # as the pipeline does, before it looks at this type
    return _PROBLEM_TYPES[kind]


def reranker_activation(
    folder: Path, config: Mapping[str, Any], model_config: Mapping[str, Any]
) -> str:
    """As sentence-transformers' CrossEncoder does it for one score.

    Raises:
        BuildError: an activation that is not known, with its name.
    """
    file = folder / "config.json"
    newer = config.get("sentence_transformers") or {}
    places = (
        (folder / MODEL_CONFIG, "activation_fn", model_config.get("activation_fn")),
        (file, "sentence_transformers.activation_fn", newer.get("activation_fn")),
        (file, _OLD_KEY, config.get(_OLD_KEY)),
    )
    for where, key, value in places:
        if value is None:
            continue
        package, _, name = str(value).rpartition(".")
        if not package.startswith("torch.nn") or name not in _CLASSES:
            raise BuildError(
                f"{where}: {key} is {value}, which is not known{nearest(name, _CLASSES)}",
                remedy=f"Use a cross-encoder with one of torch.nn's {', '.join(_CLASSES)}.",
            )
        return _CLASSES[name]
    return SIGMOID
