# SPDX-License-Identifier: Apache-2.0
"""Write ONNX graphs without nodes, byte by byte, for examples about tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

FLOAT, INT32, INT64, STRING, BFLOAT16 = 1, 6, 7, 8, 16
TYPES = {"FLOAT": FLOAT, "INT32": INT32, "INT64": INT64, "STRING": STRING, "BFLOAT16": BFLOAT16}
_VARINT, _BYTES = 0, 2

# A tensor's element type and shape; a name stands for a variable size.
Value = tuple[int, Sequence[int | str]]
Values = Mapping[str, Value]

X: Values = {"x": (FLOAT, ["batch", 3])}
Y: Values = {"y": (FLOAT, ["batch", 3])}


def onnx_file(
    inputs: Values = X,
    outputs: Values = Y,
    *,
    defaults: Iterable[str] = (),
    sequences: Iterable[str] = (),
    external: Mapping[str, int] | None = None,
) -> bytes:
    """Return an ONNX graph without nodes.

    `defaults` names inputs with an initializer, `sequences` outputs that are not tensors, and
    `external` maps weight files to their lengths in bytes.
    """
    graph = b"".join(
        [
            *(_field(11, _value_info(name, *value)) for name, value in inputs.items()),
            *(_field(12, _value_info(name, *value)) for name, value in outputs.items()),
            *(_field(12, _text(1, name) + _field(2, _field(4, b""))) for name in sequences),
            *(_field(5, _number(2, FLOAT) + _text(8, name)) for name in defaults),
            *(_field(5, _weights(*weights_file)) for weights_file in (external or {}).items()),
        ]
    )
    return _number(1, 8) + _field(8, _number(2, 17)) + _field(7, graph)


def _weights(location: str, length: int) -> bytes:
    entry = _text(1, "location") + _text(2, location)
    size = _text(1, "length") + _text(2, str(length))
    return _number(2, FLOAT) + _text(8, "w") + _field(13, entry) + _field(13, size) + _number(14, 1)


def _value_info(name: str, kind: int, shape: Sequence[int | str]) -> bytes:
    dims = b"".join(
        _field(1, _number(1, size) if isinstance(size, int) else _text(2, size)) for size in shape
    )
    tensor = _number(1, kind) + _field(2, dims)
    return _text(1, name) + _field(2, _field(1, tensor))


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    value &= (1 << 64) - 1
    while value >> 7:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
