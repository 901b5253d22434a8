# SPDX-License-Identifier: Apache-2.0
"""Backends and the files they load, and how Triton infers the backend of a model.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md
https://github.com/triton-inference-server/backend/blob/main/README.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

# The platforms accepted with or instead of a backend. Other backends accept any platform.
PLATFORMS = {
    "tensorflow": ("tensorflow_savedmodel", "tensorflow_graphdef"),
    "tensorrt": ("tensorrt_plan",),
    "onnxruntime": ("onnxruntime_onnx",),
    "pytorch": ("pytorch_libtorch",),
}
# Files from which Triton infers the backend without `backend` and `platform`, in its order.
BACKEND_BY_FILE = {
    "model.savedmodel": "tensorflow",
    "model.graphdef": "tensorflow",
    "model.plan": "tensorrt",
    "model.onnx": "onnxruntime",
    "model.xml": "openvino",
    "model.pt": "pytorch",
    "model.py": "python",
}
# Files that a backend loads without `default_model_filename`; any one of them.
DEFAULT_FILES = {
    "python": ("model.py",),
    "onnxruntime": ("model.onnx",),
    "tensorrt": ("model.plan",),
    "pytorch": ("model.pt",),
    "openvino": ("model.xml",),
    "tensorflow": ("model.savedmodel", "model.graphdef"),
    "vllm": ("model.json",),
    "dali": ("model.dali", "dali.py"),
}
# NVIDIA's backends and those that its documentation lists.
KNOWN_BACKENDS = (
    *DEFAULT_FILES,
    "armnn_tflite",
    "fastertransformer",
    "fil",
    "hugectr",
    "hps",
    "identity",
    "paddle",
    "repeat",
    "square",
    "stateful",
    "tensorrtllm",
    "torch_aoti",
)

# Characters that a shell interprets, in names and in paths that the Python backend passes to one.
SHELL = re.compile(r"""[\s;&|<>()"'`\\]""")
SHELL_IN_PATHS = re.compile(rf"{SHELL.pattern}|\$|^#")


def infer_backend(message: Any, first_folder: Callable[[], Iterable[str]]) -> str | None:
    """Return the backend of a model that names none; None if it cannot be inferred.

    The callable lists the first of the model's folders.
    """
    for backend, platforms in PLATFORMS.items():
        if message.platform in platforms:
            return backend
    if message.platform or message.default_model_filename:
        return BACKEND_BY_FILE.get(message.default_model_filename)
    names = set(first_folder())
    return next((backend for name, backend in BACKEND_BY_FILE.items() if name in names), None)
