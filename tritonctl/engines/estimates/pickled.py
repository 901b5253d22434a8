# SPDX-License-Identifier: Apache-2.0
"""The tensors of a PyTorch file (`pytorch_model.bin`): names, types and shapes, no weights.

Since PyTorch 1.6 it is a ZIP archive with a pickled dictionary. Loading a pickle calls the
functions that it names; this reader accepts a handful of names and refuses all others.
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

# PyTorch's storage classes: safetensors' type name, and bytes per element.
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
# Names and shapes of a million tensors; the weights are records of their own.
_MAX_PICKLE_BYTES = 256 << 20
# What a damaged archive or pickle raises.
_READ_ERRORS = (
    *(OSError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError),
    *(EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, pickle.UnpicklingError),
)
TensorHeader = tuple[str, tuple[int, ...], int]  # type, shape, bytes


def read_pickled(file: Path) -> dict[str, TensorHeader]:
    """Return the tensors in a file. Raises ConfigurationError for another format."""
    try:
        with zipfile.ZipFile(file) as archive:
            (record,) = [e for e in archive.infolist() if e.filename.endswith("/data.pkl")]
            # PyTorch stores its records, so a compressed one is a bomb: 12 MB that become 12 GB.
            if record.compress_type != zipfile.ZIP_STORED or record.file_size > _MAX_PICKLE_BYTES:
                raise ValueError(f"{record.filename} is compressed or too long for PyTorch's")
            content = _Reader(io.BytesIO(archive.read(record))).load()
    except _READ_ERRORS as error:
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
        factories: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
        }
        if (module, name) not in factories:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return factories[module, name]

    def persistent_load(self, pid: Any) -> Any:
        return pid[1]  # ("storage", class, key, device, elements)


def _tensor(storage: tuple[str, int], _: int, shape: tuple[int, ...], *__: Any) -> TensorHeader:
    kind, size = storage
    return kind, shape, size * math.prod(shape)
