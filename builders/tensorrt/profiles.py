# SPDX-License-Identifier: Apache-2.0
"""Optimisation profiles: the shapes that a plan supports. Standard library only.

A plan takes shapes from min to max and is fastest at opt. Every profile must cover Triton's
batches, from one request to max_batch_size. With a max_batch_size of 0 there is no batch dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from buildlib.problems import BuildError, did_you_mean
from network import Network, NetworkTensor

_SHAPE_KEYS = ("min", "opt", "max")
# Tokens of the first text profile, and the factor from each profile to the next.
_FIRST_LENGTH, _LENGTH_FACTOR = 32, 4


@dataclass(frozen=True)
class ProfileShapes:
    """The shapes of one input in one profile, batch dimension first."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


Profile = dict[str, ProfileShapes]


def resolve_profiles(
    network: Network, requested: Sequence[Mapping[str, Any]], max_batch_size: int
) -> list[Profile]:
    """Return complete, checked profiles.

    A missing input gets batches from 1 to `max_batch_size` if its other dimensions are fixed.

    Raises:
        BuildError: a profile is malformed, contradicts the network or leaves a dimension open.
    """
    profiles = [
        _resolve_profile(network, shapes, max_batch_size, f"engine.options.profiles[{number}]")
        for number, shapes in enumerate(requested or [{}])
    ]
    for number, profile in enumerate(profiles if max_batch_size else ()):
        check_shared_batch(profile, f"engine.options.profiles[{number}]")
    return profiles


def token_profiles(
    names: Sequence[str], max_batch_size: int, max_length: int, target_tokens: int
) -> list[dict[str, Any]]:
    """Return profiles for texts, inputs [batch, tokens]: one per length, each 4 times the last.

    `opt` has as many rows of the profile's longest text as fit in `target_tokens`. Every profile
    starts at one token, so that any batch fits one.
    """
    lengths = [_FIRST_LENGTH]
    while lengths[-1] < max_length:
        lengths.append(min(lengths[-1] * _LENGTH_FACTOR, max_length))
    return [
        {
            name: {
                "min": [1, 1],
                "opt": [min(max_batch_size, max(1, target_tokens // length)), length],
                "max": [max_batch_size, length],
            }
            for name in names
        }
        for length in (min(length, max_length) for length in lengths)
    ]


def _resolve_profile(
    network: Network, requested: Mapping[str, Any], max_batch_size: int, location: str
) -> Profile:
    inputs = {tensor.name: tensor for tensor in network.inputs}
    for name in requested:
        if name not in inputs:
            raise BuildError(
                f"{location}: the graph has no input {name!r}{did_you_mean(name, inputs)}",
                remedy=f"Its inputs: {', '.join(inputs)}.",
            )
    profile = {}
    for name, tensor in inputs.items():
        if name in requested:
            shapes = read_shapes(requested[name], f"{location}.{name}")
            check_against_network(shapes, tensor, f"{location}.{name}")
        else:
            shapes = _default_shapes(tensor, max_batch_size, location)
        check_order(shapes, f"{location}.{name}")
        if max_batch_size:
            check_batch_range(shapes, max_batch_size, f"{location}.{name}")
        profile[name] = shapes
    return profile


def read_shapes(raw: Any, location: str) -> ProfileShapes:
    """Return the shapes in `raw`. Raises BuildError if they are malformed."""
    example = "{min: [1, 8], opt: [8, 8], max: [32, 8]}"
    if not isinstance(raw, Mapping) or set(raw) != set(_SHAPE_KEYS):
        raise BuildError(
            f"{location} is {raw!r}: it needs min, opt and max", remedy=f"Write it as {example}."
        )
    for part in _SHAPE_KEYS:
        sizes = raw[part]
        is_sequence = isinstance(sizes, Sequence) and not isinstance(sizes, str)
        if not is_sequence or any(type(size) is not int or size < 1 for size in sizes):
            raise BuildError(
                f"{location}.{part} is {sizes!r}: it needs one size of at least 1 per dimension",
                remedy=f"Write it as {example}.",
            )
    return ProfileShapes(*(tuple(raw[part]) for part in _SHAPE_KEYS))


def check_against_network(shapes: ProfileShapes, tensor: NetworkTensor, location: str) -> None:
    """Raise BuildError if shapes have other dimensions than the graph's input."""
    for part in _SHAPE_KEYS:
        sizes = getattr(shapes, part)
        if len(sizes) != len(tensor.shape):
            raise BuildError(
                f"{location}.{part} has {len(sizes)} dimensions, and the input has "
                f"{len(tensor.shape)}: {list(tensor.shape)}",
                remedy="Give one size per dimension, the batch dimension first.",
            )
        for index, (size, fixed) in enumerate(zip(sizes, tensor.shape, strict=True)):
            if fixed not in (-1, size):
                raise BuildError(
                    f"{location}.{part} has {size} in dimension {index}, which the graph fixes at "
                    f"{fixed}",
                    remedy=f"Use {fixed} there, or export the graph with that dimension variable.",
                )


def _default_shapes(tensor: NetworkTensor, max_batch_size: int, location: str) -> ProfileShapes:
    batch = [max_batch_size] if max_batch_size else []
    sizes = tensor.shape[len(batch) :]
    open_dimensions = [i for i, size in enumerate(sizes, start=len(batch)) if size == -1]
    if open_dimensions:
        raise BuildError(
            f"{location}: the input {tensor.name} has the shape {list(tensor.shape)}, and no "
            f"profile says how large dimension {open_dimensions[0]} may be",
            remedy=f"Set engine.options.profiles: {{{tensor.name}: {{min: ..., opt: ..., "
            "max: ...}}.",
        )
    largest = (*batch, *sizes)
    return ProfileShapes((*([1] * len(batch)), *sizes), largest, largest)


def check_order(shapes: ProfileShapes, location: str) -> None:
    """Raise BuildError unless min <= opt <= max in every dimension."""
    sizes = zip(shapes.min, shapes.opt, shapes.max, strict=True)
    for index, (low, best, high) in enumerate(sizes):
        if not low <= best <= high:
            raise BuildError(
                f"{location}: dimension {index} has min {low}, opt {best}, max {high}: they must "
                "not fall",
                remedy="Order them: min <= opt <= max.",
            )


def check_batch_range(shapes: ProfileShapes, max_batch_size: int, location: str) -> None:
    """Raise BuildError unless the profile takes every batch that Triton may form."""
    if shapes.min[0] != 1:
        raise BuildError(
            f"{location}: the smallest batch is {shapes.min[0]}, and Triton also sends one request "
            "alone",
            remedy="Set the first size of min to 1.",
        )
    if shapes.max[0] < max_batch_size:
        raise BuildError(
            f"{location}: the largest batch is {shapes.max[0]}, and engine.max_batch_size is "
            f"{max_batch_size}",
            remedy=f"Set the first size of max to {max_batch_size}, or lower max_batch_size.",
        )


def check_shared_batch(profile: Profile, location: str) -> None:
    """Raise BuildError unless all inputs have the same batches."""
    batches = {name: (s.min[0], s.opt[0], s.max[0]) for name, s in profile.items()}
    if len(set(batches.values())) > 1:
        listed = ", ".join(f"{name} {list(batch)}" for name, batch in batches.items())
        raise BuildError(
            f"{location}: the inputs do not share their batches (min, opt, max): {listed}",
            remedy="Give all inputs the same first sizes.",
        )
