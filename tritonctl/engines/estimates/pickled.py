# SPDX-License-Identifier: Apache-2.0
"""The tensors of a PyTorch file (`pytorch_model.bin`): names, types and shapes, no weights.

Since PyTorch 1.6 it is a ZIP archive with a pickle of a dictionary. Loading a pickle runs what it
names; this reader knows a handful of names, makes records of them, and refuses all others.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError

# PyTorch's storage classes, in the words of safetensors, and bytes an element.
_STORAGES = {
    "DoubleStorage": ("F64", 8),
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}
Described = tuple[str, tuple[int, ...], int]  # type, shape, bytes


def read_pickled(file: Path) -> dict[str, Described]:
    """The tensors in a file. Raises ConfigurationError when it is not what PyTorch writes."""
    try:
        with zipfile.ZipFile(file) as archive:
            (record,) = [n for n in archive.namelist() if n.endswith("/data.pkl")]
            content = _Reader(io.BytesIO(archive.read(record))).load()
    except (OSError, ValueError, zipfile.BadZipFile, pickle.UnpicklingError, EOFError) as error:
        raise ConfigurationError(
            f"{file}: the shapes of its tensors cannot be read ({error})",
            remedy="save the model as safetensors: model.save_pretrained(FOLDER)",
        ) from error
    items = content.items() if isinstance(content, Mapping) else ()
    return {str(name): value for name, value in items if isinstance(value, tuple)}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return known[module, name]

    def persistent_load(self, pid: Any) -> Any:
        return pid[1]  # ("storage", class, key, device, elements)


def _tensor(storage: tuple[str, int], _: int, shape: tuple[int, ...], *__: Any) -> Described:
    kind, size = storage
    return kind, shape, size * math.prod(shape)
