# SPDX-License-Identifier: Apache-2.0
"""Selects the files of a hub model that builders need. Standard library only."""

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import PurePosixPath

# Configuration, tokenizers and chat templates, in any folder (1_Pooling/config.json).
_SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_GRAPHS = ("*.onnx", "*.onnx_data*", "*.onnx.data*")
# Python pickles, which can run any code, and weights for frameworks that no builder uses.
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_SKIPPED_FOLDERS = ("openvino", "coreml", "original", "runs")


def required_files(names: Iterable[str]) -> list[str]:
    """Return the files of a model that builders need.

    Weights are the safetensors of the top folder. Without them they are ONNX graphs, of several
    variants `model.onnx` only. Mistral's `consolidated` duplicates the weights and is skipped.
    """
    paths = [PurePosixPath(name) for name in names]
    candidates = [
        path for path in paths if path.parts[0] not in _SKIPPED_FOLDERS and path.name[0] != "."
    ]
    small = [path for path in candidates if _matches(path, _SMALL)]
    return sorted({str(path) for path in (*small, *_weights(candidates))})


def has_weights(names: Iterable[str]) -> bool:
    """Whether the files include weights that a builder reads."""
    return any(_matches(PurePosixPath(name), ("*.safetensors", *_GRAPHS)) for name in names)


def _weights(paths: list[PurePosixPath]) -> list[PurePosixPath]:
    top = [path for path in paths if len(path.parts) == 1 and path.suffix == ".safetensors"]
    if top:
        return [path for path in top if not path.name.startswith("consolidated")] or top
    graphs = [path for path in paths if _matches(path, _GRAPHS)]
    return [path for path in graphs if path.name.startswith("model.onnx")] or graphs


def _matches(path: PurePosixPath, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in patterns)
