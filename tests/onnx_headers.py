# SPDX-License-Identifier: Apache-2.0
"""ONNX files whose weights lie elsewhere, written byte by byte: graphs of any size in a few kB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FLOAT, INT8, INT64, STRING, FLOAT16 = 1, 3, 7, 8, 10

# An element type and a shape; a name is a size that varies.
Value = tuple[int, Sequence[int | str]]
Node = tuple[str, Sequence[str], Sequence[str]]


def onnx_bytes(
    inputs: Mapping[str, Value],
    outputs: Mapping[str, Value],
    nodes: Sequence[Node] = (),
    weights: Mapping[str, tuple[int, Sequence[int]]] | None = None,
    between: Mapping[str, Value] | None = None,
    inside: Mapping[str, bytes] | None = None,
) -> bytes:
    """A graph. `between`: tensors whose shape it tells; `inside`: raw data of those weights."""
    data = inside or {}
    graph = b"".join(
        [
            *(_field(1, _node(*node)) for node in nodes),
            *(_field(5, _tensor(n, *w, data.get(n, b""))) for n, w in (weights or {}).items()),
            *(_field(11, _value(name, *value)) for name, value in inputs.items()),
            *(_field(12, _value(name, *value)) for name, value in outputs.items()),
            *(_field(13, _value(name, *value)) for name, value in (between or {}).items()),
        ]
    )
    return _number(1, 10) + _field(7, graph)


def _node(operator: str, taken: Sequence[str], given: Sequence[str]) -> bytes:
    names = [*(_text(1, name) for name in taken), *(_text(2, name) for name in given)]
    return b"".join([*names, _text(4, operator)])


def _tensor(name: str, kind: int, shape: Sequence[int], data: bytes) -> bytes:
    dims = b"".join(_number(1, size) for size in shape)
    raw = _field(9, data) if data else _number(14, 1)
    return dims + _number(2, kind) + _text(8, name) + raw


def _value(name: str, kind: int, shape: Sequence[int | str]) -> bytes:
    dims = b"".join(
        _field(1, _number(1, size) if isinstance(size, int) else _text(2, size)) for size in shape
    )
    return _text(1, name) + _field(2, _field(1, _number(1, kind) + _field(2, dims)))


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    made = bytearray()
    while value >> 7:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])
