# SPDX-License-Identifier: Apache-2.0
"""Backends and the files that they load: what Triton fills in for a configuration that is short.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md
https://github.com/triton-inference-server/backend/blob/main/README.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

# The platforms that may be given with a backend, or instead of it. Other backends take any.
PLATFORMS = {
    "tensorflow": ("tensorflow_savedmodel", "tensorflow_graphdef"),
    "tensorrt": ("tensorrt_plan",),
    "onnxruntime": ("onnxruntime_onnx",),
    "pytorch": ("pytorch_libtorch",),
}
# What Triton looks for where neither a backend nor a platform is named, in its order.
TELLING_FILES = {
    "model.savedmodel": "tensorflow",
    "model.graphdef": "tensorflow",
    "model.plan": "tensorrt",
    "model.onnx": "onnxruntime",
    "model.xml": "openvino",
    "model.pt": "pytorch",
    "model.py": "python",
}
# What a backend loads where `default_model_filename` does not say otherwise; any one of them.
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
# NVIDIA's own, and those that its documentation lists.
KNOWN = (
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

# What a shell interprets, in names and in paths that the Python backend gives to one.
SHELL = re.compile(r"""[\s;&|<>()"'`\\]""")
SHELL_IN_PATHS = re.compile(rf"{SHELL.pattern}|\$|^#")


def backend_of_files(message: Any, first_folder: Callable[[], Iterable[str]]) -> str | None:
    """What serves a model that names no backend; None if nothing tells.

    first_folder: what lies in the first of the model's folders.
    """
    for backend, platforms in PLATFORMS.items():
        if message.platform in platforms:
            return backend
    if message.platform or message.default_model_filename:
        return TELLING_FILES.get(message.default_model_filename)
    names = set(first_folder())
    return next((backend for name, backend in TELLING_FILES.items() if name in names), None)
