# SPDX-License-Identifier: Apache-2.0
"""Which files of a hub's model builders need. Standard library only."""

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import PurePosixPath

# Configuration, tokenizers, chat templates: small, wherever they lie (1_Pooling/config.json).
_SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_GRAPHS = ("*.onnx", "*.onnx_data*", "*.onnx.data*")
# Weights as Python pickles, which can run any code, or for frameworks that no builder uses.
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NOT_OURS = ("openvino", "coreml", "original", "runs")


def needed(names: Iterable[str]) -> list[str]:
    """The files to download of those that a model has.

    Safetensors of the top folder; ONNX graphs where there are none, `model.onnx` alone where it
    has variants. Mistral's `consolidated` is the same weights once more.
    """
    paths = [PurePosixPath(name) for name in names]
    ours = [path for path in paths if path.parts[0] not in _NOT_OURS and path.name[0] != "."]
    small = [path for path in ours if _is_like(path, _SMALL)]
    return sorted({str(path) for path in (*small, *_weights(ours))})


def has_weights(names: Iterable[str]) -> bool:
    """Whether weights that a builder reads are among the files."""
    return any(_is_like(PurePosixPath(name), ("*.safetensors", *_GRAPHS)) for name in names)


def _weights(paths: list[PurePosixPath]) -> list[PurePosixPath]:
    top = [path for path in paths if len(path.parts) == 1 and path.suffix == ".safetensors"]
    if top:
        return [path for path in top if not path.name.startswith("consolidated")] or top
    graphs = [path for path in paths if _is_like(path, _GRAPHS)]
    return [path for path in graphs if path.name.startswith("model.onnx")] or graphs


def _is_like(path: PurePosixPath, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in patterns)
