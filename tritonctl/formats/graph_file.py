# SPDX-License-Identifier: Apache-2.0
"""What a model's own file says of its tensors, whatever its format."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

Shape = tuple[int | str, ...]

_DIGITS = 19
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class BrokenFileError(Exception):
    """The file is not of its format. `args[0]` says why; no server could read it either."""


class UnjudgedError(Exception):
    """The file may be fine, but is not worth the time it would take, or of a format unknown."""


class GraphTensor(NamedTuple):
    """An input or output of a graph.

    names: by any of which it may be called, the usual one first. dtype: Triton's, "TYPE_FP32";
    None where Triton has none. kind: the type as the file names it, "bfloat16", "sequence".
    shape: a size, or the name of one that varies ("?" without a name); None where it is absent.
    """

    names: tuple[str, ...]
    dtype: str | None
    kind: str
    shape: Shape | None
    is_tensor: bool = True

    @property
    def name(self) -> str:
        """Its usual name."""
        return self.names[0]

    @property
    def rank(self) -> int | None:
        """How many dimensions it has."""
        return None if self.shape is None else len(self.shape)


class Weights(NamedTuple):
    """A file of weights that the graph refers to, and how long it has to be at least."""

    location: str
    size: int = 0


class Graph(NamedTuple):
    """A model file. Without tensors, `broken` says why no server can read it.

    inputs: those that a request must have; defaults: those that have a value without it.
    """

    path: Path
    format: str
    inputs: tuple[GraphTensor, ...] = ()
    defaults: tuple[GraphTensor, ...] = ()
    outputs: tuple[GraphTensor, ...] = ()
    weights: tuple[Weights, ...] = ()
    broken: str | None = None

    @property
    def is_pointer(self) -> bool:
        """Whether the file is what Git has in place of a large one."""
        return is_pointer(self.path)


def decimal(text: str) -> int | None:
    """A number as a file writes it; None where it is none of 63 bits."""
    digits = text.strip()
    fits = digits.isascii() and digits.isdecimal() and len(digits) < _DIGITS
    return int(digits) if fits else None


def is_pointer(path: Path) -> bool:
    """Whether a file is a Git LFS pointer. False where it cannot be read."""
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
