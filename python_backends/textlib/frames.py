# SPDX-License-Identifier: Apache-2.0
"""Length-prefixed messages over a socket, between a stub and a process of its own."""

import socket
import struct
from collections.abc import Iterator

_LENGTH = struct.Struct("<I")


def write_frame(peer: socket.socket, content: bytes) -> None:
    """Send one frame; a peer that is gone raises OSError and never a signal."""
    peer.sendall(framed(content), socket.MSG_NOSIGNAL)


def framed(content: bytes) -> bytes:
    """The bytes that carry it."""
    return _LENGTH.pack(len(content)) + content


class Frames:
    """Cuts what a socket gives, in whatever pieces, into frames."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The frames that this piece completes."""
        self._received += piece
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            frame = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            yield frame


def read_frame(peer: socket.socket) -> bytes | None:
    """The next frame, None when the peer has hung up."""
    head = _exactly(peer, _LENGTH.size)
    return None if head is None else _exactly(peer, _LENGTH.unpack(head)[0])


def _exactly(peer: socket.socket, count: int) -> bytes | None:
    received = bytearray()
    while len(received) < count:
        piece = peer.recv(count - len(received))
        if not piece:
            return None
        received += piece
    return bytes(received)
