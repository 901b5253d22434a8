# SPDX-License-Identifier: Apache-2.0
"""What a running Triton has said of itself, as plain data; `inspection` asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class IndexEntry:
    """A version of a model in Triton's repository index. `state`: "" for one never asked for."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True)
class TensorMetadata:
    """A tensor of a model's metadata, batch dimension first."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ServedModel:
    """A model that answers. `config`: a serialised ModelConfig, None where it cannot be had.

    streams: whether it is known to be decoupled, with any number of responses to a request.
    """

    name: str
    versions: tuple[str, ...]
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    config: bytes | None = None
    streams: bool = False


@dataclass(frozen=True)
class ServerDescription:
    """A server. `index`: None where it takes a token that we lack.

    unserved: Triton's words for models that were asked for and are not served. open_protocols: the
    protocols that answer a caller without a token. beyond_loopback: whether other machines reach
    the port, as far as this one knows.
    """

    url: str
    tls: bool
    version: str
    index: tuple[IndexEntry, ...] | None
    models: Mapping[str, ServedModel]
    unserved: Mapping[str, str] = field(default_factory=dict)
    open_protocols: frozenset[str] = frozenset()
    beyond_loopback: bool = False


def printable(text: str) -> str:
    """A server's text without control characters: on a terminal it must not act as commands."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
