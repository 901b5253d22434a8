# SPDX-License-Identifier: Apache-2.0
"""What a model file says about its tensors, in any format."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

Shape = tuple[int | str, ...]

_MOST_DIGITS = 18
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class BrokenFileError(Exception):
    """The file is damaged. `args[0]` says how; no server could read it either."""


class UnjudgedError(Exception):
    """The file may be fine, but would take too long to read or has an unknown format."""


class GraphTensor(NamedTuple):
    """An input or output of a graph.

    names: all that it may be called by, the usual one first. dtype: Triton's type, "TYPE_FP32";
    None where Triton has none. kind: the file's name for the type, "bfloat16", "sequence". shape:
    sizes, or names of those that vary ("?" without a name); None where the file has no shape.
    """

    names: tuple[str, ...]
    dtype: str | None
    kind: str
    shape: Shape | None
    is_tensor: bool = True

    @property
    def name(self) -> str:
        """The usual name."""
        return self.names[0]

    @property
    def rank(self) -> int | None:
        """The number of dimensions."""
        return None if self.shape is None else len(self.shape)


class Weights(NamedTuple):
    """A file of weights that the graph refers to, and its least size in bytes."""

    location: str
    size: int = 0


class Graph(NamedTuple):
    """A model file. `broken`: why no server can read it; it has no tensors then.

    inputs: the inputs that a request must have; defaults: those with a default value. batched:
    whether the layouts of its tensors leave room for a batch; None where it has no such layouts.
    """

    path: Path
    format: str
    inputs: tuple[GraphTensor, ...] = ()
    defaults: tuple[GraphTensor, ...] = ()
    outputs: tuple[GraphTensor, ...] = ()
    weights: tuple[Weights, ...] = ()
    broken: str | None = None
    batched: bool | None = None

    @property
    def is_pointer(self) -> bool:
        """Whether the file is a Git LFS pointer."""
        return is_pointer(self.path)


def whole_number(text: str) -> int | None:
    """A whole number in decimal digits; None for anything else, or more than 18 digits."""
    digits = text.strip()
    fits = digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS
    return int(digits) if fits else None


def is_pointer(path: Path) -> bool:
    """Whether a file is a Git LFS pointer; False for one that cannot be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(LFS_POINTER)) == LFS_POINTER
    except OSError:
        return False


def shown(shape: Shape | tuple[int, ...]) -> str:
    """`[batch, 3, 224]`."""
    return f"[{', '.join(map(str, shape))}]"
