# SPDX-License-Identifier: Apache-2.0
"""The tensors of a model file, in any format."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

Shape = tuple[int | str, ...]

_MAX_DIGITS = 18
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class BrokenFileError(Exception):
    """The file is damaged, and no server can read it; the message says how."""


class UndecidedFileError(Exception):
    """The file may be valid, but takes too long to read or has an unknown format."""


class GraphTensor(NamedTuple):
    """An input or output of a graph."""

    names: tuple[str, ...]  # all valid names, the usual one first
    dtype: str | None  # Triton's type, "TYPE_FP32"; None if Triton has none
    kind: str  # the file's name of the type: "bfloat16", "sequence"
    # Sizes, or names of variable ones ("?" without a name); None if the file has no shape.
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


class ExternalWeights(NamedTuple):
    """A file of weights that the graph refers to."""

    location: str
    size: int = 0  # minimum size in bytes


class ModelGraph(NamedTuple):
    """A model file."""

    path: Path
    format: str
    inputs: tuple[GraphTensor, ...] = ()  # required in a request
    defaults: tuple[GraphTensor, ...] = ()  # inputs with a default value
    outputs: tuple[GraphTensor, ...] = ()
    weights: tuple[ExternalWeights, ...] = ()
    read_error: str | None = (
        None  # the reason if no server can read the file; it has no tensors then
    )
    # Whether the layouts of the inputs have a batch dimension; None without layouts.
    batched: bool | None = None

    def unbatched_reason(self) -> str | None:
        """Return why requests cannot share a run of the graph, or None if they can.

        They join along the first dimension of all inputs and outputs.
        """
        for tensor in (*self.inputs, *self.outputs):
            if tensor.shape == ():
                return f"{tensor.name} is a scalar"
            if tensor.shape and isinstance(tensor.shape[0], int):
                return f"the first dimension of {tensor.name} is fixed at {tensor.shape[0]}"
        names = {tensor.shape[0] for tensor in self.inputs if tensor.shape} - {"?"}
        if len(names) > 1:
            listed = ", ".join(sorted(map(str, names)))
            return f"the inputs have different first dimensions: {listed}"
        return None

    @property
    def is_pointer(self) -> bool:
        """Whether the file is a Git LFS pointer."""
        return is_lfs_pointer(self.path)


def whole_number(text: str) -> int | None:
    """Return a whole number of at most 18 decimal digits; None for anything else."""
    digits = text.strip()
    fits = digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS
    return int(digits) if fits else None


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file is a Git LFS pointer; False if it cannot be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(LFS_POINTER)) == LFS_POINTER
    except OSError:
        return False


def format_shape(shape: Shape | tuple[int, ...]) -> str:
    """Format a shape as `[batch, 3, 224]`."""
    return f"[{', '.join(map(str, shape))}]"
