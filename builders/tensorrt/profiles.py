# SPDX-License-Identifier: Apache-2.0
"""Optimisation profiles: the shapes a plan is made for. Standard library only.

A plan answers shapes from min to max and is fastest at opt. Triton's batches go from one request to
max_batch_size, so every profile must.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from buildlib.problems import BuildError, nearest
from network import Network, NetworkTensor

_PARTS = ("min", "opt", "max")
# Tokens of the first profile of texts, and how much longer each next one's may be.
_SHORTEST, _MAGNITUDE = 32, 4


@dataclass(frozen=True)
class Shapes:
    """The shapes of one input in one profile, batch dimension first."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


Profile = dict[str, Shapes]


def resolve_profiles(
    network: Network, asked: Sequence[Mapping[str, Any]], max_batch_size: int
) -> list[Profile]:
    """Return complete, checked profiles.

    Inputs that are left out get the batch from 1 to `max_batch_size`, if nothing else is variable.

    Raises:
        BuildError: a profile is malformed, contradicts the network or leaves a dimension open.
    """
    profiles = [_profile(network, shapes, max_batch_size, f"engine.options.profiles[{number}]")
                for number, shapes in enumerate(asked or [{}])]  # fmt: skip
    for number, profile in enumerate(profiles):
        check_shared_batch(profile, f"engine.options.profiles[{number}]")
    return profiles


def token_profiles(
    names: Sequence[str], max_batch_size: int, longest: int, tokens: int
) -> list[dict[str, Any]]:
    """Profiles of a graph of texts, [batch, tokens] a row: one for each magnitude of their length.

    A plan is fastest at `opt`: as many rows of the profile's longest text as make up `tokens`. Each
    begins at one token, so that none is without one.
    """
    lengths = [_SHORTEST]
    while lengths[-1] < longest:
        lengths.append(min(lengths[-1] * _MAGNITUDE, longest))
    return [
        {
            name: {
                "min": [1, 1],
                "opt": [min(max_batch_size, max(1, tokens // length)), length],
                "max": [max_batch_size, length],
            }
            for name in names
        }
        for length in (min(length, longest) for length in lengths)
    ]


def _profile(
    network: Network, asked: Mapping[str, Any], max_batch_size: int, where: str
) -> Profile:
    known = {tensor.name: tensor for tensor in network.inputs}
    for name in asked:
        if name not in known:
            raise BuildError(
                f"{where}: the graph has no input {name!r}{nearest(name, known)}",
                remedy=f"Its inputs: {', '.join(known)}.",
            )
    profile = {}
    for name, tensor in known.items():
        if name in asked:
            shapes = read_shapes(asked[name], f"{where}.{name}")
            check_against_network(shapes, tensor, f"{where}.{name}")
        else:
            shapes = _batch_alone(tensor, max_batch_size, where)
        check_order(shapes, f"{where}.{name}")
        check_batch_range(shapes, max_batch_size, f"{where}.{name}")
        profile[name] = shapes
    return profile


def read_shapes(raw: Any, where: str) -> Shapes:
    """Return the shapes in `raw`. Raises BuildError where they are malformed."""
    example = "{min: [1, 8], opt: [8, 8], max: [32, 8]}"
    if not isinstance(raw, Mapping) or set(raw) != set(_PARTS):
        raise BuildError(
            f"{where} is {raw!r}: it needs min, opt and max", remedy=f"Write it as {example}."
        )
    for part in _PARTS:
        sizes = raw[part]
        whole = isinstance(sizes, Sequence) and not isinstance(sizes, str)
        if not whole or any(type(size) is not int or size < 1 for size in sizes):
            raise BuildError(
                f"{where}.{part} is {sizes!r}: it needs one size of at least 1 per dimension",
                remedy=f"Write it as {example}.",
            )
    return Shapes(*(tuple(raw[part]) for part in _PARTS))


def check_against_network(shapes: Shapes, tensor: NetworkTensor, where: str) -> None:
    """Raise BuildError where shapes have other dimensions than the graph's input."""
    for part in _PARTS:
        sizes = getattr(shapes, part)
        if len(sizes) != len(tensor.shape):
            raise BuildError(
                f"{where}.{part} has {len(sizes)} dimensions, and the input has "
                f"{len(tensor.shape)}: {list(tensor.shape)}",
                remedy="Give one size per dimension, the batch dimension first.",
            )
        for index, (size, fixed) in enumerate(zip(sizes, tensor.shape, strict=True)):
            if fixed not in (-1, size):
                raise BuildError(
                    f"{where}.{part} has {size} in dimension {index}, which the graph fixes at "
                    f"{fixed}",
                    remedy=f"Use {fixed} there, or export the graph with that dimension variable.",
                )


def _batch_alone(tensor: NetworkTensor, max_batch_size: int, where: str) -> Shapes:
    open_dimensions = [i for i, size in enumerate(tensor.shape) if i and size == -1]
    if open_dimensions:
        raise BuildError(
            f"{where}: the input {tensor.name} has the shape {list(tensor.shape)}, and no profile "
            f"says how large dimension {open_dimensions[0]} may be",
            remedy=f"Set engine.options.profiles: {{{tensor.name}: {{min: ..., opt: ..., "
            "max: ...}}.",
        )
    rest = tensor.shape[1:]
    return Shapes((1, *rest), (max_batch_size, *rest), (max_batch_size, *rest))


def check_order(shapes: Shapes, where: str) -> None:
    """Raise BuildError unless min <= opt <= max in every dimension."""
    sizes = zip(shapes.min, shapes.opt, shapes.max, strict=True)
    for index, (low, best, high) in enumerate(sizes):
        if not low <= best <= high:
            raise BuildError(
                f"{where}: dimension {index} has min {low}, opt {best}, max {high}: they must not "
                "fall",
                remedy="Order them: min <= opt <= max.",
            )


def check_batch_range(shapes: Shapes, max_batch_size: int, where: str) -> None:
    """Raise BuildError unless the profile takes every batch that Triton may form."""
    if shapes.min[0] != 1:
        raise BuildError(
            f"{where}: the smallest batch is {shapes.min[0]}, and Triton also sends one request "
            "alone",
            remedy="Set the first size of min to 1.",
        )
    if shapes.max[0] < max_batch_size:
        raise BuildError(
            f"{where}: the largest batch is {shapes.max[0]}, and engine.max_batch_size is "
            f"{max_batch_size}",
            remedy=f"Set the first size of max to {max_batch_size}, or lower max_batch_size.",
        )


def check_shared_batch(profile: Profile, where: str) -> None:
    """Raise BuildError unless all inputs have the same batches: a batch goes through all."""
    batches = {name: (s.min[0], s.opt[0], s.max[0]) for name, s in profile.items()}
    if len(set(batches.values())) > 1:
        listed = ", ".join(f"{name} {list(batch)}" for name, batch in batches.items())
        raise BuildError(
            f"{where}: the inputs do not share their batches (min, opt, max): {listed}",
            remedy="Give all inputs the same first sizes.",
        )
