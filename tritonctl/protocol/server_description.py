# SPDX-License-Identifier: Apache-2.0
"""The description of a running Triton as plain data; `inspection` collects it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class IndexEntry:
    """A version of a model in Triton's repository index."""

    name: str
    version: str
    state: str  # "" if it was never loaded
    reason: str


@dataclass(frozen=True)
class TensorMetadata:
    """A tensor of a model's metadata, batch dimension first."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ServedModel:
    """A model that answers."""

    name: str
    versions: tuple[str, ...]
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    config: bytes | None = None  # a serialised ModelConfig; None if unavailable
    streams: bool = False  # known to be decoupled: any number of responses to a request


@dataclass(frozen=True)
class ServerDescription:
    """A server and its models."""

    url: str
    tls: bool
    version: str
    index: tuple[IndexEntry, ...] | None  # None: requires a token that we do not have
    models: Mapping[str, ServedModel]
    # Triton's messages about requested models that are not deployed.
    unserved: Mapping[str, str] = field(default_factory=dict)
    unrestricted_api_groups: frozenset[str] = frozenset()  # answer without a token
    beyond_loopback: bool = False  # whether other machines can reach the port, if known here


def printable(text: str) -> str:
    """Replace control characters in a server's text, so that a terminal does not obey them."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
